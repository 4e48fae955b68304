"""Collected episodes against a player of one environment that is written down here anew."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate as batched
from gymnasium.vector.utils import create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk import WrongArgument
from client_sdk.episodes import Episode, advantages, collect, concatenate, discounted_returns

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from client_sdk.vector import AutoresetMode

# gymnasium 1.0 has but one way to reset, and does not name it.
HAS_MODES = hasattr(gym.vector, "AutoresetMode")
MODES = tuple(AutoresetMode) if HAS_MODES else (AutoresetMode.NEXT_STEP,)
GAMMA, LAMBDA = 0.9, 0.8


@dataclass(frozen=True)
class Scripted:
    """One episode of a scripted environment: its length, and how it ends."""

    length: int
    end: str  # terminated, truncated or replaced


class Play(gym.Env[Any, Any]):
    """Plays its script round and round; what it shows says which environment, episode and step this is."""

    def __init__(self, number: int, script: Sequence[Scripted], *, as_dict: bool) -> None:
        where = spaces.Box(-1, 10_000, (3,), np.float32)
        self.observation_space = spaces.Dict({"where": where, "step": spaces.Discrete(1000)}) if as_dict else where
        self.action_space = spaces.Discrete(5)
        self.number, self.script, self.as_dict = number, script, as_dict
        self.episode, self.at = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        now = self.script[self.episode % len(self.script)]
        over = self.at == now.length
        info = {"engine_replaced": True} if over and now.end == "replaced" else {}
        reward = reward_of(self.number, self.episode, self.at, int(action))
        return self._seen(), reward, over and now.end == "terminated", over and now.end != "terminated", info

    def _seen(self) -> Any:
        where = np.array([self.number, self.episode, self.at], dtype=np.float32)
        return {"where": where, "step": self.at} if self.as_dict else where


def reward_of(env: int, episode: int, step: int, action: int) -> float:
    """What the step that leads to ``step`` pays."""
    return 0.25 * ((7 * env + 3 * episode + 5 * step + action) % 9) - 1.0


def where_of(observations: Any) -> Any:
    """The part of an observation that says which one it is."""
    return observations["where"] if isinstance(observations, dict) else observations


def action_of(where: Any) -> int:
    """What Thinker does there."""
    return int((where[0] + 2 * where[1] + 3 * where[2]) % 5)


def value_of(where: Any) -> float:
    """What Thinker thinks of it."""
    return 0.5 * float(where[0]) - 0.125 * float(where[1]) + 0.25 * float(where[2])


class Thinker:
    """A policy that tells by its numbers which observation it was shown."""

    version = 3

    def __call__(self, observations: Any) -> tuple[Any, Any, Any]:
        rows = where_of(observations)
        values = np.array([[value_of(row)] for row in rows])  # a column, as networks have it
        return np.array([action_of(row) for row in rows]), values, -values[:, 0]


def vector(
    scripts: Sequence[Sequence[Scripted]], mode: AutoresetMode, *, as_dict: bool = False, **more: Any
) -> SyncVectorEnv:
    """Scripted environments as gymnasium's own vector."""
    makers = [partial(Play, number, script, as_dict=as_dict) for number, script in enumerate(scripts)]
    return SyncVectorEnv(makers, **_named(mode), **more)


def _named(mode: AutoresetMode) -> dict[str, Any]:
    return {"autoreset_mode": mode} if HAS_MODES else {}


class Staggered(SyncVectorEnv):
    """The same with ``send`` and ``recv`` as client_sdk's own vector environment has them; chance says who is ready."""

    def __init__(self, *arguments: Any, mode: AutoresetMode, chance: random.Random, **named: Any) -> None:
        named.update(_named(mode))
        super().__init__(*arguments, **named)
        self.autoreset_mode = mode
        self._chance = chance
        self._under_way: dict[int, Any] = {}  # the action, or None for a reset

    def reset(self, **named: Any) -> Any:
        self._under_way.clear()
        return super().reset(**named)

    def send(self, actions: Any, env_ids: Any) -> None:
        assert len(actions) == len(env_ids)
        assert not {int(env) for env in env_ids} & self._under_way.keys()
        resets = self._autoreset_envs
        assert self.autoreset_mode is not AutoresetMode.DISABLED or not resets[env_ids].any()
        self._under_way |= {
            int(env): None if resets[env] else action for env, action in zip(env_ids, actions, strict=True)
        }

    def async_reset(self, env_ids: Any) -> None:
        self._under_way |= {int(env): None for env in env_ids}

    def recv(self, min_envs: int) -> Any:
        ready = self._chance.sample(sorted(self._under_way), self._chance.randint(min_envs, len(self._under_way)))
        outcomes = [self._one(env, self._under_way.pop(env)) for env in ready]
        observations, rewards, terminated, truncated, infos = zip(*outcomes, strict=True)
        several: dict[str, Any] = {}
        for row, info in enumerate(infos):
            several = InfoBatch(len(ready))._add_info(several, info, row)  # type: ignore[misc]
        space = self.single_observation_space
        batch = batched(space, observations, create_empty_array(space, n=len(ready)))
        several["env_id"] = np.array(ready)
        return batch, np.array(rewards), np.array(terminated), np.array(truncated), several

    def _one(self, env: int, action: Any) -> Any:
        if action is None:
            self._autoreset_envs[env] = False
            observation, info = self.envs[env].reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = self.envs[env].step(action)
        over = terminated or truncated
        if over and self.autoreset_mode is AutoresetMode.SAME_STEP:
            first, _ = self.envs[env].reset()
            return first, reward, terminated, truncated, {"final_obs": observation, "final_info": info}
        self._autoreset_envs[env] = over
        return observation, reward, terminated, truncated, info


class InfoBatch:
    """Infos of some environments, by gymnasium's own method."""

    _add_info = VectorEnv._add_info

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs


def staggered(scripts: Sequence[Sequence[Scripted]], mode: AutoresetMode, **more: Any) -> Staggered:
    """Scripted environments that are ready when chance will have it."""
    return Staggered(
        [partial(Play, number, script, as_dict=True) for number, script in enumerate(scripts)],
        mode=mode,
        **more,
    )


def expected_returns(rewards: Sequence[float], final_value: float) -> list[float]:
    """The definition, term by term."""
    count = len(rewards)
    return [
        sum(GAMMA ** (later - now) * rewards[later] for later in range(now, count))
        + GAMMA ** (count - now) * final_value
        for now in range(count)
    ]


def expected_advantages(rewards: Sequence[float], values: Sequence[float], final_value: float) -> list[float]:
    """GAE as the exponentially weighted mean of all k-step advantages, term by term."""
    count, worth = len(rewards), [*values, final_value]
    found = []
    for now in range(count):
        ahead = count - now
        by_length = [
            sum(GAMMA**i * rewards[now + i] for i in range(k)) + GAMMA**k * worth[now + k] - worth[now]
            for k in range(1, ahead + 1)
        ]
        weights = [(1 - LAMBDA) * LAMBDA ** (k - 1) for k in range(1, ahead)] + [LAMBDA ** (ahead - 1)]
        found.append(sum(weight * one for weight, one in zip(weights, by_length, strict=True)))
    return found


def check(episode: Episode, *, number: int, script: Sequence[Scripted]) -> None:
    """``episode`` is the ``number``-th of its environment, every array of it."""
    plan = script[number % len(script)]
    where = [np.array([episode.env, number, step], dtype=np.float32) for step in range(plan.length + 1)]
    actions = [action_of(one) for one in where[:-1]]
    rewards = [reward_of(episode.env, number, step + 1, action) for step, action in enumerate(actions)]
    values = [value_of(one) for one in where[:-1]]
    final_value = 0.0 if plan.end == "terminated" else value_of(where[-1])
    np.testing.assert_array_equal(where_of(episode.observations), np.stack(where[:-1]))
    np.testing.assert_array_equal(where_of(episode.final_observation), where[-1])
    np.testing.assert_array_equal(episode.actions, actions)
    np.testing.assert_allclose(episode.rewards, rewards)
    assert episode.values is not None
    assert episode.log_probs is not None
    assert episode.advantages is not None
    np.testing.assert_allclose(episode.values, values)
    np.testing.assert_allclose(episode.log_probs, [-value for value in values])
    np.testing.assert_array_equal(episode.dones, [False] * (plan.length - 1) + [True])
    np.testing.assert_array_equal(episode.policy_versions, [3] * plan.length)
    assert (episode.terminated, episode.truncated) == (plan.end == "terminated", plan.end != "terminated")
    assert episode.engine_replaced == (plan.end == "replaced")
    assert episode.final_value == pytest.approx(final_value)
    np.testing.assert_allclose(episode.returns, expected_returns(rewards, final_value), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        episode.advantages, expected_advantages(rewards, values, final_value), rtol=1e-4, atol=1e-4
    )


SCRIPTS = st.lists(
    st.lists(
        st.builds(Scripted, st.integers(1, 7), st.sampled_from(["terminated", "truncated", "replaced"])),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)
CALLS = st.lists(st.one_of(st.integers(1, 30), st.integers(-6, -1)), min_size=1, max_size=4)  # below 0: episodes


@settings(max_examples=60, deadline=None)
@given(scripts=SCRIPTS, calls=CALLS, mode=st.sampled_from(MODES), as_dict=st.booleans(), copy=st.booleans())
def test_every_episode_is_what_one_environment_alone_would_have_played(
    scripts: list[list[Scripted]], calls: list[int], mode: AutoresetMode, as_dict: bool, copy: bool
) -> None:
    """Whatever the way to reset, and however the calls cut it: no step is lost, doubled or put into another episode."""
    vec = vector(scripts, mode, as_dict=as_dict, copy=copy)
    seen = [0] * len(scripts)
    for call in calls:
        wanted: dict[str, Any] = {"steps": call} if call > 0 else {"episodes": -call}
        found = collect(vec, Thinker(), gamma=GAMMA, gae_lambda=LAMBDA, progress=False, **wanted)
        assert call > 0 or -call <= len(found) < -call + len(scripts)
        for episode in found:
            check(episode, number=seen[episode.env], script=scripts[episode.env])
            seen[episode.env] += 1
    vec.close()


@settings(max_examples=40, deadline=None)
@given(
    scripts=SCRIPTS,
    calls=CALLS,
    mode=st.sampled_from(MODES),
    chance=st.randoms(use_true_random=False),
    data=st.data(),
)
def test_same_is_so_when_each_goes_on_as_soon_as_it_can(
    scripts: list[list[Scripted]], calls: list[int], mode: AutoresetMode, chance: random.Random, data: st.DataObject
) -> None:
    """With min_envs, whoever is ready first and however the calls cut it, each episode is complete and its own."""
    vec = staggered(scripts, mode, chance=chance)
    least = data.draw(st.integers(1, len(scripts)))
    seen = [0] * len(scripts)
    for call in calls:
        wanted: dict[str, Any] = {"steps": call} if call > 0 else {"episodes": -call}
        found = collect(vec, Thinker(), min_envs=least, gamma=GAMMA, gae_lambda=LAMBDA, progress=False, **wanted)
        for episode in found:
            check(episode, number=seen[episode.env], script=scripts[episode.env])
            seen[episode.env] += 1
    for episode in collect(vec, Thinker(), episodes=1, gamma=GAMMA, gae_lambda=LAMBDA, progress=False):
        assert len(episode) in {one.length for one in scripts[episode.env]}  # in step again: from the start if need be
    vec.close()


def test_slow_one_holds_nobody_up_and_some_vectors_cannot_do_that() -> None:
    """min_envs needs send() and recv(), and a number that there is."""
    script = [[Scripted(4, "terminated")]] * 2
    with pytest.raises(WrongArgument, match="no send"):
        collect(vector(script, MODES[0]), Thinker(), steps=1, min_envs=1, progress=False)
    vec = staggered(script, MODES[0], chance=random.Random(1))
    with pytest.raises(WrongArgument, match="from 1 to 2"):
        collect(vec, Thinker(), steps=1, min_envs=3, progress=False)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=20),
    st.floats(-5, 5),
    st.data(),
)
def test_returns_and_advantages_are_those_of_the_definition(
    rewards: list[float], final_value: float, data: st.DataObject
) -> None:
    """The backward sums equal the definitions, summed term by term."""
    values = data.draw(st.lists(st.floats(-5, 5), min_size=len(rewards), max_size=len(rewards)))
    np.testing.assert_allclose(
        discounted_returns(rewards, gamma=GAMMA, final_value=final_value),
        expected_returns(rewards, final_value),
        rtol=1e-4,
        atol=1e-4,
    )
    np.testing.assert_allclose(
        advantages(rewards, values, gamma=GAMMA, gae_lambda=LAMBDA, final_value=final_value),
        expected_advantages(rewards, values, final_value),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("mode", MODES)
def test_steps_that_only_reset_are_not_counted(mode: AutoresetMode) -> None:
    """``steps=`` counts what was played: with two-step episodes, ten steps of one environment are five episodes."""
    vec = vector([[Scripted(2, "terminated")]], mode)
    assert len(collect(vec, Thinker(), steps=10, progress=False)) == 5


def test_policy_without_values_gets_returns_alone() -> None:
    """A policy may return actions alone, as a random one does; then there are no advantages, and nothing to bootstrap."""
    vec = vector([[Scripted(3, "truncated")]], AutoresetMode.NEXT_STEP)
    (episode,) = collect(vec, lambda seen: vec.action_space.sample(), episodes=1, gamma=1.0, progress=False)
    assert (episode.values, episode.log_probs, episode.advantages) == (None, None, None)
    assert episode.returns[0] == pytest.approx(episode.total_reward)
    assert concatenate([episode]).advantages is None


def test_each_step_has_the_version_that_played_it() -> None:
    """An episode that two versions of a policy played says so step by step; an argument goes before the attribute."""
    vec = vector([[Scripted(4, "terminated")]], AutoresetMode.NEXT_STEP)
    assert collect(vec, Thinker(), steps=1, policy_version=8, progress=False) == []
    (episode,) = collect(vec, Thinker(), episodes=1, progress=False)
    assert episode.policy_versions.tolist() == [8, 3, 3, 3]


@pytest.mark.parametrize("mode", MODES)
def test_policy_may_have_a_value_of_its_own_for_the_end(mode: AutoresetMode) -> None:
    """``policy.value`` is asked what a truncated episode's end is worth, so that a recurrent policy is not disturbed."""

    class Valued(Thinker):
        asked: list[Any]

        def value(self, observations: Any) -> Any:
            self.asked.append(observations)
            return np.full(len(observations), 40.0)

    policy = Valued()
    policy.asked = []
    vec = vector([[Scripted(2, "truncated")], [Scripted(3, "terminated")]], mode)
    found = collect(vec, policy, episodes=2, progress=False)
    assert [episode.final_value for episode in found] == [40.0, 0.0]
    assert len(policy.asked) == 1


def test_batch_of_episodes_has_a_row_for_each_step() -> None:
    """concatenate() puts episodes one behind the other, dict observations key by key."""
    vec = vector([[Scripted(2, "terminated")], [Scripted(3, "truncated")]], AutoresetMode.NEXT_STEP, as_dict=True)
    found = collect(vec, Thinker(), episodes=4, progress=False)
    batch = concatenate(found)
    assert len(batch) == sum(len(episode) for episode in found)
    assert batch.observations["where"].shape == (len(batch), 3)
    assert batch.observations["step"].shape == batch.actions.shape == batch.rewards.shape == (len(batch),)
    assert batch.advantages is not None
    assert batch.dones.sum() == len(found)
    with pytest.raises(WrongArgument, match="no episode"):
        concatenate([])


def test_fresh_start_forgets_what_was_unfinished() -> None:
    """A seed or restart=True resets first; so does the call after one that failed."""
    vec = vector([[Scripted(4, "terminated")]], AutoresetMode.NEXT_STEP)
    collect(vec, Thinker(), steps=2, progress=False)
    (episode,) = collect(vec, Thinker(), episodes=1, restart=True, progress=False)
    assert where_of(episode.observations)[:, 1].tolist() == [1, 1, 1, 1]
    collect(vec, Thinker(), steps=2, progress=False)

    def broken(observations: Any) -> Any:
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        collect(vec, broken, steps=1, progress=False)
    (episode,) = collect(vec, Thinker(), episodes=1, progress=False)
    assert len(set(where_of(episode.observations)[:, 1].tolist())) == 1


def test_reset_that_fails_is_made_up_for() -> None:
    """After a restart that was interrupted the next call begins anew, instead of going on where it does not know."""
    vec = vector([[Scripted(4, "terminated")]], AutoresetMode.NEXT_STEP)
    collect(vec, Thinker(), steps=2, progress=False)

    def interrupted(**_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vec, "reset", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collect(vec, Thinker(), steps=1, restart=True, progress=False)
    (episode,) = collect(vec, Thinker(), episodes=1, progress=False)
    assert where_of(episode.observations)[:, 1].tolist() == [1, 1, 1, 1]


def test_unfinished_episodes_go_with_their_environment() -> None:
    """What is carried over keeps neither the environment nor itself alive."""
    vec = vector([[Scripted(4, "terminated")]], AutoresetMode.NEXT_STEP)
    collect(vec, Thinker(), steps=2, progress=False)
    gone = weakref.ref(vec)
    vec.close()
    del vec
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({}, "either episodes= or steps="),
        ({"episodes": 1, "steps": 1}, "either episodes= or steps="),
        ({"steps": 0}, "at least 1"),
    ],
)
def test_wrong_calls_are_told_in_a_sentence(wishes: dict[str, Any], says: str) -> None:
    """What cannot be meant is refused before anything is played."""
    with pytest.raises(WrongArgument, match=says):
        collect(vector([[Scripted(4, "terminated")]], MODES[0]), Thinker(), progress=False, **wishes)


def test_policy_that_returns_too_few_values_is_told_so() -> None:
    """One value for two environments is a mistake, and not a broadcast."""
    vec = vector([[Scripted(4, "terminated")]] * 2, AutoresetMode.NEXT_STEP)
    with pytest.raises(WrongArgument, match="1 values or log-probabilities for 2 environments"):
        collect(vec, lambda seen: (np.zeros(2, int), np.zeros(1), np.zeros(2)), steps=1, progress=False)


def test_bar_shows_speed_and_mean_reward(capsys: pytest.CaptureFixture[str]) -> None:
    """The progress bar says how many episodes there are, the steps a second and their mean reward."""
    vec = vector([[Scripted(2, "terminated")]], AutoresetMode.NEXT_STEP)
    found = collect(vec, Thinker(), episodes=3)
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "steps/s=" in said
    assert f"mean reward={np.mean([episode.total_reward for episode in found]):.3g}" in said
