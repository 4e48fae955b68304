"""Plays a vector environment with a policy and keeps everything until an episode is over."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Tuple
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from client_sdk._errors import WrongArgument
from client_sdk.episodes._bar import Bar
from client_sdk.episodes._episode import Episode, Unfinished

Policy = Callable[[Any], Any]
Mask = NDArray[np.bool_]
NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"


@dataclass(frozen=True)
class _Decision:
    """What the policy said to one batch of observations."""

    actions: Any
    values: NDArray[np.float64] | None = None
    log_probs: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class _Terms:
    """Who plays, and how what was played is judged."""

    policy: Policy
    gamma: float
    gae_lambda: float
    policy_version: int | None

    @property
    def version(self) -> int:
        """Of the policy, as it is now."""
        return int(getattr(self.policy, "version", 0) if self.policy_version is None else self.policy_version)


class _Collector:
    """Steps one vector environment, and keeps its unfinished episodes."""

    def __init__(self, vec: VectorEnv[Any, Any, Any]) -> None:
        self._mode = _autoreset_mode(vec)
        self._must_copy = getattr(vec.unwrapped, "copy", None) is not True
        self._observations: Any = None  # of the next decision; None: reset first
        self._resetting: Mask = np.zeros(vec.num_envs, dtype=np.bool_)  # their next step only resets them (NEXT_STEP)
        self._unfinished: list[Unfinished] = []

    def begin(self, vec: VectorEnv[Any, Any, Any], *, seed: int | list[int | None] | None, restart: bool) -> None:
        """Reset all environments if there is nothing to go on with, or nothing shall be gone on with."""
        if self._observations is None or restart or seed is not None:
            self._restart(vec, seed)

    def step(self, vec: VectorEnv[Any, Any, Any], terms: _Terms) -> tuple[int, list[Episode]]:
        """One step of all: how many really stepped, and the episodes that ended."""
        try:
            return self._step(vec, terms)
        except BaseException:
            self._observations = None  # who knows where the environments are now
            raise

    def _restart(self, vec: VectorEnv[Any, Any, Any], seed: int | list[int | None] | None) -> None:
        observations, _ = vec.reset(seed=seed)  # type: ignore[arg-type]
        self._observations = self._own(observations)
        self._resetting[:] = False
        self._unfinished = [Unfinished() for _ in range(vec.num_envs)]

    def _own(self, observations: Any) -> Any:
        return copy.deepcopy(observations) if self._must_copy else observations

    def _step(self, vec: VectorEnv[Any, Any, Any], terms: _Terms) -> tuple[int, list[Episode]]:
        version, decision = terms.version, _decide(terms.policy, self._observations, vec)
        played = ~self._resetting
        after, rewards, terminated, truncated, info = vec.step(decision.actions)
        after = self._own(after)
        self._note(vec, decision, played, rewards, version)
        replaced = _flags(info, "engine_replaced", vec.num_envs)
        terminated = np.asarray(terminated, dtype=np.bool_) & ~replaced & played
        ended = (terminated | np.asarray(truncated, dtype=np.bool_) | replaced) & played
        found: list[Episode] = []
        if ended.any():
            finals = self._final_observations(vec, after, info, ended)
            worth = _worth(terms.policy, vec, finals, wanted=ended & ~terminated & (decision.values is not None))
            for env in np.flatnonzero(ended):
                episode = self._unfinished[env].finished(
                    env=int(env),
                    final_observation=copy.deepcopy(finals[env]),
                    final_value=float(worth[env]),
                    terminated=bool(terminated[env]),
                    engine_replaced=bool(replaced[env]),
                    gamma=terms.gamma,
                    gae_lambda=terms.gae_lambda,
                )
                found.append(episode)
                self._unfinished[env] = Unfinished()
            if self._mode == DISABLED:
                after = self._own(vec.reset(options={"reset_mask": ended})[0])
        self._resetting = ended if self._mode == NEXT_STEP else np.zeros_like(ended)
        self._observations = after
        return int(played.sum()), found

    def _note(
        self, vec: VectorEnv[Any, Any, Any], decision: _Decision, played: Mask, rewards: Any, version: int
    ) -> None:
        observations = iterate(vec.observation_space, self._observations)
        actions = iterate(vec.action_space, decision.actions)
        for env, (observation, action) in enumerate(zip(observations, actions, strict=True)):
            if not played[env]:
                continue
            steps = self._unfinished[env]
            steps.observations.append(observation)
            steps.actions.append(action)
            steps.rewards.append(float(rewards[env]))
            steps.versions.append(version)
            if decision.values is not None and decision.log_probs is not None:
                steps.values.append(float(decision.values[env]))
                steps.log_probs.append(float(decision.log_probs[env]))

    def _final_observations(
        self, vec: VectorEnv[Any, Any, Any], after: Any, info: dict[str, Any], ended: Mask
    ) -> list[Any]:
        """What each environment's step led to, before any reset; of those that did not end, whatever came."""
        finals = list(iterate(vec.observation_space, after))
        if self._mode == SAME_STEP:
            for env in np.flatnonzero(ended):
                finals[env] = info["final_obs"][env]
        return finals


def collect(
    vec: VectorEnv[Any, Any, Any],
    policy: Policy,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    policy_version: int | None = None,
    seed: int | list[int | None] | None = None,
    restart: bool = False,
    progress: bool = True,
) -> list[Episode]:
    """Play ``vec`` until so many ``episodes`` are over, or so many ``steps`` were taken, and return the episodes that ended.

    What is unfinished is carried over to the next call for the same ``vec``; ``restart`` or a ``seed`` begins anew. The count
    is a least one: environments that step together end together. Nobody else may step or reset ``vec`` between two calls, or
    ``restart=True`` has to follow.

    ``policy(observations)`` gets the batch and returns actions, or ``(actions, values, log_probs)``. ``policy_version``, or else
    the policy's attribute ``version``, is written beside each step. A truncated episode's last step is worth what the policy
    thinks of where it led to: ``policy.value(observations)`` is asked if there is one, and else the policy once more.
    """
    if (episodes is None) == (steps is None):
        raise WrongArgument("Say how long to collect: either episodes= or steps=.")
    if (episodes or steps or 0) < 1:
        raise WrongArgument("episodes= and steps= have to be at least 1.")
    collector = _collectors.get(vec)
    if collector is None:
        collector = _collectors[vec] = _Collector(vec)
    collector.begin(vec, seed=seed, restart=restart)
    terms = _Terms(policy, gamma, gae_lambda, policy_version)
    found: list[Episode] = []
    taken = 0
    with Bar(episodes or steps or 0, "steps" if episodes is None else "episodes", shown=progress) as bar:
        while (taken < steps) if steps is not None else (len(found) < (episodes or 0)):
            count, ended = collector.step(vec, terms)
            taken += count
            found += ended
            bar.advance(count, [episode.total_reward for episode in ended])
    return found


# Unfinished episodes live as long as their environment: the caller has nothing to keep between two calls.
_collectors: weakref.WeakKeyDictionary[VectorEnv[Any, Any, Any], _Collector] = weakref.WeakKeyDictionary()


def _autoreset_mode(vec: VectorEnv[Any, Any, Any]) -> str:
    """Which of the three it is; gymnasium 1.0 does not say and has only the first."""
    mode = (vec.metadata or {}).get("autoreset_mode", NEXT_STEP)
    mode = str(getattr(mode, "value", mode))
    if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise WrongArgument(f"There is no way to reset called {mode!r}: gymnasium has NextStep, SameStep and Disabled.")
    return mode


def _decide(policy: Policy, observations: Any, vec: VectorEnv[Any, Any, Any]) -> _Decision:
    said = policy(observations)
    if not isinstance(said, tuple) or (isinstance(vec.action_space, Tuple) and not isinstance(said[0], tuple)):
        return _Decision(_numpy(said))
    if len(said) != 3:
        raise WrongArgument("A policy returns actions, or the three (actions, values, log_probs).")
    return _Decision(_numpy(said[0]), _column(said[1], vec.num_envs), _column(said[2], vec.num_envs))


def _worth(policy: Policy, vec: VectorEnv[Any, Any, Any], finals: list[Any], *, wanted: Mask) -> NDArray[np.float64]:
    """What the policy thinks of the states that truncated episodes ended in; 0 of all others."""
    worth = np.zeros(vec.num_envs)
    if wanted.any():
        space = vec.single_observation_space
        batch = concatenate(space, finals, create_empty_array(space, n=vec.num_envs))
        value = getattr(policy, "value", None)
        said = _decide(policy, batch, vec).values if value is None else _column(value(batch), vec.num_envs)
        if said is not None:
            worth[wanted] = said[wanted]
    return worth


def _flags(info: dict[str, Any], key: str, count: int) -> Mask:
    """For which environments ``key`` is in their info and true; SAME_STEP has the last step's own info in ``final_info``."""
    found = np.zeros(count, dtype=np.bool_)
    for where in (info, info.get("final_info")):
        if isinstance(where, dict) and key in where:
            given = np.asarray(where.get(f"_{key}", True), dtype=np.bool_)
            found |= given & np.array([bool(value) for value in where[key]])
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
