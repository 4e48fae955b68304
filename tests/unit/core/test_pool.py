"""The pool over a fake engine host: what it does about faults, deaths and clocks. Time passes only when told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from client_sdk.models import EnvState
from orchestrator.errors import ConfigError, FaultKind, LeaseEnded, RuntimeFault, Unavailable
from orchestrator.interfaces import EngineSpec, Seen
from orchestrator.model import EngineState, LeaseState, Retired
from orchestrator.runtimes.fake import FakeHost, FakeRuntime
from orchestrator.store import engines, events, leases, meters, pools
from tests.support.core import ALICE, BOB, START, Core, config_of
from tests.support.crashing import CrashingDatabase, Fuse
from tests.support.runtimes import LeakyRuntime, NeverReadyRuntime

S, R, L = EngineState.STARTING, EngineState.READY, EngineState.LEASED


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Callable[..., Core]]:
    """``core(main={...})``: an installation whose daemon has begun to live."""
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        made.append(Core(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------- supply


def test_a_pool_fills_its_reserve_and_serves_who_asks(core: Callable[..., Core]) -> None:
    """From nothing to a reserve, from the reserve to a lease, and back to a reserve."""
    here = core(main={"min_ready": 2, "max_engines": 4})
    here.settle()
    assert len(here.ready()) == 2
    view = here.acquire(3)
    assert view.lease.state is LeaseState.PENDING
    here.settle()
    assert here.lease(view.lease.id).lease.state is LeaseState.ACTIVE
    here.leasing.release(ALICE, view.lease.id)
    here.settle()
    assert [engine.uses for engine in here.ready()] == [0, 0]
    assert len(here.host.engines) == 2


def test_the_pool_never_overshoots(core: Callable[..., Core]) -> None:
    """Report 19: with creates in flight for many ticks, five-fold demand and deaths, never more than max_engines exist."""
    here = core(main={"min_ready": 4, "max_engines": 4, "max_starting": 3})
    for turn in range(30):
        here.tick(jobs=False)
        assert len(here.engines(S)) <= 3
        assert len(here.engines()) <= 4
        if turn % 5 == 4 and here.jobs.waiting:
            here.jobs.run()
        assert len(here.host.engines) <= 4


def test_an_engine_intended_is_written_down_before_the_host_is_asked(core: Callable[..., Core]) -> None:
    """Report 13: row, name, port and image are there before the engine host has heard of the engine."""
    here = core(main={"min_ready": 1})
    here.tick()
    here.tick(jobs=False)
    (engine,) = here.engines()
    assert (engine.state, engine.handle, engine.name) == (S, None, f"cornerman-test-{engine.id}")
    assert here.host.engines == {}


def test_surplus_engines_go(core: Callable[..., Core]) -> None:
    """A smaller min_ready takes effect while running."""
    here = core(main={"min_ready": 4, "max_engines": 4})
    here.settle()
    here.patch(min_ready=1)
    here.settle()
    assert len(here.ready()) == len(here.host.engines) == 1


# ---------------------------------------------------------------- ports


def test_two_creates_at_once_get_two_ports(core: Callable[..., Core]) -> None:
    """Report 1: starts intended in the same moment have different ports, before either of them runs."""
    here = core(main={"min_ready": 4, "max_starting": 4})
    here.tick()
    here.tick(jobs=False)
    assert len({engine.port for engine in here.engines(S)}) == 4


def test_a_port_lost_to_somebody_else_leaves_nothing_behind(core: Callable[..., Core]) -> None:
    """Reports 2 and 3: the half-made engine is removed, another port is taken, the lost one is left alone for a while, an event says so."""
    here = core(main={"min_ready": 1}, first_port=32000, last_port=32015)
    here.host.hold_port(32000)
    here.settle()
    (engine,) = here.ready()
    assert engine.port == 32001
    assert len(here.host.engines) == 1
    assert "port 32000 is held by something Cornerman did not start" in here.events("port.quarantined")[0]
    assert here.pool_state().fault is None
    here.host.free_port(32000)
    here.patch(min_ready=4)
    here.settle()
    assert 32000 not in {engine.port for engine in here.ready()}
    here.clock.pass_s(700)
    here.patch(min_ready=16)
    here.settle()
    assert 32000 in {engine.port for engine in here.ready()}


def test_a_port_that_is_bound_is_not_even_tried(core: Callable[..., Core]) -> None:
    """Report 4: a port that something on this machine holds, an outgoing connection too, is skipped."""
    here = core(main={"min_ready": 2}, first_port=32760, last_port=32799)
    here.bound.update({32760, 32762, *range(32763, 32769)})
    here.settle()
    assert sorted(engine.port for engine in here.ready()) == [32761, 32769]
    assert here.events("port.quarantined") == []


def test_ports_below_the_kernels_own_range_come_first(core: Callable[..., Core]) -> None:
    """Report 4: numbers that the kernel hands to outgoing connections are taken only when the others are in use."""
    here = core(main={"min_ready": 3, "max_engines": 16}, first_port=32766, last_port=32799)
    for last in (32768, 32769, 32770):  # of those above, the one unused for longest
        here.patch(min_ready=3)
        here.settle()
        assert sorted(engine.port for engine in here.ready()) == [32766, 32767, last]
        here.patch(min_ready=0)
        here.settle()


def test_without_a_port_the_pool_says_so(core: Callable[..., Core]) -> None:
    """When others hold the whole range the pool is degraded with what to do, and recovers when they let go."""
    here = core(main={"min_ready": 1, "max_engines": 2}, first_port=32000, last_port=32001)
    here.bound.update({32000, 32001})
    here.settle()
    assert "widen first_port..last_port" in (here.pool_state().fault or "")
    here.bound.clear()
    here.settle(ticks=60)
    assert here.pool_state().fault is None
    assert len(here.ready()) == 1


# ---------------------------------------------------------------- answers that get lost


@pytest.mark.parametrize("call", ["create", "start", "remove"])
def test_a_call_that_timed_out_and_succeeded_makes_one_engine(core: Callable[..., Core], call: str) -> None:
    """Report 12: what was done although nobody heard of it is looked up by its name, and not done again."""
    here = core(main={"min_ready": 1, "max_engines": 2})
    here.host.lose_answers(call, 3)
    here.settle(ticks=40)
    view = here.acquire()
    here.settle()
    here.leasing.release(ALICE, view.lease.id)
    here.settle(ticks=80)
    assert len(here.host.engines) == len(here.engines()) == 1


def test_what_was_not_removed_although_the_host_said_so_is_found(core: Callable[..., Core]) -> None:
    """An engine that carries our label and has no row is removed by the next look, with an event."""
    here = core(runtime=lambda instance, host: LeakyRuntime(instance, host, times=2), main={"min_ready": 1})
    here.settle()
    view = here.acquire()
    here.leasing.release(ALICE, view.lease.id)
    here.settle(ticks=40)
    assert {engine.spec.engine_id for engine in here.host.engines.values()} == {e.id for e in here.engines()}
    assert len(set(here.events("engine.stray_removed"))) == 1


def test_removal_depends_on_no_request(core: Callable[..., Core]) -> None:
    """Report 10: a release is one entry in the store; whoever asked may be gone while the engine is removed."""
    here = core(main={"min_ready": 0, "max_engines": 1})
    view = here.acquire()
    here.settle()
    here.leasing.release(ALICE, view.lease.id)
    assert len(here.host.engines) == 1
    here.restart()
    here.settle()
    assert here.host.engines == {}


class _RefusingRuntime(FakeRuntime):
    """Answers a removal as an engine host does that has removed it already, or is doing so."""

    def remove(self, handle: str) -> None:
        with self.host.lock:
            if handle in self.host.engines:
                self.host.remove(handle)
        super().remove(handle)


def test_what_is_gone_already_counts_as_removed(core: Callable[..., Core]) -> None:
    """Report 15: an engine that somebody else removed first leaves no row behind and raises no alarm."""
    here = core(runtime=_RefusingRuntime, main={"min_ready": 1, "max_engines": 1})
    here.settle()
    view = here.acquire()
    here.leasing.release(ALICE, view.lease.id)
    here.settle()
    assert here.events("engine.stuck") == []
    assert len(here.engines()) == len(here.host.engines) == 1


# ---------------------------------------------------------------- deaths of the daemon


def test_a_killed_daemon_goes_on_where_it_stopped(core: Callable[..., Core]) -> None:
    """Report 13: leases, engines and games are as they were, and a lease has a whole TTL to be renewed."""
    here = core(main={"min_ready": 1, "max_engines": 4})
    here.settle()
    view = here.acquire(2)
    here.settle()
    before = here.lease(view.lease.id).envs
    here.clock.pass_s(3600)
    here.restart()
    here.settle()
    after = here.lease(view.lease.id)
    assert (after.envs, after.lease.state) == (before, LeaseState.ACTIVE)
    here.clock.pass_s(60)
    here.settle()
    assert here.lease(view.lease.id).lease.state is LeaseState.EXPIRED


def test_a_start_under_way_is_gone_on_with(core: Callable[..., Core]) -> None:
    """Report 13: an engine made and not started when the daemon was killed is started by the next one, not made again."""
    here = core(main={"min_ready": 1, "max_engines": 1})
    here.tick()
    here.tick(jobs=False)
    (engine,) = here.engines()
    runtime = FakeRuntime("test", here.host)
    runtime.create(EngineSpec(engine.id, engine.name, "test", "main", engine.image, engine.host, engine.port))
    here.clock.pass_s(10_000)
    here.restart()
    here.settle()
    assert [one.id for one in here.ready()] == [engine.id]
    assert len(here.host.engines) == 1
    assert here.pool_state().fault is None


def test_an_engine_made_but_not_noted_down_is_removed_by_its_name(core: Callable[..., Core]) -> None:
    """Report 13: killed between making an engine and writing down its container, and told to end it meanwhile: nothing stays."""
    here = core(main={"min_ready": 1, "max_engines": 1})
    here.tick()
    here.tick(jobs=False)
    (engine,) = here.engines()
    runtime = FakeRuntime("test", here.host)
    runtime.create(EngineSpec(engine.id, engine.name, "test", "main", engine.image, engine.host, engine.port))
    with here.database.write() as db:
        engines.happen(db, engines.get(db, engine.id), Retired("root retired it"), START)
    here.restart()
    here.tick()
    assert here.host.engines == {}
    here.settle()
    assert len(here.ready()) == 1
    assert here.events("engine.stray_removed") == []


def test_engines_that_died_while_nobody_looked_are_replaced(core: Callable[..., Core]) -> None:
    """Report 14: after a restart of daemon or engine host everything is listed anew, and what died is replaced in its lease."""
    here = core(main={"min_ready": 1, "max_engines": 4})
    here.settle()
    view = here.acquire(2)
    here.settle()
    for engine in here.engines(L):
        here.host.kill(engine.name)
    here.restart()
    here.settle()
    after = here.lease(view.lease.id)
    assert [(env.state, env.generation) for env in after.envs] == [(EnvState.READY, 2)] * 2
    assert after.lease.state is LeaseState.ACTIVE


def test_a_clock_that_was_set_back_while_the_daemon_was_away_blocks_nothing(core: Callable[..., Core]) -> None:
    """Report 18: backoff and deadlines do not reach an hour ahead because the clock was corrected during a restart."""
    here = core(main={"min_ready": 1, "max_engines": 1})
    here.host.images = set()
    here.settle(ticks=30)
    assert here.pool_state().fault
    here.close()
    here.clock.step(-3600)
    here.host.images = None
    here.begin()
    here.settle(ticks=150)
    assert len(here.ready()) == 1


# ---------------------------------------------------------------- the clock


@pytest.mark.parametrize("step", [3600.0, -3600.0, 86400.0 * 400])
def test_a_step_of_the_clock_ends_no_lease(core: Callable[..., Core], step: float) -> None:
    """Report 18: forward or back, and whether the machine slept or somebody set the clock, every lease has its whole TTL again."""
    here = core(main={"min_ready": 1, "max_engines": 4})
    here.settle()
    active, waiting = here.acquire(4), here.acquire(2, BOB)
    here.settle()
    here.clock.step(step)
    here.settle(ticks=4)
    for view in (active, waiting):
        assert not here.lease(view.lease.id).lease.ended
        assert here.lease(view.lease.id).lease.expires_at == START + 12 + step + 60
    here.clock.pass_s(61)
    here.tick()
    assert here.lease(active.lease.id).lease.state is LeaseState.EXPIRED
    assert len(here.events("clock.stepped")) == 1


def test_a_step_in_the_middle_of_a_tick_ends_no_lease(core: Callable[..., Core]) -> None:
    """Report 18: not even a clock that is set between looking at it and deciding mass-expires."""
    here = core(main={"min_ready": 1, "max_engines": 4})
    here.settle()
    view = here.acquire(2)
    here.settle()
    look_again = here.pool._sign_of_life

    def and_step(now: float) -> None:
        look_again(now)
        here.clock.step(3600)

    here.pool._sign_of_life = and_step  # type: ignore[method-assign]
    here.tick()
    here.pool._sign_of_life = look_again  # type: ignore[method-assign]
    here.settle()
    assert here.lease(view.lease.id).lease.state is LeaseState.ACTIVE


# ---------------------------------------------------------------- images


def test_a_bad_image_is_tried_ever_more_slowly(core: Callable[..., Core]) -> None:
    """Report 20: the pool says what is wrong, tries less and less often, one engine at a time, and recovers by itself."""
    here = core(main={"min_ready": 4, "max_engines": 8})
    here.settle()
    for engine in here.ready():
        here.host.kill(engine.name, log=("terminate called",))
    here.host.images = set()
    with capture_logs() as logs:
        here.settle(ticks=240)
    assert [line["pool"] for line in logs if line["event"] == "a pool cannot start engines"] == ["main"]
    assert "image" in (here.pool_state().fault or "")
    assert len(here.events("pool.degraded")) == 1
    assert here.pool_state().fail_streak <= 8
    assert here.pool_state().retry_at - here.clock.now() <= 60
    here.host.images = None
    here.settle(ticks=130)
    assert here.pool_state().fault is None
    assert len(here.ready()) == 4
    assert len(here.events("pool.recovered")) == 1


def test_engines_that_fail_together_count_as_one_failure(core: Callable[..., Core]) -> None:
    """Report 20: four starts that fail in the same second do not make the pool wait as if it had failed four times."""
    here = core(runtime=NeverReadyRuntime, main={"min_ready": 4, "start_timeout_s": 1.0, "max_engines": 8})
    here.tick()
    here.tick(jobs=False)
    while here.jobs.waiting:
        here.clock.pass_s(-1.0 if here.pool_state().fault else 0.0)  # they ran side by side
        here.jobs.run()
    assert here.pool_state().fail_streak == 1


def test_engines_that_come_up_only_to_die_make_the_pool_back_off(core: Callable[..., Core]) -> None:
    """Report 20: an image whose engines answer and die a moment later is not restarted at full speed either."""
    here = core(main={"min_ready": 1, "max_engines": 2})
    starts = 0
    for _ in range(600):
        for engine in here.ready():
            here.host.kill(engine.name, exit_code=139)
            starts += 1
        here.settle(ticks=1)
    assert 4 <= starts <= 16  # in five minutes
    assert any("die soon after they are ready" in text for text in here.events("pool.degraded"))
    here.settle(ticks=200)
    assert here.pool_state().fault is None
    assert len(here.ready()) == 1


def test_an_image_that_was_mended_under_the_same_name_is_taken(core: Callable[..., Core]) -> None:
    """Report 20: a broken image rebuilt under its old name is used by the next try, without anybody's help."""
    here = core(runtime=_MovingTag, main={"min_ready": 1, "start_timeout_s": 1.0})
    here.settle(ticks=10)
    assert here.ready() == []
    assert isinstance(here.runtime, _MovingTag)
    here.runtime.means = "sha-good"
    here.settle(ticks=150)
    assert [engine.image for engine in here.ready()] == ["sha-good"]
    assert here.pool_state().fault is None


class _MovingTag(FakeRuntime):
    """What its image's name means can change; engines of "sha-bad" never answer; images in ``pruned`` are not there."""

    means = "sha-bad"

    def __init__(self, instance: str, host: FakeHost) -> None:
        super().__init__(instance, host)
        self.pruned: set[str] = set()
        self.can_pull = True
        self.pulled: list[str] = []

    def resolve_image(self, image: str, *, pull: bool = True, fresh: bool = False) -> str:
        digest = self.means if image == "engine:1" else image
        if digest in self.pruned:
            if not (pull and self.can_pull):
                raise RuntimeFault(FaultKind.IMAGE_MISSING, f"The image {image} is not here: pull it.")
            self.pruned.discard(digest)
            self.pulled.append(image)
        return digest

    def create(self, spec: EngineSpec) -> str:
        if spec.image in self.pruned:
            raise RuntimeFault(FaultKind.IMAGE_MISSING, f"The image {spec.image} is not here: pull it.")
        return super().create(spec)

    def start(self, handle: str) -> None:
        super().start(handle)
        if self.host.engines[handle].spec.image == "sha-bad":
            self.host.engines[handle].hung = True


def test_an_image_pruned_while_running_is_pulled_again(core: Callable[..., Core]) -> None:
    """Report 23: the very same image is got by its digest, the same engine goes on, and nobody is blamed."""
    here = core(runtime=_MovingTag, main={"min_ready": 1, "max_engines": 2})
    assert isinstance(here.runtime, _MovingTag)
    here.runtime.means = "sha-good"
    here.settle()
    here.runtime.pruned = {"sha-good"}
    here.acquire()
    here.settle(ticks=20)
    assert here.runtime.pulled == ["sha-good"]
    assert len(here.ready()) == 1
    assert here.events("pool.degraded") == []


def test_an_image_pruned_and_not_to_be_had_degrades_the_pool(core: Callable[..., Core]) -> None:
    """Report 23: if it cannot be pulled the pool says so, leased engines play on, and it recovers when the image is back."""
    here = core(runtime=_MovingTag, main={"min_ready": 1, "max_engines": 2})
    assert isinstance(here.runtime, _MovingTag)
    here.runtime.means = "sha-good"
    here.settle()
    view = here.acquire()
    here.runtime.pruned, here.runtime.can_pull = {"sha-good"}, False
    here.settle(ticks=30)
    assert "is not here" in (here.pool_state().fault or "")
    here.leasing.renew(ALICE, view.lease.id)
    assert [env.state for env in here.lease(view.lease.id).envs] == [EnvState.READY]
    here.runtime.can_pull = True
    here.settle(ticks=80)
    assert len(here.ready()) == 1
    assert here.pool_state().fault is None


def test_a_new_image_rolls_through_the_pool(core: Callable[..., Core]) -> None:
    """Report 21: idle engines are renewed while min_ready of them stay ready, the leased one plays on until its lease ends."""
    here = core(main={"min_ready": 2, "max_engines": 4, "allowed_images": ["engine:2"]})
    here.settle()
    view = here.acquire()
    here.settle()
    here.patch(image="engine:2")
    for _ in range(20):
        here.settle(ticks=1)
        assert len(here.ready()) >= 2
        here.leasing.renew(ALICE, view.lease.id)
    assert {engine.image for engine in here.ready()} == {"engine:2"}
    assert [engine.image for engine in here.engines(L)] == ["engine:1"]
    assert here.lease(view.lease.id).envs == view.envs
    here.leasing.release(ALICE, view.lease.id)
    here.settle()
    assert {engine.image for engine in here.engines()} == {"engine:2"}


def test_an_upgrade_takes_what_the_name_means_now(core: Callable[..., Core]) -> None:
    """Report 21: the same name, fetched anew, rolls through the pool with min_ready engines ready all the time."""
    here = core(runtime=_MovingTag, main={"min_ready": 2, "max_engines": 4})
    runtime = here.runtime
    assert isinstance(runtime, _MovingTag)
    runtime.means = "sha-old"
    here.settle()
    assert {engine.image for engine in here.ready()} == {"sha-old"}
    runtime.means = "sha-new"
    here.settle()
    assert {engine.image for engine in here.ready()} == {"sha-old"}  # a tag that moved changes nothing by itself
    with here.database.write() as db:
        pools.ask_fresh(db, "main")
    for _ in range(20):
        here.settle(ticks=1)
        assert len(here.ready()) >= 2
    assert {engine.image for engine in here.engines()} == {"sha-new"}
    assert here.pool_state().repin == 0
    assert here.events("pool.image")[-1] == "engine:1 is sha-new"


def test_a_pool_goes_on_while_its_new_image_is_fetched(core: Callable[..., Core]) -> None:
    """Report 21: during an hour's download engines that are leased away are replaced, from the image there is."""
    here = core(main={"min_ready": 2, "max_engines": 6, "allowed_images": ["engine:2"]})
    here.settle()
    here.patch(image="engine:2")
    here.pool.tick()
    download = here.jobs.waiting.pop()  # it takes an hour
    here.acquire(2)
    for _ in range(10):
        here.pool.look()
        here.tick()
        here.clock.pass_s(1)
    assert [engine.image for engine in here.ready()] == ["engine:1", "engine:1"]
    download()
    here.settle(ticks=20)
    assert {engine.image for engine in here.ready()} == {"engine:2"}


def test_a_new_image_that_cannot_be_had_leaves_the_pool_as_it_is(core: Callable[..., Core]) -> None:
    """Report 20: the pool goes on with what it has, says why once, tries again each minute, and takes the image when it is there."""
    here = core(main={"min_ready": 1, "max_engines": 4, "allowed_images": ["engine:2"]})
    here.settle()
    here.host.images = {"engine:1"}
    here.patch(image="engine:2")
    here.settle(ticks=5)
    pool = here.pool_state()
    assert (pool.pinned, pool.fault, pool.repin) == ("engine:1", None, 1)
    assert "engine:2" in (pool.repin_fault or "")
    here.acquire(2)
    here.settle(ticks=140)
    assert len(here.ready()) == 1
    assert len(here.events("pool.image_failed")) == 1
    here.host.images = None
    here.settle(ticks=140)
    assert {engine.image for engine in here.ready()} == {"engine:2"}
    assert here.pool_state().repin_fault is None


def test_a_reused_engine_of_an_old_image_is_renewed_too(core: Callable[..., Core]) -> None:
    """Report 21: where engines are reused, one that comes back with the old image gives way to a new one."""
    here = core(main={"min_ready": 1, "max_engines": 3, "recycle": "reuse", "max_uses": 9})
    here.settle()
    view = here.acquire()
    here.patch(image="engine:2")
    here.settle()
    here.leasing.release(ALICE, view.lease.id)
    here.settle()
    assert [engine.image for engine in here.engines()] == ["engine:2"]


def test_a_slow_pull_of_one_pool_does_not_hold_up_another(core: Callable[..., Core]) -> None:
    """Report 22: while one pool's image is being fetched the other one fills and leases."""
    here = core(main={"min_ready": 1}, slow={"min_ready": 1, "image": "huge:1"})
    here.pool.tick()
    assert len(here.jobs.waiting) == 2
    pull = here.jobs.waiting.pop()
    for _ in range(5):
        here.tick()
    assert [engine.pool for engine in here.ready()] == ["main"]
    pull()
    here.settle()
    assert {engine.pool for engine in here.ready()} == {"main", "slow"}


# ---------------------------------------------------------------- health


def test_an_engine_that_never_answers_is_given_up_with_its_reason(core: Callable[..., Core]) -> None:
    """Reports 16 and 24: a running engine with an open port is not ready until it answers; after its time it is removed."""
    here = core(runtime=NeverReadyRuntime, main={"min_ready": 1, "start_timeout_s": 5.0})
    here.tick()
    here.tick()
    assert here.ready() == []
    assert "within 5 s" in (here.pool_state().fault or "")
    here.settle(ticks=1)
    assert here.host.engines == {}


def test_a_start_under_way_can_be_ended(core: Callable[..., Core]) -> None:
    """Report 16: an engine that is told to go while it starts goes, and nobody waits for its deadline."""
    here = core(main={"min_ready": 1, "max_engines": 1, "start_timeout_s": 600.0})
    here.host.boot_s = 1e9
    here.tick()
    here.tick(jobs=False)
    (engine,) = here.engines()
    began = here.clock.monotonic()

    def drain(seconds: float) -> None:
        here.clock.pass_s(seconds)
        with here.database.write() as db:
            engines.drain(db, engine.id, "root retired it")
        here.pool.tick()

    here.pool._starts._pause = drain
    here.tick()
    assert here.clock.monotonic() - began < 5
    here.host.boot_s = 0
    here.settle()
    assert engine.id not in {one.id for one in here.engines()}
    assert here.pool_state().fault is None


def test_one_failed_probe_kills_nobody(core: Callable[..., Core]) -> None:
    """Report 25: a ready engine has to fail several probes over some time; one that was only slow is left alone."""
    here = core(main={"min_ready": 1, "max_engines": 1, "probe_interval_s": 60.0, "probe_failures": 3})
    here.settle()
    (engine,) = here.ready()
    fake = next(iter(here.host.engines.values()))
    fake.hung = True
    here.clock.pass_s(60)
    here.settle(ticks=8)  # two probes fail
    assert [one.id for one in here.ready()] == [engine.id]
    fake.hung = False
    here.settle(ticks=12)
    assert here.ready()[0].probe_failures == 0
    fake.hung = True
    here.clock.pass_s(60)
    here.settle(ticks=60)
    assert engine.id not in {one.id for one in here.engines()}
    assert len(here.ready()) == 1
    assert any("3 probes in a row" in text for text in here.events("engine.failed"))


def test_a_leased_engine_is_never_killed_for_a_probe(core: Callable[..., Core]) -> None:
    """Report 25: somebody's game is not touched, however long its engine does not answer a stranger."""
    here = core(main={"min_ready": 1, "max_engines": 2, "probe_interval_s": 1.0, "probe_failures": 1})
    here.settle()
    view = here.acquire(ttl_s=3600.0)
    next(iter(here.host.engines.values())).hung = True
    here.settle(ticks=100)
    assert here.lease(view.lease.id).envs == view.envs


def test_an_engine_leased_during_its_probe_is_left_alone(core: Callable[..., Core]) -> None:
    """Report 25: a probe that fails after the engine was leased says nothing any more."""
    here = core(main={"min_ready": 1, "max_engines": 1, "probe_interval_s": 60.0, "probe_failures": 1})
    here.settle()
    (engine,) = here.ready()
    here.host.hang(engine.name)
    here.clock.pass_s(60)
    here.tick(jobs=False)
    here.acquire()
    here.jobs.run()
    assert [one.id for one in here.engines(L)] == [engine.id]


def test_a_dead_engine_of_a_lease_is_replaced_with_its_reason(core: Callable[..., Core]) -> None:
    """An engine that dies is noticed, its slot gets a fresh one, and the event says which rank and why."""
    here = core(main={"min_ready": 1, "max_engines": 3})
    here.settle()
    view = here.acquire()
    here.settle()
    here.host.kill(here.engines(L)[0].name, exit_code=137, oom=True)
    here.settle()
    after = here.lease(view.lease.id)
    assert (after.envs[0].generation, after.envs[0].state) == (2, EnvState.READY)
    (text,) = here.events("lease.engine_lost")
    assert text.startswith("rank 0 lost its engine: ")
    assert "memory" in text


def test_a_rumour_of_death_is_looked_into(core: Callable[..., Core]) -> None:
    """A hint that an engine has ended is believed only if it has: an event of a former life kills no one."""
    here = core(main={"min_ready": 1})
    here.settle()
    (engine,) = here.ready()
    assert here.pool._work.bury(engine.id, "it ended by itself") is None
    assert [one.id for one in here.ready()] == [engine.id]


# ---------------------------------------------------------------- the engine host


def test_a_host_out_of_reach_is_not_a_dead_one(core: Callable[..., Core]) -> None:
    """Report 14: while the engine host does not answer nothing is declared lost, leased engines stay, and it is said once."""
    here = core(main={"min_ready": 2, "max_engines": 6})
    here.settle()
    view = here.acquire(ttl_s=3600.0)
    here.settle()
    here.host.unreachable = True
    before = [(engine.id, engine.state) for engine in here.engines()]
    here.settle(ticks=300)
    assert [(engine.id, engine.state) for engine in here.engines()] == before
    here.host.unreachable = False
    here.settle()
    assert here.lease(view.lease.id).envs == view.envs
    assert len(here.events("host.unreachable")) == len(here.events("host.back")) == 1
    assert here.pool_state().fault is None


def test_starts_that_an_outage_interrupted_are_not_blamed_on_the_image(core: Callable[..., Core]) -> None:
    """An engine that was starting when the host went away has its whole time again when it is back."""
    here = core(main={"min_ready": 1, "start_timeout_s": 10.0})
    here.tick()
    here.tick(jobs=False)
    here.host.unreachable = True
    here.settle(ticks=400)
    here.host.unreachable = False
    here.settle()
    assert len(here.ready()) == 1
    assert here.events("pool.degraded") == []
    assert len(here.events("engine.ready")) == 1


def test_nothing_is_intended_before_the_hosts_ports_are_known(core: Callable[..., Core]) -> None:
    """A daemon that starts while the engine host is away chooses no port until it has seen which are taken."""
    here = core(main={"min_ready": 1, "max_engines": 1})
    other = FakeRuntime("somebody-else", here.host)
    for port in (32000, 32001):
        other.create(EngineSpec(f"x{port}", f"other-{port}", "somebody-else", "p", "i", "127.0.0.1", port))
    here.host.unreachable = True
    here.restart()
    here.settle()
    assert here.engines() == []
    here.host.unreachable = False
    here.settle()
    assert [engine.port for engine in here.ready()] == [32002]
    assert len(other.list()) == 2


class _VanishingRuntime(FakeRuntime):
    """An engine vanishes in the middle of each listing."""

    def list(self) -> list[Seen]:
        seen = super().list()
        return [one for one in seen if one.name in self.host._by_name]


def test_a_listing_goes_on_when_an_engine_vanishes_in_it(core: Callable[..., Core]) -> None:
    """Report 7: what vanished is looked for once more and replaced; the rest of the listing counts."""
    here = core(runtime=_VanishingRuntime, main={"min_ready": 3})
    here.settle()
    gone, dead, _ = here.ready()
    here.host.remove(gone.handle or "")
    here.host.kill(dead.name)
    here.settle()
    assert len(here.ready()) == 3
    assert not {gone.id, dead.id} & {engine.id for engine in here.ready()}


class _WedgedRuntime(FakeRuntime):
    """Engines whose names are in ``wedged`` cannot be removed, looked at, or listed with their state."""

    def __init__(self, instance: str, host: FakeHost) -> None:
        super().__init__(instance, host)
        self.wedged: set[str] = set()
        self.tries = 0

    def remove(self, handle: str) -> None:
        engine = self.host.engines.get(handle)
        if engine is not None and engine.spec.name in self.wedged:
            self.tries += 1
            raise RuntimeFault(FaultKind.TIMEOUT, "The engine host took too long to remove an engine: restart it.")
        super().remove(handle)


def test_wedged_engines_hold_up_nobody(core: Callable[..., Core]) -> None:
    """Report 26: engines that cannot be removed are reported once and tried ever more rarely, while all others come and go."""
    here = core(runtime=_WedgedRuntime, main={"min_ready": 20, "max_engines": 60, "max_starting": 16})
    assert isinstance(here.runtime, _WedgedRuntime)
    here.settle()
    view = here.acquire(16)
    here.runtime.wedged = {engine.name for engine in here.engines(L)}
    here.leasing.release(ALICE, view.lease.id)
    here.settle(ticks=30)
    again = here.acquire(4)
    here.settle(ticks=2)
    here.leasing.release(ALICE, again.lease.id)
    here.settle(ticks=30)
    stuck = here.engines(EngineState.RETIRING)
    assert {engine.name for engine in stuck} == here.runtime.wedged
    assert len(here.ready()) == 20
    assert len(here.events("engine.stuck")) == 16
    before = here.runtime.tries
    here.settle(ticks=120)
    assert here.runtime.tries - before <= 16 * 4
    here.runtime.wedged = set()
    here.settle(ticks=600)
    assert here.engines(EngineState.RETIRING) == []


def test_one_command_that_fails_keeps_no_other_from_being_carried_out(core: Callable[..., Core]) -> None:
    """A fault of ours in one place does not stop the pool from doing the rest of its work."""
    here = core(main={"min_ready": 1, "max_engines": 2}, other={"min_ready": 1})
    here.settle()
    intend = here.pool._intend

    def broken(pool: str) -> None:
        if pool == "main":
            raise ZeroDivisionError
        intend(pool)

    here.pool._intend = broken  # type: ignore[method-assign, assignment]
    for engine in here.ready():
        here.host.kill(engine.name)
    with capture_logs() as logs:
        here.settle()
    assert [engine.pool for engine in here.ready()] == ["other"]
    assert {line["event"] for line in logs if line["log_level"] == "error"} == {"a command failed"}


# ---------------------------------------------------------------- leases in time


def test_a_caller_that_went_away_after_the_grant_loses_its_engines(core: Callable[..., Core]) -> None:
    """Report 8: engines of a caller that timed out come back when its lease is not renewed; the same key shows what became of it."""
    here = core(main={"min_ready": 1, "max_engines": 1})
    here.settle()
    view = here.acquire(key="k")
    here.clock.pass_s(60)
    here.settle()
    assert here.lease(view.lease.id).lease.state is LeaseState.EXPIRED
    assert len(here.ready()) == 1
    with pytest.raises(LeaseEnded):
        here.leasing.renew(ALICE, view.lease.id)


def test_who_leaves_the_queue_is_handed_nothing(core: Callable[..., Core]) -> None:
    """Report 9: a waiting lease that nobody renews is gone before its engines are there, and the next one gets them."""
    here = core(main={"min_ready": 0, "max_engines": 1, "start_timeout_s": 200.0})
    here.host.boot_s = 90.0
    gone = here.acquire()
    stays = here.acquire(caller=BOB)
    for _ in range(120):
        here.leasing.renew(BOB, stays.lease.id)
        here.tick()
        here.clock.pass_s(1)
    assert here.lease(gone.lease.id).lease.state is LeaseState.EXPIRED
    assert here.lease(stays.lease.id).lease.state is LeaseState.ACTIVE


def test_max_lease_s_ends_a_busy_loop(core: Callable[..., Core]) -> None:
    """Report 11: a caller that renews for ever and does nothing is ended by the pool at max_lease_s."""
    here = core(main={"min_ready": 1, "max_lease_s": 120.0})
    here.settle()
    view = here.acquire()
    for _ in range(13):
        here.clock.pass_s(10)
        if not here.lease(view.lease.id).lease.ended:
            here.leasing.renew(ALICE, view.lease.id)
        here.tick()
    ended = here.lease(view.lease.id).lease
    assert (ended.state, "120 s" in (ended.ended_because or "")) == (LeaseState.EXPIRED, True)


def test_a_bad_rom_does_not_eat_every_spare(core: Callable[..., Core]) -> None:
    """A slot that needs more than five engines within ten minutes fails its lease, with the reason of the last loss."""
    here = core(main={"min_ready": 2, "max_engines": 4})
    here.settle()
    view = here.acquire()
    for _ in range(20):
        for engine in here.engines(L):
            here.host.kill(engine.name, exit_code=1, log=("ROM doapp.zip not found",))
        here.settle(ticks=3)
    ended = here.lease(view.lease.id).lease
    assert ended.state is LeaseState.FAILED
    assert "rank 0 lost 6 engines in a row within 10 minutes" in (ended.ended_because or "")
    assert "ROM" in (ended.ended_because or "")
    assert len(here.events("lease.engine_lost")) == 6


def test_engines_that_are_killed_while_they_play_end_no_lease(core: Callable[..., Core]) -> None:
    """Report 31: engines may be killed for a whole training, as long as each of them has played a while."""
    here = core(main={"min_ready": 2, "max_engines": 4})
    here.settle()
    view = here.acquire()
    for _ in range(20):
        with here.database.write() as db:
            meters.add(
                db,
                view.lease.id,
                0,
                pool="main",
                steps=100,
                raw_bytes=0,
                wire_bytes=0,
                engine_s=1.0,
                queue_s=0.0,
                now=START,
            )
        for engine in here.engines(L):
            here.host.kill(engine.name, exit_code=137)
        here.settle(ticks=3)
    assert here.lease(view.lease.id).lease.state is LeaseState.ACTIVE
    assert len(here.events("lease.engine_lost")) == 20


# ---------------------------------------------------------------- another configuration


def test_a_pool_taken_out_of_the_configuration_leaves_nothing(core: Callable[..., Core], tmp_path: Path) -> None:
    """Its leases end with that reason, and its engines are removed like any others."""
    here = core(main={"min_ready": 1}, old={"min_ready": 2})
    here.settle()
    view = here.acquire(pool="old")
    here.restart(config_of(tmp_path, main={"min_ready": 1}))
    here.settle()
    with here.read() as db:
        lease = leases.get(db, view.lease.id)
    assert (lease.state, "taken out of the configuration" in (lease.ended_because or "")) == (LeaseState.FAILED, True)
    assert [engine.pool for engine in here.engines()] == ["main"]
    assert len(here.host.engines) == 1


def test_engines_on_a_host_that_no_pool_uses_are_not_forgotten(core: Callable[..., Core], tmp_path: Path) -> None:
    """A pool moved from one kind of host to another does not leave its old engines running unseen: the daemon says what to do first."""
    here = core(main={"min_ready": 1})
    here.settle()
    with here.database.write() as db:
        db.execute("UPDATE engines SET runtime = 'docker'")
    with pytest.raises(ConfigError, match='runtime = "docker" again'):
        here.restart()
    with here.database.write() as db:
        db.execute("UPDATE engines SET runtime = 'process'")
    here.restart()
    here.settle()
    assert [engine.runtime for engine in here.engines()] == ["fake"]


class _ProcessRuntime(FakeRuntime):
    """Its engines are child processes of the daemon: a new daemon finds none of them."""

    name = "process"

    def __init__(self, instance: str, host: FakeHost) -> None:
        super().__init__(instance, host)
        for engine in list(host.engines.values()):
            host.remove(engine.handle)


def test_engines_that_were_child_processes_are_replaced_after_a_restart(core: Callable[..., Core]) -> None:
    """Processes end with the daemon: their leases go on with fresh engines, nobody is blamed, and the reason says so."""
    here = core(runtime=_ProcessRuntime, main={"min_ready": 1, "max_engines": 3, "runtime": "process"})
    here.settle()
    view = here.acquire()
    here.settle()
    here.restart()
    here.settle()
    after = here.lease(view.lease.id)
    assert (after.lease.state, after.envs[0].state, after.envs[0].generation) == (LeaseState.ACTIVE, EnvState.READY, 2)
    assert here.events("lease.engine_lost") == ["rank 0 lost its engine: it ended with the daemon that had started it"]
    assert len(here.ready()) == 1
    assert here.events("pool.degraded") == []


def test_on_a_full_disk_the_pool_goes_on_when_there_is_room_again(core: Callable[..., Core]) -> None:
    """A disk that is full for a while costs no engine, leaks none, and is said in one sentence, not in tracebacks."""
    fuse = Fuse()
    here = core(database=lambda path: CrashingDatabase(path, fuse), main={"min_ready": 2, "max_engines": 4})
    here.tick()
    here.tick(jobs=False)
    fuse.disk_is_full = True
    with capture_logs() as logs:
        while here.jobs.waiting:
            here.jobs.run()
        here.clock.pass_s(3)
        with pytest.raises(Unavailable):
            here.tick()
        with pytest.raises(Unavailable):
            here.acquire()
    assert [line for line in logs if line["log_level"] == "error"] == []
    fuse.disk_is_full = False
    here.settle()
    assert len(here.ready()) == len(here.host.engines) == 2


def test_a_smaller_maximum_serves_who_can_still_be_served(core: Callable[..., Core]) -> None:
    """Making a pool smaller fails the waiting lease that is too large now, and the one behind it gets its engine."""
    here = core(main={"min_ready": 1, "max_engines": 4})
    here.settle()
    large, small = here.acquire(4), here.acquire(1, BOB)
    here.patch(max_engines=2)
    here.settle()
    assert here.lease(large.lease.id).lease.state is LeaseState.FAILED
    assert here.lease(small.lease.id).lease.state is LeaseState.ACTIVE


def test_what_the_pool_does_is_counted(core: Callable[..., Core]) -> None:
    """Metrics are made of counters that rise with each start, grant and end."""
    here = core(main={"min_ready": 1, "max_engines": 1})
    here.settle()
    here.leasing.release(ALICE, here.acquire().lease.id)
    here.settle()
    with here.read() as db:
        counted = events.counters(db)
        assert pools.get(db, "main", here.policies).fault is None
    assert {name: counted[name, "main"] for name in ("engine.starting", "engine.ready", "engine.gone")} == {
        "engine.starting": 2,
        "engine.ready": 2,
        "engine.gone": 1,
    }
    assert counted["lease.granted", "main"] == counted["lease.released", "main"] == 1
