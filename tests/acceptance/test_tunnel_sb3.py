"""DIAMBRA's own Stable-Baselines3 helper through the tunnel."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from client_sdk import Cornerman
from tests.support.real_daemon import RealDaemon

pytestmark = [pytest.mark.sb3, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
ENVS = 3


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_subproc_vec_env_through_the_tunnel(
    new_daemon: Callable[..., RealDaemon], monkeypatch: pytest.MonkeyPatch, start_method: str
) -> None:
    """make_sb3_env makes a worker for each socket of the tunnel, forked or not, and PPO trains on them with proxies set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diambra.arena import EnvironmentSettings, SpaceTypes, WrappersSettings
        from diambra.arena.stable_baselines3 import make_sb3_env as helper
        from stable_baselines3 import PPO
        from stable_baselines3.common.vec_env import SubprocVecEnv

    daemon = new_daemon(
        *("--runtime", "process", "--min-ready", str(ENVS), "--max-engines", str(ENVS)),
        environ={"CORNERMAN_PRACTICE_FPS": "unlimited"},
    )
    daemon.start()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr("cv2.destroyAllWindows", lambda: None)
    monkeypatch.setattr(helper, "SubprocVecEnv", lambda makers, **_: SubprocVecEnv(makers, start_method=start_method))
    settings = EnvironmentSettings(frame_shape=(64, 64, 1), action_space=SpaceTypes.DISCRETE, splash_screen=False)
    wrappers = WrappersSettings(
        normalize_reward=True,
        stack_frames=2,
        scale=True,
        role_relative=True,
        flatten=True,
        filter_keys=["timer", "own_health", "opp_health"],
    )
    with Cornerman(daemon.url, quiet=True).lease(envs=ENVS, via="tunnel") as lease:
        vector, count = helper.make_sb3_env("doapp", settings, wrappers, seed=1)
        assert count == ENVS
        try:
            model = PPO("MultiInputPolicy", vector, n_steps=32, batch_size=32, n_epochs=1).learn(2 * ENVS * 32)
            assert model.num_timesteps == 2 * ENVS * 32
        finally:
            vector.close()
        lease.refresh()
        assert lease.state.value == "active"
