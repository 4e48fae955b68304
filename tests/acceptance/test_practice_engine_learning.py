"""A beginner's PPO learns the practice engine's game through the stock client."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from tests.support.practice import practice_engine

pytestmark = [
    pytest.mark.long,
    pytest.mark.sb3,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
]
ENVIRONMENTS = 4
TRAINING_STEPS = 20_480


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Four environments of doapp at the second of four difficulties in one vector, wrapped as DIAMBRA's published settings have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diambra.arena import EnvironmentSettings, Roles, SpaceTypes, WrappersSettings
        from diambra.arena.stable_baselines3.make_sb3_env import make_sb3_env
    settings = EnvironmentSettings(
        frame_shape=(128, 128, 1),
        step_ratio=6,
        difficulty=2,
        action_space=SpaceTypes.DISCRETE,
        characters="Kasumi",
        role=Roles.P1,
        splash_screen=False,
    )
    wrappers = WrappersSettings(
        normalize_reward=True,
        no_attack_buttons_combinations=True,
        stack_frames=4,
        add_last_action=True,
        stack_actions=12,
        scale=True,
        exclude_image_scaling=True,
        role_relative=True,
        flatten=True,
        filter_keys=["action", "own_health", "opp_health", "own_side", "opp_side", "opp_character", "stage", "timer"],
    )
    monkeypatch.setattr("cv2.destroyAllWindows", lambda: None)
    with ExitStack() as stack:
        engines = [stack.enter_context(practice_engine()) for _ in range(ENVIRONMENTS)]
        monkeypatch.setenv("DIAMBRA_ENVS", " ".join(engine.address for engine in engines))
        vector, count = make_sb3_env("doapp", settings, wrappers, seed=1)
        assert count == ENVIRONMENTS
        yield vector
        vector.close()


def reward_per_round(vector: Any, act: Callable[[Any], Any], steps: int = 1000) -> float:
    """Mean reward of a round, in full healths: +1 is a perfect win, -1 a loss without a scratch given."""
    observation, total, rounds = vector.reset(), 0.0, 0
    for _ in range(steps):
        observation, rewards, _, infos = vector.step(act(observation))
        total += float(rewards.sum())
        rounds += sum(info["round_done"] for info in infos)
    return 0.5 * total / max(1, rounds)  # normalize_reward divides by half the full health


def test_ppo_learns_from_pictures(environments: Any) -> None:
    """After twenty thousand Steps PPO earns a quarter of a health bar more in a round than random play."""
    import torch
    from stable_baselines3 import PPO

    torch.manual_seed(1)
    np.random.seed(1)
    space = environments.action_space
    space.seed(1)
    before = reward_per_round(environments, lambda _: np.array([space.sample() for _ in range(ENVIRONMENTS)]))
    model = PPO(
        "MultiInputPolicy",
        environments,
        n_steps=128,
        batch_size=128,
        n_epochs=4,
        gamma=0.94,
        learning_rate=7e-4,
        clip_range=0.2,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_kwargs": {"cnn_output_dim": 64}},
        seed=1,
        device="cpu",
    )
    model.learn(TRAINING_STEPS)
    after = reward_per_round(environments, lambda observation: model.predict(observation, deterministic=False)[0])
    print(f"reward a round: {before:+.2f} at random, {after:+.2f} after {TRAINING_STEPS:,} Steps")
    assert after - before > 0.25
