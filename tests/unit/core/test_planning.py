"""The planner: a snapshot and a time in, commands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.commands import (
    CallWell,
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
from orchestrator.model import Engine, EngineState, LeaseState, Pool
from orchestrator.planning import Snapshot, lost_by_then, plan, reconcile, wanted
from tests.support.core import START, a_hole, a_lease, a_pool, an_engine

NOW = START + 1.0
T = TypeVar("T")
S, R, L, G, F = (
    EngineState.STARTING,
    EngineState.READY,
    EngineState.LEASED,
    EngineState.RETIRING,
    EngineState.FAILED,
)
PENDING, ACTIVE = LeaseState.PENDING, LeaseState.ACTIVE


def engines(*states: EngineState, **changes: Any) -> tuple[Engine, ...]:
    """Engines 0, 1, ... in these states."""
    return tuple(an_engine(number, state, **changes) for number, state in enumerate(states))


def planned(kind: type[T], pool: Pool, *there: Engine, now: float = NOW, **rest: Any) -> list[T]:
    """The commands of one kind for one pool with these engines."""
    commands = plan(Snapshot(pools=(pool,), engines=there, **rest), now)
    return [command for command in commands if isinstance(command, kind)]


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("leased", "demand", "paused", "expected"),
    [(0, 0, False, 2), (3, 0, False, 5), (3, 2, False, 7), (7, 5, False, 8), (3, 1, True, 4)],
)
def test_a_pool_wants_what_is_leased_and_asked_for_and_its_reserve(
    leased: int, demand: int, paused: bool, expected: int
) -> None:
    """min(max_engines, leased + demand + min_ready), and no reserve while it is paused."""
    assert wanted(a_pool(min_ready=2, max_engines=8, paused=paused), leased=leased, demand=demand) == expected


def test_an_empty_pool_starts_its_reserve() -> None:
    """A pool with nothing starts min_ready engines, the first thing it does."""
    assert planned(StartEngine, a_pool(min_ready=3)) == [StartEngine("main")] * 3


def test_starts_under_way_are_counted() -> None:
    """Report 19: engines that are starting are not started again."""
    assert planned(StartEngine, a_pool(min_ready=3), *engines(S, S)) == [StartEngine("main")]


def test_never_more_starts_at_once_than_configured() -> None:
    """Reports 19 and 30: max_starting bounds the starts under way, those begun earlier included."""
    assert len(planned(StartEngine, a_pool(min_ready=10, max_starting=4), *engines(S, S, S))) == 1
    assert len(planned(StartEngine, a_pool(min_ready=10, max_starting=4), *engines(S, S, S, S))) == 0


def test_engines_being_removed_still_count_as_there() -> None:
    """Report 19: a pool of four with four engines on their way out starts nothing until one is gone."""
    assert planned(StartEngine, a_pool(min_ready=2, max_engines=4), *engines(G, G, F, F)) == []
    assert len(planned(StartEngine, a_pool(min_ready=2, max_engines=4), *engines(G, G, F))) == 1


def test_engines_of_leases_that_end_now_are_not_wanted_twice() -> None:
    """An expired lease's engines are neither counted as in use nor as free room."""
    lease = a_lease(0, envs_wanted=2, expires_at=NOW)
    assert planned(StartEngine, a_pool(min_ready=1, max_engines=3), *engines(L, L, R), leases=(lease,)) == []


def test_what_nobody_wants_is_retired() -> None:
    """Ready engines beyond demand and reserve go, those ready for longest first."""
    retired = planned(RetireEngine, a_pool(min_ready=1), *engines(R, R, R))
    assert [command.engine_id for command in retired] == ["e0", "e1"]


def test_engines_that_somebody_waits_for_are_no_surplus() -> None:
    """While a lease waits for four engines the two that are ready stay."""
    waiting = a_lease(1, PENDING, envs_wanted=4)
    assert planned(RetireEngine, a_pool(min_ready=0), *engines(R, R), leases=(waiting,)) == []


def test_a_paused_pool_starts_nothing_for_the_queue_and_still_replaces() -> None:
    """Pausing stops new leases; a running lease that lost an engine gets another."""
    leases = (a_lease(0, envs_wanted=1), a_lease(1, PENDING, envs_wanted=3))
    pool = a_pool(min_ready=2, paused=True)
    assert len(planned(StartEngine, pool, leases=leases, empty_slots=(a_hole(0),))) == 1
    assert planned(GrantLease, pool, *engines(R, R, R, R), leases=leases) == []
    assert planned(FillSlot, pool, *engines(R), leases=leases, empty_slots=(a_hole(0),)) == [FillSlot("l0", 0)]


# ---------------------------------------------------------------- who gets what


def test_replacements_go_before_the_queue() -> None:
    """One ready engine, one lease that lost one, one lease that waits: the one that lost it is served."""
    leases = (a_lease(0), a_lease(1, PENDING))
    snapshot = Snapshot(pools=(a_pool(),), engines=engines(R), leases=leases, empty_slots=(a_hole(0),))
    assert [c for c in plan(snapshot, NOW) if isinstance(c, FillSlot | GrantLease)] == [FillSlot("l0", 0)]


def test_the_slot_that_waited_longest_is_filled_first() -> None:
    """Holes are filled in the order in which they came to be."""
    holes = (a_hole(0, 0, empty_since=START + 2), a_hole(0, 1, empty_since=START + 1))
    assert planned(FillSlot, a_pool(), *engines(R), leases=(a_lease(0),), empty_slots=holes) == [FillSlot("l0", 1)]


def test_the_head_of_the_queue_is_not_starved_by_small_requests() -> None:
    """A request for four at the head waits, and the request for one behind it does not overtake."""
    leases = (a_lease(1, PENDING, envs_wanted=4), a_lease(2, PENDING, envs_wanted=1))
    assert planned(GrantLease, a_pool(), *engines(R, R), leases=leases) == []


def test_leases_are_granted_in_the_order_of_arrival() -> None:
    """As many from the head of the queue as the ready engines suffice for."""
    leases = tuple(a_lease(number, PENDING, envs_wanted=2) for number in (1, 2, 3))
    grants = planned(GrantLease, a_pool(), *engines(R, R, R, R, R), leases=leases)
    assert grants == [GrantLease("l1"), GrantLease("l2")]


def test_engines_that_drain_are_given_to_nobody() -> None:
    """An engine an administrator wants to go is retired, not granted, and its place is filled."""
    there = engines(R, draining=True)
    assert planned(GrantLease, a_pool(), *there, leases=(a_lease(1, PENDING),)) == []
    assert [command.engine_id for command in planned(RetireEngine, a_pool(), *there)] == ["e0"]
    assert len(planned(StartEngine, a_pool(min_ready=1), *there)) == 1


def test_a_lease_larger_than_its_pool_has_become_does_not_block_the_queue() -> None:
    """When a pool is made smaller, a waiting lease that can never be served fails with the reason."""
    leases = (a_lease(1, PENDING, envs_wanted=8), a_lease(2, PENDING, envs_wanted=1))
    pool = a_pool(max_engines=4)
    (failed,) = planned(FailLease, pool, *engines(R), leases=leases)
    assert (failed.lease_id, "at most 4" in failed.because) == ("l1", True)
    assert planned(GrantLease, pool, *engines(R), leases=leases) == [GrantLease("l2")]


# ---------------------------------------------------------------- ends of leases


def test_a_lease_that_is_not_renewed_expires() -> None:
    """Reports 8 and 9: active or still waiting, a lease nobody renewed for its TTL ends."""
    leases = (a_lease(0, expires_at=NOW), a_lease(1, PENDING, expires_at=NOW), a_lease(2, expires_at=NOW + 1))
    ended = planned(ExpireLease, a_pool(), leases=leases)
    assert [command.lease_id for command in ended] == ["l0", "l1"]
    assert "renewed" in ended[0].because
    assert "waited" in ended[1].because


def test_a_renewed_lease_still_ends_at_max_lease_s() -> None:
    """Report 11: a caller that renews for ever without doing anything loses its lease at the pool's max_lease_s."""
    lease = a_lease(0, granted_at=START, expires_at=START + 9999)
    assert planned(ExpireLease, a_pool(max_lease_s=100.0), leases=(lease,), now=START + 99) == []
    (ended,) = planned(ExpireLease, a_pool(max_lease_s=100.0), leases=(lease,), now=START + 100)
    assert "100 s" in ended.because


def test_max_lease_s_does_not_count_the_time_in_the_queue() -> None:
    """Report 11: the longest time a lease may last begins when it gets its engines."""
    lease = a_lease(0, PENDING, created_at=START - 500, expires_at=START + 9999)
    assert planned(ExpireLease, a_pool(max_lease_s=100.0), leases=(lease,)) == []


def test_a_lease_whose_engines_nobody_calls_is_announced_and_then_ends() -> None:
    """Report 11: five minutes before a forgotten notebook's lease ends its holder is told; one that the relay never saw is left alone."""
    pool = a_pool(idle_release_s=1800.0)
    idle = a_lease(0, expires_at=START + 9999, last_call_at=START)
    unseen = a_lease(1, expires_at=START + 9999)
    assert planned(WarnIdle, pool, leases=(idle, unseen), now=START + 1499) == []
    assert planned(WarnIdle, pool, leases=(idle, unseen), now=START + 1500) == [WarnIdle("l0", START + 1800)]
    told = replace(idle, idle_release_at=START + 1800)
    assert planned(WarnIdle, pool, leases=(told,), now=START + 1600) == []
    assert planned(ExpireLease, pool, leases=(told,), now=START + 1799) == []
    (ended,) = planned(ExpireLease, pool, leases=(told,), now=START + 1800)
    assert "1800 s" in ended.because
    assert planned(ExpireLease, a_pool(), leases=(told,), now=START + 1900) == []


def test_a_notice_of_idleness_is_a_whole_one_however_late() -> None:
    """Report 18: a daemon that was away for an hour does not end idle leases without notice."""
    idle = a_lease(0, expires_at=START + 99999, last_call_at=START)
    pool = a_pool(idle_release_s=1800.0)
    assert planned(WarnIdle, pool, leases=(idle,), now=START + 7200) == [WarnIdle("l0", START + 7500)]


def test_a_slot_that_eats_engines_fails_its_lease_with_the_reason() -> None:
    """More than five engines lost by one slot within ten minutes end the lease, and say why the last one was lost."""
    six = a_hole(0, 2, lost=tuple(START + n for n in range(-5, 1)), lost_because="ROM missing")
    (failed,) = planned(FailLease, a_pool(), leases=(a_lease(0),), empty_slots=(six,))
    assert failed.because == "rank 2 lost 6 engines in a row within 10 minutes, the last because ROM missing"


@pytest.mark.parametrize("lost", [[START] * 5, [START - 700] * 6 + [START] * 5])
def test_losses_that_are_few_or_long_ago_end_no_lease(lost: list[float]) -> None:
    """Five losses are borne, and those older than ten minutes are forgotten."""
    hole = a_hole(0, lost=tuple(lost))
    assert planned(FailLease, a_pool(), leases=(a_lease(0),), empty_slots=(hole,)) == []


def test_an_engine_that_has_played_is_no_step_towards_the_end() -> None:
    """A loss counts when the engine had hardly played; one that made a hundred steps begins the count anew."""
    slot = a_hole(0, lost=(START - 700, START - 1), steps_when_lost=500)
    assert lost_by_then(slot, 599, START) == (START - 1, START)
    assert lost_by_then(slot, 600, START) == ()


# ---------------------------------------------------------------- faults


def test_a_failing_pool_waits_before_it_tries_again() -> None:
    """Report 20: until its backoff is over a pool starts nothing."""
    pool = a_pool(min_ready=4, fail_streak=3, fault="image is broken", retry_at=NOW + 4)
    assert planned(StartEngine, pool) == []
    assert planned(ResolveImage, replace(pool, pinned=None)) == []


def test_a_failing_pool_tries_one_engine_at_a_time() -> None:
    """Report 20: after its backoff a pool that failed last time starts one engine, not max_starting of them."""
    assert len(planned(StartEngine, a_pool(min_ready=4, fail_streak=3, retry_at=NOW))) == 1


def test_a_pool_that_has_all_it_wants_is_well_again() -> None:
    """Report 20: a pool is degraded as long as it cannot start what is wanted, and no longer."""
    pool = a_pool(min_ready=1, fail_streak=1, fault="broken", retry_at=NOW)
    assert planned(CallWell, pool, *engines(R)) == [CallWell("main")]
    assert planned(CallWell, replace(pool, retry_at=NOW + 1), *engines(R)) == []
    assert planned(CallWell, pool, *engines(F)) == []
    assert planned(CallWell, replace(pool, fault=None), *engines(R)) == []


def test_the_backoff_of_one_pool_does_not_hold_up_another() -> None:
    """Report 22: pools fail, pull and start by themselves."""
    failing = a_pool("bad", fail_streak=3, retry_at=NOW + 60)
    pulling = a_pool("slow", pinned=None)
    snapshot = Snapshot(pools=(failing, pulling, a_pool(min_ready=2)), busy={"pool:slow": "resolve"})
    assert plan(snapshot, NOW) == [StartEngine("main")] * 2


def test_nothing_starts_before_the_image_is_known() -> None:
    """An image is resolved once, and only then are engines started from it."""
    pool = a_pool(pinned=None)
    assert planned(ResolveImage, pool) == [ResolveImage("main")]
    assert planned(StartEngine, pool) == []
    assert planned(ResolveImage, pool, busy={"pool:main": "resolve"}) == []


def test_a_start_is_taken_up_again_by_a_new_life() -> None:
    """Report 13: an engine that was to start and that nobody is starting is launched."""
    assert planned(LaunchEngine, a_pool(), *engines(S, S), busy={"e0": "launch"}) == [LaunchEngine("e1")]


def test_a_stuck_start_is_given_up() -> None:
    """Report 16: beyond its deadline a start is given up even if the thread that should watch it is stuck."""
    pool = a_pool(start_timeout_s=30.0)
    stuck = an_engine(0, S, started_at=None, state_since=START)
    assert planned(GiveUpStart, pool, stuck, busy={"e0": "launch"}, now=START + 90) == []
    assert len(planned(GiveUpStart, pool, stuck, busy={"e0": "launch"}, now=START + 91)) == 1


def test_the_clock_of_a_start_begins_at_the_start() -> None:
    """Report 29: the time an image took to be pulled does not count against the engine."""
    pool = a_pool(start_timeout_s=30.0)
    slow = an_engine(0, S, state_since=START - 300, started_at=START)
    assert planned(GiveUpStart, pool, slow, now=START + 60) == []


def test_on_a_host_out_of_reach_nothing_is_begun_nor_given_up() -> None:
    """Unknown is not dead: no start, no removal and no verdict while the engine host does not answer; leases end as ever."""
    there = (an_engine(0, S, started_at=START - 9999), an_engine(1, G), an_engine(2, S, started_at=START))
    snapshot = Snapshot(
        pools=(a_pool(min_ready=9),),
        engines=there,
        leases=(a_lease(0, expires_at=NOW),),
        unreachable=frozenset({"fake"}),
    )
    assert [type(command) for command in plan(snapshot, NOW)] == [ExpireLease]


def test_removals_are_bounded_and_go_on_elsewhere() -> None:
    """Report 26: as many removals at once as there are threads for, those under way and those at rest left alone."""
    busy = {"e0": "remove", "e1": "rest"}
    removed = planned(RemoveEngine, a_pool(max_engines=9), *engines(G, F, G, F, G), busy=busy, max_removing=3)
    assert removed == [RemoveEngine("e2"), RemoveEngine("e3")]


def test_engines_of_a_pool_that_is_configured_no_more_are_removed() -> None:
    """Taking a pool out of the configuration leaves nothing on the engine host."""
    assert planned(RemoveEngine, a_pool("other"), *engines(G)) == [RemoveEngine("e0")]


# ---------------------------------------------------------------- renewal


def _apply(pool: Pool, there: list[Engine], now: float) -> list[Engine]:
    """A world in which everything succeeds within a tick: what the commands make of the engines."""
    engines_by_id = {engine.id: engine for engine in there}
    for command in plan(Snapshot(pools=(pool,), engines=tuple(there)), now):
        if isinstance(command, StartEngine):
            number = 100 + len(engines_by_id)
            while f"e{number}" in engines_by_id:
                number += 1
            engines_by_id[f"e{number}"] = an_engine(number, S, image=pool.pinned, created_at=now, ready_at=None)
        elif isinstance(command, RetireEngine):
            engines_by_id[command.engine_id] = replace(engines_by_id[command.engine_id], state=G)
        elif isinstance(command, LaunchEngine):
            engines_by_id[command.engine_id] = replace(engines_by_id[command.engine_id], state=R, ready_at=now)
        elif isinstance(command, RemoveEngine):
            del engines_by_id[command.engine_id]
    return list(engines_by_id.values())


@settings(max_examples=60, deadline=None)
@given(leased=st.integers(0, 3), reserve=st.integers(1, 4), spare_room=st.integers(1, 4))
def test_an_image_rolls_while_the_reserve_holds(leased: int, reserve: int, spare_room: int) -> None:
    """Report 21: where there is room, min_ready engines stay ready throughout, leased ones are untouched, and all idle ones renew."""
    pool = a_pool(min_ready=reserve, max_engines=leased + reserve + spare_room, pinned="sha-2")
    there = [*(an_engine(n, L) for n in range(leased)), *(an_engine(10 + n, R) for n in range(reserve))]
    for turn in range(40):
        assert sum(engine.state is R for engine in there) >= reserve
        assert sum(engine.state is L for engine in there) == leased
        there = _apply(pool, there, NOW + turn)
    assert {engine.image for engine in there if engine.state is R} == {"sha-2"}
    assert len(there) == leased + reserve


def test_a_full_pool_renews_one_engine_at_a_time() -> None:
    """Report 21: without any room one idle engine goes first, and never a second before its successor is ready."""
    pool = a_pool(min_ready=3, max_engines=3, pinned="sha-2")
    there = list(engines(R, R, R))
    for turn in range(40):
        assert sum(engine.state is R for engine in there) >= 2
        there = _apply(pool, there, NOW + turn)
    assert [engine.image for engine in there] == ["sha-2"] * 3


def test_a_full_pool_keeps_its_old_engines_while_the_new_image_fails() -> None:
    """Reports 20 and 21: a new image that does not start costs a full pool no second engine."""
    pool = a_pool(min_ready=3, max_engines=3, pinned="sha-2", fail_streak=1, fault="broken", retry_at=NOW)
    assert planned(RetireEngine, pool, *engines(R, R, R)) == []
    assert planned(RetireEngine, pool, *engines(R, R, F)) == []


def test_engines_of_the_old_image_are_not_asked_for_twice() -> None:
    """A lease that takes the last old engine makes the pool start one reserve engine, not one for each of both."""
    pool = a_pool(min_ready=1, max_engines=9, pinned="sha-2")
    assert len(planned(StartEngine, pool, *engines(R), leases=(a_lease(1, PENDING),))) == 1


def test_old_engines_give_way_to_fresh_ones() -> None:
    """An idle engine older than max_age_s is replaced, and goes when its successor is ready."""
    pool = a_pool(min_ready=1, max_age_s=100.0)
    old, fresh = an_engine(0, R, created_at=NOW - 101), an_engine(1, R, created_at=NOW - 1)
    assert planned(RetireEngine, pool, old) == []
    assert len(planned(StartEngine, pool, old)) == 1
    (retired,) = planned(RetireEngine, pool, old, fresh)
    assert (retired.engine_id, "max_age_s" in retired.reason) == ("e0", True)


def test_a_start_that_an_administrator_wants_to_end_is_ended() -> None:
    """Report 16: an engine that is told to go while it starts does not have to come up first."""
    starting = an_engine(0, S, draining=True)
    assert [command.engine_id for command in planned(RetireEngine, a_pool(), starting)] == ["e0"]
    assert planned(LaunchEngine, a_pool(), starting) == []


# ---------------------------------------------------------------- probes


def test_ready_engines_are_probed_now_and_then_in_one_round() -> None:
    """When one engine is due, those that will be soon are asked along with it; leased ones are never asked."""
    due = an_engine(0, R, probed_at=NOW - 60)
    soon = an_engine(1, R, probed_at=NOW - 31)
    later = an_engine(2, R, probed_at=NOW - 29)
    leased = an_engine(3, L, probed_at=NOW - 999)
    pool = a_pool(min_ready=3)
    assert planned(ProbeEngines, pool, due, soon, later, leased) == [ProbeEngines("main", ("e0", "e1"))]
    assert planned(ProbeEngines, pool, soon, later, leased) == []
    assert planned(ProbeEngines, pool, due, busy={"probe:main": "probe"}) == []


def test_an_engine_that_failed_a_probe_is_asked_again_soon() -> None:
    """Report 25: the probes after a failed one come within seconds, not in the same moment."""
    failed = an_engine(0, R, probed_at=NOW - 5, probe_failures=1)
    assert len(planned(ProbeEngines, a_pool(), failed)) == 1
    assert planned(ProbeEngines, a_pool(), replace(failed, probed_at=NOW - 4)) == []


def test_a_probe_noted_in_the_future_does_not_put_off_the_next() -> None:
    """Report 18: a time noted just before the clock was set back does not keep an engine from being watched."""
    assert len(planned(ProbeEngines, a_pool(), an_engine(0, R, probed_at=NOW + 3600))) == 1


# ---------------------------------------------------------------- what is there


def _seen(engine: Engine, *, running: bool = True) -> Seen:
    return Seen(engine.id, engine.name, engine.handle or "", running=running)


def _compare(
    before: tuple[Engine, ...], seen: list[Seen], known: set[str] | None = None, busy: set[str] | None = None
) -> Any:
    ids = {engine.id for engine in before} if known is None else known
    return reconcile(runtime="fake", before=before, seen=seen, known=ids, busy=busy or set())


def test_an_engine_that_ended_or_vanished_is_lost() -> None:
    """Report 14: whatever happened while nobody looked, a listing finds engines that ended and those that are not there."""
    there = engines(R, L, R, L)
    found = _compare(there, [_seen(there[0], running=False), _seen(there[2]), _seen(there[3])])
    assert [(type(one), one.engine_id) for one in found] == [(FailEngine, "e0"), (FailEngine, "e1")]


def test_engines_that_need_not_be_there_yet_or_any_more_are_not_lost() -> None:
    """Those starting, and those on their way out, may be absent or ended."""
    there = engines(S, G, F)
    assert _compare(there, []) == []
    assert _compare(there, [_seen(engine, running=False) for engine in there]) == []


def test_what_carries_our_label_and_nobody_knows_is_removed() -> None:
    """Report 12: an engine without a row, whoever made it, does not stay."""
    assert _compare((), [_seen(an_engine(7))]) == [RemoveStray("fake", "h7", "cornerman-test-e7")]


def test_an_engine_made_or_removed_during_the_listing_is_no_stray() -> None:
    """Report 7: what comes or goes while the engine host is listed is left alone."""
    made, removed = an_engine(1, S), an_engine(2, G)
    assert _compare((removed,), [_seen(made), _seen(removed)], known={"e1"}) == []
    assert _compare((), [_seen(made)], known=set(), busy={"e1"}) == []


# ---------------------------------------------------------------- always

_states = st.sampled_from([S, R, R, L, G, F])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any pool with any engines, leases and holes that could come to be."""
    there = [an_engine(n, state) for n, state in enumerate(draw(st.lists(_states, max_size=10)))]
    there = [
        replace(engine, image=draw(st.sampled_from(["sha-1", "sha-0"])), draining=draw(st.integers(0, 5)) == 0)
        for engine in there
    ]
    pool = a_pool(
        min_ready=draw(st.integers(0, 4)),
        max_engines=draw(st.integers(1, 12)),
        max_starting=draw(st.integers(1, 4)),
        paused=draw(st.booleans()),
        pinned=draw(st.sampled_from(["sha-1", None])),
        fail_streak=draw(st.integers(0, 2)),
        retry_at=draw(st.sampled_from([0.0, NOW + 5])),
    )
    waiting = [
        a_lease(n, PENDING, envs_wanted=draw(st.integers(1, 5)), expires_at=NOW + draw(st.sampled_from([-1, 30])))
        for n in range(1, 1 + draw(st.integers(0, 4)))
    ]
    active = a_lease(0, expires_at=NOW + draw(st.sampled_from([-1, 30])))
    holes = tuple(a_hole(0, 100 + n) for n in range(draw(st.integers(0, 3))))
    busy = {engine.id: draw(st.sampled_from(["launch", "remove", "rest"])) for engine in there if draw(st.booleans())}
    return Snapshot((pool,), tuple(there), (active, *waiting), holes, busy, max_removing=draw(st.integers(1, 4)))


@settings(max_examples=300, deadline=None)
@given(snapshots())
def test_no_plan_oversteps_a_bound(snapshot: Snapshot) -> None:
    """Report 19: whatever the state, what a plan starts, gives away and retires stays within what there is and what is allowed."""
    (pool,), there = snapshot.pools, snapshot.engines
    commands = plan(snapshot, NOW)
    assert commands == plan(snapshot, NOW), "not pure"
    by_id = {engine.id: engine for engine in there}
    starts = [c for c in commands if isinstance(c, StartEngine)]
    if starts:
        assert len(there) + len(starts) <= pool.max_engines
        assert sum(e.state is S for e in there) + len(starts) <= pool.policy.max_starting
        assert pool.retry_at <= NOW
        assert pool.pinned is not None
    ready = [e for e in there if e.state is R and not e.draining]
    leases = {lease.id: lease for lease in snapshot.leases}
    given_away = sum(isinstance(c, FillSlot) for c in commands)
    given_away += sum(leases[c.lease_id].envs_wanted for c in commands if isinstance(c, GrantLease))
    assert given_away <= len(ready)
    retired = [c.engine_id for c in commands if isinstance(c, RetireEngine)]
    assert len(retired) == len(set(retired))
    assert all(by_id[engine_id].state in (S, R) for engine_id in retired)
    assert sum(not by_id[engine_id].draining for engine_id in retired) + given_away <= len(ready)
    removed = [c.engine_id for c in commands if isinstance(c, RemoveEngine)]
    assert all(by_id[engine_id].state in (G, F) and engine_id not in snapshot.busy for engine_id in removed)
    under_way = sum(what == "remove" for what in snapshot.busy.values())
    assert len(removed) <= max(0, snapshot.max_removing - under_way)
    ended = {c.lease_id for c in commands if isinstance(c, ExpireLease | FailLease)}
    served = {c.lease_id for c in commands if isinstance(c, FillSlot | GrantLease)}
    assert not ended & served


@settings(max_examples=200, deadline=None)
@given(snapshots())
def test_nothing_that_was_just_retired_is_started_again(snapshot: Snapshot) -> None:
    """A plan never retires a fresh engine as too many while it starts another: the two rules agree on what is wanted."""
    (pool,) = snapshot.pools
    commands = plan(snapshot, NOW)
    surplus = [c for c in commands if isinstance(c, RetireEngine) and "than the pool wants" in c.reason]
    assert not (surplus and any(isinstance(c, StartEngine) for c in commands)), pool


@settings(max_examples=100, deadline=None)
@given(
    states=st.lists(_states, max_size=10),
    reserve=st.integers(0, 4),
    room=st.integers(0, 4),
    image=st.sampled_from(["sha-1", "sha-0"]),
)
def test_from_anywhere_a_pool_comes_to_rest(states: list[EngineState], reserve: int, room: int, image: str) -> None:
    """If everything succeeds a pool arrives at what it wants, and then does nothing."""
    there = [an_engine(n, state, image=image) for n, state in enumerate(states)]
    leased = sum(engine.state is L for engine in there)
    pool = a_pool(min_ready=reserve, max_engines=max(1, leased + reserve + room))
    for turn in range(60):
        there = _apply(pool, there, NOW + turn / 100)
    at_rest = [c for c in plan(Snapshot((pool,), tuple(there)), NOW + 1) if not isinstance(c, ProbeEngines)]
    assert at_rest == []
    assert len(there) == leased + reserve
    assert {engine.image for engine in there if engine.state is R} <= {"sha-1"}
