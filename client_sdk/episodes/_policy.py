"""What a policy says to a batch of observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Tuple
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from client_sdk._errors import WrongArgument

Policy = Callable[[Any], Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Decision:
    """What the policy said to one batch of observations."""

    actions: Any
    values: NDArray[np.float64] | None = None
    log_probs: NDArray[np.float64] | None = None

    def thought(self, row: int) -> tuple[float, float] | None:
        """Value and log-probability of one row, if there are any."""
        if self.values is None or self.log_probs is None:
            return None
        return float(self.values[row]), float(self.log_probs[row])


@dataclass(frozen=True)
class Terms:
    """Who plays, and how what was played is judged."""

    policy: Policy
    gamma: float
    gae_lambda: float
    policy_version: int | None

    @property
    def version(self) -> int:
        """Of the policy, as it is now."""
        return int(getattr(self.policy, "version", 0) if self.policy_version is None else self.policy_version)


def decide(policy: Policy, observations: Any, vec: VectorEnv[Any, Any, Any], count: int) -> Decision:
    """Ask the policy about ``count`` rows of observations."""
    said = policy(observations)
    if not isinstance(said, tuple) or (isinstance(vec.action_space, Tuple) and not isinstance(said[0], tuple)):
        return Decision(_numpy(said))
    if len(said) != 3:
        raise WrongArgument("A policy returns actions, or the three (actions, values, log_probs).")
    return Decision(_numpy(said[0]), _column(said[1], count), _column(said[2], count))


def worth(policy: Policy, vec: VectorEnv[Any, Any, Any], finals: Sequence[Any], *, wanted: Mask) -> NDArray[np.float64]:
    """What the policy thinks of the states that truncated episodes ended in; 0 of those that are not ``wanted``."""
    found = np.zeros(len(finals))
    if wanted.any():
        space = vec.single_observation_space
        batch = concatenate(space, finals, create_empty_array(space, n=len(finals)))
        value = getattr(policy, "value", None)
        said = decide(policy, batch, vec, len(finals)).values if value is None else _column(value(batch), len(finals))
        if said is not None:
            found[wanted] = said[wanted]
    return found


def _numpy(said: Any) -> Any:
    """Tensors as arrays; dicts and tuples entry by entry."""
    if isinstance(said, dict):
        return {key: _numpy(value) for key, value in said.items()}
    if isinstance(said, tuple):
        return tuple(_numpy(value) for value in said)
    return np.asarray(said.detach().cpu() if hasattr(said, "detach") else said)


def _column(said: Any, count: int) -> NDArray[np.float64]:
    """One number for each environment, whatever shape they came in."""
    numbers = np.asarray(_numpy(said), dtype=np.float64)
    if numbers.size != count:
        raise WrongArgument(
            f"The policy returned {numbers.size} values or log-probabilities for {count} environments: return one for each."
        )
    return numbers.reshape(count)
