"""The PPO examples: they run on a lease, and in the long runs they learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.notebook import Notebook
from tests.support.real_daemon import RealDaemon

pytestmark = [pytest.mark.sb3, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FAST = {"CORNERMAN_PRACTICE_FPS": "unlimited"}
LONG_S = 3600


def _daemon(new_daemon: Callable[..., RealDaemon], envs: int) -> RealDaemon:
    daemon = new_daemon("--runtime", "process", "--min-ready", f"{envs}", "--max-engines", f"{envs}", environ=FAST)
    daemon.start()
    return daemon


def _ppo_sb3(daemon: RealDaemon, *options: str, picture: Path, timeout_s: float) -> str:
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "ppo_sb3.py"), "--picture", str(picture), *options]
    environ = {**os.environ, "CORNERMAN_URL": daemon.url}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ppo_with_stable_baselines_runs_and_draws(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """The script leases, trains, draws the curve of the rounds that were over, and gives the engines back."""
    picture = tmp_path / "out" / "curve.png"
    daemon = _daemon(new_daemon, 2)
    said = _ppo_sb3(daemon, "--envs", "2", "--steps", "512", picture=picture, timeout_s=300)
    assert "512 steps, " in said
    assert "reward of a round" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ppo_from_scratch_runs(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """The notebook learns from completed episodes, and draws its curve."""
    notebook = Notebook(_daemon(new_daemon, 2).url, tmp_path, cell_s=300)
    try:
        short = {"ENVS": 2, "UPDATES": 2, "STEPS_PER_UPDATE": 600, "EPOCHS": 1}
        outputs = notebook.run_file(EXAMPLES / "ppo_from_scratch.ipynb", short)
    finally:
        notebook.close()
    assert sum(output.pictures for output in outputs) == 1
    assert any("mean reward" in output.text for output in outputs)


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_ppo_with_stable_baselines_learns(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """After twenty thousand steps a round brings a quarter of a health bar more than at first."""
    picture = tmp_path / "curve.png"
    said = _ppo_sb3(_daemon(new_daemon, 4), picture=picture, timeout_s=LONG_S)
    first, last = (float(number) for number in re.findall(r"([+-]\d+\.\d+) at", said))
    print(said)
    assert 0.5 * (last - first) > 0.25  # normalize_reward divides by half the full health
    assert picture.exists()


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_ppo_from_scratch_learns(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """The notebook's own PPO earns clearly more in the last third of forty thousand steps than in the first."""
    notebook = Notebook(_daemon(new_daemon, 4).url, tmp_path, cell_s=LONG_S)
    try:
        outputs = notebook.run_file(EXAMPLES / "ppo_from_scratch.ipynb", {"UPDATES": 40})
    finally:
        notebook.close()
    found = [
        line for output in outputs for line in re.findall(r"(\d+) episodes, mean reward ([+-]\d+\.\d+)", output.text)
    ]
    rewards = [float(mean) for count, mean in found for _ in range(int(count))]
    print(rewards)
    third = len(rewards) // 3
    assert sum(rewards[-third:]) / third - sum(rewards[:third]) / third > 0.25
