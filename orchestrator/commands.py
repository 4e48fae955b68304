"""What the planner may decide, in the imperative. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResolveImage:
    """Find out which immutable image the pool's image is now."""

    pool: str


@dataclass(frozen=True, slots=True)
class CallWell:
    """A pool that could not start engines has all it wants."""

    pool: str


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Write the intent to start one more engine."""

    pool: str


@dataclass(frozen=True, slots=True)
class LaunchEngine:
    """Carry out, or go on with, the start that was intended."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class ProbeEngines:
    """Ask ready engines of a pool whether they still answer."""

    pool: str
    engine_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RetireEngine:
    """Take an engine out of service that is ready, or not even that yet."""

    engine_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailEngine:
    """An engine that was up is said to be dead."""

    engine_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUpStart:
    """A start is stuck beyond its deadline."""

    engine_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveEngine:
    """Remove what is left of an engine from its host."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class RemoveStray:
    """Remove something that carries our label and that the store does not know."""

    runtime: str
    handle: str
    name: str


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Give the lease at the head of the queue its engines."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class FillSlot:
    """Put a ready engine into an empty slot."""

    lease_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class ExpireLease:
    """End a lease that was not renewed, or has lived as long as it may."""

    lease_id: str
    because: str


@dataclass(frozen=True, slots=True)
class WarnIdle:
    """Tell a lease's holder that it ends at ``ends_at``, because none of its engines is used."""

    lease_id: str
    ends_at: float


@dataclass(frozen=True, slots=True)
class FailLease:
    """End a lease that its pool cannot keep supplied."""

    lease_id: str
    because: str


Command = (
    ResolveImage
    | CallWell
    | StartEngine
    | LaunchEngine
    | ProbeEngines
    | RetireEngine
    | FailEngine
    | GiveUpStart
    | RemoveEngine
    | RemoveStray
    | GrantLease
    | FillSlot
    | ExpireLease
    | WarnIdle
    | FailLease
)
