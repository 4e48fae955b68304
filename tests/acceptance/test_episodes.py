"""Episodes collected on a lease, one of whose engines dies."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from client_sdk import Cornerman, make_vec
from client_sdk.episodes import collect
from tests.support.real_daemon import RealDaemon

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.arena import EnvironmentSettings, SpaceTypes, WrappersSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS, WORTH = 2, 5.0


def test_lost_engine_truncates_its_episode_alone(new_daemon: Callable[..., RealDaemon]) -> None:
    """Report 31: the episode of a killed engine is returned as truncated, worth what the policy says; the others come to their end."""
    pool = ("--runtime", "process", "--min-ready", f"{ENVS}", "--max-engines", f"{2 * ENVS}")
    daemon = new_daemon(*pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    daemon.start()
    settings = EnvironmentSettings(frame_shape=(64, 64, 1), action_space=SpaceTypes.DISCRETE)
    wrappers = WrappersSettings(flatten=True, filter_keys=["own_health", "opp_health"], role_relative=True)
    with Cornerman(daemon.url, quiet=True).lease(envs=ENVS, timeout_s=60) as lease:
        vec = make_vec(lease, "doapp", settings, wrappers, seed=1)

        def policy(observations: Any) -> Any:
            return vec.action_space.sample(), np.full(ENVS, WORTH), np.zeros(ENVS)

        collect(vec, policy, steps=10 * ENVS, progress=False)
        os.kill(daemon.engine_pid(lease.envs[0].address), signal.SIGKILL)
        episodes = collect(vec, policy, episodes=3, progress=False)
        vec.close()
    (lost,) = (episode for episode in episodes if episode.engine_replaced)
    assert lost.env == 0
    assert (lost.terminated, lost.truncated, lost.final_value) == (False, True, WORTH)
    assert lost.rewards[-1] == 0
    assert 10 <= len(lost) <= 20
    for episode in episodes:
        assert episode.observations["frame"].shape == (len(episode), 64, 64, 1)
        assert episode.engine_replaced or (episode.terminated and episode.final_value == 0)
