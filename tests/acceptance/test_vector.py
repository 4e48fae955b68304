"""The vector environment on a lease of a real daemon: engines die and hang for good, and the lease stays usable."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np
import pytest

from client_sdk import Cornerman, Lease, LeaseLost, make_vec
from client_sdk.vector import LaneVectorEnv
from tests.support import processes
from tests.support.play import over_grpc
from tests.support.real_daemon import RealDaemon, set_up
from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.arena import EnvironmentSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS = 3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon for all tests of this module."""
    pool = ("--runtime", "process", "--min-ready", "1", "--max-engines", str(2 * ENVS))
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        processes.kill(daemon.family())


@pytest.fixture
def lease(running: RealDaemon) -> Iterator[Lease]:
    """A few engines."""
    with Cornerman(running.url, quiet=True).lease(envs=ENVS, timeout_s=60) as lease:
        yield lease


def settings() -> Any:
    return EnvironmentSettings(frame_shape=(64, 64, 1), splash_screen=True)


def test_killed_and_hung(running: RealDaemon, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 31: one engine is killed and another one stops answering; their episodes are truncated and all go on playing.

    Report 35: that is so on a machine without a display, whatever is said of a splash screen.
    """
    monkeypatch.delenv("DISPLAY", raising=False)
    vec = make_vec(lease, "doapp", settings(), seed=1, deadlines_s={"step": 1.0})
    vec.reset()
    vec.action_space.seed(1)
    replaced = np.zeros(ENVS, np.int64)
    os.kill(running.engine_pid(lease.envs[0].address), signal.SIGKILL)
    stopped = running.engine_pid(lease.envs[2].address)
    os.kill(stopped, signal.SIGSTOP)
    for _ in range(30):
        *_, truncations, infos = vec.step(vec.action_space.sample())
        lost = infos.get("engine_replaced", np.zeros(ENVS, np.bool_))
        assert np.array_equal(lost, truncations)
        replaced += lost
    assert replaced.tolist() == [1, 0, 1]
    lease.refresh()
    assert [env.generation for env in lease.envs] == [2, 1, 2]
    wait_until(lambda: not processes.alive(stopped), 20)
    vec.close()


def test_others_go_on(running: RealDaemon, lease: Lease) -> None:
    """While a fresh engine is on its way, recv() gives the others' steps."""
    vec = make_vec(lease, "doapp", settings(), autoreset_mode="SameStep", seed=1)
    vec.reset()
    os.kill(running.engine_pid(lease.envs[1].address), signal.SIGKILL)
    began, steps, back = time.monotonic(), 0, False
    vec.send(vec.action_space.sample())
    while not back:
        assert time.monotonic() - began < 60
        *_, infos = vec.recv()
        ready = infos["env_id"]
        back = 1 in ready
        steps += len(ready)
        vec.send(vec.action_space.sample()[ready], ready)
    print(f"the engine was back after {time.monotonic() - began:.2f} s, in which the others made {steps} steps")
    assert infos["final_info"]["engine_replaced"][list(ready).index(1)]
    assert steps > 6
    vec.recv(ENVS)
    vec.close()


def test_all_at_once_and_again(running: RealDaemon, lease: Lease) -> None:
    """Report 31: all engines die at once, then one while it is being replaced, then one stands still in a reset: all go on."""
    vec = make_vec(lease, "doapp", settings(), seed=1, deadlines_s={"step": 2.0, "reset": 2.0})
    vec.reset()

    def pid(rank: int) -> int:
        lease.refresh()
        return running.engine_pid(lease.envs[rank].address)

    def replaced() -> list[int]:
        *_, infos = vec.step(vec.action_space.sample())
        return np.flatnonzero(infos.get("engine_replaced", np.zeros(ENVS, np.bool_))).tolist()

    for rank in range(ENVS):
        os.kill(pid(rank), signal.SIGKILL)
    assert replaced() == [0, 1, 2]
    assert replaced() == []
    former = pid(2)
    os.kill(former, signal.SIGKILL)
    assert replaced() == [2]
    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(lambda: os.kill(wait_until(lambda: _another(pid, 2, former), 20), signal.SIGKILL))
        played = [replaced() for _ in range(3)]
    killed.result()
    assert [*chain(*played)] in ([], [2])  # in its EnvInit or Reset nobody sees it, in a step it truncates
    os.kill(pid(1), signal.SIGSTOP)
    vec.reset()
    assert replaced() == []
    vec.close()
    lease.check()


def _another(pid: Callable[[int], int], rank: int, former: int) -> int:
    """The process of a fresh engine, or 0."""
    with contextlib.suppress(ValueError):  # its slot is empty just now
        return found if (found := pid(rank)) != former else 0
    return 0


def test_one_after_the_other(lease: Lease) -> None:
    """A lease takes one vector environment after the other, and the stock client's addresses when lanes are closed for good."""
    for seed in (1, 2):
        vec = make_vec(lease, "doapp", settings(), seed=seed)
        vec.reset()
        vec.step(vec.action_space.sample())
        vec.close()
    lease.check()
    assert callable(over_grpc(lease.addresses[0]))


def test_lease_is_released(running: RealDaemon) -> None:
    """Steps of a lease that was given back raise LeaseLost, and close() is still fine."""
    with Cornerman(running.url, quiet=True).lease(envs=1, timeout_s=60) as lease:
        vec = make_vec(lease, "doapp", settings(), seed=1)
        vec.reset()
    with pytest.raises(LeaseLost):
        play_on(vec)
    vec.close()


def play_on(vec: LaneVectorEnv) -> None:
    """For as long as it goes, and some seconds at most."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        vec.step(vec.action_space.sample())
