"""How a vector environment is driven: all environments in step, or whoever is ready (``send`` and ``recv``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from client_sdk._errors import WrongArgument

Seed = int | list[int | None] | None
Vec = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class Arrived:
    """What came of some environments: row by row, ``envs`` says whose it is. Of a reset there are observations alone."""

    envs: NDArray[np.int64]
    observations: Any
    rewards: Any = None
    terminated: Any = None
    truncated: Any = None
    info: dict[str, Any] = field(default_factory=dict)


class Stepping(Protocol):
    """One way to drive a vector environment."""

    def reset(self, seed: Seed) -> Arrived:
        """Begin an episode everywhere."""
        ...

    def step(self, actions: Any, envs: NDArray[np.int64]) -> Arrived:
        """Play on in ``envs``, an action for each row, and return what has come."""
        ...

    def reset_some(self, envs: NDArray[np.int64]) -> Any:
        """Begin an episode in ``envs``: all observations, or None if they come with a later step."""
        ...


class Together:
    """All in step, as any vector environment can."""

    def __init__(self, vec: Vec) -> None:
        self._vec, self._all = vec, np.arange(vec.num_envs)

    def reset(self, seed: Seed) -> Arrived:
        """Begin an episode everywhere."""
        observations, _ = self._vec.reset(seed=seed)  # type: ignore[arg-type]
        return Arrived(self._all, observations)

    def step(self, actions: Any, envs: NDArray[np.int64]) -> Arrived:
        """One step of all."""
        return Arrived(self._all, *self._vec.step(actions))

    def reset_some(self, envs: NDArray[np.int64]) -> Any:
        """Begin an episode in ``envs``, and wait for it."""
        mask = np.zeros(self._vec.num_envs, dtype=np.bool_)
        mask[envs] = True
        return self._vec.reset(options={"reset_mask": mask})[0]


class Ready:
    """Whoever is ready goes on, at least ``least`` at a time; it needs ``send`` and ``recv``, which client_sdk's own has."""

    def __init__(self, vec: Any, least: int) -> None:
        if not (hasattr(vec, "send") and hasattr(vec, "recv")):
            raise WrongArgument(
                "This vector environment has no send() and recv(): leave min_envs out, or use make_vec()."
            )
        if not 1 <= least <= vec.num_envs:
            raise WrongArgument(f"min_envs has to be from 1 to {vec.num_envs}, the number of environments.")
        self._vec, self._least = vec, least

    def reset(self, seed: Seed) -> Arrived:
        """Begin an episode everywhere; whatever is under way is dropped."""
        observations, _ = self._vec.reset(seed=seed)
        return Arrived(np.arange(self._vec.num_envs), observations)

    def step(self, actions: Any, envs: NDArray[np.int64]) -> Arrived:
        """Begin a step in ``envs``, so that all are at work, and wait for those that are ready first."""
        if len(envs):
            self._vec.send(actions, envs)
        observations, rewards, terminated, truncated, info = self._vec.recv(self._least)
        return Arrived(info["env_id"], observations, rewards, terminated, truncated, info)

    def reset_some(self, envs: NDArray[np.int64]) -> Any:
        """Begin an episode in ``envs``, and wait for nothing."""
        self._vec.async_reset(envs)
        return None
