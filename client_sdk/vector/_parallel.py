"""PettingZoo's ``ParallelEnv`` for two players on one engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

try:
    from pettingzoo import ParallelEnv
except ImportError:  # what is here fits PettingZoo's interface without it as well
    ParallelEnv = object

AGENTS = ("agent_0", "agent_1")


class LaneParallelEnv(ParallelEnv):  # type: ignore[misc]
    """Two players against each other. What one wins the other loses: DIAMBRA's reward is that of ``agent_0``.

    Both see the same, and each one what its own part of DIAMBRA's observation has for it (``action``, ``own``, ``opp``).
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = {**env.metadata, "name": env.unwrapped.env_settings.game_id, "is_parallelizable": True}
        self.render_mode = env.render_mode
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        spaces = dict(env.observation_space.spaces)
        own = {agent: spaces.pop(agent, None) for agent in AGENTS}
        self.observation_spaces: dict[str, gymnasium.spaces.Space[Any]] = {
            agent: gymnasium.spaces.Dict({**spaces, **(own[agent].spaces if own[agent] is not None else {})})
            for agent in AGENTS
        }
        self.action_spaces: dict[str, gymnasium.spaces.Space[Any]] = {
            agent: env.action_space[agent] for agent in AGENTS
        }

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """What ``agent`` sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """What ``agent`` can do."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode: observations and infos by agent."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.agents = list(AGENTS)
        return _by_agent(observation), {agent: dict(info) for agent in AGENTS}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Play one step: observations, rewards, terminations, truncations and infos by agent."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        observation, reward, terminated, truncated, info = self.env.step(dict(actions))
        if terminated or truncated:
            self.agents = []
        return (
            _by_agent(observation),
            {AGENTS[0]: float(reward), AGENTS[1]: -float(reward)},
            dict.fromkeys(AGENTS, bool(terminated)),
            dict.fromkeys(AGENTS, bool(truncated)),
            {agent: dict(info) for agent in AGENTS},
        )

    def render(self) -> Any:
        """The last frame as the engine sent it."""
        return self.env.render()

    def state(self) -> Any:
        """There is no state beyond what both see."""
        raise NotImplementedError("DIAMBRA's games have no state beyond what both players see.")

    def close(self) -> None:
        """End the game."""
        self.agents = []
        self.env.close()

    @property
    def unwrapped(self) -> LaneParallelEnv:
        """Itself."""
        return self

    @property
    def num_agents(self) -> int:
        """How many play just now."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Two."""
        return len(self.possible_agents)


def _by_agent(observation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    shared = {key: value for key, value in observation.items() if key not in AGENTS}
    return {agent: {**shared, **observation.get(agent, {})} for agent in AGENTS}
