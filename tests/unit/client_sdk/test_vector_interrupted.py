"""The vector environment after an interrupt, as a notebook's stop button sends it, and after errors of a user's own."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.arena import EnvironmentSettings, SpaceTypes, WrappersSettings

from client_sdk import CornermanError, make_vec
from client_sdk.episodes import Episode, collect
from client_sdk.vector import LaneVectorEnv
from client_sdk.wire import Method
from tests.support.practice_lanes import PracticeLanes, practice_lanes

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS = 3
Make = Callable[..., LaneVectorEnv]


@pytest.fixture
def engines() -> Iterator[PracticeLanes]:
    """Practice engines behind a relay."""
    with practice_lanes(ENVS) as engines:
        yield engines


@pytest.fixture
def make(engines: PracticeLanes) -> Iterator[Make]:
    """``make(wrapper, autoreset_mode=...)`` is a vector environment with small frames on all of them."""
    with contextlib.ExitStack() as stack:

        def make(*wrappers: Any, **options: Any) -> LaneVectorEnv:
            settings = EnvironmentSettings(frame_shape=(32, 32, 1), action_space=SpaceTypes.DISCRETE)
            lanes = stack.enter_context(engines.open())
            own = WrappersSettings(wrappers=[list(one) for one in wrappers])
            vec = make_vec(lanes, "doapp", settings, own, seed=3, **options)
            stack.callback(vec.close)
            return vec

        yield make


def interrupt(after_s: float, call: Callable[[], object]) -> None:
    """``call`` is interrupted by SIGINT after so many seconds, or what comes after it."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    with contextlib.suppress(KeyboardInterrupt):
        timer.start()
        call()
        time.sleep(10)
        raise AssertionError("The interrupt was swallowed.")


def still() -> Any:
    """An action for each."""
    return np.zeros(ENVS, np.int64)


def test_interrupted_step(engines: PracticeLanes, make: Make) -> None:
    """What an interrupted step() began goes on: recv() gives it, reset() begins anew, and step() says so meanwhile."""
    vec = make()
    vec.reset()
    engines.slow[1, Method.STEP] = 1.0
    began = time.monotonic()
    interrupt(0.2, lambda: vec.step(still()))
    assert time.monotonic() - began < 0.9
    with pytest.raises(CornermanError, match=r"interrupted.*recv\(\) them first, or reset\(\) all"):
        vec.step(still())
    assert vec.recv(ENVS)[4]["env_id"].tolist() == [0, 1, 2]
    interrupt(0.2, lambda: vec.step(still()))
    vec.reset()
    engines.slow.clear()
    vec.step(still())
    engines.slow[1, Method.STEP] = 1.0
    interrupt(0.2, lambda: vec.step(still()))
    vec.close()


def test_interrupted_at_any_moment(make: Make) -> None:
    """Wherever an interrupt comes, the next reset() with a seed plays the game of that seed."""
    vec = make((gymnasium.wrappers.TimeLimit, {"max_episode_steps": 4}))
    chance = random.Random(1)

    def played() -> list[Any]:
        first = vec.reset(seed=5)[0]["frame"]
        return [first, *(vec.step(still())[0]["frame"] for _ in range(6))]

    def play_on() -> None:
        while True:
            vec.step(still())

    expected = played()
    for _ in range(40):
        interrupt(chance.uniform(0.0005, 0.02), play_on)
        for one, other in zip(expected, played(), strict=True):
            assert np.array_equal(one, other)


def test_interrupted_in_a_wrapper(make: Make) -> None:
    """An interrupt while an environment's own code runs is raised at once, and is not left over for a later call."""

    class Slow(gymnasium.Wrapper):  # type: ignore[type-arg]
        sleeps_s = 0.0

        def step(self, action: Any) -> Any:
            if self.unwrapped.env_settings.rank == 1:  # type: ignore[attr-defined]
                time.sleep(Slow.sleeps_s)
            return self.env.step(action)

    vec = make((Slow, {}))
    vec.reset()
    Slow.sleeps_s = 5.0
    began = time.monotonic()
    interrupt(0.2, lambda: vec.step(still()))
    assert time.monotonic() - began < 4
    Slow.sleeps_s = 0.0
    with pytest.raises(CornermanError, match="Environment 1 was interrupted"):
        vec.recv(ENVS)
    vec.reset()
    vec.step(still())


def test_interrupted_while_it_draws(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn for an episode whose reset was interrupted is not kept for those that follow: their seeds draw anew."""
    vec = make()
    expected = [vec.reset(seed=seed)[0]["frame"] for seed in (5, 6)]
    settings = vec.envs[1].unwrapped.env_settings

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(settings, "_get_player_specific_values", interrupted)
        with pytest.raises(KeyboardInterrupt):
            vec.reset(seed=9)
    assert settings.role is None
    for seed, frames in zip((5, 6), expected, strict=True):
        assert np.array_equal(vec.reset(seed=seed)[0]["frame"], frames)


def test_interrupted_collection(engines: PracticeLanes, make: Make) -> None:
    """After an interrupt the next collect() begins anew, in step and with min_envs, and its episodes are whole."""
    vec = make((gymnasium.wrappers.TimeLimit, {"max_episode_steps": 5}))
    chance = random.Random(2)

    def collected(min_envs: int | None, **wanted: Any) -> list[Episode]:
        return collect(
            vec, lambda seen: np.zeros(len(seen["frame"]), np.int64), min_envs=min_envs, progress=False, **wanted
        )

    for min_envs in (None, 1):
        for _ in range(8):
            interrupt(chance.uniform(0.01, 0.05), partial(collected, min_envs, steps=10**6))
            assert {len(episode) for episode in collected(min_envs, episodes=ENVS)} == {5}


def test_interrupted_while_it_is_made(engines: PracticeLanes, make: Make) -> None:
    """Who interrupts make_vec() can call it again."""
    engines.slow[1, Method.ENV_INIT] = 1.0
    interrupt(0.3, make)
    engines.slow.clear()
    vec = make()
    vec.reset()
    vec.step(still())


@pytest.mark.parametrize("at_work", [False, True])
def test_forgotten(engines: PracticeLanes, capsys: pytest.CaptureFixture[str], at_work: bool) -> None:
    """A vector environment that nobody holds any more goes away without close(), with whatever it had under way."""
    with engines.open() as lanes:
        settings = EnvironmentSettings(frame_shape=(32, 32, 1), action_space=SpaceTypes.DISCRETE)
        vec = make_vec(lanes, "doapp", settings)
        vec.reset()
        if at_work:
            engines.slow[1, Method.STEP] = 1.0
            interrupt(0.2, partial(vec.step, still()))
        gone = [weakref.ref(vec), *(weakref.ref(env) for env in vec.envs)]
        del vec
        gc.collect()
        assert [one() for one in gone] == [None] * (1 + ENVS)
    assert capsys.readouterr().err == ""


class Fragile(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Fails when it is told to."""

    fails_in = ""

    def reset(self, **arguments: Any) -> Any:
        if Fragile.fails_in == "reset" and self.unwrapped.env_settings.rank == 1:  # type: ignore[attr-defined]
            raise ZeroDivisionError("a user's mistake")
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        if Fragile.fails_in == "step" and self.unwrapped.env_settings.rank == 1:  # type: ignore[attr-defined]
            raise ZeroDivisionError("a user's mistake")
        return self.env.step(action)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_others_end_while_one_fails(make: Make, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """When one environment's own code fails in the step that ends the others' episodes, those begin anew all the same."""
    vec = make((gymnasium.wrappers.TimeLimit, {"max_episode_steps": 3}), (Fragile, {}), autoreset_mode=mode)
    vec.reset()
    for _ in range(2):
        vec.step(still())
    monkeypatch.setattr(Fragile, "fails_in", "step")
    with pytest.raises(ZeroDivisionError, match="mistake"):
        vec.step(still())
    monkeypatch.setattr(Fragile, "fails_in", "")
    if mode == "Disabled":
        with pytest.raises(CornermanError, match=r"environments \[0, 2\] are over"):
            vec.step(still())
        vec.reset(options={"reset_mask": np.array([True, False, True])})
    *_, truncations, _ = vec.step(still())
    assert truncations.tolist() == [False, True, False]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_reset_that_fails(engines: PracticeLanes, make: Make, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """An environment whose reset failed is reset before it is stepped, never played on where its episode was over."""
    vec = make((gymnasium.wrappers.TimeLimit, {"max_episode_steps": 3}), (Fragile, {}), autoreset_mode=mode)
    vec.reset()
    monkeypatch.setattr(Fragile, "fails_in", "reset")

    def play() -> None:
        for _ in range(4):
            *_, truncations, _ = vec.step(still())
            if mode == "Disabled" and truncations.any():
                vec.reset(options={"reset_mask": truncations})

    with pytest.raises(ZeroDivisionError, match="mistake"):
        play()
    monkeypatch.setattr(Fragile, "fails_in", "")
    engines.calls.clear()
    if mode == "Disabled":
        with pytest.raises(CornermanError, match=r"environments \[1\] are over"):
            vec.step(still())
        vec.reset(options={"reset_mask": np.array([False, True, False])})
    vec.step(still())
    assert next(method for rank, method, _ in engines.calls if rank == 1) is Method.RESET


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_step_before_reset(make: Make, mode: str) -> None:
    """Who steps before the first reset() is told so."""
    vec = make(autoreset_mode=mode)
    with pytest.raises(CornermanError, match=r"no reset\(\) yet"):
        vec.step(still())
    with pytest.raises(CornermanError, match=r"no reset\(\) yet"):
        vec.send(still()[:1], [0])
