"""Stable-Baselines3's ``VecEnv`` over the lanes of a lease, by a helper that takes what DIAMBRA's own takes.

    from client_sdk.sb3 import make_sb3_env  # instead of diambra.arena.stable_baselines3.make_sb3_env

    with Cornerman().lease(envs=8):
        env, num_envs = make_sb3_env("doapp", env_settings, wrappers_settings, seed=7)
        PPO("MultiInputPolicy", env).learn(1_000_000)

All environments live in this process and are stepped together, with one round trip a step.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from client_sdk._environ import claims
from client_sdk._errors import WrongArgument
from client_sdk._lease import Lease, open_leases
from client_sdk.lanes import Lanes
from client_sdk.vector import LaneVectorEnv, make_vec
from client_sdk.vector._making import make_one
from client_sdk.vector._tiles import pictures_of

__all__ = ["LaneVecEnv", "make_sb3_env"]


def make_sb3_env(
    game_id: str,
    env_settings: Any = None,
    wrappers_settings: Any = None,
    episode_recording_settings: Any = None,
    render_mode: str = "rgb_array",
    seed: int | None = None,
    start_index: int = 0,
    allow_early_resets: bool = True,
    start_method: str | None = None,
    no_vec: bool = False,
    use_subprocess: bool = True,
    log_dir_base: str = "/tmp/DIAMBRALog/",  # noqa: S108 - DIAMBRA's own default
    *,
    lease: Lease | Lanes | None = None,
    deadlines_s: Mapping[str, float] | None = None,
    spares: int = 0,
) -> tuple[Any, int]:
    """A monitored environment for each engine of ``lease`` (the newest of this process without), and how many there are.

    Arguments and result are those of DIAMBRA's function of that name; ``start_method`` and ``use_subprocess`` make no difference,
    because nothing needs a process. ``seed`` makes every episode reproducible; ``deadlines_s`` and ``spares`` are those of ``make_vec``.
    """
    if start_index != 0:
        raise WrongArgument("start_index has to be 0: a lease is stepped as a whole.")
    lease = _current_lease() if lease is None else lease
    count = len(lease.ranks if isinstance(lease, Lanes) else lease.envs)
    settings: dict[str, Any] = {"seed": seed, "render_mode": render_mode, "deadlines_s": deadlines_s}

    def monitored(env: Any, rank: int) -> Monitor[Any, Any]:
        folder = os.path.join(log_dir_base, str(rank))
        os.makedirs(folder, exist_ok=True)
        return Monitor(env, folder, allow_early_resets=allow_early_resets)

    if seed is not None:
        set_random_seed(seed)
    what = (lease, game_id, env_settings, wrappers_settings, episode_recording_settings)
    if no_vec and count == 1:
        return make_one(*what, wrap=monitored, **settings), count
    vec = make_vec(*what, wrap=monitored, autoreset_mode="SameStep", spares=spares, **settings)
    return LaneVecEnv(vec), vec.num_envs


class LaneVecEnv(VecEnv):  # type: ignore[misc, unused-ignore]
    """The same environments as Stable-Baselines3 wants them: reset in the step that ends an episode, an info for each."""

    def __init__(self, vec: LaneVectorEnv) -> None:
        self.vec = vec
        super().__init__(vec.num_envs, vec.single_observation_space, vec.single_action_space)

    def reset(self) -> Any:
        """Begin an episode everywhere: observations."""
        options = self._options if any(self._options) else None
        observations, self.reset_infos = self.vec.reset_each(seeds=self._seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step everywhere; what is left of one that was interrupted is dropped, so that ``learn`` can go on after it."""
        self.vec.settle()
        self.vec.send(actions)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """What came of it: observations, rewards, dones and infos."""
        outcomes = self.vec.collect_all()
        infos = []
        for index, outcome in enumerate(outcomes):
            info = outcome.info
            if outcome.final is not None:
                last, info = outcome.final
                info["terminal_observation"] = last
                self.reset_infos[index] = outcome.info
            info["TimeLimit.truncated"] = bool(outcome.truncated and not outcome.terminated)
            infos.append(info)
        return (
            self.vec.observations_of(outcomes),
            np.array([outcome.reward for outcome in outcomes], np.float32),
            np.array([outcome.terminated or outcome.truncated for outcome in outcomes], np.bool_),
            infos,
        )

    def close(self) -> None:
        """Say goodbye to the engines, which stay with the lease."""
        self.vec.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """The last frame of each environment, as RGB."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"The render mode is {self.render_mode}, so there are no pictures.", stacklevel=2)
            return [None] * self.num_envs
        return pictures_of(self.vec.envs)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of these environments."""
        return [env.get_wrapper_attr(attr_name) for env in self._of(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of these environments' outermost wrapper."""
        for env in self._of(indices):
            setattr(env, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """What a method of these environments returns."""
        return [env.get_wrapper_attr(method_name)(*method_args, **method_kwargs) for env in self._of(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """Whether these environments have a wrapper of that class."""
        return [is_wrapped(env, wrapper_class) for env in self._of(indices)]

    def _of(self, indices: Any) -> list[Any]:
        return [self.vec.envs[index] for index in self._get_indices(indices)]


def _current_lease() -> Lease:
    """The lease of this process whose engines ``DIAMBRA_ENVS`` names; WrongArgument without one."""
    owner = claims.newest
    for lease in open_leases:
        if lease._claim is owner:
            return lease
    raise WrongArgument("This process holds no lease: ask for one with lease(), or say which one with lease=.")
