"""The core with real threads and real time: jobs, looking at a host, the loop, its clock, and questions to it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from client_sdk.models import EnvState
from orchestrator import ports
from orchestrator.clock import ClockWatch
from orchestrator.commands import FailEngine, RemoveStray
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.jobs import Jobs
from orchestrator.leasing import Ask, Leasing
from orchestrator.model import Engine, EngineState, LeaseState
from orchestrator.observer import Observer
from orchestrator.policies import policies
from orchestrator.pool import PoolService
from orchestrator.runtimes.fake import FakeHost, FakeRuntime
from orchestrator.store import engines, events, inquiries, pools
from orchestrator.store.database import Database
from tests.support.core import ALICE, START, Clock, an_engine, config_of
from tests.support.runtimes import SlowRuntime
from tests.support.waiting import wait_until

# ---------------------------------------------------------------- jobs


@contextmanager
def jobs(clock: Clock | None = None) -> Iterator[tuple[Jobs, threading.Semaphore]]:
    """Jobs, and a semaphore that is released whenever one is done."""
    done = threading.Semaphore(0)
    made = Jobs(
        workers=2,
        removers=2,
        done=done.release,
        monotonic=clock.monotonic if clock else time.monotonic,
    )
    yield made, done
    made.close(timeout_s=5)


def test_one_engine_is_worked_on_in_one_place_at_a_time() -> None:
    """While something is done to an engine nothing else is begun with it, not even its removal."""
    finish = threading.Event()
    with jobs() as (here, done):
        assert here.submit("e1", "launch", lambda: _wait(finish))
        assert not here.submit("e1", "remove", lambda: None)
        assert here.busy() == {"e1": "launch"}
        finish.set()
        assert done.acquire(timeout=5)
        assert here.busy() == {}
        assert here.submit("e1", "remove", lambda: None)


def _wait(event: threading.Event) -> None:
    assert event.wait(20)


def test_work_that_hangs_holds_up_no_removal() -> None:
    """Report 26: launching and removing have threads of their own, so neither can use up the other's."""
    finish = threading.Event()
    with jobs() as (here, done):
        for number in range(5):
            here.submit(f"e{number}", "launch", lambda: _wait(finish))
        here.submit("e9", "remove", lambda: None)
        assert done.acquire(timeout=5)
        assert "e9" not in here.busy()
        finish.set()


def test_work_that_asks_for_it_is_left_alone_for_a_while() -> None:
    """An engine whose host did not answer is not asked again at once."""
    clock = Clock()
    with jobs(clock) as (here, done):
        here.submit("e1", "remove", lambda: 10.0)
        assert done.acquire(timeout=5)
        assert here.busy() == {"e1": "rest"}
        clock.pass_s(10)
        assert here.busy() == {}


def test_a_fault_of_ours_in_a_thread_is_logged_and_tried_again() -> None:
    """Whatever goes wrong within a job, its engine does not stay busy for ever."""
    clock = Clock()
    with capture_logs() as logs, jobs(clock) as (here, done):
        here.submit("e1", "launch", lambda: 1 / 0)
        assert done.acquire(timeout=5)
        assert here.busy() == {"e1": "rest"}
        clock.pass_s(1)
        assert here.busy() == {}
    assert [line["event"] for line in logs] == ["job failed"]


def test_after_closing_no_work_is_taken() -> None:
    """A daemon that stops begins nothing any more."""
    with jobs() as (here, _):
        here.close(timeout_s=1)
        assert not here.submit("e1", "launch", lambda: None)


# ---------------------------------------------------------------- the clock


def test_a_clock_that_runs_is_no_step() -> None:
    """Time that passes, and the small corrections of NTP, are not taken for a step."""
    clock = Clock()
    watch = ClockWatch(clock.now, clock.monotonic)
    clock.pass_s(86400)
    assert watch.read() == (START + 86400, None)
    clock.step(4)
    assert watch.read()[1] is None


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 6.0])
def test_a_step_is_seen_once(step: float) -> None:
    """Report 18: a clock that was set, or a machine that slept, is noticed at the next look, once."""
    clock = Clock()
    watch = ClockWatch(clock.now, clock.monotonic)
    clock.pass_s(10)
    clock.step(step)
    assert watch.read() == (START + 10 + step, step)
    assert watch.read()[1] is None


# ---------------------------------------------------------------- ports


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database with pool main."""
    database = Database.open(tmp_path / "cornerman.db")
    with database.write() as db:
        pools.configure(db, "main", min_ready=1, max_engines=4, image="engine:1")
    yield database
    database.close()


def test_a_port_that_a_stopped_container_has_asked_for_is_not_taken(database: Database) -> None:
    """Report 1: what the engine host says is taken is not given to another engine, although it could be bound."""
    with database.write() as db:
        chosen = ports.choose(
            db, first=32000, last=32009, host="127.0.0.1", taken={32000, 32001}, now=START, is_free=lambda *_: True
        )
    assert chosen == 32002


def test_the_port_unused_for_longest_is_taken(database: Database) -> None:
    """A port just let go of rests as long as there are others, so that late packets find nobody."""
    with database.write() as db:
        for number in range(3):
            engines.insert(db, an_engine(number, EngineState.RETIRING, created_at=START + number))
        db.execute("UPDATE engines SET state = 'gone'")
        chosen = [
            ports.choose(db, first=32000, last=last, host="127.0.0.1", taken=(), now=START, is_free=lambda *_: True)
            for last in (32009, 32002)
        ]
    assert chosen == [32003, 32000]


def test_when_no_port_is_left_it_is_said_what_to_do(database: Database) -> None:
    """All held, all quarantined: one sentence with the range and the cure."""
    with database.write() as db, pytest.raises(RuntimeFault, match="widen first_port") as caught:
        ports.choose(db, first=32000, last=32001, host="127.0.0.1", taken=(), now=START, is_free=lambda *_: False)
    assert caught.value.kind is FaultKind.PORT_TAKEN


def test_a_bound_port_is_seen(free_port: int) -> None:
    """Report 4: whoever holds a port, listening or not, keeps it from being chosen; another machine's address says nothing."""
    import socket

    assert ports.can_bind("127.0.0.1", free_port)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port))
        assert not ports.can_bind("127.0.0.1", free_port)
    assert ports.can_bind("192.0.2.1", free_port)


# ---------------------------------------------------------------- looking at a host


@contextmanager
def observed(database: Database, runtime: FakeRuntime, *, every_s: float = 60.0) -> Iterator[tuple[Observer, Any]]:
    """An observer whose threads run, and an event set whenever it found something."""
    woken = threading.Event()
    observer = Observer(runtime=runtime, database=database, every_s=every_s, busy=dict, wake=woken.set)
    observer.look()
    observer.start()
    try:
        yield observer, woken
    finally:
        observer.close()
        runtime.close()
        observer.join(5)


def _run_engine(host: FakeHost, database: Database, number: int) -> Engine:
    engine = an_engine(number)
    runtime = FakeRuntime("test", host)
    handle = runtime.create(_spec(engine))
    runtime.start(handle)
    with database.write() as db:
        engines.insert(db, engine)
    return engine


def _spec(engine: Engine) -> Any:
    from orchestrator.interfaces import EngineSpec

    return EngineSpec(engine.id, engine.name, "test", engine.pool, engine.image, engine.host, engine.port)


def test_a_death_is_heard_of_at_once(database: Database) -> None:
    """An event of the engine host wakes the pool long before the next listing."""
    host = FakeHost()
    engine = _run_engine(host, database, 1)
    with observed(database, FakeRuntime("test", host)) as (observer, woken):
        wait_until(lambda: host._followers, 5)
        host.kill(engine.name)
        assert woken.wait(5)
        assert observer.findings()[0] == FailEngine("e1", "it ended by itself")


def test_what_happened_while_the_stream_was_broken_is_found(database: Database) -> None:
    """Report 14: an event stream that ends quietly is followed again, and a listing shows what it did not tell."""
    host = FakeHost()
    first, second = _run_engine(host, database, 1), _run_engine(host, database, 2)
    with observed(database, FakeRuntime("test", host)) as (observer, woken):
        wait_until(lambda: host._followers, 5)
        host.end_event_streams()
        host.kill(first.name)
        assert woken.wait(5)
        assert FailEngine("e1", "it ended by itself") in observer.findings()
        wait_until(lambda: host._followers, 5)
        woken.clear()
        host.kill(second.name)
        assert woken.wait(5)
        assert FailEngine("e2", "it ended by itself") in observer.findings()


def test_a_host_that_does_not_answer_is_looked_at_again_soon(database: Database) -> None:
    """Report 14: nothing is concluded while it does not answer; when it does everything is."""
    host = FakeHost()
    engine = _run_engine(host, database, 1)
    with observed(database, FakeRuntime("test", host)) as (observer, _):
        host.unreachable = True
        host.end_event_streams()
        wait_until(lambda: observer.unreachable, 5)
        assert "does not answer" in (observer.fault or "")
        host.kill(engine.name)
        assert observer.findings() == []
        host.unreachable = False
        wait_until(lambda: not observer.unreachable, 10)
        assert observer.findings() == [FailEngine("e1", "it ended by itself")]


def test_a_host_that_is_only_slow_is_not_out_of_reach(database: Database) -> None:
    """Report 26: a listing that times out over one wedged container does not stop everything else."""

    class _SlowListing(FakeRuntime):
        def list(self) -> Any:
            raise RuntimeFault(FaultKind.TIMEOUT, "The engine host took too long to list engines.")

    observer = Observer(runtime=_SlowListing("test"), database=database, every_s=60, busy=dict, wake=lambda: None)
    observer.look()
    assert (observer.unreachable, observer.findings()) == (False, [])
    assert "too long" in (observer.fault or "")


def test_strays_of_ours_are_found_and_those_of_others_left_alone(database: Database) -> None:
    """An engine of another installation on the same host is none of our business."""
    host = FakeHost()
    FakeRuntime("other", host).create(
        _spec(an_engine(1, name="theirs")).__class__("x", "theirs", "other", "p", "i", "h", 1)
    )
    FakeRuntime("test", host).create(_spec(an_engine(2)))
    observer = Observer(runtime=FakeRuntime("test", host), database=database, every_s=60, busy=dict, wake=lambda: None)
    observer.look()
    assert [type(found) for found in observer.findings()] == [RemoveStray]
    assert observer.taken_ports == {1, 32002}


# ---------------------------------------------------------------- the loop


class Running:
    """A pool whose loop runs."""

    def __init__(self, folder: Path, runtime: FakeRuntime, **named: Any) -> None:
        self.config = config_of(folder, first_port=20000, last_port=31999, **named)
        self.database = Database.open(self.config.database)
        self.policies = policies(self.config)
        self.runtime = runtime
        self.leasing = Leasing(self.database, self.policies, time.time)
        self.pool = PoolService(
            database=self.database,
            config=self.config,
            policies=self.policies,
            runtimes={"fake": runtime},
            probe=runtime.probe,
            leasing=self.leasing,
            instance="test",
            is_free=lambda *_: True,
        )
        self.stop, self.beats = threading.Event(), 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.pool.prepare()
        self.pool.run(self.stop, self._beat)

    def _beat(self) -> None:
        self.beats += 1

    def close(self) -> None:
        """Stop the loop and everything it started."""
        self.stop.set()
        self.thread.join(10)
        self.pool.close()
        self.database.close()

    def ready(self) -> int:
        """How many engines are ready."""
        with self.database.read() as db:
            return engines.count_ready(db, "main")

    def acquire(self, envs: int) -> Any:
        """A lease, waited for."""
        return self.leasing.acquire(ALICE, Ask(envs=envs, pool="main", ttl_s=60.0, wait=True))[0]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``running(runtime, main={...})``: a pool whose loop runs."""
    made: list[Running] = []

    def make(runtime: FakeRuntime, **named: Any) -> Running:
        made.append(Running(tmp_path, runtime, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_loop_serves_heals_and_beats(running: Callable[..., Running]) -> None:
    """Who waits gets engines within a moment, a dead one is replaced within a moment, and the loop shows that it lives."""
    here = running(FakeRuntime("test"), main={"min_ready": 2, "max_engines": 8})
    wait_until(lambda: here.ready() == 2, 10)
    view = here.acquire(4)
    wait_until(lambda: here.leasing.get(ALICE, view.lease.id).lease.state is LeaseState.ACTIVE, 10)
    engine_id = here.leasing.get(ALICE, view.lease.id).envs[0].engine_id
    began = time.monotonic()
    here.runtime.host.kill(f"cornerman-test-{engine_id}")

    def healed() -> bool:
        env = here.leasing.get(ALICE, view.lease.id).envs[0]
        return env.generation == 2 and env.state is EnvState.READY

    wait_until(healed, 10)
    assert time.monotonic() - began < 5
    assert here.beats > 0


def test_starts_run_side_by_side_and_never_more_than_configured(running: Callable[..., Running]) -> None:
    """Reports 19 and 30: eight engines of a slow host come up four at a time."""
    runtime = SlowRuntime("test", delay_s=0.1)
    here = running(runtime, main={"min_ready": 8, "max_engines": 8, "max_starting": 4})
    wait_until(lambda: here.ready() == 8, 20)
    assert 2 <= runtime.most_at_once["start"] <= 4


def test_stopping_does_not_wait_for_engines_that_start(running: Callable[..., Running]) -> None:
    """A daemon that is told to stop does so within seconds, whatever its engines are doing."""
    host = FakeHost(boot_s=1e9)
    here = running(FakeRuntime("test", host), main={"min_ready": 2, "max_engines": 2, "start_timeout_s": 600.0})
    wait_until(lambda: len(host.engines) == 2, 10)
    began = time.monotonic()
    here.close()
    assert time.monotonic() - began < 5
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("engine")], 5)


def test_what_only_the_pool_can_know_it_is_asked_through_the_store(running: Callable[..., Running]) -> None:
    """Logs and usage of engines are asked for in the store and answered there; of an engine that is not there: nothing."""
    here = running(FakeRuntime("test"), main={"min_ready": 1, "max_engines": 1})
    wait_until(lambda: here.ready() == 1, 10)
    with here.database.read() as db:
        (engine,) = engines.live(db)

    def ask(kind: str, question: dict[str, Any]) -> Any:
        with here.database.write() as db:
            inquiry_id = inquiries.ask(db, kind, question, now=time.time())

        def answered() -> Any:
            with here.database.read() as db:
                return inquiries.answered(db, inquiry_id)

        return wait_until(answered, 10)[0]

    assert ask("logs", {"engine_id": engine.id, "tail": 1}) == {"lines": ["Server listening on 0.0.0.0:50051"]}
    assert ask("logs", {"engine_id": "e-none", "tail": 1}) == {"lines": []}
    usage = ask("stats", {"engine_ids": [engine.id, "e-none"]})
    assert usage[engine.id]["memory_bytes"] > 0
    assert usage["e-none"] == {"cpu_percent": None, "memory_bytes": None}


def test_callers_of_all_kinds_at_once_leave_everything_in_order(running: Callable[..., Running]) -> None:
    """Eight threads lease, report, renew and release for a while, engines die meanwhile: in the end the reserve is back, and nothing else."""
    host = FakeHost()
    here = running(FakeRuntime("test", host), main={"min_ready": 4, "max_engines": 16, "max_starting": 8})
    until = time.monotonic() + 3

    def is_active(lease_id: str) -> bool:
        return here.leasing.renew(ALICE, lease_id).lease.state is LeaseState.ACTIVE

    def play(number: int) -> int:
        played = 0
        while time.monotonic() < until:
            view = here.acquire(1 + number % 3)
            wait_until(partial(is_active, view.lease.id), 30)
            here.leasing.replace(ALICE, view.lease.id, 0, generation=1, reason="hung")
            with host.lock:
                running_ones = [one for one in host.engines.values() if one.seen.running]
            if running_ones:
                with suppress(KeyError):  # removed meanwhile
                    host.kill(running_ones[number % len(running_ones)].spec.name)
            here.leasing.release(ALICE, view.lease.id)
            played += 1
        return played

    with capture_logs() as logs, ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(play, range(8))) >= 8
    wait_until(lambda: here.ready() == 4 and len(host.engines) == 4, 30)
    with here.database.read() as db:
        live = engines.live(db)
        counted = events.counters(db)
    assert [engine.state for engine in live] == [EngineState.READY] * 4
    assert {one.spec.engine_id for one in host.engines.values()} == {engine.id for engine in live}
    assert counted["lease.granted", "main"] == counted["lease.released", "main"]
    assert [line for line in logs if line["log_level"] == "error"] == []


def test_an_idle_pool_costs_next_to_nothing(running: Callable[..., Running]) -> None:
    """A hundred idle engines cost the pool process a few percent of a core at most, measured here over two seconds."""
    here = running(FakeRuntime("test"), main={"min_ready": 100, "max_engines": 100, "max_starting": 64})
    wait_until(lambda: here.ready() == 100, 60)
    before, began = os.times(), time.monotonic()
    beats = here.beats
    threading.Event().wait(2)
    after, took = os.times(), time.monotonic() - began
    used = (after.user + after.system - before.user - before.system) / took
    assert here.beats - beats < 12
    assert used < 0.10
