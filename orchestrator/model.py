"""What the daemon thinks about: engines, leases, slots and pools, and how an engine's state may change. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from client_sdk.models import ENDED_LEASE_STATES, EngineState, LeaseState, Scope
from orchestrator.errors import InvalidTransition

__all__ = ["ENDED_LEASE_STATES", "EngineState", "LeaseState", "Scope"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says of a pool and no caller can change while it runs."""

    runtime: str
    expose: str  # "local" or "direct"
    host: str  # address its engines listen on
    advertise: str  # address its clients reach them by
    max_starting: int
    start_timeout_s: float
    probe_interval_s: float
    probe_timeout_s: float
    probe_failures: int
    reuse: bool
    max_uses: int
    max_age_s: float | None
    max_lease_s: float | None
    allowed_images: tuple[str, ...]
    idle_release_s: float | None = None  # a lease that the relay has seen ends after so long without a call


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool's settings as they are now, and what is wrong with it."""

    name: str
    policy: Policy
    min_ready: int
    max_engines: int
    image: str
    pinned: str | None = None  # what the image resolved to
    paused: bool = False
    fail_streak: int = 0
    retry_at: float = 0.0
    fault: str | None = None
    fault_at: float | None = None
    repin: int = 0  # LOOK_UP or FETCH: until that is done engines are started from what is pinned
    repin_fault: str | None = None  # why it could not be done
    repin_retry_at: float = 0.0


LOOK_UP, FETCH = 1, 2
"""What is to be done with a pool's image: find out what its name means, or also fetch it anew from where it came."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, from the intent to start it until nothing is left of it."""

    id: str
    pool: str
    runtime: str
    state: EngineState
    state_since: float
    name: str
    image: str
    host: str
    port: int
    created_at: float
    handle: str | None = None
    started_at: float | None = None
    ready_at: float | None = None
    lease_id: str | None = None
    rank: int | None = None
    uses: int = 0
    draining: bool = False
    reason: str | None = None
    probe_failures: int = 0
    probed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Place ``rank`` of a lease; ``generation`` rises at every engine that steps into it."""

    lease_id: str
    rank: int
    generation: int = 0
    empty_since: float | None = None
    lost: tuple[float, ...] = ()  # when its engines were lost, newest last; none before one that had proved itself
    lost_because: str | None = None  # why the last one was
    steps_when_lost: int = 0  # what its lane had made by then


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds, or waits for, how many engines, and until when."""

    id: str
    seq: int
    state: LeaseState
    pool: str
    holder: str
    envs_wanted: int
    ttl_s: float
    created_at: float
    expires_at: float
    labels: dict[str, str] = field(default_factory=dict)
    note: str = ""
    granted_at: float | None = None
    ended_at: float | None = None
    ended_because: str | None = None
    version: int = 1
    last_call_at: float | None = (
        None  # as the relay saw it, its first connection counted in; None: it never saw the lease
    )
    idle_release_at: float | None = None  # it was announced that it ends then, unless it is used before

    @property
    def ended(self) -> bool:
        """True when nothing can happen to it any more."""
        return self.state in ENDED_LEASE_STATES


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a principal, by one of its tokens."""

    principal: str
    scope: Scope
    token_id: str = ""
    max_engines: int | None = None
    max_pending: int | None = None

    @property
    def is_admin(self) -> bool:
        """True when everybody's leases are theirs to see and end."""
        return self.scope is Scope.ADMIN


# ---------------------------------------------------------------- what can happen to an engine


@dataclass(frozen=True, slots=True)
class ProbePassed:
    """It answered for the first time."""


@dataclass(frozen=True, slots=True)
class Granted:
    """It stepped into a slot of a lease."""

    lease_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class Returned:
    """Its lease ended, and the pool's policy lets it serve another."""


@dataclass(frozen=True, slots=True)
class Retired:
    """It is to go, in good order."""

    reason: str


@dataclass(frozen=True, slots=True)
class Died:
    """It ended by itself, never came up, or was found broken."""

    reason: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Nothing of it is left on the engine host."""


Happening = ProbePassed | Granted | Returned | Retired | Died | Removed

_LIVE = frozenset({EngineState.STARTING, EngineState.READY, EngineState.LEASED})


def transition(engine: Engine, event: Happening, now: float) -> Engine:
    """The engine after ``event``; InvalidTransition when that cannot happen in its state.

    To get rid of an engine is legal in every state: of one that is going already it changes nothing.
    """

    def to(state: EngineState, **changes: object) -> Engine:
        return replace(engine, state=state, state_since=now, **changes)  # type: ignore[arg-type]

    match engine.state, event:
        case EngineState.STARTING, ProbePassed():
            return to(EngineState.READY, ready_at=now, probed_at=now)
        case EngineState.READY, Granted(lease_id, rank):
            return to(EngineState.LEASED, lease_id=lease_id, rank=rank, uses=engine.uses + 1)
        case EngineState.LEASED, Returned():
            return to(EngineState.READY, lease_id=None, rank=None, ready_at=now, probed_at=None)
        case state, Retired(reason) if state in _LIVE:
            return to(EngineState.RETIRING, lease_id=None, rank=None, reason=reason)
        case state, Died(reason) if state in _LIVE:
            return to(EngineState.FAILED, lease_id=None, rank=None, reason=reason)
        case state, (Retired() | Died()) if state not in _LIVE:
            return engine
        case ((EngineState.RETIRING | EngineState.FAILED), Removed()):
            return to(EngineState.GONE)
        case _:
            raise InvalidTransition(engine.state, event)
