"""PPO of Stable-Baselines3 learns doapp from pictures on leased engines, and its learning curve is drawn.

    pip install 'cornerman[diambra,sb3,examples]' and, with --no-deps, DIAMBRA's client as the README says
    export CORNERMAN_URL='cornerman://TOKEN@host:8443?ca=sha256:...'
    python examples/ppo_sb3.py --envs 8 --steps 200000

The only thing that is not as in DIAMBRA's own examples: make_sb3_env() comes from client_sdk.sb3. An engine that dies is
replaced, and the training goes on.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from diambra.arena import EnvironmentSettings, Roles, SpaceTypes, WrappersSettings
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from client_sdk import Cornerman
from client_sdk.sb3 import make_sb3_env

SETTINGS = EnvironmentSettings(
    frame_shape=(128, 128, 1),  # the engine makes it small: that is what travels
    step_ratio=6,
    difficulty=2,
    action_space=SpaceTypes.DISCRETE,
    characters="Kasumi",
    role=Roles.P1,
    splash_screen=False,
)
WRAPPERS = WrappersSettings(
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


@dataclass
class Curve:
    """The reward of every round, with how many steps had been taken when it was over."""

    steps: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def ends(self) -> tuple[float, float]:
        """Mean reward of a round in the first and in the last fifth."""
        part = max(1, len(self.rewards) // 5)
        return float(np.mean(self.rewards[:part])), float(np.mean(self.rewards[-part:]))

    def draw(self, path: Path) -> None:
        """Save the picture: every round a dot, and their running mean a line."""
        matplotlib.use("Agg")
        from matplotlib import pyplot

        window = max(1, len(self.rewards) // 10)
        mean = np.convolve(self.rewards, np.ones(window) / window, mode="valid")
        figure, axes = pyplot.subplots(figsize=(8, 4.5))
        axes.plot(self.steps, self.rewards, ".", alpha=0.25, label="a round")
        axes.plot(self.steps[window - 1 :], mean, linewidth=2, label=f"mean of {window}")
        axes.set(xlabel="steps", ylabel="reward of a round", title="PPO on leased engines")
        axes.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100, bbox_inches="tight")
        pyplot.close(figure)


class Watch(BaseCallback):  # type: ignore[misc, unused-ignore]
    """Fills a curve while PPO learns."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self._curve = curve
        self._so_far: Any = None

    def _on_step(self) -> bool:
        rewards, infos = self.locals["rewards"], self.locals["infos"]
        self._so_far = rewards.copy() if self._so_far is None else self._so_far + rewards
        for env, info in enumerate(infos):
            if info["round_done"] or info.get("engine_replaced"):
                self._curve.steps.append(self.num_timesteps)
                self._curve.rewards.append(float(self._so_far[env]))
                self._so_far[env] = 0.0
        return True


def train(env: Any, *, steps: int, seed: int, n_steps: int = 128) -> tuple[PPO, Curve]:
    """PPO with a beginner's settings; the model, and how it went."""
    model = PPO(
        "MultiInputPolicy",
        env,
        n_steps=n_steps,
        batch_size=128,
        n_epochs=4,
        gamma=0.94,
        learning_rate=7e-4,
        clip_range=0.2,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_kwargs": {"cnn_output_dim": 64}},
        seed=seed,
    )
    curve = Curve()
    model.learn(steps, callback=Watch(curve))
    return model, curve


def main() -> None:
    """Lease, learn, draw, release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20_480, help="of all environments together")
    parser.add_argument("--n-steps", type=int, default=128, help="of each environment between two updates")
    parser.add_argument("--game", default="doapp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path, default=Path("out/ppo_sb3.png"))
    parser.add_argument("--save", type=Path, help="where to save the model")
    options = parser.parse_args()
    with Cornerman().lease(envs=options.envs, note="ppo_sb3.py") as lease:
        env, _ = make_sb3_env(options.game, SETTINGS, WRAPPERS, seed=options.seed, lease=lease)
        model, curve = train(env, steps=options.steps, seed=options.seed, n_steps=options.n_steps)
        env.close()
    if options.save:
        model.save(options.save)
    if not curve.rewards:
        print(f"{model.num_timesteps} steps, and no round was over: let it learn for longer.")
        return
    curve.draw(options.picture)
    first, last = curve.ends()
    print(
        f"{model.num_timesteps} steps, {len(curve.rewards)} rounds: reward of a round {first:+.2f} at first, {last:+.2f} at last."
    )
    print(f"The learning curve: {options.picture}")


if __name__ == "__main__":
    main()
