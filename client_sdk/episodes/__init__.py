"""Completed episodes from any ``gymnasium.vector.VectorEnv``, and nothing for the user to keep by hand.

    from client_sdk.episodes import collect, concatenate

    episodes = collect(vec, policy, episodes=20, gamma=0.99, gae_lambda=0.95)
    batch = concatenate(episodes)          # one row for each step: batch.observations, .actions, .advantages, ...

What is unfinished when a call ends is carried over to the next one. It knows gymnasium's three ways to reset.
"""

from client_sdk.episodes._collector import collect
from client_sdk.episodes._episode import Episode, Steps, concatenate
from client_sdk.episodes._returns import advantages, discounted_returns

__all__ = ["Episode", "Steps", "advantages", "collect", "concatenate", "discounted_returns"]
