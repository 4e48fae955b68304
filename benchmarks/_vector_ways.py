"""Ways to step environments as a vector: over lanes, and by the vectors of gymnasium and Stable-Baselines3 over open ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from diambra.arena import EnvironmentSettings, SpaceTypes, WrappersSettings
from diambra.arena.arena_gym import DiambraGym1P

from benchmarks._wan_ways import Step
from client_sdk import make_vec
from client_sdk.lanes import Lanes
from client_sdk.vector import LaneVectorEnv

MOVES, ATTACKS = 9, 8


def settings(frame_shape: tuple[int, int, int], step_ratio: int) -> Any:
    """Those of doapp in all ways."""
    return EnvironmentSettings(
        game_id="doapp",
        frame_shape=frame_shape,
        step_ratio=step_ratio,
        action_space=SpaceTypes.MULTI_DISCRETE,
        splash_screen=False,
        seed=1,
    )


class Actions:
    """A batch of actions after the other, the same for every way."""

    def __init__(self, count: int) -> None:
        self._count, self._chance = count, np.random.default_rng(1)

    def __call__(self) -> Any:
        return self._chance.integers((0, 0), (MOVES, ATTACKS), (self._count, 2))


@contextmanager
def vector(
    lanes: Lanes, frame_shape: tuple[int, int, int], step_ratio: int, *, lengths: Sequence[int] | None = None
) -> Iterator[LaneVectorEnv]:
    """The environments of ``lanes`` after a reset; ``lengths`` ends their episodes after so many steps each."""
    wrappers = WrappersSettings()
    if lengths is not None:
        wrappers.wrappers = [[_EndsAt, {"lengths": tuple(lengths)}]]
    vec = make_vec(lanes, "doapp", settings(frame_shape, step_ratio), wrappers, autoreset_mode="SameStep", seed=1)
    try:
        vec.reset()
        yield vec
    finally:
        vec.close()


class _EndsAt(gymnasium.wrappers.TimeLimit[Any, Any]):
    """Each environment's episodes have a length of their own."""

    def __init__(self, env: Any, *, lengths: tuple[int, ...]) -> None:
        super().__init__(env, max_episode_steps=lengths[env.unwrapped.env_settings.rank])


def sync_way(vec: LaneVectorEnv) -> Step:
    """A step of all."""
    return _stepping(vec, vec.num_envs)


def _stepping(vec: Any, count: int) -> Step:
    actions = Actions(count)

    def step() -> None:
        vec.step(actions())

    return step


@contextmanager
def async_way(vec: LaneVectorEnv) -> Iterator[Step]:
    """As many steps as there are environments, of whoever is ready."""
    actions, ahead = Actions(vec.num_envs), 0
    vec.send(actions())

    def step() -> None:
        nonlocal ahead
        while ahead < vec.num_envs:
            *_, infos = vec.recv()
            ready = infos["env_id"]
            ahead += len(ready)
            vec.send(actions()[ready], ready)
        ahead -= vec.num_envs

    yield step
    vec.recv(vec.num_envs)


def _stock(address: str, rank: int, frame_shape: tuple[int, int, int], step_ratio: int) -> Any:
    """An environment of DIAMBRA's client, made in the worker that plays it."""
    own = settings(frame_shape, step_ratio)
    own.env_address, own.rank = address, rank
    return _Headless(own)


class _Headless(DiambraGym1P):  # type: ignore[misc]
    """DIAMBRA's environment, whose close() would ask a headless OpenCV to close windows."""

    def close(self) -> None:
        self.arena_engine.close()


def _makers(addresses: Sequence[str], frame_shape: tuple[int, int, int], step_ratio: int) -> list[Callable[[], Any]]:
    return [partial(_stock, address, rank, frame_shape, step_ratio) for rank, address in enumerate(addresses)]


@contextmanager
def gymnasium_way(addresses: Sequence[str], frame_shape: tuple[int, int, int], step_ratio: int) -> Iterator[Step]:
    """gymnasium's AsyncVectorEnv: a process for each environment."""
    vec = gymnasium.vector.AsyncVectorEnv(_makers(addresses, frame_shape, step_ratio), context="forkserver")
    try:
        vec.reset()
        yield _stepping(vec, len(addresses))
    finally:
        vec.close(terminate=True)


@contextmanager
def sb3_way(addresses: Sequence[str], frame_shape: tuple[int, int, int], step_ratio: int) -> Iterator[Step]:
    """Stable-Baselines3's SubprocVecEnv: the same; it takes no nested observations, so each worker's are flattened."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    makers = [partial(_flat, make) for make in _makers(addresses, frame_shape, step_ratio)]
    vec = SubprocVecEnv(makers, start_method="forkserver")
    try:
        vec.reset()
        yield _stepping(vec, len(addresses))
    finally:
        for process in vec.processes:
            process.terminate()


def _flat(make: Callable[[], Any]) -> Any:
    from diambra.arena.wrappers.observation import FlattenFilterDictObs

    return FlattenFilterDictObs(make(), [])
