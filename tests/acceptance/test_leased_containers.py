"""Real means: the stock client, unmodified, plays in leased containers, one for each of the nine games."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_sdk import Cornerman, Lease
from practice_engine.games import all_games
from tests.support.real_daemon import RealDaemon

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import diambra.arena
    from diambra.arena import EnvironmentSettings, EnvironmentSettingsMultiAgent, SpaceTypes, WrappersSettings

pytestmark = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
GAMES = sorted(all_games())
ENVS = 3


@pytest.fixture
def lease(
    new_daemon: Callable[..., RealDaemon], docker_host: str, practice_image: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lease]:
    """Three containers, leased as a notebook does."""
    daemon = new_daemon(
        *("--runtime", "docker", "--image", practice_image, "--expose", "direct"),
        *("--min-ready", str(ENVS), "--max-engines", str(2 * ENVS)),
        settings={"url": f'"{docker_host}"', "pull": "false", "args": '["--fps", "unlimited"]'},
    )
    daemon.start()
    monkeypatch.setattr(
        "cv2.destroyAllWindows", lambda: None
    )  # the client's close() needs it, a headless OpenCV has none
    with Cornerman(daemon.url, quiet=True).lease(envs=ENVS, via="direct", timeout_s=60) as held:
        yield held


def _play(env: Any, steps: int = 10) -> None:
    env.reset(seed=1)
    for _ in range(steps):
        observation, *_ = env.step(env.action_space.sample())
        assert observation["frame"].any(), "the picture is black"
    env.close()


def test_all_nine_games_in_leased_containers(lease: Lease) -> None:
    """Each game plays in a container with one agent at its native size and with two, one game after another on an engine."""
    for number, game in enumerate(GAMES):
        rank = number % ENVS
        one = EnvironmentSettings(action_space=SpaceTypes.DISCRETE, splash_screen=False)
        two = EnvironmentSettingsMultiAgent(
            action_space=(SpaceTypes.MULTI_DISCRETE, SpaceTypes.DISCRETE),
            frame_shape=(128, 128, 1),
            splash_screen=False,
        )
        wrapped = WrappersSettings(normalize_reward=True, stack_frames=4, scale=True, flatten=True)
        _play(diambra.arena.make(game, one, rank=rank))
        _play(diambra.arena.make(game, two, rank=rank))
        env = diambra.arena.make(game, one, wrapped, rank=rank)
        observation, _ = env.reset(seed=2)
        assert observation["frame"].shape[-1] == 4 * all_games()[game].frame_shape[2]
        env.close()
    lease.check()
