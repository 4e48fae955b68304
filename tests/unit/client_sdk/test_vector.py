"""The vector environment by itself: seeds, whoever is ready, engines that die, pictures, and the end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.arena import EnvironmentSettings, EnvironmentSettingsMultiAgent, SpaceTypes, WrappersSettings

from client_sdk import CornermanError, LeaseLost, WrongArgument, make_parallel, make_vec
from client_sdk.episodes import collect, concatenate
from client_sdk.lanes import Lanes
from client_sdk.vector import AutoresetMode, LaneVectorEnv
from client_sdk.wire import Bye, Method, Status
from tests.support.practice_lanes import PracticeLanes, practice_lanes
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ENVS = 4
Make = Callable[..., LaneVectorEnv]


@pytest.fixture
def engines() -> Iterator[PracticeLanes]:
    """Practice engines behind a relay."""
    with practice_lanes(ENVS) as engines:
        yield engines


@pytest.fixture
def make(engines: PracticeLanes) -> Iterator[Make]:
    """``make(autoreset_mode=..., seed=...)`` is a vector environment with small frames on all of them."""
    made: list[tuple[LaneVectorEnv, Lanes]] = []

    def make(wrappers: Any = None, **options: Any) -> LaneVectorEnv:
        for _, lanes in made:
            lanes.close()
        settings = EnvironmentSettings(frame_shape=(32, 32, 1), action_space=SpaceTypes.DISCRETE)
        lanes = engines.open()
        vec = make_vec(lanes, "doapp", settings, wrappers, **{"seed": 3, **options})
        made.append((vec, lanes))
        return vec

    yield make
    for vec, lanes in made:
        vec.close()
        lanes.close()


def short(steps: int) -> Any:
    """Wrappers that end an episode after so many steps."""
    return WrappersSettings(wrappers=[[gymnasium.wrappers.TimeLimit, {"max_episode_steps": steps}]])


def actions(vec: LaneVectorEnv, number: int) -> Any:
    """The same for the same number."""
    return np.array([(number * 5 + index * 3) % 16 for index in range(vec.num_envs)])


# ------------------------------------------------------------ batches


def test_one_message(engines: PracticeLanes, make: Make) -> None:
    """A step of all environments is one message up the line: one round trip."""
    vec = make()
    vec.reset()
    before = engines.relay.messages
    for number in range(5):
        vec.step(actions(vec, number))
    assert engines.relay.messages == before + 5


def test_slow_ones_hold_nobody(engines: PracticeLanes, make: Make) -> None:
    """recv() returns whoever is ready: one that resets for long holds nobody, in the step that ends its episode or in the next."""
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        vec = make(short(3), autoreset_mode=mode)
        engines.slow.clear()
        vec.async_reset()
        first = vec.recv(ENVS)
        assert first[4]["env_id"].tolist() == [0, 1, 2, 3]
        assert first[0]["frame"].shape == (ENVS, 32, 32, 1)
        engines.slow[2, Method.RESET] = 3.0
        counts = dict.fromkeys(range(ENVS), 0)
        began = time.monotonic()
        vec.send(actions(vec, 0))
        while min(counts[index] for index in (0, 1, 3)) < 6:
            observations, rewards, terminations, truncations, infos = vec.recv(min_envs=2)
            ready = infos["env_id"].tolist()
            assert len(ready) >= 2
            assert all(len(part) == len(ready) for part in (rewards, terminations, truncations, observations["frame"]))
            for index in ready:
                counts[index] += 1
            vec.send(actions(vec, 1)[ready], ready)
        assert counts[2] < 4
        assert time.monotonic() - began < 20
        engines.slow.clear()
        vec.reset()


def test_recv_in_time(engines: PracticeLanes, make: Make) -> None:
    """recv() gives what there is when its time is over, and refuses to wait for what nobody does."""
    vec = make()
    vec.reset()
    engines.slow.update({(rank, Method.STEP): 0.5 for rank in (1, 3)})
    vec.send(actions(vec, 0))
    with pytest.raises(CornermanError, match="at work still"):
        vec.send(actions(vec, 0)[:1], [2])
    with pytest.raises(CornermanError, match="at work still"):
        vec.step(actions(vec, 0))
    assert vec.recv(ENVS, timeout=0.2)[4]["env_id"].tolist() == [0, 2]
    empty = vec.recv(1, timeout=0.0)
    assert empty[0]["frame"].shape == (0, 32, 32, 1)
    assert empty[4]["env_id"].tolist() == []
    assert vec.recv(2)[4]["env_id"].tolist() == [1, 3]
    with pytest.raises(WrongArgument, match="Only 0 environments"):
        vec.recv()
    for wrong in ([0, 0], [ENVS]):
        with pytest.raises(WrongArgument, match="each once"):
            vec.send(actions(vec, 0)[: len(wrong)], wrong)
    with pytest.raises(WrongArgument, match="2 actions for 1 environments"):
        vec.send(actions(vec, 0)[:2], [1])


def test_reset_drops_what_is_under_way(make: Make) -> None:
    """After an error in a wrapper the others go on, and reset() begins anew whatever was under way."""

    class Fragile(gymnasium.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            if action == 15:
                raise ZeroDivisionError("a user's mistake")
            return self.env.step(action)

    vec = make(WrappersSettings(wrappers=[[Fragile, {}]]))
    vec.reset()
    with pytest.raises(ZeroDivisionError, match="mistake"):
        vec.step(np.array([0, 15, 0, 0]))
    vec.step(np.zeros(ENVS, np.int64))
    vec.send(np.zeros(ENVS, np.int64))
    vec.reset()
    vec.step(np.zeros(ENVS, np.int64))


# ------------------------------------------------------------ seeds


def test_distinct_seeds(engines: PracticeLanes, make: Make) -> None:
    """Report 36: every environment and every episode plays a game of its own, and the same ones again for the same seed."""

    def played(**options: Any) -> tuple[list[int], list[Any]]:
        engines.calls.clear()
        vec = make(short(2), **options)
        vec.reset()
        frames = [vec.step(actions(vec, number))[0]["frame"] for number in range(12)]
        return sorted(engines.seeds()), frames

    seeds, frames = played(seed=3)
    assert len(seeds) == len(set(seeds)) == 5 * ENVS
    again, same = played(seed=3)
    assert again == seeds
    assert all(np.array_equal(one, other) for one, other in zip(frames, same, strict=True))
    assert not set(seeds) & set(played(seed=4)[0])
    assert not set(seeds) & set(played(seed=None)[0])


def test_seed_of_reset(engines: PracticeLanes, make: Make) -> None:
    """reset(seed) begins the seeds of all later episodes anew, and a reset of some leaves the others' alone."""
    vec = make(short(2), autoreset_mode=AutoresetMode.SAME_STEP)

    def seeds() -> list[int]:
        engines.calls.clear()
        vec.reset(seed=8)
        for number in range(4):
            vec.step(actions(vec, number))
        return sorted(engines.seeds())

    first = seeds()
    assert len(set(first)) == 3 * ENVS
    vec.step(actions(vec, 0))
    assert seeds() == first


def test_chance_is_the_learners(make: Make) -> None:
    """Resets leave the random generators of the process alone, which DIAMBRA's client would seed anew each time."""
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    vec = make()
    vec.reset()
    assert (random.random(), np.random.random()) == expected


# ------------------------------------------------------------ engines that die


@pytest.mark.parametrize("how", ["dead", "hung"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_engine_lost(engines: PracticeLanes, make: Make, capsys: Any, mode: AutoresetMode, how: str) -> None:
    """Report 31: an engine that dies or hangs truncates its environment's episode, which goes on; the others never notice."""

    def played(*, lose_at: int) -> list[Any]:
        vec = make(autoreset_mode=mode)
        vec.reset()
        steps = []
        for number in range(10):
            if number == lose_at:
                getattr(engines, how).add(1)
            steps.append(vec.step(actions(vec, number)))
            over = steps[-1][2] | steps[-1][3]
            if mode is AutoresetMode.DISABLED and over.any():
                vec.reset(options={"reset_mask": over})
        return steps

    undisturbed, healed = played(lose_at=-1), played(lose_at=4)
    for number, (one, other) in enumerate(zip(undisturbed, healed, strict=True)):
        for index in (0, 2, 3):
            assert np.array_equal(one[0]["frame"][index], other[0]["frame"][index])
            assert [part[index] for part in one[1:4]] == [part[index] for part in other[1:4]]
        replaced = other[4].get("engine_replaced")
        if mode is AutoresetMode.SAME_STEP and number == 4:
            replaced = other[4]["final_info"]["engine_replaced"]
        if number == 4:
            assert replaced is not None
            assert replaced.tolist() == [False, True, False, False]
            assert (other[1][1], other[2][1], other[3][1]) == (0.0, False, True)
            last = other[4]["final_obs"][1] if mode is AutoresetMode.SAME_STEP else {"frame": other[0]["frame"][1]}
            assert np.array_equal(last["frame"], healed[3][0]["frame"][1])
        else:
            assert replaced is None
            assert not other[3].any()
    assert "engine of rank 1" in capsys.readouterr().err


def test_lost_while_it_begins(engines: PracticeLanes, make: Make) -> None:
    """Engines that are lost in EnvInit or Reset are replaced without anybody seeing it."""
    vec = make()
    expected, _ = vec.reset(seed=5)
    engines.dead.update({0, 2})
    observations, infos = vec.reset(seed=5)
    assert np.array_equal(observations["frame"], expected["frame"])
    assert "engine_replaced" not in infos
    vec.step(actions(vec, 0))
    engines.dead.add(1)
    make().reset()


def test_spare_engine_has_the_game_ready(engines: PracticeLanes, make: Make) -> None:
    """With a spare a lost engine costs no EnvInit: the next episode begins on another one, and the lost one becomes the spare."""
    vec = make(spares=1)
    engines.slow = {(rank, Method.ENV_INIT): 3.0 for rank in range(ENVS)}
    assert vec.num_envs == ENVS - 1
    expected = [vec.reset(seed=5), vec.reset()]
    vec.reset(seed=5)
    begun = []
    for lost, rank in ((1, 1), (0, 0)):  # rank 3 stands in for rank 1, and then rank 1 for rank 0
        wait_until(lambda: vec.spares_ready == 1, 10)
        engines.dead.add(rank)
        *_, truncations, infos = vec.step(actions(vec, 0))
        assert truncations.tolist() == [index == lost for index in range(ENVS - 1)]
        began = time.monotonic()
        observations, *_, infos = vec.step(actions(vec, 1))
        assert time.monotonic() - began < 2.0, "the next episode waited for EnvInit"
        assert "engine_replaced" not in infos
        begun.append(observations["frame"][lost])
    assert np.array_equal(begun[0], expected[1][0]["frame"][1])
    assert np.array_equal(begun[1], expected[1][0]["frame"][0])


def test_spare_engine_that_dies_is_made_ready_again(engines: PracticeLanes, make: Make) -> None:
    """A spare that was lost while nobody played on it is none until its successor has the game; until then all goes on without."""
    vec = make(spares=1)
    vec.reset()
    wait_until(lambda: vec.spares_ready == 1, 5)
    engines.thread.do(engines.replace(ENVS - 1))
    engines.dead.add(0)
    vec.step(actions(vec, 0))
    assert not vec.step(actions(vec, 1))[3].any()
    wait_until(lambda: vec.spares_ready == 1, 5)


def test_spares_leave_somebody_to_play(engines: PracticeLanes) -> None:
    """As many spares as engines, or fewer than none, is said to be wrong before anything begins."""
    with engines.open() as lanes:
        for spares in (ENVS, -1):
            with pytest.raises(WrongArgument, match=f"spares={spares} of {ENVS} engines"):
                make_vec(lanes, "doapp", spares=spares)


def test_no_engine_works(engines: PracticeLanes, make: Make) -> None:
    """When one engine after the other is lost, an error says so instead of trying for ever."""
    vec = make()
    vec.reset()
    engines.cursed.add(3)
    engines.dead.add(3)
    vec.step(actions(vec, 0))
    with pytest.raises(CornermanError, match=r"EnvInit of rank 3 failed: .*exit code 139"):
        vec.step(actions(vec, 1))


def test_lease_lost(engines: PracticeLanes, make: Make) -> None:
    """When the lease ends, the next step says so: nothing can heal that."""
    vec = make()
    vec.reset()
    engines.thread.do(engines.relay.bye(Bye.LEASE_ENDED, "The lease was revoked."))
    engines.thread.do(engines.relay.stop())
    with pytest.raises(CornermanError, match="revoked"):
        vec.step(actions(vec, 0))


def test_made_again(engines: PracticeLanes, make: Make) -> None:
    """Who runs a notebook's cell again has a second environment on the same lease: it plays, and the first says why it does not."""
    settings = EnvironmentSettings(frame_shape=(32, 32, 1), action_space=SpaceTypes.DISCRETE)
    with engines.open() as first:
        former = make_vec(first, "doapp", settings)
        former.reset()
        second = engines.open()
        vec = make_vec(second, "doapp", settings)
        vec.reset()
        with pytest.raises(CornermanError, match="used by another one now") as told:
            former.reset()
        assert not isinstance(told.value, LeaseLost)
        former.close()
        vec.step(actions(vec, 0))
        vec.close()
        second.close()


def test_wrong_game(engines: PracticeLanes) -> None:
    """What the engine has to say against the settings comes out in its own words."""
    with (
        engines.open() as lanes,
        pytest.raises(CornermanError, match="EnvInit of rank 0 failed: Game 'chess' is unknown"),
    ):
        make_vec(lanes, "chess")


def test_engine_that_errs(engines: PracticeLanes, make: Make) -> None:
    """An engine that answers a step with an internal error is given up as one that is broken."""
    vec = make()
    vec.reset()

    class Refusing:
        """An engine whose emulator is gone."""

        value = (int(Status.INTERNAL),)

        def step(self, _: object, context: Any) -> None:
            context.abort(self, "emulator gone")

        env_init = step

    engines.engines[2] = Refusing()  # type: ignore[assignment]
    vec.send(actions(vec, 0))
    outcome = vec.recv(ENVS)
    assert outcome[3].tolist() == [False, False, True, False]
    assert [(rank, text) for rank, _, text in engines.relay.given_up] == [(2, "Step failed: emulator gone")]
    engines.thread.do(engines.replace(2))
    vec.step(actions(vec, 1))


# ------------------------------------------------------------ pictures, names, and the end


def test_render(make: Make) -> None:
    """render() is one RGB picture of all environments as their engines sent them, in rows."""
    vec = make(WrappersSettings(stack_frames=2))
    vec.reset()
    observations, *_ = vec.step(actions(vec, 1))
    picture = vec.render()
    assert (picture.shape, picture.dtype) == ((64, 64, 3), np.uint8)
    assert np.array_equal(picture[32:, :32, 1], observations["frame"][2, :, :, -1])


def test_published_settings(make: Make) -> None:
    """Report 38: DIAMBRA's scale=True works with every gymnasium, and observations lie in their space."""
    wrappers = WrappersSettings(
        scale=True,
        add_last_action=True,
        stack_actions=2,
        process_discrete_binary=True,
        flatten=True,
        role_relative=True,
    )
    vec = make(wrappers)
    observations, _ = vec.reset()
    assert observations in vec.observation_space
    observations, *_ = vec.step(actions(vec, 1))
    assert observations in vec.observation_space
    assert isinstance(vec.single_observation_space, gymnasium.spaces.Dict)
    assert isinstance(vec.single_observation_space["own_character"], gymnasium.spaces.MultiBinary)


def test_wrappers_that_fail_elsewhere(engines: PracticeLanes) -> None:
    """DIAMBRA's no_op_max and repeat_action work, which fail in its own client, and are reproducible by the seed too."""

    def played(**wrappers: Any) -> list[list[Method]]:
        settings = EnvironmentSettings(frame_shape=(32, 32, 1), step_ratio=1, action_space=SpaceTypes.DISCRETE)
        found: list[list[Method]] = []
        with engines.open() as lanes:
            vec = make_vec(lanes, "doapp", settings, WrappersSettings(**wrappers), seed=3)
            vec.reset()
            vec.reset()
            engines.calls.clear()
            for play in (vec.reset, lambda: vec.step(actions(vec, 1))):
                play()
                found += [[method for rank, method, _ in engines.calls if rank == one] for one in range(ENVS)]
                engines.calls.clear()
            vec.close()
        return found

    begun = played(no_op_max=5)[:ENVS]
    assert all(one == [Method.RESET] + (len(one) - 1) * [Method.STEP] for one in begun)
    assert len({len(one) for one in begun}) > 1
    assert {len(one) - 1 for one in begun} <= set(range(1, 6))
    assert played(no_op_max=5)[:ENVS] == begun
    assert played(repeat_action=4) == [[Method.RESET]] * ENVS + [4 * [Method.STEP]] * ENVS


def test_close(engines: PracticeLanes, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 35: close() works on a machine without a display, tells every engine, and may be repeated."""
    monkeypatch.setattr("cv2.destroyAllWindows", _no_windows)
    vec = make()
    vec.reset()
    vec.close()
    vec.close()
    assert [method for _, method, _ in engines.calls[-ENVS:]] == [Method.CLOSE] * ENVS
    for late in (vec.reset, lambda: vec.step(actions(vec, 0)), lambda: vec.send(actions(vec, 0))):
        with pytest.raises(CornermanError, match="closed"):
            late()


def test_lanes_closed_under_it(make: Make) -> None:
    """Whoever closes the lanes first gets an error from the next step, and no endless wait."""
    vec = make()
    vec.reset()
    vec._lanes.close()
    with pytest.raises(CornermanError, match="closed"):
        vec.step(actions(vec, 0))


def test_one_thread(make: Make) -> None:
    """What one thread sent another cannot receive, and is told so."""
    vec = make()
    vec.reset()
    vec.send(actions(vec, 0))
    with ThreadPoolExecutor(1) as other, pytest.raises(CornermanError, match="one thread"):
        other.submit(vec.recv, ENVS).result()
    vec.recv(ENVS)


def _no_windows() -> None:
    raise RuntimeError("The function is not implemented.")


def test_close_with_a_hung_engine(engines: PracticeLanes, make: Make) -> None:
    """close() does not wait for an engine that does not answer."""
    vec = make()
    vec.reset()
    engines.slow[1, Method.CLOSE] = engines.slow[2, Method.STEP] = 30.0
    vec.send(actions(vec, 0)[2:3], [2])
    began = time.monotonic()
    vec.close()
    assert time.monotonic() - began < 10


def test_two_players(engines: PracticeLanes) -> None:
    """Two players against each other pass PettingZoo's own test of parallel environments."""
    from pettingzoo.test import parallel_api_test

    settings = EnvironmentSettingsMultiAgent(frame_shape=(32, 32, 1))
    wrappers = WrappersSettings(
        scale=True,
        role_relative=True,
        add_last_action=True,
        wrappers=[[gymnasium.wrappers.TimeLimit, {"max_episode_steps": 9}]],
    )
    with engines.open() as lanes:
        env = make_parallel(lanes, "doapp", settings, wrappers, rank=1, seed=4)
        parallel_api_test(env, num_cycles=40)
        observations, _ = env.reset(seed=1)
        assert set(observations["agent_0"]) == set(observations["agent_1"])
        assert {"own", "opp", "action", "frame"} <= set(observations["agent_0"])
        assert env.render().shape == (32, 32, 1)
        rewards = [env.step({agent: env.action_space(agent).sample() for agent in env.agents})[1] for _ in range(5)]
        assert all(reward["agent_0"] == -reward["agent_1"] for reward in rewards)
        env.close()
        with pytest.raises(WrongArgument, match="two players"):
            make_parallel(lanes, "doapp", EnvironmentSettings())


def test_two_players_as_a_vector(engines: PracticeLanes) -> None:
    """Two-player environments can be stepped as a vector too: an action is one of each player."""
    with engines.open() as lanes:
        vec = make_vec(lanes, "doapp", EnvironmentSettingsMultiAgent(frame_shape=(32, 32, 1)), seed=2)
        vec.reset()
        observations, rewards, *_ = vec.step(vec.action_space.sample())
        assert observations["frame"].shape == (ENVS, 32, 32, 1)
        assert rewards.shape == (ENVS,)
        vec.close()


def test_wrong_deadline(engines: PracticeLanes) -> None:
    """A deadline for a call that does not exist is refused."""
    with pytest.raises(WrongArgument, match="env_init, reset, step"):
        make_vec(object(), "doapp", deadlines_s={"jump": 1.0})  # type: ignore[arg-type]


def test_wrong_lease_and_rank(engines: PracticeLanes) -> None:
    """What is no lease, a rank that it has not, and a deadline of no time are refused at once."""
    with pytest.raises(WrongArgument, match="not str"):
        make_vec("lease", "doapp")  # type: ignore[arg-type]
    with pytest.raises(WrongArgument, match="above 0"):
        make_vec(object(), "doapp", deadlines_s={"step": 0})  # type: ignore[arg-type]
    with engines.open() as lanes, pytest.raises(WrongArgument, match="no rank 7"):
        make_parallel(lanes, "doapp", EnvironmentSettingsMultiAgent(frame_shape=(32, 32, 1)), rank=7)


@pytest.mark.parametrize("min_envs", [None, 1])
def test_collected_actions(engines: PracticeLanes, min_envs: int | None) -> None:
    """Episodes keep actions of several parts as they are: a move and an attack, and those of each player."""

    def first(batch: Any, count: int) -> Any:
        return {key: part[:count] for key, part in batch.items()} if isinstance(batch, dict) else batch[:count]

    def collected(settings: Any) -> Any:
        with engines.open() as lanes:
            vec = make_vec(lanes, "doapp", settings, short(4), seed=1)
            episodes = collect(
                vec,
                lambda seen: first(vec.action_space.sample(), len(seen["frame"])),
                episodes=3,
                min_envs=min_envs,
                progress=False,
            )
            vec.close()
        assert {len(episode) for episode in episodes} == {4}
        return concatenate(episodes)

    one = collected(EnvironmentSettings(frame_shape=(32, 32, 1), action_space=SpaceTypes.MULTI_DISCRETE))
    assert one.actions.shape == (len(one), 2)
    assert one.observations["P1"]["health"].shape == (len(one), 1)
    two = collected(EnvironmentSettingsMultiAgent(frame_shape=(32, 32, 1)))
    assert {agent: part.shape for agent, part in two.actions.items()} == {
        "agent_0": (len(two), 2),
        "agent_1": (len(two), 2),
    }


def test_needed_when_used() -> None:
    """The SDK imports neither gymnasium nor DIAMBRA's client until a vector environment is asked for, and says what is missing."""
    code = """
import sys
import client_sdk, client_sdk._client, client_sdk.lanes
assert not {"gymnasium", "greenlet", "diambra", "numpy"} & set(sys.modules)
sys.modules["greenlet"] = None
try:
    client_sdk.make_vec
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "needs DIAMBRA's client and what the extra 'diambra' installs" in said.stdout
