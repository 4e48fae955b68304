"""Stable-Baselines3 on the lanes of a lease: its wrappers, the stock helper's arguments, and PPO while engines are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import Cornerman, Lease, WrongArgument
from client_sdk.wire import Method
from tests.support.practice_lanes import PracticeLanes, grpc_engines, practice_lanes
from tests.support.real_daemon import RealDaemon

pytestmark = [pytest.mark.sb3, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
ENVS = 3
KEYS = ("action", "timer", "own_health", "opp_health", "own_side")


def settings() -> Any:
    from diambra.arena import EnvironmentSettings, SpaceTypes

    return EnvironmentSettings(
        frame_shape=(64, 64, 1), action_space=SpaceTypes.DISCRETE, characters="Kasumi", splash_screen=False
    )


def wrappers(*, steps: int | None = None, keys: tuple[str, ...] = KEYS) -> Any:
    """DIAMBRA's published ones; episodes of at most so many steps."""
    from diambra.arena import WrappersSettings
    from gymnasium.wrappers import TimeLimit

    return WrappersSettings(
        normalize_reward=True,
        no_attack_buttons_combinations=True,
        stack_frames=2,
        add_last_action=True,
        stack_actions=3,
        scale=True,
        exclude_image_scaling=True,
        role_relative=True,
        flatten=True,
        filter_keys=list(keys),
        wrappers=[] if steps is None else [[TimeLimit, {"max_episode_steps": steps}]],
    )


@pytest.fixture
def engines() -> Iterator[PracticeLanes]:
    """Practice engines behind a relay."""
    with practice_lanes(ENVS) as engines:
        yield engines


def test_like_the_stock_helper(engines: PracticeLanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces, observations, rewards, dones and infos are those of DIAMBRA's helper with the same seeds, monitor files too."""
    from diambra.arena.stable_baselines3.make_sb3_env import make_sb3_env as stock
    from stable_baselines3.common.monitor import Monitor

    from client_sdk.sb3 import make_sb3_env

    monkeypatch.setattr("cv2.destroyAllWindows", lambda: None)
    with grpc_engines(ENVS) as addresses, engines.open() as lanes:
        monkeypatch.setenv("DIAMBRA_ENVS", " ".join(addresses))
        given: dict[str, Any] = {"seed": 3, "use_subprocess": False}
        # One settings object for all environments makes the stock client forget their ranks: each has its own here too.
        monkeypatch.setattr("diambra.arena.make", _with_own_settings())
        theirs, count = stock("doapp", settings(), wrappers(steps=7), log_dir_base=f"{tmp_path}/stock", **given)
        ours, number = make_sb3_env(
            "doapp", settings(), wrappers(steps=7), log_dir_base=f"{tmp_path}/ours", lease=lanes, **given
        )
        assert (number, count) == (ENVS, ENVS)
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        for env in (ours, theirs):
            env.seed(9)
        _same(ours.reset(), theirs.reset())
        for step in range(7):  # then the stock client takes the time of day for a seed
            actions = np.array([(3 * step + index) % 12 for index in range(ENVS)])
            mine, stocks = ours.step(actions), theirs.step(actions)
            assert np.array_equal(mine[1], stocks[1])
            assert mine[1].dtype == stocks[1].dtype
            assert np.array_equal(mine[2], stocks[2])
            if step < 6:
                _same(mine[0], stocks[0])
            for info, other in zip(mine[3], stocks[3], strict=True):
                assert info.keys() == other.keys()
                if step == 6:
                    assert info["TimeLimit.truncated"] is other["TimeLimit.truncated"] is True
                    assert (info["episode"]["r"], info["episode"]["l"]) == (
                        other["episode"]["r"],
                        other["episode"]["l"],
                    )
                    _same(info["terminal_observation"], other["terminal_observation"])
        assert ours.env_is_wrapped(Monitor) == [True] * ENVS
        assert ours.get_attr("n_actions", [0, 2]) == theirs.get_attr("n_actions", [0, 2])
        assert ours.env_method("get_total_steps", indices=1) == [7]
        ours.set_attr("colour", "red", indices=[1])
        assert ours.get_attr("colour", 1) == ["red"]
        assert ours.render("rgb_array").shape[2] == 3
        assert len(ours.get_images()) == ENVS
        for env in (ours, theirs):
            env.close()
        assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == ["0", "1", "2"]
        assert (tmp_path / "ours" / "1" / "monitor.csv").read_text().count("\n") == 3


def _with_own_settings() -> Callable[..., Any]:
    import copy

    import diambra.arena

    make = diambra.arena.make

    def own(game_id: str, env_settings: Any, *arguments: Any, **named: Any) -> Any:
        return make(game_id, copy.deepcopy(env_settings), *arguments, **named)

    return own


def _same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for key in theirs:
        assert np.array_equal(ours[key], theirs[key]), key
        assert np.asarray(ours[key]).dtype == np.asarray(theirs[key]).dtype, key


def test_wrappers_and_ppo(engines: PracticeLanes, tmp_path: Path) -> None:
    """PPO learns through VecFrameStack, VecMonitor and VecNormalize, and its callbacks find the episodes."""
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

    from client_sdk.sb3 import make_sb3_env

    with engines.open() as lanes:
        boxes = wrappers(steps=20, keys=("timer", "own_health", "opp_health"))  # VecFrameStack takes nothing else
        env, _ = make_sb3_env("doapp", settings(), boxes, seed=1, log_dir_base=str(tmp_path), lease=lanes)
        stacked: Any = VecNormalize(VecMonitor(VecFrameStack(env, 2)), norm_obs_keys=["own_health", "opp_health"])
        model = PPO("MultiInputPolicy", stacked, n_steps=32, batch_size=32, n_epochs=1, seed=1).learn(2 * 32 * ENVS)
        assert model.num_timesteps == 2 * 32 * ENVS
        assert [episode["l"] for episode in model.ep_info_buffer] == [20] * 3 * ENVS
        A2C("MultiInputPolicy", env, n_steps=4).learn(8 * ENVS)
        env.close()


def test_recurrent_ppo(engines: PracticeLanes, tmp_path: Path) -> None:
    """RecurrentPPO of sb3-contrib learns, and its LSTM starts anew with each episode."""
    from sb3_contrib import RecurrentPPO

    from client_sdk.sb3 import make_sb3_env

    with engines.open() as lanes:
        env, _ = make_sb3_env("doapp", settings(), wrappers(steps=10), seed=1, log_dir_base=str(tmp_path), lease=lanes)
        small = {"lstm_hidden_size": 8, "features_extractor_kwargs": {"cnn_output_dim": 16}}
        model = RecurrentPPO(
            "MultiInputLstmPolicy", env, n_steps=24, batch_size=24, n_epochs=1, seed=1, policy_kwargs=small
        ).learn(2 * 24 * ENVS)
        assert model.num_timesteps == 2 * 24 * ENVS
        starts = model.rollout_buffer.episode_starts.reshape(ENVS, 24)  # of the steps 24 to 47 of episodes of ten
        assert [np.flatnonzero(row).tolist() for row in starts] == [[6, 16]] * ENVS
        observations, state = env.reset(), None
        for step in range(12):
            actions, state = model.predict(observations, state=state, episode_start=np.full(ENVS, step in (0, 10)))
            observations, _, dones, _ = env.step(actions)
            assert dones.all() == (step == 9)
        env.close()


def test_interrupted_learning(engines: PracticeLanes, tmp_path: Path) -> None:
    """After a notebook's stop button learn() goes on where it was: with reset_num_timesteps=False, and from the start too."""
    from stable_baselines3 import A2C

    from client_sdk.sb3 import make_sb3_env

    with engines.open() as lanes:
        env, _ = make_sb3_env("doapp", settings(), wrappers(steps=10), seed=1, log_dir_base=str(tmp_path), lease=lanes)
        model = A2C("MultiInputPolicy", env, n_steps=4, seed=1).learn(4 * ENVS)
        engines.slow[1, Method.STEP] = 0.4
        for anew in (False, True):
            timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                model.learn(10**6, reset_num_timesteps=False)
            before = 0 if anew else model.num_timesteps
            assert model.learn(4 * ENVS, reset_num_timesteps=anew).num_timesteps == before + 4 * ENVS
        env.close()


def test_which_lease(engines: PracticeLanes) -> None:
    """Without a lease the helper says so; part of one cannot be had; one environment can be had without a vector."""
    from stable_baselines3.common.monitor import Monitor

    from client_sdk.sb3 import make_sb3_env

    with pytest.raises(WrongArgument, match="holds no lease"):
        make_sb3_env("doapp")
    with engines.open() as lanes, pytest.raises(WrongArgument, match="start_index"):
        make_sb3_env("doapp", start_index=1, lease=lanes)
    with practice_lanes(1) as one, one.open() as lane:
        env, count = make_sb3_env("doapp", settings(), seed=1, no_vec=True, lease=lane)
        assert count == 1
        assert isinstance(env, Monitor)
        env.reset()
        env.step(env.action_space.sample())
        env.close()


@contextlib.contextmanager
def killer(daemon: RealDaemon, lease: Lease, *, every_s: float) -> Iterator[list[int]]:
    """Kills or stops an engine of the lease, by chance, every so many seconds until the end; the ranks it has had."""
    chance, over, ranks = random.Random(5), threading.Event(), list[int]()

    def kill() -> None:
        while not over.wait(every_s):
            rank = chance.randrange(len(lease.envs))
            with contextlib.suppress(ValueError, OSError):  # its slot is empty just now: somebody else later
                how = signal.SIGKILL if chance.random() < 0.7 else signal.SIGSTOP
                os.kill(daemon.engine_pid(lease.envs[rank].address), how)
                ranks.append(rank)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield ranks
    finally:
        over.set()
        thread.join(10)


def train_under_fire(daemon: RealDaemon, folder: Path, *, envs: int, every_s: float, steps: int, kills: int) -> None:
    """PPO on a lease whose engines are killed; it makes every step, and all lost episodes are truncated."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    from client_sdk.sb3 import make_sb3_env

    class Counting(BaseCallback):  # type: ignore[misc, unused-ignore]
        """Counts what the learner saw, and keeps the fire up until there were enough kills."""

        replaced = 0

        def _on_step(self) -> bool:
            for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True):
                if info.get("engine_replaced"):
                    self.replaced += 1
                    assert done
                    assert info["TimeLimit.truncated"]
            return True

    began = time.monotonic()
    with Cornerman(daemon.url, quiet=True).lease(envs=envs, timeout_s=120) as lease:
        env, _ = make_sb3_env(
            "doapp", settings(), wrappers(), seed=1, log_dir_base=str(folder), deadlines_s={"step": 2.0}
        )
        model = PPO("MultiInputPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=1, device="cpu")
        counting, asked = Counting(), 0
        with killer(daemon, lease, every_s=every_s) as ranks:
            while asked < steps or counting.replaced < kills:
                asked += 64 * envs
                model.learn(64 * envs, callback=counting, reset_num_timesteps=False)
                assert model.num_timesteps == asked
                assert time.monotonic() - began < 3000
        assert counting.replaced <= len(ranks)
        print(
            f"{asked} steps in {time.monotonic() - began:.0f} s with {len(ranks)} kills, {counting.replaced} of them in a step"
        )
        env.close()
        lease.check()


def fast_daemon(new_daemon: Callable[..., RealDaemon], envs: int) -> RealDaemon:
    pool = ("--runtime", "process", "--min-ready", "2", "--max-engines", str(2 * envs))
    daemon = new_daemon(*pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    daemon.start()
    return daemon


def test_ppo_under_fire(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """Report 31: a short training goes on while engines are killed and stopped, and has the right number of steps."""
    daemon = fast_daemon(new_daemon, ENVS)
    train_under_fire(daemon, tmp_path, envs=ENVS, every_s=3.0, steps=2 * 64 * ENVS, kills=2)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_long_ppo_under_fire(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """Report 31: engines are killed or stopped every three seconds during a training of twelve, which makes all its steps."""
    daemon = fast_daemon(new_daemon, 12)
    train_under_fire(daemon, tmp_path, envs=12, every_s=3.0, steps=20_000, kills=30)
