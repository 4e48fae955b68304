"""An episode that is over, and many of them as one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk._errors import WrongArgument
from client_sdk.episodes._returns import advantages, discounted_returns

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps in a row, one entry of each array for each: ``observations`` is an array, or a dict (tuple) of arrays.

    ``values``, ``log_probs`` and ``advantages`` are None for a policy that returns actions alone. ``returns`` are discounted.
    """

    observations: Any
    actions: Any
    rewards: Floats
    dones: NDArray[np.bool_]
    policy_versions: NDArray[np.int64]
    returns: Floats
    values: Floats | None = None
    log_probs: Floats | None = None
    advantages: Floats | None = None

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True, eq=False)
class Episode(Steps):
    """One episode from its reset to its end, played by environment ``env``.

    ``final_observation`` is what the last step led to, and ``final_value`` what the policy thought that worth: 0 if the
    episode ``terminated``. ``engine_replaced`` says that it was cut short because its engine was lost.
    """

    env: int = 0
    final_observation: Any = field(default=None, repr=False)
    final_value: float = 0.0
    terminated: bool = False
    truncated: bool = False
    engine_replaced: bool = False

    @property
    def total_reward(self) -> float:
        """The sum of its rewards, not discounted."""
        return float(self.rewards.sum(dtype=np.float64))

    def __repr__(self) -> str:
        how = "engine replaced" if self.engine_replaced else "terminated" if self.terminated else "truncated"
        return f"<Episode of environment {self.env}: {len(self)} steps, reward {self.total_reward:.4g}, {how}>"


class Unfinished:
    """The steps of one environment since its reset."""

    def __init__(self) -> None:
        self.observations: list[Any] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.values: list[float] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []

    def decided(self, observation: Any, action: Any, thought: tuple[float, float] | None, version: int) -> None:
        """A step was begun; ``thought`` is the value and the log-probability that the policy gave with it."""
        self.observations.append(observation)
        self.actions.append(action)
        self.versions.append(version)
        if thought is not None:
            self.values.append(thought[0])
            self.log_probs.append(thought[1])

    def finished(
        self,
        *,
        env: int,
        final_observation: Any,
        final_value: float,
        terminated: bool,
        engine_replaced: bool,
        gamma: float,
        gae_lambda: float,
    ) -> Episode:
        """These steps as an episode that ended here; it is truncated unless it ``terminated``."""
        has_values = len(self.values) == len(self.rewards)
        dones = np.zeros(len(self.rewards), dtype=np.bool_)
        dones[-1] = True
        return Episode(
            observations=by_entry(self.observations, np.stack),
            actions=by_entry(self.actions, np.stack),
            rewards=np.array(self.rewards, dtype=np.float32),
            dones=dones,
            policy_versions=np.array(self.versions, dtype=np.int64),
            returns=discounted_returns(self.rewards, gamma=gamma, final_value=final_value),
            values=np.array(self.values, dtype=np.float32) if has_values else None,
            log_probs=np.array(self.log_probs, dtype=np.float32) if has_values else None,
            advantages=advantages(
                self.rewards, self.values, gamma=gamma, gae_lambda=gae_lambda, final_value=final_value
            )
            if has_values
            else None,
            env=env,
            final_observation=final_observation,
            final_value=final_value,
            terminated=terminated,
            truncated=not terminated,
            engine_replaced=engine_replaced,
        )


def concatenate(episodes: Sequence[Episode]) -> Steps:
    """All steps of ``episodes`` as one batch, in their order."""
    if not episodes:
        raise WrongArgument("There is no episode to concatenate: collect some first.")
    return Steps(
        observations=by_entry([one.observations for one in episodes], np.concatenate),
        actions=by_entry([one.actions for one in episodes], np.concatenate),
        rewards=np.concatenate([one.rewards for one in episodes]),
        dones=np.concatenate([one.dones for one in episodes]),
        policy_versions=np.concatenate([one.policy_versions for one in episodes]),
        returns=np.concatenate([one.returns for one in episodes]),
        values=_joined_if_all([one.values for one in episodes]),
        log_probs=_joined_if_all([one.log_probs for one in episodes]),
        advantages=_joined_if_all([one.advantages for one in episodes]),
    )


def by_entry(items: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
    """Arrays joined to one; dicts and tuples of arrays entry by entry."""
    first = items[0]
    if isinstance(first, dict):
        return {key: by_entry([item[key] for item in items], join) for key in first}
    if isinstance(first, tuple):
        return tuple(by_entry(part, join) for part in zip(*items, strict=True))
    return join(items)


def _joined_if_all(parts: Sequence[Floats | None]) -> Floats | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if len(there) == len(parts) else None
