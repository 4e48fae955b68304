"""The vector environment beside gymnasium's own SyncVectorEnv over the stock client: the same games, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import diambra.arena
    from diambra.arena import EnvironmentSettings, SpaceTypes, WrappersSettings

from client_sdk import make_vec
from client_sdk.vector import AutoresetMode, LaneVectorEnv
from client_sdk.vector._seeds import Seeds
from tests.support.practice_lanes import PracticeLanes, grpc_engines, practice_lanes

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS, SEED = 3, 11
GYMNASIUM = tuple(int(part) for part in gymnasium.__version__.split(".")[:2])
# Only the next-step mode existed before 1.1; what it did is what NEXT_STEP does now.
MODES = [mode.value for mode in AutoresetMode] if GYMNASIUM >= (1, 1) else ["NextStep"]


class EndsAt(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Ends episodes soon: every other one terminates, the rest is truncated."""

    def __init__(self, env: Any, *, steps: int) -> None:
        super().__init__(env)
        self._steps, self._played, self._episode = steps + env.unwrapped.env_settings.rank, 0, 0

    def reset(self, **arguments: Any) -> Any:
        self._played, self._episode = 0, self._episode + 1
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = self.env.step(action)
        self._played += 1
        over = self._played >= self._steps
        return observation, reward, over and self._episode % 2 == 0, over and self._episode % 2 == 1, info


class Seeded(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Gives the stock client, which takes the time of day, the seeds that the vector environment takes."""

    def __init__(self, env: Any, rank: int) -> None:
        super().__init__(env)
        self.rank = rank
        self.seeds: Iterator[int] = iter(())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:  # the vector's seed was seed - rank, and later episodes go on from there
            self.seeds = Seeds([seed - self.rank + rank for rank in range(ENVS)], self.rank, ENVS)
        else:
            seed = next(self.seeds) - self.rank
        return self.env.reset(seed=seed, options=options)


def settings() -> Any:
    """Small frames; one character, because DIAMBRA's draw of characters depends on all draws before."""
    return EnvironmentSettings(
        frame_shape=(32, 32, 1), characters="Kasumi", action_space=SpaceTypes.MULTI_DISCRETE, splash_screen=False
    )


def wrappers(kind: str) -> Any:
    """Nothing but short episodes, or DIAMBRA's published wrappers too."""
    short: list[list[Any]] = [[EndsAt, {"steps": 5}]]
    if kind == "plain":
        return WrappersSettings(wrappers=short)
    return WrappersSettings(
        normalize_reward=True,
        no_attack_buttons_combinations=True,
        stack_frames=4,
        add_last_action=True,
        stack_actions=3,
        scale=GYMNASIUM < (1, 2),  # where the stock client still can
        role_relative=True,
        flatten=True,
        filter_keys=["action", "own_health", "opp_health", "own_side", "opp_side", "timer"],
        wrappers=short,
    )


@pytest.fixture
def engines() -> Iterator[PracticeLanes]:
    """Practice engines behind a relay."""
    with practice_lanes(ENVS) as engines:
        yield engines


@pytest.fixture
def both(engines: PracticeLanes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], tuple[Any, Any]]]:
    """``both(mode, kind)`` makes the vector environment and gymnasium's."""
    monkeypatch.setattr("cv2.destroyAllWindows", lambda: None)
    made: list[Any] = []

    def stock(addresses: list[str], rank: int, kind: str) -> Any:
        env = diambra.arena.make(
            "doapp", settings(), wrappers(kind), render_mode="rgb_array", rank=rank, env_addresses=addresses
        )
        return Seeded(env, rank)

    with grpc_engines(ENVS) as addresses:

        def make(mode: str, kind: str) -> tuple[Any, Any]:
            ours = make_vec(engines.open(), "doapp", settings(), wrappers(kind), autoreset_mode=mode)
            made.append(ours)
            chosen: dict[str, Any] = {"autoreset_mode": mode} if GYMNASIUM >= (1, 1) else {}
            theirs: Any = gymnasium.vector.SyncVectorEnv(
                [partial(stock, addresses, rank, kind) for rank in range(ENVS)], **chosen
            )
            made.append(theirs)
            return ours, theirs

        yield make
        for one in made:
            one.close()
            if isinstance(one, LaneVectorEnv):
                one._lanes.close()


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """The same keys in any order, the same types, the same values."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), where
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        if theirs.dtype == object:
            assert_same(list(ours), list(theirs), where)
        else:
            assert np.array_equal(ours, theirs), where
    elif hasattr(theirs, "SerializeToString"):
        assert ours.episode_settings == theirs.episode_settings, where
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("kind", ["plain", "published"])
@pytest.mark.parametrize("mode", MODES)
def test_same_games(both: Callable[[str, str], tuple[Any, Any]], mode: str, kind: str) -> None:
    """Spaces, observations, rewards, ends and infos are those of SyncVectorEnv in every mode, over several episodes."""
    ours, theirs = both(mode, kind)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metadata["autoreset_mode"] == theirs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    assert_same(ours.reset(seed=SEED), theirs.reset(seed=SEED))
    ours.action_space.seed(1)
    ended = 0
    for number in range(24):
        actions = ours.action_space.sample()
        mine, stock = ours.step(actions), theirs.step(actions)
        assert_same(mine, stock, f"step {number}")
        over = mine[2] | mine[3]
        ended += int(over.sum())
        if mode == "Disabled" and over.any():
            options = [{"reset_mask": over.copy()} for _ in range(2)]
            assert_same(ours.reset(options=options[0]), theirs.reset(options=options[1]), f"reset after {number}")
    assert ended >= 9


def test_seeds_for_each(both: Callable[[str, str], tuple[Any, Any]]) -> None:
    """A list of seeds gives each environment its own, and the observations are arrays of nobody else."""
    ours, theirs = both("NextStep", "plain")
    first = ours.reset(seed=[5, 9, 7])
    assert_same(first, theirs.reset(seed=[5, 9, 7]))
    kept = first[0]["frame"].copy()
    again = ours.reset(seed=[5, 9, 7])
    assert_same(again[0], first[0])
    ours.step(ours.action_space.sample())
    assert np.array_equal(first[0]["frame"], kept)
    assert again[0]["frame"] is not first[0]["frame"]
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        ours.reset(seed=[1, 2])


def test_attributes(both: Callable[[str, str], tuple[Any, Any]]) -> None:
    """call, get_attr and set_attr do what they do in SyncVectorEnv."""
    ours, theirs = both("NextStep", "published")
    for name in ("action_space", "reward_normalization_value", "get_no_op_action"):
        assert ours.get_attr(name) == theirs.get_attr(name)
    assert ours.call("get_cumulative_reward_bounds") == theirs.call("get_cumulative_reward_bounds")
    ours.set_attr("reward_normalization_value", [1.0, 2.0, 3.0])
    assert ours.get_attr("reward_normalization_value") == (1.0, 2.0, 3.0)
    ours.set_attr("colour", "red")
    assert ours.get_attr("colour") == ("red",) * ENVS
    with pytest.raises(ValueError, match="2 values for 3 environments"):
        ours.set_attr("colour", ["red", "blue"])


def test_finished_in_disabled_mode(engines: PracticeLanes) -> None:
    """In the DISABLED mode a finished environment refuses to step, and reset_mask must be a mask of all."""
    with engines.open() as lanes:
        vec = make_vec(lanes, "doapp", settings(), wrappers("plain"), autoreset_mode="Disabled", seed=1)
        with pytest.raises(ValueError, match="first reset"):
            vec.reset(options={"reset_mask": np.array([True, False, False])})
        vec.reset()
        over = np.zeros(ENVS, np.bool_)
        while not over.any():
            *_, terminations, truncations, _ = vec.step(vec.action_space.sample())
            over = terminations | truncations
        with pytest.raises(Exception, match=r"environments \[0\] are over"):
            vec.step(vec.action_space.sample())
        for wrong in ([True] * ENVS, np.zeros(ENVS, np.bool_), np.ones(ENVS), np.ones(2, np.bool_)):
            with pytest.raises(ValueError, match="reset_mask"):
                vec.reset(options={"reset_mask": wrong})
        asked = {"reset_mask": over}
        vec.reset(options=asked)
        assert "reset_mask" in asked
        vec.step(vec.action_space.sample())
        vec.close()
