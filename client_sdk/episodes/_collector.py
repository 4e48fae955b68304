"""Plays a vector environment with a policy and keeps everything until an episode is over."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import numpy as np
from gymnasium.vector.utils import iterate

from client_sdk._errors import WrongArgument
from client_sdk.episodes._bar import Bar
from client_sdk.episodes._episode import Episode, Unfinished, by_entry
from client_sdk.episodes._policy import Decision, Mask, Policy, Terms, decide, worth
from client_sdk.episodes._stepping import Arrived, Ready, Seed, Stepping, Together, Vec

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"


class _Collector:
    """What is known of one vector environment between two steps: who waits for the policy, and the unfinished episodes."""

    def __init__(self, vec: Vec) -> None:
        self._mode = _autoreset_mode(vec)
        self._must_copy = getattr(vec.unwrapped, "copy", None) is not True
        self._known = False  # where the environments are; else begin anew
        self._waiting = np.arange(vec.num_envs)
        self._observations: Any = None  # of those that wait, row by row
        self._resetting: Mask = np.zeros(vec.num_envs, dtype=np.bool_)  # what comes of them next is only a reset
        self._unfinished: list[Unfinished] = []

    def begin(self, stepping: Stepping, count: int, *, seed: Seed, restart: bool) -> None:
        """Reset all environments if there is nothing to go on with, or nothing shall be gone on with."""
        if (
            self._known
            and not restart
            and seed is None
            and (isinstance(stepping, Ready) or len(self._waiting) == count)
        ):
            return
        self._known = False  # unless all goes well
        arrived = stepping.reset(seed)
        self._waiting, self._observations = arrived.envs, self._own(arrived.observations)
        self._resetting[:] = False
        self._unfinished = [Unfinished() for _ in range(count)]
        self._known = True

    def step(self, vec: Vec, stepping: Stepping, terms: Terms) -> tuple[int, list[Episode]]:
        """A step of all that wait for the policy: how many steps have come to their end, and the episodes that have."""
        self._known = False  # unless all goes well
        actions = None
        if len(self._waiting):
            version = terms.version
            decision = decide(terms.policy, self._observations, vec, len(self._waiting))
            self._note(vec, decision, version)
            actions = decision.actions
        arrived = stepping.step(actions, self._waiting)
        outcome = self._take(vec, stepping, terms, arrived)
        self._known = True
        return outcome

    def _own(self, observations: Any) -> Any:
        return copy.deepcopy(observations) if self._must_copy else observations

    def _note(self, vec: Vec, decision: Decision, version: int) -> None:
        observations = iterate(vec.observation_space, self._observations)
        actions = iterate(vec.action_space, decision.actions)
        for row, (env, observation, action) in enumerate(zip(self._waiting, observations, actions, strict=True)):
            if not self._resetting[env]:
                self._unfinished[env].decided(observation, action, decision.thought(row), version)

    def _take(self, vec: Vec, stepping: Stepping, terms: Terms, arrived: Arrived) -> tuple[int, list[Episode]]:
        """Take in what has come: rewards, and the episodes that are over with it."""
        envs, after = arrived.envs, self._own(arrived.observations)
        played = ~self._resetting[envs]
        self._resetting[envs] = False
        for row in np.flatnonzero(played):
            self._unfinished[envs[row]].rewards.append(float(arrived.rewards[row]))
        replaced = _flags(arrived.info, "engine_replaced", len(envs))
        terminated = np.asarray(arrived.terminated, dtype=np.bool_) & ~replaced & played
        ended = (terminated | np.asarray(arrived.truncated, dtype=np.bool_) | replaced) & played
        found: list[Episode] = []
        if ended.any():
            rows = np.flatnonzero(ended)
            finals = list(iterate(vec.observation_space, after))
            if self._mode == SAME_STEP:
                for row in rows:
                    finals[row] = arrived.info["final_obs"][row]
            has_values = np.array([bool(self._unfinished[env].values) for env in envs])
            worths = worth(terms.policy, vec, finals, wanted=ended & ~terminated & has_values)
            for row in rows:
                env = int(envs[row])
                found.append(
                    self._unfinished[env].finished(
                        env=env,
                        final_observation=copy.deepcopy(finals[row]),
                        final_value=float(worths[row]),
                        terminated=bool(terminated[row]),
                        engine_replaced=bool(replaced[row]),
                        gamma=terms.gamma,
                        gae_lambda=terms.gae_lambda,
                    )
                )
                self._unfinished[env] = Unfinished()
            self._resetting[envs[rows]] = self._mode == NEXT_STEP
        self._wait(vec, stepping, envs, after, ended)
        return int(played.sum()), found

    def _wait(self, vec: Vec, stepping: Stepping, envs: Any, after: Any, ended: Mask) -> None:
        """Note who waits for the policy now; with DISABLED those that ended are reset first."""
        self._waiting, self._observations = envs, after
        if self._mode != DISABLED or not ended.any():
            return
        fresh = stepping.reset_some(envs[ended])
        if fresh is not None:
            self._observations = self._own(fresh)
            return
        self._resetting[envs[ended]] = True
        self._waiting = envs[~ended]
        self._observations = by_entry([after], lambda parts: parts[0][~ended])


def collect(
    vec: Vec,
    policy: Policy,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    policy_version: int | None = None,
    min_envs: int | None = None,
    seed: Seed = None,
    restart: bool = False,
    progress: bool = True,
) -> list[Episode]:
    """Play ``vec`` until so many ``episodes`` are over, or so many ``steps`` were taken, and return the episodes that ended.

    What is unfinished is carried over to the next call for the same ``vec``; ``restart`` or a ``seed`` begins anew. The count
    is a least one: environments that step together end together. Nobody else may step or reset ``vec`` between two calls, or
    ``restart=True`` has to follow.

    With ``min_envs`` each environment goes on as soon as it can, at least so many at a time: nobody waits for a slow reset or a far
    engine. The policy then gets batches of different sizes. It takes a ``vec`` with ``send`` and ``recv``, as ``make_vec`` makes it.

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
    stepping: Stepping = Together(vec) if min_envs is None else Ready(vec, min_envs)
    collector.begin(stepping, vec.num_envs, seed=seed, restart=restart)
    terms = Terms(policy, gamma, gae_lambda, policy_version)
    found: list[Episode] = []
    taken = 0
    with Bar(episodes or steps or 0, "steps" if episodes is None else "episodes", shown=progress) as bar:
        while (taken < steps) if steps is not None else (len(found) < (episodes or 0)):
            count, ended = collector.step(vec, stepping, terms)
            taken += count
            found += ended
            bar.advance(count, [episode.total_reward for episode in ended])
    return found


# Unfinished episodes live as long as their environment: the caller has nothing to keep between two calls.
_collectors: weakref.WeakKeyDictionary[Vec, _Collector] = weakref.WeakKeyDictionary()


def _autoreset_mode(vec: Vec) -> str:
    """Which of the three it is; gymnasium 1.0 does not say and has only the first."""
    mode = (vec.metadata or {}).get("autoreset_mode", NEXT_STEP)
    mode = str(getattr(mode, "value", mode))
    if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise WrongArgument(f"There is no way to reset called {mode!r}: gymnasium has NextStep, SameStep and Disabled.")
    return mode


def _flags(info: dict[str, Any], key: str, count: int) -> Mask:
    """For which environments ``key`` is in their info and true; SAME_STEP has the last step's own info in ``final_info``."""
    found = np.zeros(count, dtype=np.bool_)
    for where in (info, info.get("final_info")):
        if isinstance(where, dict) and key in where:
            given = np.asarray(where.get(f"_{key}", True), dtype=np.bool_)
            found |= given & np.array([bool(value) for value in where[key]])
    return found
