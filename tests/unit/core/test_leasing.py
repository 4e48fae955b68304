"""Leasing over a real database: who gets engines, who keeps them, and who loses them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_sdk.models import EnvState
from orchestrator.errors import Conflict, LeaseEnded, NotFound, PoolExhausted, QuotaExceeded, Refused, Unprocessable
from orchestrator.leasing import Ask, Leasing
from orchestrator.model import Caller, Engine, EngineState, LeaseState, Policy, Scope
from orchestrator.store import engines, events, leases, pools
from orchestrator.store.database import Database
from tests.support.core import ALICE, BOB, ROOT, START, Clock, a_policy, an_engine


class Desk:
    """Leasing with a number of ready engines, and without a pool process that would do anything by itself."""

    def __init__(self, folder: Path, ready: int, **policy: Any) -> None:
        self.clock = Clock()
        self.database = Database.open(folder / "cornerman.db")
        self.policies: dict[str, Policy] = {"main": a_policy(**policy)}
        self.leasing = Leasing(self.database, self.policies, self.clock.now)
        with self.database.write() as db:
            pools.configure(db, "main", min_ready=0, max_engines=64, image="engine:1")
            pools.pin(db, "main", image="engine:1", pinned="sha-1")
            for number in range(ready):
                engines.insert(db, an_engine(number))

    def ask(self, envs: int = 1, caller: Caller = ALICE, *, key: str | None = None, **ask: Any) -> Any:
        """Acquire; returns the view."""
        return self.leasing.acquire(caller, an_ask(envs, **ask), key=key, body_sha256=str(envs))[0]

    def add_engine(self, number: int) -> None:
        """One more engine is ready."""
        with self.database.write() as db:
            engines.insert(db, an_engine(number))

    def engine(self, engine_id: str) -> Engine:
        """An engine as it is now."""
        with self.database.read() as db:
            return engines.get(db, engine_id)

    def lose(self, engine_id: str) -> None:
        """An engine dies."""
        with self.database.write() as db:
            self.leasing.lose(db, engines.get(db, engine_id), "exit code 1", self.clock.now())


def an_ask(envs: int = 1, **changes: Any) -> Ask:
    """A request for engines of pool main for a minute."""
    return Ask(**{"envs": envs, "pool": "main", "ttl_s": 60.0, **changes})


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """``desk(ready, **policy)``: a Desk."""
    made: list[Desk] = []

    def make(ready: int = 4, **policy: Any) -> Desk:
        made.append(Desk(tmp_path, ready, **policy))
        return made[-1]

    yield make
    for one in made:
        one.database.close()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What these calls return or refuse, all made at the same moment by threads of their own."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = calls[number]()
        except Refused as refused:
            results[number] = refused  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


# ---------------------------------------------------------------- getting engines


def test_engines_that_are_ready_are_leased_at_once(desk: Callable[..., Desk]) -> None:
    """A lease of three gets three different engines with ranks 0 to 2, their addresses, and a time until which it lasts."""
    view = desk(4).ask(3)
    assert view.lease.state is LeaseState.ACTIVE
    assert view.lease.expires_at == START + 60
    assert [(env.rank, env.generation, env.state) for env in view.envs] == [
        (rank, 1, EnvState.READY) for rank in range(3)
    ]
    assert [env.address for env in view.envs] == [f"127.0.0.1:{32000 + number}" for number in range(3)]


def test_two_callers_never_get_one_engine(desk: Callable[..., Desk]) -> None:
    """Twenty callers who ask at the same moment for ten engines get ten different ones, and ten are told to wait."""
    here = desk(10)
    results = at_once(*[lambda: here.ask()] * 20)
    given_away = Counter(env.engine_id for view in results if not isinstance(view, Refused) for env in view.envs)
    assert len(given_away) == 10
    assert set(given_away.values()) == {1}
    assert sum(isinstance(result, PoolExhausted) for result in results) == 10


def test_a_lease_gets_all_it_asked_for_or_nothing(desk: Callable[..., Desk]) -> None:
    """Callers who ask for three of ten engines at the same moment: three get three each, nobody gets one."""
    here = desk(10)
    results = at_once(*[lambda: here.ask(3)] * 6)
    assert sorted(len(view.envs) for view in results if not isinstance(view, Refused)) == [3, 3, 3]
    with here.database.read() as db:
        assert engines.count_ready(db, "main") == 1


def test_grants_by_the_pool_and_by_callers_do_not_collide(desk: Callable[..., Desk]) -> None:
    """The pool serves the queue while others ask: never one engine twice, and the queue comes first."""
    here = desk(2)
    waiting = here.ask(3, wait=True)
    here.add_engine(2)
    results = at_once(*[lambda: here.leasing.grant(waiting.lease.id)] * 4, *[lambda: here.ask(caller=BOB)] * 4)
    assert sorted(str(result) for result in results[:4]) == ["False", "False", "False", "True"]
    assert all(isinstance(result, PoolExhausted) for result in results[4:])


def test_who_does_not_want_to_wait_is_told_when_to_try_again(desk: Callable[..., Desk]) -> None:
    """Without wait a lack of engines is refused with what there is and when to come back; nothing is left behind."""
    here = desk(1)
    with pytest.raises(PoolExhausted, match="has 1 engines ready, not 2") as caught:
        here.ask(2)
    assert caught.value.retry_after_s
    assert here.leasing.listed(ALICE) == []


def test_who_waits_knows_the_place_in_the_queue(desk: Callable[..., Desk]) -> None:
    """Pending leases count up from 1, and move up when one before them goes."""
    here = desk(0)
    first, second = here.ask(wait=True), here.ask(caller=BOB, wait=True)
    assert (first.queue_position, second.queue_position) == (1, 2)
    here.leasing.release(ALICE, first.lease.id)
    assert here.leasing.get(BOB, second.lease.id).queue_position == 1


def test_nobody_overtakes_the_queue(desk: Callable[..., Desk]) -> None:
    """While a large request waits, a small one that could be served at once has to queue as well."""
    here = desk(2)
    here.ask(4, wait=True)
    assert here.ask(1, caller=BOB, wait=True).queue_position == 2
    with pytest.raises(PoolExhausted):
        here.ask(1, caller=BOB)


def test_replacements_are_not_given_away(desk: Callable[..., Desk]) -> None:
    """A ready engine that a running lease needs in place of a lost one is not leased to somebody else."""
    here = desk(2)
    here.ask(1)
    here.lose("e0")
    with pytest.raises(PoolExhausted):
        here.ask(caller=BOB)


def test_more_than_a_pool_can_ever_hold_is_refused(desk: Callable[..., Desk]) -> None:
    """A request that could never be served is not queued."""
    with pytest.raises(Unprocessable, match="at most 64"):
        desk().ask(65, wait=True)


def test_a_pool_that_is_not_there_is_named(desk: Callable[..., Desk]) -> None:
    """A wrong pool name is said so."""
    with pytest.raises(NotFound, match="'other'"):
        desk().ask(pool="other")


def test_a_paused_pool_leases_nothing_and_lets_people_wait(desk: Callable[..., Desk]) -> None:
    """While a pool is paused its ready engines stay where they are."""
    here = desk(2)
    with here.database.write() as db:
        pools.update(db, "main", min_ready=0, max_engines=64, image="engine:1", paused=True)
    with pytest.raises(PoolExhausted, match="paused"):
        here.ask()
    waiting = here.ask(wait=True)
    assert waiting.lease.state is LeaseState.PENDING


# ---------------------------------------------------------------- asking twice


def test_one_key_is_one_lease(desk: Callable[..., Desk]) -> None:
    """Report 8: who asks again because the answer got lost gets the lease it has, and holds no engine twice."""
    here = desk(4)
    first, second = here.ask(2, key="k"), here.ask(2, key="k")
    assert first.lease.id == second.lease.id
    assert first.envs == second.envs
    with here.database.read() as db:
        assert engines.count_ready(db, "main") == 2


def test_one_key_is_one_lease_also_at_the_same_moment(desk: Callable[..., Desk]) -> None:
    """Report 8: eight tries of one request at once make one lease, and one of them knows that it made it."""
    here = desk(4)
    calls = [lambda: here.leasing.acquire(ALICE, an_ask(2), key="k", body_sha256="")] * 8
    results = at_once(*calls)
    assert len({view.lease.id for view, _ in results}) == 1
    assert sorted(made for _, made in results) == [False] * 7 + [True]


def test_a_key_says_that_its_lease_has_ended(desk: Callable[..., Desk]) -> None:
    """Report 8: an ended lease is what its key stands for, for a day; then the key is free."""
    here = desk(4)
    lease_id = here.ask(key="k").lease.id
    here.leasing.release(ALICE, lease_id)
    assert here.ask(key="k").lease.state is LeaseState.RELEASED
    here.clock.pass_s(86401)
    assert here.ask(key="k").lease.id != lease_id


def test_keys_of_two_holders_are_two_keys(desk: Callable[..., Desk]) -> None:
    """Nobody comes by somebody else's lease by guessing a key."""
    here = desk(4)
    assert here.ask(key="k").lease.id != here.ask(caller=BOB, key="k").lease.id


def test_a_key_with_another_body_is_refused(desk: Callable[..., Desk]) -> None:
    """A key that stands for a request for one cannot be used for two."""
    here = desk(4)
    here.ask(1, key="k")
    with pytest.raises(Unprocessable, match="fresh key"):
        here.ask(2, key="k")


def test_a_refused_request_does_not_use_up_its_key(desk: Callable[..., Desk]) -> None:
    """The same key may be tried again when there are engines."""
    here = desk(0)
    with pytest.raises(PoolExhausted):
        here.ask(key="k")
    here.add_engine(1)
    assert here.ask(key="k").lease.state is LeaseState.ACTIVE


# ---------------------------------------------------------------- quotas


def test_a_quota_counts_what_is_held_and_what_is_waited_for(desk: Callable[..., Desk]) -> None:
    """Who may hold three engines cannot ask for a fourth, whether it has them or waits for them; after a release it can."""
    here, carol = desk(2), Caller("carol", Scope.LEASE, max_engines=3)
    first = here.ask(2, carol)
    here.ask(1, carol, wait=True)
    with pytest.raises(QuotaExceeded, match="3 engines"):
        here.ask(1, carol, wait=True)
    here.leasing.release(carol, first.lease.id)
    here.ask(2, carol, wait=True)


def test_a_quota_holds_at_the_same_moment(desk: Callable[..., Desk]) -> None:
    """Ten requests at once do not get past a quota of three."""
    here, carol = desk(16), Caller("carol", Scope.LEASE, max_engines=3)
    results = at_once(*[lambda: here.ask(1, carol)] * 10)
    assert sum(isinstance(result, QuotaExceeded) for result in results) == 7


def test_a_quota_of_waiting_leases_does_not_count_active_ones(desk: Callable[..., Desk]) -> None:
    """max_pending bounds how often somebody stands in the queue."""
    here, carol = desk(1), Caller("carol", Scope.LEASE, max_pending=1)
    here.ask(1, carol, wait=True)
    here.ask(1, carol, wait=True)
    with pytest.raises(QuotaExceeded, match="waiting"):
        here.ask(1, carol, wait=True)


# ---------------------------------------------------------------- keeping them


def test_a_renewal_gives_a_whole_ttl(desk: Callable[..., Desk]) -> None:
    """Each heartbeat counts from now on, and does not rouse those who wait for a change of the lease."""
    here = desk()
    view = here.ask()
    here.clock.pass_s(50)
    renewed = here.leasing.renew(ALICE, view.lease.id)
    assert renewed.lease.expires_at == START + 110
    assert renewed.lease.version == view.lease.version


def test_an_ended_lease_cannot_be_renewed(desk: Callable[..., Desk]) -> None:
    """Report 17: the loser is told that the lease has ended, and why."""
    here = desk()
    lease_id = here.ask().lease.id
    here.clock.pass_s(61)
    assert here.leasing.finish(lease_id, LeaseState.EXPIRED, "nobody renewed it for 60 s", if_expired=True)
    with pytest.raises(LeaseEnded, match="expired: nobody renewed it for 60 s"):
        here.leasing.renew(ALICE, lease_id)


def test_a_lease_renewed_at_the_last_moment_does_not_expire(desk: Callable[..., Desk]) -> None:
    """Report 17: the pool decided to end it, but the renewal came first, and the renewal wins."""
    here = desk()
    lease_id = here.ask().lease.id
    here.clock.pass_s(61)
    here.leasing.renew(ALICE, lease_id)
    assert not here.leasing.finish(lease_id, LeaseState.EXPIRED, "too late", if_expired=True)
    assert here.leasing.get(ALICE, lease_id).lease.state is LeaseState.ACTIVE


@pytest.mark.parametrize("turn", range(25))
def test_of_renewal_and_expiry_exactly_one_wins(desk: Callable[..., Desk], turn: int) -> None:
    """Report 17: at the same moment one of them wins and the other one knows that it lost."""
    here = desk()
    lease_id = here.ask(2).lease.id
    here.clock.pass_s(61)
    renewed, expired = at_once(
        lambda: here.leasing.renew(ALICE, lease_id),
        lambda: here.leasing.finish(lease_id, LeaseState.EXPIRED, "too late", if_expired=True),
    )
    lease = here.leasing.get(ALICE, lease_id).lease
    assert expired is isinstance(renewed, LeaseEnded)
    assert lease.state is (LeaseState.EXPIRED if expired else LeaseState.ACTIVE)
    with here.database.read() as db:
        assert len(engines.of_lease(db, lease_id)) == (0 if expired else 2)


def test_renewing_does_not_carry_a_lease_beyond_the_longest_time(desk: Callable[..., Desk]) -> None:
    """Report 11: at max_lease_s a lease ends although it was renewed a moment ago."""
    here = desk(max_lease_s=100.0)
    lease_id = here.ask().lease.id
    here.clock.pass_s(100)
    here.leasing.renew(ALICE, lease_id)
    assert here.leasing.finish(lease_id, LeaseState.EXPIRED, "the longest time", if_expired=True)


def test_a_lease_that_is_used_again_does_not_end_for_idleness(desk: Callable[..., Desk]) -> None:
    """Report 17: of a call to one of its engines and the end for idleness exactly one wins, and the notice is taken back."""
    here = desk(idle_release_s=1800.0)
    lease_id = here.ask(ttl_s=3600.0).lease.id

    def call() -> None:
        with here.database.write() as db:
            here.leasing.note_called(db, lease_id, here.clock.now())

    assert not here.leasing.warn_idle(lease_id, START + 1800)  # the relay has not seen it yet
    call()
    here.clock.pass_s(1500)
    assert here.leasing.warn_idle(lease_id, START + 1800)
    assert not here.leasing.warn_idle(lease_id, START + 1800)
    call()
    here.clock.pass_s(300)
    assert not here.leasing.finish(lease_id, LeaseState.EXPIRED, "idle", if_expired=True)
    here.clock.pass_s(1200)
    assert here.leasing.warn_idle(lease_id, START + 3300)
    here.clock.pass_s(300)
    here.leasing.renew(ALICE, lease_id)
    assert here.leasing.finish(lease_id, LeaseState.EXPIRED, "idle", if_expired=True)


def test_a_waiting_lease_is_renewed_like_an_active_one(desk: Callable[..., Desk]) -> None:
    """Report 9: who goes on asking stays in the queue, and who does not is handed nothing."""
    here = desk(0)
    stays, goes = here.ask(wait=True), here.ask(caller=BOB, wait=True)
    here.clock.pass_s(59)
    here.leasing.renew(ALICE, stays.lease.id)
    here.clock.pass_s(2)
    here.add_engine(1)
    here.add_engine(2)
    assert here.leasing.grant(stays.lease.id)
    assert not here.leasing.grant(goes.lease.id)
    assert here.leasing.finish(goes.lease.id, LeaseState.EXPIRED, "nobody asked", if_expired=True)


# ---------------------------------------------------------------- giving them back


def test_a_release_lets_go_of_the_engines_and_may_come_twice(desk: Callable[..., Desk]) -> None:
    """One engine serves one lease and then goes; releasing again is fine."""
    here = desk()
    lease_id = here.ask(2).lease.id
    for _ in range(2):
        here.leasing.release(ALICE, lease_id)
    assert here.leasing.get(ALICE, lease_id).lease.state is LeaseState.RELEASED
    assert here.engine("e0").state is EngineState.RETIRING
    with here.database.read() as db:
        assert events.counters(db)["lease.released", "main"] == 1


def test_an_engine_that_may_serve_again_does_so_until_it_may_no_more(desk: Callable[..., Desk]) -> None:
    """With recycle = "reuse" an engine comes back, up to max_uses, unless it is too old or is to go."""
    here = desk(3, reuse=True, max_uses=2, max_age_s=1000.0)
    with here.database.write() as db:
        engines.drain(db, "e2", "root retired it")
    here.leasing.release(ALICE, here.ask(2).lease.id)
    assert [here.engine(f"e{n}").state for n in range(3)] == [EngineState.READY, EngineState.READY, EngineState.READY]
    here.leasing.release(ALICE, here.ask(2).lease.id)
    assert [here.engine(f"e{n}").state for n in range(2)] == [EngineState.RETIRING] * 2
    here.add_engine(7)
    lease_id = here.ask(1).lease.id
    here.clock.pass_s(1001)
    here.leasing.release(ALICE, lease_id)
    assert here.engine("e7").state is EngineState.RETIRING


def test_an_engine_that_was_to_go_goes_with_its_lease(desk: Callable[..., Desk]) -> None:
    """Draining a leased engine leaves the game alone, and ends it with the lease even where engines are reused."""
    here = desk(1, reuse=True, max_uses=9)
    lease_id = here.ask().lease.id
    with here.database.write() as db:
        engines.drain(db, "e0", "root retired it")
    assert here.leasing.get(ALICE, lease_id).envs[0].engine_id == "e0"
    here.leasing.release(ALICE, lease_id)
    assert here.engine("e0").state is EngineState.RETIRING


def test_somebody_elses_lease_is_not_there(desk: Callable[..., Desk]) -> None:
    """Nobody can see, renew, release or touch a lease of another principal; an administrator can."""
    here = desk()
    lease_id = here.ask().lease.id
    calls: list[Callable[[], Any]] = [
        lambda: here.leasing.get(BOB, lease_id),
        lambda: here.leasing.renew(BOB, lease_id),
        lambda: here.leasing.release(BOB, lease_id),
        lambda: here.leasing.replace(BOB, lease_id, 0, generation=1, reason="r"),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    assert here.leasing.listed(BOB) == []
    here.leasing.release(ROOT, lease_id)
    assert "administrator root" in (here.leasing.get(ALICE, lease_id).lease.ended_because or "")


def test_an_ended_lease_shows_no_engines(desk: Callable[..., Desk]) -> None:
    """Once a lease has ended it holds nothing, and says why."""
    here = desk()
    lease_id = here.ask(2).lease.id
    here.leasing.release(ALICE, lease_id)
    view = here.leasing.get(ALICE, lease_id)
    assert (view.envs, view.queue_position, view.lease.ended_because) == ((), None, "its holder released it")


# ---------------------------------------------------------------- broken engines


def test_a_broken_engine_is_replaced_under_the_same_rank(desk: Callable[..., Desk]) -> None:
    """A spare steps in at once with a new generation; the others stay as they are."""
    here = desk(3)
    before = here.ask(2)
    after = here.leasing.replace(ALICE, before.lease.id, 0, generation=1, reason="hung")
    assert [(env.engine_id, env.generation) for env in after.envs] == [("e2", 2), ("e1", 1)]
    assert after.lease.version > before.lease.version
    assert here.engine("e0").state is EngineState.FAILED
    assert "hung" in (here.engine("e0").reason or "")


def test_without_a_spare_the_slot_waits_for_one(desk: Callable[..., Desk]) -> None:
    """Until a fresh engine is ready the slot says that it is being replaced."""
    here = desk(1)
    lease_id = here.ask().lease.id
    after = here.leasing.replace(ALICE, lease_id, 0, generation=1, reason="hung")
    assert (after.envs[0].state, after.envs[0].address) == (EnvState.REPLACING, None)
    here.add_engine(5)
    assert here.leasing.fill_slot(lease_id, 0)
    assert not here.leasing.fill_slot(lease_id, 0)
    env = here.leasing.get(ALICE, lease_id).envs[0]
    assert (env.engine_id, env.generation) == ("e5", 2)


def test_an_old_generation_changes_nothing(desk: Callable[..., Desk]) -> None:
    """A report about the engine before this one is answered with how things are, also while there is none."""
    here = desk(2)
    lease_id = here.ask().lease.id
    here.leasing.replace(ALICE, lease_id, 0, generation=1, reason="hung")
    again = here.leasing.replace(ALICE, lease_id, 0, generation=1, reason="hung")
    assert (again.envs[0].engine_id, again.envs[0].generation) == ("e1", 2)
    here.leasing.replace(ALICE, lease_id, 0, generation=2, reason="hung")
    empty = here.leasing.replace(ALICE, lease_id, 0, generation=2, reason="hung")
    assert empty.envs[0].state is EnvState.REPLACING
    with here.database.read() as db:
        assert events.counters(db)["lease.engine_lost", "main"] == 2


def test_two_reports_of_one_broken_engine_cost_one_engine(desk: Callable[..., Desk]) -> None:
    """Eight threads that report the same generation at once get the same replacement."""
    here = desk(8)
    lease_id = here.ask().lease.id
    views = at_once(*[lambda: here.leasing.replace(ALICE, lease_id, 0, generation=1, reason="hung")] * 8)
    assert {(view.envs[0].engine_id, view.envs[0].generation) for view in views} == {("e1", 2)}


def test_what_cannot_be_replaced_is_said_so(desk: Callable[..., Desk]) -> None:
    """A generation yet to come, a rank that does not exist, a lease that waits, a lease that has ended."""
    here = desk(1)
    lease_id = here.ask().lease.id
    waiting = here.ask(caller=BOB, wait=True).lease.id

    def replace_(caller: Caller, lease: str, rank: int, generation: int) -> None:
        here.leasing.replace(caller, lease, rank, generation=generation, reason="hung")

    with pytest.raises(Conflict, match="generation 1, not 2"):
        replace_(ALICE, lease_id, 0, 2)
    with pytest.raises(NotFound, match="0 to 0"):
        replace_(ALICE, lease_id, 1, 1)
    with pytest.raises(Conflict, match="no engines yet"):
        replace_(BOB, waiting, 0, 1)
    here.leasing.release(ALICE, lease_id)
    with pytest.raises(LeaseEnded):
        replace_(ALICE, lease_id, 0, 1)


def test_a_replacement_does_not_jump_the_others(desk: Callable[..., Desk]) -> None:
    """When more slots wait than engines are ready, who reports last does not get the engine of who waited first."""
    here = desk(2)
    first, second = here.ask(), here.ask(caller=BOB)
    here.leasing.replace(ALICE, first.lease.id, 0, generation=1, reason="hung")
    here.add_engine(5)
    after = here.leasing.replace(BOB, second.lease.id, 0, generation=1, reason="hung")
    assert after.envs[0].state is EnvState.REPLACING


def test_a_slot_that_eats_engines_gets_no_more(desk: Callable[..., Desk]) -> None:
    """Even while spares are ready, a slot that lost more than five within ten minutes is left empty, for its lease to be failed."""
    here = desk(20)
    lease_id = here.ask().lease.id
    for generation in range(1, 7):
        view = here.leasing.replace(ALICE, lease_id, 0, generation=generation, reason="ROM missing")
    assert view.envs[0].state is EnvState.REPLACING
    assert not here.leasing.fill_slot(lease_id, 0)
    with here.database.read() as db:
        (slot,) = leases.empty_slots(db)
    assert slot.lost_because == "its holder reported it as broken: ROM missing"
    here.clock.pass_s(601)
    assert here.leasing.fill_slot(lease_id, 0)


def test_an_engine_that_is_told_to_go_is_not_leased_a_moment_later(desk: Callable[..., Desk]) -> None:
    """Draining and granting at the same moment: either the lease got the engine, or nobody did."""
    here = desk(0)
    for turn in range(10):
        here.add_engine(turn)

        def drain(engine_id: str = f"e{turn}") -> None:
            with here.database.write() as db:
                engines.drain(db, engine_id, "root retired it")

        _, got = at_once(drain, here.ask)
        engine = here.engine(f"e{turn}")
        assert engine.draining
        assert (engine.state is EngineState.LEASED) is not isinstance(got, PoolExhausted)


def test_engines_say_where_their_clients_reach_them(desk: Callable[..., Desk]) -> None:
    """Report 40: with expose = "direct" a lease shows the address that clients use, not the one the engine listens on."""
    here = desk(1)
    here.policies["main"] = replace(here.policies["main"], advertise="games.example")
    assert here.ask().envs[0].address == "games.example:32000"


def test_a_lease_is_found_by_state_and_label(desk: Callable[..., Desk]) -> None:
    """One's own leases, newest first, by what they are labelled with."""
    here = desk(2)
    first = here.ask(labels={"run": "a", "game": "doapp"})
    second = here.ask(labels={"run": "b"})
    here.leasing.release(ALICE, second.lease.id)
    found = here.leasing.listed(ALICE)
    assert [view.lease.id for view in found] == [second.lease.id, first.lease.id]
    assert [v.lease.id for v in here.leasing.listed(ALICE, labels={"run": "a"})] == [first.lease.id]
    assert [v.lease.id for v in here.leasing.listed(ALICE, states=(LeaseState.RELEASED,))] == [second.lease.id]
