"""The wire contract of the REST API, version 1: one source for the daemon and for the SDK.

Times are RFC 3339 UTC, durations are seconds and their names end in ``_s``; ids are opaque strings.
Requests refuse unknown fields and wrong types; answers ignore unknown fields, so that an older SDK can read a newer
daemon.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

VERSION_HEADER = "Cornerman-Version"
IDEMPOTENCY_HEADER = "Idempotency-Key"
MAX_BODY_BYTES = 64 * 1024
MAX_LABELS = 64
MIN_TTL_S, DEFAULT_TTL_S, MAX_TTL_S = 10.0, 120.0, 3600.0
MAX_WAIT_S = 30.0

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(max_length=255)]
Note = Annotated[str, StringConstraints(max_length=1000)]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500)]
PrincipalName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


class Request(BaseModel):
    """What a caller sends: nothing unknown, nothing coerced."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """What the daemon answers."""

    model_config = ConfigDict(extra="ignore")


class EngineState(str, Enum):
    """Where an engine is in its life."""

    STARTING = "starting"  # its container is being made, or is not answering yet
    READY = "ready"  # answers, and belongs to nobody
    LEASED = "leased"  # belongs to one slot of one active lease
    RETIRING = "retiring"  # is being removed in good order
    FAILED = "failed"  # died or never came up, and is being removed
    GONE = "gone"  # nothing of it is left on the engine host


class LeaseState(str, Enum):
    """Where a lease is in its life."""

    PENDING = "pending"  # waits for engines
    ACTIVE = "active"  # holds its engines
    RELEASED = "released"  # given back by its holder or an admin
    EXPIRED = "expired"  # not renewed in time, or at its longest allowed life
    FAILED = "failed"  # its pool could not keep it supplied


ENDED_LEASE_STATES = frozenset({LeaseState.RELEASED, LeaseState.EXPIRED, LeaseState.FAILED})


class EnvState(str, Enum):
    """Whether a slot of a lease has an engine."""

    READY = "ready"
    REPLACING = "replacing"  # its engine is gone; a fresh one comes under the same rank


class Scope(str, Enum):
    """What a token may do: each one includes those below it."""

    ADMIN = "admin"
    LEASE = "lease"
    READ = "read"


# ---------------------------------------------------------------- requests


class LeaseRequest(Request):
    """Body of ``POST /v1/leases``: asks for ``envs`` engines, all or nothing."""

    envs: int = Field(ge=1, le=10_000)
    pool: PoolName | None = None
    ttl_s: float = Field(default=DEFAULT_TTL_S, ge=MIN_TTL_S, le=MAX_TTL_S)
    wait: bool = False
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)
    note: Note = ""


class ReplaceRequest(Request):
    """Body of ``POST /v1/leases/{id}/envs/{rank}/replace``: the engine of this generation is broken."""

    generation: int = Field(ge=1)
    reason: Reason


class PoolPatch(Request):
    """Body of ``PATCH /v1/pools/{name}``: what is absent stays as it is."""

    min_ready: int | None = Field(default=None, ge=0, le=10_000)
    max_engines: int | None = Field(default=None, ge=1, le=10_000)
    image: str | None = Field(default=None, min_length=1, max_length=512)
    paused: bool | None = None


class TokenRequest(Request):
    """Body of ``POST /v1/tokens``: a new token for ``principal``, who is made if need be."""

    principal: PrincipalName
    scope: Annotated[Scope, Field(strict=False)] = Scope.LEASE
    note: Note = ""
    max_engines: int | None = Field(default=None, ge=0, le=10_000)
    max_pending: int | None = Field(default=None, ge=0, le=10_000)


# ---------------------------------------------------------------- answers


class Env(Answer):
    """One slot of a lease: ``address`` is ``host:port`` of its engine, None while it is being replaced."""

    rank: int
    engine_id: str | None
    generation: int
    state: EnvState
    address: str | None


class Relay(Answer):
    """Where the encrypted data plane of a lease is; the token opens this lease's lanes and nothing else."""

    url: str
    token: str = Field(repr=False)


class Lease(Answer):
    """A lease as it is now; ``version`` rises at every change that its holder should see."""

    id: str
    state: LeaseState
    pool: str
    holder: str
    labels: dict[str, str]
    note: str
    envs_wanted: int
    created_at: AwareDatetime
    expires_at: AwareDatetime | None
    ttl_s: float
    queue_position: int | None  # 1 is next; None unless pending
    ended_because: str | None
    idle_release_at: AwareDatetime | None = None  # announced: it ends then, unless one of its engines is used before
    version: int
    relay: Relay | None = None
    envs: list[Env]


class LeaseList(Answer):
    """Answer of ``GET /v1/leases``, newest first."""

    leases: list[Lease]


class LaneStats(Answer):
    """What the relay has carried between a leased engine's slot and its client since the lease began."""

    steps: int
    steps_per_s: float  # lately
    raw_bytes: int
    wire_bytes: int
    ratio: float | None  # raw to wire; None before there was anything
    engine_s: float  # spent in engines
    queue_s: float  # spent in the relay


class Engine(Answer):
    """An engine as it is now; CPU is in percent of one core, None where the engine host does not say."""

    id: str
    pool: str
    state: EngineState
    since: AwareDatetime
    reason: str | None
    lease_id: str | None
    rank: int | None
    host: str
    port: int
    container: str | None
    image: str
    uses: int
    created_at: AwareDatetime
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    lane: LaneStats | None = None  # of a leased engine whose calls go through the relay


class EngineList(Answer):
    """Answer of ``GET /v1/engines``."""

    engines: list[Engine]


class EngineLogs(Answer):
    """Answer of ``GET /v1/engines/{id}/logs``: the last lines, oldest first."""

    engine_id: str
    lines: list[str]


class Pool(Answer):
    """A pool: what is wanted, what is there, and what is wrong with it, in words."""

    name: str
    runtime: str
    image: str
    pinned: str | None = None  # what engines are started from; None until the image was looked up
    upgrading: bool = False  # the image is being looked up or fetched; until then engines are started from ``pinned``
    image_fault: str | None = None  # why that failed, in words; it is tried again
    outdated: int = 0  # engines that are starting or ready from something else than ``pinned``
    outdated_leased: int = 0  # the same of leased ones: they go with their leases
    allowed_images: list[str]
    expose: str
    min_ready: int
    max_engines: int
    paused: bool
    degraded: bool
    fault: str | None
    fault_at: AwareDatetime | None
    counts: dict[EngineState, int]
    wanted: int
    pending_leases: int
    active_leases: int


class PoolList(Answer):
    """Answer of ``GET /v1/pools``."""

    pools: list[Pool]


class IdleStop(Answer):
    """Of a host that nobody uses: since when, and when it stops unless somebody leases before."""

    since: AwareDatetime
    stops_at: AwareDatetime
    announced: bool  # there is an event of it, and it stops within minutes


class HostStatus(Answer):
    """Answer of ``GET /v1/status``: the host as a whole."""

    version: str
    now: AwareDatetime
    fault: str | None  # of the engine host, in words
    pending_leases: int
    active_leases: int
    idle_after_s: float | None  # None: it never stops by itself
    idle_stop: IdleStop | None  # None while it is used, or never stops


class Event(Answer):
    """One line of the event log; ``seq`` rises without end and never repeats."""

    seq: int
    at: AwareDatetime
    kind: str  # e.g. "engine.ready", "lease.granted"
    text: str
    pool: str | None = None
    engine_id: str | None = None
    lease_id: str | None = None
    actor: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class EventList(Answer):
    """Answer of ``GET /v1/events``: ``next`` is what to pass as ``after`` to go on."""

    events: list[Event]
    next: int


class Token(Answer):
    """A token without its value."""

    id: str
    principal: str
    scope: Scope
    note: str
    created_at: AwareDatetime
    last_used_at: AwareDatetime | None


class NewToken(Token):
    """A token just made: its value is shown this once."""

    token: str


class TokenList(Answer):
    """Answer of ``GET /v1/tokens``."""

    tokens: list[Token]


class WhoAmI(Answer):
    """Who the token is, what it may use and what of it is in use; a quota of None is no limit."""

    principal: str
    scope: Scope
    max_engines: int | None
    max_pending: int | None
    engines_in_use: int
    pending_leases: int


class Health(Answer):
    """Answer of ``/healthz`` and ``/readyz``: yes or no, with a reason slug."""

    ok: bool
    reason: str


class Problem(Answer):
    """Every error, as RFC 9457 has it: ``detail`` says what happened and what to do next."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[dict[str, Any]] | None = None  # for 422: where in the body or query
