"""What to do next: a snapshot and a time in, commands out. No I/O, no clock, no logging.

``plan`` looks at what was decided (the store); ``reconcile`` compares it with what is there (the engine host).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.commands import (
    CallWell,
    Command,
    ExpireLease,
    FailEngine,
    FailLease,
    FillSlot,
    GiveUpStart,
    GrantLease,
    LaunchEngine,
    ProbeEngines,
    RemoveEngine,
    RemoveStray,
    ResolveImage,
    RetireEngine,
    StartEngine,
    WarnIdle,
)
from orchestrator.interfaces import Seen
from orchestrator.model import Engine, EngineState, Lease, LeaseState, Policy, Pool, Slot

MAX_LOSSES, LOSSES_WITHIN_S, PROVEN_STEPS = 5, 600.0, 100
"""A slot that loses more engines than this in that time fails its lease: a bad ROM must not eat every spare. One that
made so many steps proves that the game can be played: its loss is bad luck, and begins the count anew."""
PROBE_AGAIN_S = 5.0
"""So long after a failed probe the next one comes."""
IDLE_NOTICE_S = 300.0
"""So long before it ends for idleness a lease's holder is told."""
START_GRACE_S = 60.0
"""Beyond a pool's start timeout, which the starting thread itself watches: catches a start whose thread is stuck."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that planning needs: pools, engines that are not gone, live leases, empty slots, and work under way."""

    pools: tuple[Pool, ...]
    engines: tuple[Engine, ...] = ()
    leases: tuple[Lease, ...] = ()  # pending and active, in order of arrival
    empty_slots: tuple[Slot, ...] = ()
    busy: Mapping[str, str] = field(default_factory=dict)  # engine id, "pool:NAME", "probe:NAME" -> what is being done
    unreachable: frozenset[str] = frozenset()  # engine hosts that do not answer: nothing is begun there
    max_removing: int = 8


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
    for pool in snapshot.pools:
        ends = _ends(pool, leases[pool.name], slots[pool.name], now)
        ended = {command.lease_id for command in ends}
        view = _view(pool, engines[pool.name], leases[pool.name], slots[pool.name], ended)
        supply, used = _supply(view)
        left = view.after(used)
        idle = [
            warning for lease in leases[pool.name] if lease.id not in ended and (warning := _warning(pool, lease, now))
        ]
        commands += [*ends, *idle, *supply, *_renewal(left, now), *_probes(left, snapshot.busy, now)]
        if pool.policy.runtime not in snapshot.unreachable:
            commands += [*_starts(left, snapshot.busy, now), *_overdue(left, now)]
    return commands + _removals(snapshot)


@dataclass(frozen=True, slots=True)
class _View:
    """One pool as it is once the leases that end have ended."""

    pool: Pool
    engines: list[Engine]
    spare: list[Engine]  # can be given away, in the order in which they are
    holes: list[Slot]  # slots without an engine, those that have waited longest first
    pending: list[Lease]  # in order of arrival
    demand: int  # engines asked for and not held; a paused pool still replaces what running leases lost
    leased: int

    def after(self, used: int) -> _View:
        """The pool once ``used`` of the spare engines have been given to those who asked."""
        return replace(self, spare=self.spare[used:], demand=self.demand - used, leased=self.leased + used)


def _view(pool: Pool, engines: list[Engine], leases: list[Lease], slots: list[Slot], ended: Collection[str]) -> _View:
    ready = [engine for engine in engines if engine.state is EngineState.READY and not engine.draining]
    holes = [slot for slot in slots if slot.lease_id not in ended]
    pending = [lease for lease in leases if lease.state is LeaseState.PENDING and lease.id not in ended]
    return _View(
        pool=pool,
        engines=engines,
        spare=sorted(ready, key=lambda engine: (engine.ready_at or 0.0, engine.id)),
        holes=sorted(holes, key=lambda slot: (slot.empty_since or 0.0, slot.lease_id, slot.rank)),
        pending=pending,
        demand=len(holes) + (0 if pool.paused else sum(lease.envs_wanted for lease in pending)),
        leased=sum(1 for engine in engines if engine.state is EngineState.LEASED and engine.lease_id not in ended),
    )


def losses(slot: Slot, now: float) -> int:
    """How many engines a slot has lost lately, one after the other, without having played."""
    return sum(1 for at in slot.lost if at > now - LOSSES_WITHIN_S)


def lost_by_then(slot: Slot, steps: int, now: float) -> tuple[float, ...]:
    """The losses of a slot that count when it loses its engine now, after its lane has made so many ``steps``."""
    if steps - slot.steps_when_lost >= PROVEN_STEPS:
        return ()
    return (*(at for at in slot.lost if at > now - LOSSES_WITHIN_S), now)


def is_idle(lease: Lease, policy: Policy, now: float) -> bool:
    """Whether a lease ends now because nobody uses it: that was announced, and the time is over."""
    return (
        policy.idle_release_s is not None
        and lease.state is LeaseState.ACTIVE
        and lease.idle_release_at is not None
        and lease.idle_release_at <= now
    )


def _warning(pool: Pool, lease: Lease, now: float) -> WarnIdle | None:
    """A lease that the relay never saw is left alone: its calls go elsewhere, and nobody knows of them.

    The notice is always a whole one, however late it is given.
    """
    limit = pool.policy.idle_release_s
    if limit is None or lease.last_call_at is None or lease.idle_release_at is not None:
        return None
    if lease.state is not LeaseState.ACTIVE:
        return None
    notice = min(IDLE_NOTICE_S, limit / 2)
    return WarnIdle(lease.id, now + notice) if lease.last_call_at + limit - notice <= now else None


def _ends(pool: Pool, leases: list[Lease], slots: list[Slot], now: float) -> list[ExpireLease | FailLease]:
    ends: dict[str, ExpireLease | FailLease] = {}
    longest = pool.policy.max_lease_s
    for lease in leases:
        waits = lease.state is LeaseState.PENDING
        if lease.expires_at <= now:
            what = "nobody asked for it any more while it waited" if waits else "nobody renewed it"
            ends[lease.id] = ExpireLease(lease.id, f"{what} for {lease.ttl_s:g} s")
        elif longest is not None and lease.granted_at is not None and lease.granted_at + longest <= now:
            because = f"it reached the longest time a lease may last in this pool, {longest:g} s"
            ends[lease.id] = ExpireLease(lease.id, because)
        elif is_idle(lease, pool.policy, now):
            because = f"none of its engines was used for {pool.policy.idle_release_s:g} s"
            ends[lease.id] = ExpireLease(lease.id, because)
        elif waits and lease.envs_wanted > pool.max_engines:  # at the head of the queue it would stop everybody
            because = f"its pool was made smaller while it waited: it holds at most {pool.max_engines} engines now"
            ends[lease.id] = FailLease(lease.id, because)
    for slot in slots:
        recent = losses(slot, now)
        if recent > MAX_LOSSES and slot.lease_id not in ends:
            because = f"rank {slot.rank} lost {recent} engines in a row within 10 minutes, the last because {slot.lost_because}"
            ends[slot.lease_id] = FailLease(slot.lease_id, because)
    return list(ends.values())


def _supply(view: _View) -> tuple[list[Command], int]:
    """Ready engines go into empty slots first, then to the head of the queue, whom nobody overtakes; and how many go."""
    available = len(view.spare)
    commands: list[Command] = [FillSlot(slot.lease_id, slot.rank) for slot in view.holes[:available]]
    available -= len(commands)
    for lease in () if view.pool.paused else view.pending:
        if lease.envs_wanted > available:
            break
        commands.append(GrantLease(lease.id))
        available -= lease.envs_wanted
    return commands, len(view.spare) - available


def _is_stale(engine: Engine, pool: Pool, now: float) -> str | None:
    """Why an idle engine should give way to a fresh one, or None."""
    if pool.pinned is not None and engine.image != pool.pinned:
        return "the pool's image has changed"
    age = pool.policy.max_age_s
    if age is not None and now - engine.created_at > age:
        return f"it is older than max_age_s ({age:g} s)"
    return None


def _renewal(view: _View, now: float) -> list[Command]:
    """Retire idle engines that are stale, or more than anybody wants, while min_ready holds; and those that drain."""
    pool, retire = view.pool, dict[str, str]()
    idle = len(view.spare) - view.demand
    needed = 0 if pool.paused else pool.min_ready
    stale = [(engine, why) for engine in view.spare if (why := _is_stale(engine, pool, now))]
    allowed = idle - needed
    if stale and allowed <= 0 < idle and _has_no_room_to_renew(view, now):
        allowed = 1
    for engine, why in stale[: max(0, allowed)]:
        retire[engine.id] = why
    surplus = idle - needed - len(stale)
    fresh = [engine for engine in view.spare if _is_stale(engine, pool, now) is None] if surplus > 0 else []
    for engine in fresh[: max(0, surplus)]:
        retire[engine.id] = "more engines are ready than the pool wants"
    for engine in view.engines:
        if engine.draining and engine.state in (EngineState.STARTING, EngineState.READY):
            retire[engine.id] = engine.reason or "an administrator retired it"
    return [RetireEngine(engine_id, why) for engine_id, why in retire.items()]


def _has_no_room_to_renew(view: _View, now: float) -> bool:
    """A full pool has to let one idle engine go before a fresh one can start: one at a time, and only while starts succeed."""
    pool = view.pool
    if len(view.engines) < pool.max_engines or pool.retry_at > now or pool.fail_streak or pool.paused:
        return False
    going = (EngineState.STARTING, EngineState.RETIRING, EngineState.FAILED)
    return not any(engine.state in going for engine in view.engines)


def _probes(view: _View, busy: Collection[str], now: float) -> list[ProbeEngines]:
    """One round for all ready engines of a pool that are due or will be soon: a round costs a tick, whatever its size."""
    if f"probe:{view.pool.name}" in busy:
        return []
    every = view.pool.policy.probe_interval_s

    def due(engine: Engine, share: float = 1.0) -> bool:
        wait = every * share if engine.probe_failures == 0 else min(every, PROBE_AGAIN_S)
        return engine.probed_at is None or not 0 <= now - engine.probed_at < wait

    if not any(due(engine) for engine in view.spare):
        return []
    return [ProbeEngines(view.pool.name, tuple(engine.id for engine in view.spare if due(engine, 0.5)))]


def _starts(view: _View, busy: Collection[str], now: float) -> list[Command]:
    """Intend as many starts as are wanted, as there is room for, and as may be under way at once."""
    pool = view.pool
    starting = [engine for engine in view.engines if engine.state is EngineState.STARTING]
    commands: list[Command] = [LaunchEngine(e.id) for e in starting if e.id not in busy and not e.draining]
    if pool.repin and pool.pinned is not None and pool.repin_retry_at <= now and f"pool:{pool.name}" not in busy:
        commands.append(ResolveImage(pool.name))
    if pool.retry_at > now:
        return commands
    if pool.pinned is None:
        return commands if f"pool:{pool.name}" in busy else [*commands, ResolveImage(pool.name)]
    coming = [*view.spare, *(engine for engine in starting if not engine.draining)]
    fresh = sum(1 for engine in coming if _is_stale(engine, pool, now) is None)
    missing = wanted(pool, leased=view.leased, demand=view.demand) - view.leased - fresh
    if missing <= 0 and not starting:
        return [*commands, CallWell(pool.name)] if pool.fault is not None else commands
    room = pool.max_engines - len(view.engines)
    at_once = (1 if pool.fail_streak else pool.policy.max_starting) - len(starting)
    return commands + [StartEngine(pool.name)] * max(0, min(missing, room, at_once))


def _overdue(view: _View, now: float) -> list[GiveUpStart]:
    limit = view.pool.policy.start_timeout_s + START_GRACE_S
    because = f"it did not come up within {limit:g} s and its start is stuck: look at the Docker Engine's own log"
    return [
        GiveUpStart(engine.id, because)
        for engine in view.engines
        if engine.state is EngineState.STARTING and now - (engine.started_at or engine.state_since) > limit
    ]


def _removals(snapshot: Snapshot) -> list[Command]:
    """Of all engines that are to go, also those of pools that are configured no more, as many as may go at once."""
    under_way = sum(1 for what in snapshot.busy.values() if what == "remove")
    going = [
        RemoveEngine(engine.id)
        for engine in snapshot.engines
        if engine.state in (EngineState.RETIRING, EngineState.FAILED)
        and engine.id not in snapshot.busy
        and engine.runtime not in snapshot.unreachable
    ]
    return list(going[: max(0, snapshot.max_removing - under_way)])


def reconcile(
    *, runtime: str, before: Iterable[Engine], seen: Iterable[Seen], known: Collection[str], busy: Collection[str]
) -> list[FailEngine | RemoveStray]:
    """What a full listing of one engine host tells.

    ``before`` are the rows of this host as read before the listing, ``known`` the ids of all rows as read after it, those
    gone left out: an engine is lost only if it should have been there all the time, and a stray only if nobody knew of it
    at either end (one that was removed meanwhile is none).
    """
    found = {one.engine_id: one for one in seen}
    commands: list[FailEngine | RemoveStray] = []
    expected = {engine.id: engine for engine in before}
    for engine in expected.values():
        if engine.state not in (EngineState.READY, EngineState.LEASED):
            continue
        there = found.get(engine.id)
        if there is None:
            because = "it vanished from its host: something other than Cornerman removed it"
            commands.append(FailEngine(engine.id, because))
        elif not there.running:
            commands.append(FailEngine(engine.id, "it ended by itself"))
    commands += [
        RemoveStray(runtime, one.handle, one.name)
        for one in found.values()
        if one.engine_id not in known and one.engine_id not in expected and one.engine_id not in busy
    ]
    return commands
