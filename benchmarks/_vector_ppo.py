"""A training that is the same game by game, wherever its engines are."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diambra.arena import EnvironmentSettings, Roles, SpaceTypes, WrappersSettings
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO

from client_sdk.lanes import Lanes
from client_sdk.sb3 import make_sb3_env


@dataclass(frozen=True)
class Training:
    """How long it took, and the mean reward of its last hundred episodes."""

    steps: int
    took_s: float
    reward: float


def train(lanes: Lanes, steps: int) -> Training:
    """PPO with DIAMBRA's published wrappers on small frames; everything is seeded."""
    settings = EnvironmentSettings(
        frame_shape=(84, 84, 1),
        difficulty=2,
        characters="Kasumi",
        role=Roles.P1,
        action_space=SpaceTypes.DISCRETE,
        splash_screen=False,
    )
    wrappers = WrappersSettings(
        normalize_reward=True,
        no_attack_buttons_combinations=True,
        stack_frames=4,
        scale=True,
        exclude_image_scaling=True,
        role_relative=True,
        flatten=True,
        filter_keys=["own_health", "opp_health", "own_side", "opp_side", "timer"],
        wrappers=[[TimeLimit, {"max_episode_steps": 120}]],
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        env, count = make_sb3_env("doapp", settings, wrappers, seed=1, log_dir_base=folder, lease=lanes)
        model: Any = PPO(
            "MultiInputPolicy",
            env,
            n_steps=64,
            batch_size=128,
            n_epochs=4,
            gamma=0.94,
            learning_rate=7e-4,
            ent_coef=0.01,
            policy_kwargs={"features_extractor_kwargs": {"cnn_output_dim": 64}},
            seed=1,
            device="cpu",
        )
        began = time.perf_counter()
        model.learn(steps // (64 * count) * 64 * count)
        took_s = time.perf_counter() - began
        rewards = [episode["r"] for episode in model.ep_info_buffer]
        env.close()
    return Training(model.num_timesteps, took_s, float(np.mean(rewards)) if rewards else 0.0)
