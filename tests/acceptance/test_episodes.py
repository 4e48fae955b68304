"""Episodes collected on a lease, one of whose engines dies."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from client_sdk import Cornerman, make_vec
from client_sdk.episodes import collect
from tests.support.real_daemon import RealDaemon, set_up

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.arena import EnvironmentSettings, SpaceTypes, WrappersSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS, WORTH = 2, 5.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon with fast practice engines."""
    pool = ("--runtime", "process", "--min-ready", f"{ENVS}", "--max-engines", f"{2 * ENVS}")
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    daemon.start()
    yield daemon
    daemon.close()


@pytest.mark.parametrize("min_envs", [None, 1])
def test_lost_engine_truncates_its_episode_alone(running: RealDaemon, min_envs: int | None) -> None:
    """Report 31: the episode of a killed engine is returned as truncated, worth what the policy says; the others come to their end.

    That is so in step, and when each environment goes on as soon as it can.
    """
    settings = EnvironmentSettings(frame_shape=(64, 64, 1), action_space=SpaceTypes.DISCRETE)
    wrappers = WrappersSettings(flatten=True, filter_keys=["own_health", "opp_health"], role_relative=True)
    with Cornerman(running.url, quiet=True).lease(envs=ENVS, timeout_s=60) as lease:
        vec = make_vec(lease, "doapp", settings, wrappers, seed=1)

        def policy(observations: Any) -> Any:
            count = len(observations["frame"])
            return vec.action_space.sample()[:count], np.full(count, WORTH), np.zeros(count)

        collect(vec, policy, steps=10 * ENVS, min_envs=min_envs, progress=False)
        os.kill(running.engine_pid(lease.envs[0].address), signal.SIGKILL)
        episodes = collect(vec, policy, episodes=3, min_envs=min_envs, progress=False)
        vec.close()
    (lost,) = (episode for episode in episodes if episode.engine_replaced)
    assert lost.env == 0
    assert (lost.terminated, lost.truncated, lost.final_value) == (False, True, WORTH)
    assert lost.rewards[-1] == 0
    assert 1 <= len(lost) <= 30
    for episode in episodes:
        assert episode.observations["frame"].shape == (len(episode), 64, 64, 1)
        assert episode.engine_replaced or (episode.terminated and episode.final_value == 0)
