"""What the steps of one episode were worth: discounted returns, and advantages by generalised estimation (GAE)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]


def discounted_returns(rewards: ArrayLike, *, gamma: float, final_value: float = 0.0) -> Floats:
    """The discounted sum of what comes from each step on, shape (steps,).

    ``final_value`` is what the state after the last step is worth: 0 if the episode terminated, the policy's estimate if
    it was truncated.
    """
    paid = np.asarray(rewards, dtype=np.float64)
    returns, worth = np.empty_like(paid), float(final_value)
    for step in range(len(paid) - 1, -1, -1):
        worth = paid[step] + gamma * worth
        returns[step] = worth
    return returns.astype(np.float32)


def advantages(
    rewards: ArrayLike, values: ArrayLike, *, gamma: float, gae_lambda: float, final_value: float = 0.0
) -> Floats:
    """How much better each step went than ``values`` had said, shape (steps,): Schulman et al. 2016, equation 16."""
    paid, expected = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    surprises = paid + gamma * np.append(expected[1:], final_value) - expected
    found, so_far = np.empty_like(paid), 0.0
    for step in range(len(paid) - 1, -1, -1):
        so_far = surprises[step] + gamma * gae_lambda * so_far
        found[step] = so_far
    return found.astype(np.float32)
