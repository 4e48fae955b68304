"""What to do next: a snapshot and a time in, commands out. No I/O, no clock, no logging.

``plan`` looks at what was decided (the store); ``reconcile`` compares it with what is there (the engine host).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.interfaces import Seen
from orchestrator.model import Engine, EngineState, Lease, LeaseState, Pool, Slot

MAX_LOSSES, LOSSES_WITHIN_S = 5, 600.0
"""A slot that loses more engines than this in that time fails its lease: a bad ROM must not eat every spare."""
START_GRACE_S = 60.0
"""Beyond a pool's start timeout, which the starting thread itself watches: catches a start whose thread is stuck."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that planning needs: pools, engines that are not gone, live leases, empty slots, and work under way."""

    pools: tuple[Pool, ...]
    engines: tuple[Engine, ...] = ()
    leases: tuple[Lease, ...] = ()  # pending and active, in order of arrival
    empty_slots: tuple[Slot, ...] = ()
    busy: Mapping[str, str] = field(default_factory=dict)  # engine id or "pool:NAME" -> what is being done to it
    max_removing: int = 8


# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class ResolveImage:
    """Find out which immutable image the pool's image is now."""

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
class ProbeEngine:
    """Ask a ready engine whether it still answers."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class RetireEngine:
    """Take a ready engine out of service."""

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
class FailLease:
    """End a lease that its pool cannot keep supplied."""

    lease_id: str
    because: str


Command = (
    ResolveImage
    | StartEngine
    | LaunchEngine
    | ProbeEngine
    | RetireEngine
    | FailEngine
    | GiveUpStart
    | RemoveEngine
    | RemoveStray
    | GrantLease
    | FillSlot
    | ExpireLease
    | FailLease
)


def wanted(pool: Pool, *, leased: int, demand: int) -> int:
    """How many engines a pool should have: what is in use and asked for, and a reserve, up to its maximum."""
    return min(pool.max_engines, leased + demand + (0 if pool.paused else pool.min_ready))


def plan(snapshot: Snapshot, now: float) -> list[Command]:
    """The commands that bring the pools nearer to what is wanted, in the order to carry them out."""
    engines, leases, slots = defaultdict(list), defaultdict(list), defaultdict(list)
    pool_of = {lease.id: lease.pool for lease in snapshot.leases}
    for engine in snapshot.engines:
        engines[engine.pool].append(engine)
    for lease in snapshot.leases:
        leases[lease.pool].append(lease)
    for slot in snapshot.empty_slots:
        if slot.lease_id in pool_of:
            slots[pool_of[slot.lease_id]].append(slot)
    commands: list[Command] = []
    removing = sum(1 for what in snapshot.busy.values() if what == "remove")
    for pool in snapshot.pools:
        view = _View(pool, engines[pool.name], leases[pool.name], slots[pool.name], snapshot.busy)
        ends = _ends(view, now)
        ended = {command.lease_id for command in ends}
        commands += ends
        spare = _ready(view)
        commands += _supply(view, ended, len(spare))
        commands += _renewal(view, ended, spare, now)
        commands += _starts(view, ended, now)
        commands += _overdue(view, now)
        removals = _removals(view)[: max(0, snapshot.max_removing - removing)]
        removing += len(removals)
        commands += removals
    return commands


@dataclass(frozen=True, slots=True)
class _View:
    """One pool's part of the snapshot."""

    pool: Pool
    engines: list[Engine]
    leases: list[Lease]
    slots: list[Slot]
    busy: Mapping[str, str]

    def pending(self, ended: Collection[str]) -> list[Lease]:
        return [lease for lease in self.leases if lease.state is LeaseState.PENDING and lease.id not in ended]

    def holes(self, ended: Collection[str]) -> list[Slot]:
        live = [slot for slot in self.slots if slot.lease_id not in ended]
        return sorted(live, key=lambda slot: (slot.empty_since or 0.0, slot.lease_id, slot.rank))

    def demand(self, ended: Collection[str]) -> int:
        """Engines asked for and not held; a paused pool still replaces what running leases lost."""
        queued = 0 if self.pool.paused else sum(lease.envs_wanted for lease in self.pending(ended))
        return queued + len(self.holes(ended))


def _ready(view: _View) -> list[Engine]:
    return [engine for engine in view.engines if engine.state is EngineState.READY and not engine.draining]


def _ends(view: _View, now: float) -> list[ExpireLease | FailLease]:
    ends: list[ExpireLease | FailLease] = []
    longest = view.pool.policy.max_lease_s
    for lease in view.leases:
        if lease.expires_at <= now:
            what = (
                "nobody renewed it"
                if lease.state is LeaseState.ACTIVE
                else "nobody asked for it any more while it waited"
            )
            ends.append(ExpireLease(lease.id, f"{what} for {lease.ttl_s:g} s"))
        elif longest is not None and lease.granted_at is not None and lease.granted_at + longest <= now:
            ends.append(
                ExpireLease(lease.id, f"it reached the longest time a lease may last in this pool, {longest:g} s")
            )
    over = {end.lease_id for end in ends}
    for slot in view.slots:
        recent = sum(1 for at in slot.lost if at > now - LOSSES_WITHIN_S)
        if recent > MAX_LOSSES and slot.lease_id not in over:
            over.add(slot.lease_id)
            fault = f" The last fault: {view.pool.fault}" if view.pool.fault else ""
            ends.append(FailLease(slot.lease_id, f"rank {slot.rank} lost {recent} engines within 10 minutes.{fault}"))
    return ends


def _supply(view: _View, ended: Collection[str], available: int) -> list[FillSlot | GrantLease]:
    """Ready engines go into empty slots first, then to the head of the queue; nobody overtakes the head."""
    commands: list[FillSlot | GrantLease] = []
    for slot in view.holes(ended)[:available]:
        commands.append(FillSlot(slot.lease_id, slot.rank))
        available -= 1
    if view.pool.paused:
        return commands
    for lease in view.pending(ended):
        if lease.envs_wanted > available:
            break
        commands.append(GrantLease(lease.id))
        available -= lease.envs_wanted
    return commands


def _is_stale(engine: Engine, pool: Pool, now: float) -> str | None:
    """Why an idle engine should give way to a fresh one, or None."""
    if pool.pinned is not None and engine.image != pool.pinned:
        return "the pool's image has changed"
    age = pool.policy.max_age_s
    if age is not None and now - engine.created_at > age:
        return f"it is older than max_age_s ({age:g} s)"
    return None


def _renewal(view: _View, ended: Collection[str], spare: list[Engine], now: float) -> list[Command]:
    """Retire idle engines that are stale, or more than anybody wants, while min_ready holds; probe the others now and then."""
    pool, commands = view.pool, list[Command]()
    commands += [
        RetireEngine(engine.id, engine.reason or "an administrator retired it")
        for engine in view.engines
        if engine.state is EngineState.READY and engine.draining
    ]
    idle = len(spare) - view.demand(ended)  # after the supply above
    needed = 0 if pool.paused else pool.min_ready
    stale = [(engine, why) for engine in spare if (why := _is_stale(engine, pool, now))]
    full = len(view.engines) >= pool.max_engines  # no room to start a fresh one first
    allowed = idle - needed
    if stale and allowed <= 0 < idle and full and pool.retry_at <= now and pool.fail_streak == 0:
        going = any(engine.state in (EngineState.RETIRING, EngineState.STARTING) for engine in view.engines)
        allowed = 0 if going else 1
    retired = set()
    for engine, why in stale[: max(0, allowed)]:
        commands.append(RetireEngine(engine.id, why))
        retired.add(engine.id)
    surplus = idle - len(retired) - needed - (len(stale) - len(retired))
    for engine in sorted(spare, key=lambda e: e.ready_at or 0.0):
        if surplus <= 0:
            break
        if engine.id not in retired:
            commands.append(RetireEngine(engine.id, "more engines are ready than the pool wants"))
            retired.add(engine.id)
            surplus -= 1
    policy = pool.policy
    for engine in spare:
        every = policy.probe_interval_s if engine.probe_failures == 0 else min(policy.probe_interval_s, 5.0)
        due = engine.probed_at is None or now - engine.probed_at >= every
        if due and engine.id not in retired and engine.id not in view.busy:
            commands.append(ProbeEngine(engine.id))
    return commands


def _starts(view: _View, ended: Collection[str], now: float) -> list[Command]:
    """Intend as many starts as are wanted, as there is room for, and as may be under way at once."""
    pool = view.pool
    states = Counter(engine.state for engine in view.engines)
    commands: list[Command] = [
        LaunchEngine(engine.id)
        for engine in view.engines
        if engine.state is EngineState.STARTING and engine.id not in view.busy
    ]
    if pool.retry_at > now:
        return commands
    fresh = sum(
        1
        for engine in view.engines
        if engine.state in (EngineState.STARTING, EngineState.READY)
        and not engine.draining
        and not _is_stale(engine, pool, now)
    )
    leaving = sum(1 for engine in view.engines if engine.state is EngineState.LEASED and engine.lease_id in ended)
    leased = states[EngineState.LEASED] - leaving
    missing = wanted(pool, leased=leased, demand=view.demand(ended)) - leased - fresh
    room = pool.max_engines - len(view.engines)
    at_once = (1 if pool.fail_streak else pool.policy.max_starting) - states[EngineState.STARTING]
    if pool.pinned is None:
        return commands if f"pool:{pool.name}" in view.busy else [*commands, ResolveImage(pool.name)]
    return commands + [StartEngine(pool.name)] * max(0, min(missing, room, at_once))


def _overdue(view: _View, now: float) -> list[GiveUpStart]:
    limit = view.pool.policy.start_timeout_s + START_GRACE_S
    return [
        GiveUpStart(
            engine.id,
            f"it did not come up within {limit:g} s and its start is stuck: look at the Docker Engine's own log",
        )
        for engine in view.engines
        if engine.state is EngineState.STARTING and now - (engine.started_at or engine.state_since) > limit
    ]


def _removals(view: _View) -> list[RemoveEngine]:
    going = (EngineState.RETIRING, EngineState.FAILED)
    return [RemoveEngine(engine.id) for engine in view.engines if engine.state in going and engine.id not in view.busy]


def reconcile(
    *, runtime: str, before: Iterable[Engine], seen: Iterable[Seen], known: Collection[str], busy: Collection[str]
) -> list[FailEngine | RemoveStray]:
    """What a full listing of one engine host tells.

    ``runtime`` is the host's name, ``before`` are the rows of this host as read before the listing, ``known`` the ids of all rows that are not gone as read after it: an
    engine is lost only if it should have been there all the time, and a stray only if nobody meant it to be there at the end.
    """
    found = {one.engine_id: one for one in seen}
    commands: list[FailEngine | RemoveStray] = []
    for engine in before:
        if engine.state not in (EngineState.READY, EngineState.LEASED):
            continue
        there = found.get(engine.id)
        if there is None:
            commands.append(
                FailEngine(engine.id, "it vanished from its host: something other than Cornerman removed it")
            )
        elif not there.running:
            commands.append(FailEngine(engine.id, "it ended by itself"))
    commands += [
        RemoveStray(runtime, one.handle, one.name)
        for one in found.values()
        if one.engine_id not in known and one.engine_id not in busy
    ]
    return commands
