"""Lanes in process: many calls at once, from threads that block."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from client_sdk import ConnectionFault, Cornerman, CornermanError, models
from client_sdk._heartbeat_helper import Report
from client_sdk._reach import Route
from client_sdk.lanes import CallFault, Lanes, Method, Pending, Status
from client_sdk.wire import Bye
from tests.support.fake_daemon import FakeDaemon
from tests.support.fake_relay import LEASE, TOKEN, FakeLane, FakeRelay, Fault, RelayThread, relaying

WaitUntil = Callable[..., object]


@pytest.fixture
def relay() -> Iterator[RelayThread]:
    """A relay with four lanes."""
    with relaying(FakeRelay(lanes_wanted=4)) as thread:
        yield thread


@pytest.fixture
def lanes(relay: RelayThread) -> Iterator[Lanes]:
    """Its lanes in this process."""
    with Lanes(Route(relay.relay.url, TOKEN)) as lanes:
        yield lanes


def step_all(lanes: Lanes) -> list[Pending]:
    return lanes.begin([(rank, Method.STEP, b"") for rank in lanes.ranks])


def test_batch(relay: RelayThread, lanes: Lanes) -> None:
    """A batch of calls travels as one message, and comes back whole."""
    for number in (1, 2, 3):
        calls = lanes.wait(step_all(lanes))
        assert [call.rank for call in calls] == [0, 1, 2, 3]
        assert [call.result().data for call in calls] == [b"step %d" % number] * 4
    assert relay.relay.messages == 3
    assert lanes.call(2, Method.RESET, b"reset").data == b"reset"


def test_whoever_is_ready_first(relay: RelayThread, lanes: Lanes) -> None:
    """A slow lane does not hold the others: waiting for some returns as soon as those are there."""
    go_on = asyncio.Event()

    async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
        if lane.rank == 1:
            await go_on.wait()
        return request

    relay.relay.engine = engine
    calls = lanes.begin([(rank, Method.STEP, b"r%d" % rank) for rank in lanes.ranks])
    ready = lanes.wait(calls, count=3)
    assert sorted(call.rank for call in ready) == [0, 2, 3]
    assert not calls[1].done
    with pytest.raises(CornermanError, match="still under way"):
        calls[1].result()
    began = time.monotonic()
    assert len(lanes.wait(calls, timeout_s=0.2)) == 3
    assert 0.15 < time.monotonic() - began < 5.0

    async def release() -> None:
        go_on.set()

    relay.do(release())
    assert lanes.wait(calls)[1].result().data == b"r1"


def test_calls_that_fail(relay: RelayThread, lanes: Lanes) -> None:
    """A call that fails raises from its own result, and the others of its batch do not notice."""

    async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
        return (Status.UNAVAILABLE, "The engine died.") if lane.rank == 2 else b"fine"

    relay.relay.engine = engine
    calls = lanes.wait(step_all(lanes))
    assert [call.result().data for call in calls if call.rank != 2] == [b"fine"] * 3
    with pytest.raises(CallFault, match="The engine died") as failed:
        calls[2].result()
    assert failed.value.status == Status.UNAVAILABLE


def test_several_threads(lanes: Lanes) -> None:
    """Threads may use the lanes at the same time, each its own rank."""
    got: dict[int, list[bytes]] = {}

    def play(rank: int) -> None:
        got[rank] = [lanes.call(rank, Method.STEP, b"").data for _ in range(20)]

    threads = [threading.Thread(target=play, args=(rank,)) for rank in lanes.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == {rank: [b"step %d" % number for number in range(1, 21)] for rank in lanes.ranks}


def test_replaced_engine(relay: RelayThread, lanes: Lanes, wait_until: WaitUntil) -> None:
    """The generation of a rank says that its engine was replaced; giving one up asks for that."""
    lanes.give_up(3, "it plays badly")
    wait_until(lambda: relay.relay.given_up, 10)
    assert relay.relay.given_up == [(3, 1, "it plays badly")]
    relay.do(relay.relay.replace(3))
    wait_until(lambda: lanes.generation(3) == 2, 10)
    with pytest.raises(CallFault, match=r"call make\(\) again"):
        lanes.call(3, Method.STEP, b"")
    assert lanes.call(3, Method.ENV_INIT, b"init").data == b"init"
    assert lanes.generation(0) == 1


def test_broken_line_is_a_pause(relay: RelayThread, lanes: Lanes) -> None:
    """A line that breaks is made again while the caller waits."""
    for number in range(1, 6):
        calls = step_all(lanes)
        relay.do(_drop(relay.relay))
        assert [call.result().data for call in lanes.wait(calls, timeout_s=20)] == [b"step %d" % number] * 4


async def _drop(relay: FakeRelay) -> None:
    relay.drop()


def test_end_of_the_lease(relay: RelayThread, lanes: Lanes, wait_until: WaitUntil) -> None:
    """When the lease ends, what is under way fails with the reason, and so does all that is begun later."""
    relay.relay.muted = True
    calls = step_all(lanes)
    wait_until(lambda: len(relay.relay.calls) == 4, 10)
    relay.do(relay.relay.bye(Bye.LEASE_ENDED, "Lease l-1 has ended: released."))
    for call in [*lanes.wait(calls, timeout_s=20), *lanes.wait(step_all(lanes), timeout_s=20)]:
        with pytest.raises(CallFault, match="Lease l-1 has ended"):
            call.result()
    assert lanes.lost is not None


def test_closed(relay: RelayThread) -> None:
    """Closing ends the thread and fails what is under way; again is fine, and nothing can be begun any more."""
    relay.relay.muted = True
    lanes = Lanes(Route(relay.relay.url, TOKEN))
    calls = step_all(lanes)
    lanes.close()
    lanes.close()
    for call in lanes.wait(calls, timeout_s=5):
        with pytest.raises(CallFault, match="closed"):
            call.result()
    with pytest.raises(CornermanError, match="are closed"):
        step_all(lanes)
    assert not [thread for thread in threading.enumerate() if thread.name == "cornerman-lanes"]


def test_forgotten(relay: RelayThread, wait_until: WaitUntil) -> None:
    """Lanes that nobody holds any more are closed."""
    lanes = Lanes(Route(relay.relay.url, TOKEN))
    assert lanes.call(0, Method.STEP, b"").data == b"step 1"
    del lanes
    gc.collect()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "cornerman-lanes"], 10)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_child(lanes: Lanes) -> None:
    """A forked child is told that these lanes are not its own, and does not disturb its parent's."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        try:
            lanes.call(0, Method.STEP, b"")
        except CornermanError as fault:
            answers.put(str(fault))
        lanes.close()

    process = context.Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert "belong to the process that opened them" in answers.get()
    assert lanes.call(0, Method.STEP, b"").data == b"step 1"
    assert os.getpid() == lanes._owner


def test_relay_out_of_reach(free_port: int) -> None:
    """Lanes that cannot be opened say why within seconds, and leave no thread."""
    began = time.monotonic()
    with pytest.raises(ConnectionFault, match=f"TCP port {free_port} open"):
        Lanes(Route(f"ws://127.0.0.1:{free_port}/v1/leases/{LEASE}", TOKEN))
    assert time.monotonic() - began < 10
    assert not [thread for thread in threading.enumerate() if thread.name == "cornerman-lanes"]


@pytest.mark.parametrize("via", ["tunnel", "direct"])
def test_lanes_of_a_lease(
    daemon: FakeDaemon, relay: RelayThread, host: Cornerman, via: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lanes of any lease can be had in process; one that had a tunnel gives it up without a word."""
    daemon.relay = models.Relay(url=relay.relay.url, token=TOKEN)
    with host.lease(envs=2, via=via) as lease, Lanes.of(lease) as lanes:  # type: ignore[arg-type]
        assert lanes.call(0, Method.STEP, b"").data == b"step 1"
        assert lanes.call(0, Method.STEP, b"").data == b"step 2"
    assert "no way to its engines" not in capsys.readouterr().err


def test_late_word_of_a_tunnel_that_was_open_before(
    daemon: FakeDaemon, relay: RelayThread, host: Cornerman, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the tunnel says of its being turned away, after it has the lanes again, is no news of the tunnel that is open now."""
    daemon.relay = models.Relay(url=relay.relay.url, token=TOKEN)
    with host.lease(envs=2, via="tunnel") as lease:
        for _ in range(2):
            Lanes.of(lease).close()
        tunnel = lease._tunnel
        assert tunnel is not None
        for number, silent in ((0, True), (1, True), (2, False), (None, False)):
            tunnel._listen_in(Report(event="closed", text=f"Turned away {number}.", opening=number))
            assert ("no way to its engines" in capsys.readouterr().err) is not silent


def test_host_without_a_relay(host: Cornerman) -> None:
    """A lease of a host without a relay has no lanes, and says so."""
    with host.lease(envs=1) as lease, pytest.raises(ConnectionFault, match="runs no relay"):
        Lanes.of(lease)
