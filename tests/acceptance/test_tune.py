"""Advice from a real lease: the command, and the call between a lease and its environments."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from client_sdk import Cornerman, WrongArgument
from client_sdk.lanes import Lanes
from tests.support.play import Game, over_grpc
from tests.support.real_daemon import RealDaemon, cornerman, set_up

# The stock client leaves the file of its games open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS = 2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon with practice engines for one lease after the other."""
    pool = ("--runtime", "process", "--min-ready", str(ENVS), "--max-engines", str(2 * ENVS))
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    daemon.start()
    yield daemon
    daemon.close()


def test_command_says_what_limits(running: RealDaemon) -> None:
    """Report 37: ``cornerman tune`` plays on a lease of its own and says in words what limits and what to change."""
    options = ("-n", str(ENVS), "-q", "--seconds", "0.5", "--step-ratio", "1", "--via", "tunnel")
    done = cornerman("tune", *options, environ={"CORNERMAN_URL": running.url})
    assert done.returncode == 0, done.stderr
    assert "ms there and back" in done.stdout
    assert "Frames of 480x512x3" in done.stdout
    assert f"{ENVS} environments stepped together" in done.stdout
    assert "Limit now: " in done.stdout
    small = ("--frame-shape", "84x84x1", "--learner-ms", "500", "--json")
    done = cornerman("tune", *options, *small, environ={"CORNERMAN_URL": running.url})
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["limit"] == "learner"
    assert figures["batch_s"]["learner"] == 0.5
    assert figures["bit_per_s"] > 10e6
    assert all(lease.state.value == "released" for lease in Cornerman(running.url).leases())


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [("--frame-shape", "big", "HxWxC"), ("--learner-ms", "-5", "x>=0"), ("--seconds", "-1", "x>=0")],
)
def test_wrong_call_is_refused(running: RealDaemon, option: str, value: str, says: str) -> None:
    """A frame shape that is none, or a time below nothing, is a wrong call, told before anything is leased."""
    done = cornerman("tune", option, value, environ={"CORNERMAN_URL": running.url})
    assert done.returncode == 2
    assert says in done.stderr


def test_stock_client_plays_after_advice(running: RealDaemon) -> None:
    """``lease.advise()`` borrows the lanes: afterwards the stock client plays through the tunnel, at the same addresses."""
    with Cornerman(running.url, quiet=True).lease(envs=ENVS, via="tunnel", timeout_s=60) as lease:
        before = lease.addresses
        advice = lease.advise("doapp", seconds=0.2)
        assert advice.envs == ENVS
        assert advice.predicted > 1
        assert advice.small is not None
        assert lease.addresses == before
        game = Game(over_grpc(lease.addresses[1]))
        game.make()
        game.reset()
        run = game.run
        game.step()
        assert game.run == run + 1
        with Lanes.of(lease), pytest.raises(WrongArgument, match="in use"):
            lease.advise("doapp")
        assert lease.advise("doapp", seconds=0.2).envs == ENVS, "closed lanes are free again"
