"""The stock diambra-arena client against a practice engine in a process of its own, over real gRPC."""

from __future__ import annotations

import resource
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from diambra.engine import interface_pb2 as pb
from diambra.engine import interface_pb2_grpc as rpc

from practice_engine import wire
from practice_engine.games import all_games
from tests.support.practice import Engine, practice_engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import diambra.arena
    import gymnasium
    from diambra.arena import (
        EnvironmentSettings,
        EnvironmentSettingsMultiAgent,
        Roles,
        SpaceTypes,
        WrappersSettings,
    )

# DIAMBRA's package leaves its table of games open; gymnasium remarks on int64 where it would have int16.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
GAMES = sorted(all_games())
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for the whole module: games follow each other on it."""
    with practice_engine() as running:
        yield running


@pytest.fixture(autouse=True)
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's close() asks OpenCV for its windows, which a headless build refuses; no proxy, no leases around."""
    monkeypatch.setattr("cv2.destroyAllWindows", lambda: None)
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)


@pytest.fixture
def make(engine: Engine) -> Iterator[Make]:
    """`diambra.arena.make` on the module's engine, or on the one at `address`; closed after the test."""
    made: list[Any] = []

    def build(
        game: str, settings: Any = None, wrappers: Any = None, *, address: str | None = None, rank: int = 0
    ) -> Any:
        settings = settings or EnvironmentSettings()
        settings.splash_screen = False
        addresses = [address or engine.address] * (rank + 1)
        env = diambra.arena.make(
            game, settings, wrappers or WrappersSettings(), env_addresses=addresses, rank=rank, render_mode="rgb_array"
        )
        made.append(env)
        return env

    yield build
    for env in made:
        env.unwrapped.arena_engine.client.channel.close()


def stub(stack_address: str) -> tuple[grpc.Channel, rpc.EnvServerStub]:
    """A bare client, for what the stock one never does."""
    channel = grpc.insecure_channel(stack_address)
    grpc.channel_ready_future(channel).result(timeout=20)
    return channel, rpc.EnvServerStub(channel)


def as_declared(observation: Any, space: gymnasium.Space[Any]) -> Any:
    """The observation with its whole numbers in their space's type: the client hands out int64 where it says int16."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: as_declared(value, space[key]) for key, value in observation.items()}
    if isinstance(space, gymnasium.spaces.Box) and observation.dtype == np.int64:
        return observation.astype(space.dtype)
    return observation


def fits(observation: Any, space: gymnasium.Space[Any]) -> bool:
    """Whether the space contains the observation."""
    return bool(space.contains(as_declared(observation, space)))


def play(env: Any, steps: int, *, seed: int = 1) -> list[tuple[Any, ...]]:
    """Reset and so many random Steps, resetting at each end; checks every observation on the way."""
    observation, info = env.reset(seed=seed)
    env.action_space.seed(seed)
    assert fits(observation, env.observation_space)
    assert info["env_done"] is False
    results = []
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert fits(observation, env.observation_space)
        assert truncated is False
        results.append((observation, reward, terminated, info))
        if terminated:
            env.reset()
    return results


@pytest.mark.parametrize("space", ["DISCRETE", "MULTI_DISCRETE"])
@pytest.mark.parametrize("game", GAMES)
def test_one_player(make: Make, game: str, space: str) -> None:
    """Each game plays with one agent in either action space, native frames, every observation inside its space."""
    env = make(game, EnvironmentSettings(action_space=SpaceTypes.Value(space)))
    results = play(env, 30)
    assert results[-1][0]["frame"].shape == all_games()[game].frame_shape
    assert {"P1", "P2", "frame", "stage", "timer"} == set(results[-1][0])
    stock = diambra.arena.available_games(print_out=False)[game]
    expected = stock["n_actions"]
    if space == "DISCRETE":
        assert env.action_space.n == expected[0] + expected[1] - 1
    else:
        assert list(env.action_space.nvec) == expected[:2]
    env.close()


@pytest.mark.parametrize("space", ["DISCRETE", "MULTI_DISCRETE"])
@pytest.mark.parametrize("game", GAMES)
def test_two_players(make: Make, game: str, space: str) -> None:
    """Each game plays with two agents in either action space, and with a space for each agent."""
    kind = SpaceTypes.Value(space)
    env = make(game, EnvironmentSettingsMultiAgent(action_space=(kind, SpaceTypes.DISCRETE), frame_shape=(128, 128, 1)))
    results = play(env, 30)
    assert set(env.action_space.spaces) == {"agent_0", "agent_1"}
    assert all(isinstance(reward, int) for _, reward, _, _ in results)
    env.close()


@pytest.mark.parametrize("game", GAMES)
def test_the_published_ppo_settings(make: Make, game: str) -> None:
    """Wrapped as DIAMBRA's published PPO settings have it, each game gives flat, scaled, stacked observations."""
    settings = EnvironmentSettings(
        frame_shape=(128, 128, 1), step_ratio=6, action_space=SpaceTypes.DISCRETE, difficulty=2, role=Roles.P1
    )
    health = ["own_health", "opp_health", "own_health_1", "opp_health_1", "own_health_2", "opp_health_2"]
    present = [key for key in health if key.split("_", 1)[1] in all_games()[game].player_ram]
    wrappers = WrappersSettings(
        normalize_reward=True,
        no_attack_buttons_combinations=True,
        stack_frames=4,
        dilation=1,
        add_last_action=True,
        stack_actions=12,
        scale=True,
        exclude_image_scaling=True,
        role_relative=True,
        flatten=True,
        filter_keys=["action", "own_side", "opp_side", "opp_character", "stage", "timer", *present],
    )
    env = make(game, settings, wrappers)
    results = play(env, 40)
    assert results[-1][0]["frame"].shape == (128, 128, 4)
    assert env.action_space.n == 9 + all_games()[game].n_attacks_no_comb - 1
    env.close()


@pytest.mark.parametrize("shape", [(0, 0, 0), (84, 84, 1), (128, 100, 0), (0, 0, 1), (512, 512, 1), (1, 1, 1)])
def test_frame_shape(make: Make, shape: tuple[int, int, int]) -> None:
    """The engine itself resizes and greys the frame, to any shape the client may ask for."""
    env = make("sfiii3n", EnvironmentSettings(frame_shape=shape))
    results = play(env, 5)
    height, width, channels = all_games()["sfiii3n"].frame_shape
    expected = (shape[0] or height, shape[1] or width, shape[2] or channels)
    assert results[-1][0]["frame"].shape == expected
    assert env.render().shape == expected


def test_step_ratio(make: Make) -> None:
    """Six Steps at step_ratio 1 take the timer and the fighters where one Step at step_ratio 6 does."""
    seen = []
    for ratio, steps in ((1, 360), (6, 60)):
        env = make("doapp", EnvironmentSettings(step_ratio=ratio, frame_shape=(32, 32, 1), difficulty=3, role=Roles.P1))
        env.reset(seed=5)
        total = 0
        for step in range(steps):
            attack = 2 if (step * ratio) // 60 % 2 else 0
            observation, reward, *_ = env.step([5, attack])
            total += reward
        seen.append((total, observation["timer"][0], observation["P1"]["health"][0], observation["P2"]["health"][0]))
    assert seen[0] == seen[1]
    assert seen[0][1] == 40 - 6


def test_rewards_and_dones_over_whole_episodes(make: Make) -> None:
    """Episodes end by losing a stage or finishing the game; rewards are health differences inside the told bounds."""
    env = make("umk3", EnvironmentSettings(frame_shape=(16, 16, 1), step_ratio=6, difficulty=5, role=Roles.P1))
    low, high = env.unwrapped.get_cumulative_reward_bounds()
    env.action_space.seed(3)
    observation, _ = env.reset(seed=3)
    total, rounds, before = 0, 0, observation
    for _ in range(4000):
        observation, reward, terminated, _, info = env.step(env.action_space.sample())
        total += reward
        rounds += info["round_done"]
        if not info["round_done"]:
            taken = before["P2"]["health"][0] - observation["P2"]["health"][0]
            lost = before["P1"]["health"][0] - observation["P1"]["health"][0]
            assert reward == taken - lost
        before = observation
        if terminated:
            break
    assert terminated
    assert info["game_done"]
    assert info["episode_done"]
    assert rounds >= 2
    assert low <= total <= high


@pytest.mark.parametrize(("continue_game", "games"), [(0.0, 1), (-2.0, 3)])
def test_continue_game(make: Make, continue_game: float, games: int) -> None:
    """An agent that never moves loses as many games as its continues allow, then the episode is done."""
    settings = EnvironmentSettings(
        frame_shape=(16, 16, 1), continue_game=continue_game, difficulty=8, role=Roles.P1, step_ratio=6
    )
    env = make("kof98umh", settings)
    env.reset(seed=1)
    ended = 0
    for _ in range(6000):
        _, reward, terminated, _, info = env.step([0, 0])
        ended += info["game_done"]
        assert reward <= 0
        if terminated:
            break
    assert terminated
    assert ended == games


@pytest.mark.parametrize("role", [Roles.P1, Roles.P2])
def test_either_side_can_be_played(make: Make, role: int) -> None:
    """As P1 or as P2, walking ahead moves one's own fighter and rewards are one's own."""
    env = make("doapp", EnvironmentSettings(role=role, difficulty=1, frame_shape=(16, 16, 1), characters="Zack"))
    observation, _ = env.reset(seed=2)
    mine, other = ("P1", "P2") if role == Roles.P1 else ("P2", "P1")
    assert observation[mine]["character"] == all_games()["doapp"].characters.index("Zack")
    full, total = 208, 0
    for step in range(150):
        observation, reward, _, _, info = env.step([5 if role == Roles.P1 else 1, 0] if step % 3 else [0, 2])
        total += reward
        if info["round_done"]:
            break
        assert total == (full - observation[other]["health"][0]) - (full - observation[mine]["health"][0])


def test_seeds(make: Make) -> None:
    """The same seed gives the same frames and rewards to the last bit, another seed others; ranks add to the seed."""

    def run(seed: int, rank: int = 0) -> tuple[bytes, list[int]]:
        settings = EnvironmentSettings(frame_shape=(64, 64, 1), difficulty=4, role=Roles.P1, characters="Kasumi")
        env = make("doapp", settings, rank=rank)
        results = play(env, 60, seed=seed)
        return b"".join(r[0]["frame"].tobytes() for r in results), [r[1] for r in results]

    assert run(11) == run(11)
    assert run(11) != run(12)
    settings = EnvironmentSettings(frame_shape=(64, 64, 1))
    env = make("doapp", settings, rank=3)
    env.reset(seed=11)
    assert env.unwrapped.env_settings.pb_model.episode_settings.random_seed == 14


def test_characters_teams_and_difficulty_reach_the_game(make: Make) -> None:
    """Chosen teams fight, in their order."""
    names = ("Kyo", "Iori", "Terry")
    settings = EnvironmentSettings(characters=names, role=Roles.P2, frame_shape=(16, 16, 1), difficulty=1)
    observation, _ = make("kof98umh", settings).reset(seed=1)
    listed = all_games()["kof98umh"].characters
    assert [listed[observation["P2"][f"character_{i}"]] for i in (1, 2, 3)] == list(names)


def test_the_step_counter_counts(make: Make, engine: Engine) -> None:
    """A test can read from the internal RAM states how many Steps the engine has run, over all its games."""
    del make
    channel, engine_stub = stub(engine.address)
    engine_stub.EnvInit(pb.EnvSettings(game_id="doapp", step_ratio=1, n_players=1))
    engine_stub.Reset(pb.EnvSettings.EpisodeSettings(random_seed=1))
    counts = []
    for _ in range(3):
        answer = engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]))
        counts.append(answer.observation.ram_states_categories[pb.RamStatesCategories.Value("internal")])
    steps = [count.ram_states[wire.STEPS_RUN] for count in counts]
    assert steps == [steps[0], steps[0] + 1, steps[0] + 2]
    engine_stub.Close(pb.Empty())
    engine.says(f"Environment closed after {steps[-1]} steps.")
    channel.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (pb.EnvSettings(game_id="pong", step_ratio=1, n_players=1), "Game 'pong' is unknown; choose one of doapp"),
        (pb.EnvSettings(game_id="doapp", step_ratio=7, n_players=1), "step_ratio is 7; it must be from 1 to 6"),
        (pb.EnvSettings(game_id="doapp", step_ratio=1, n_players=3), "n_players is 3; it must be 1 or 2"),
        (
            pb.EnvSettings(game_id="doapp", step_ratio=1, n_players=1, frame_shape=pb.FrameShape(h=9999, w=1)),
            "sides go to 512",
        ),
    ],
)
def test_nonsense_settings_are_refused(engine: Engine, settings: pb.EnvSettings, sentence: str) -> None:
    """EnvInit answers an impossible wish with INVALID_ARGUMENT and says what would do."""
    channel, engine_stub = stub(engine.address)
    with pytest.raises(grpc.RpcError) as refused:
        engine_stub.EnvInit(settings)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in refused.value.details()
    channel.close()


def test_calls_out_of_order_are_refused() -> None:
    """Reset before EnvInit, Step before Reset, and wrong actions get an RPC error, and the engine lives on."""
    with practice_engine() as fresh:
        channel, engine_stub = stub(fresh.address)
        for call, request, sentence in (
            (engine_stub.Reset, pb.EnvSettings.EpisodeSettings(), "call EnvInit first"),
            (engine_stub.Step, pb.Actions(), "call Reset first"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call(request)
            assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert sentence in refused.value.details()
        engine_stub.EnvInit(pb.EnvSettings(game_id="umk3", step_ratio=6, n_players=1))
        engine_stub.Reset(pb.EnvSettings.EpisodeSettings(random_seed=1))
        for actions in ([], [pb.Actions.Action(move=9)], [pb.Actions.Action(attack=-1)], [pb.Actions.Action()] * 2):
            with pytest.raises(grpc.RpcError) as refused:
                engine_stub.Step(pb.Actions(actions=actions))
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()])).observation.frame
        channel.close()


def test_the_real_engines_start_up_lines() -> None:
    """The log says what the real engine says, in its order, and the port opens last."""
    with practice_engine("--randomSeed", "5", "--render", "--sound") as fresh:
        host, port = fresh.address.split(":")
        assert fresh.lines[:3] == [
            "Stored credentials found.",
            "Authorization granted.",
            f"Server listening on {host}:{port}",
        ]


def test_missing_credentials_ask_on_the_terminal_and_the_port_never_opens(free_port: int, tmp_path: Path) -> None:
    """Without its credentials file the engine asks for user name and password and serves nobody."""
    arguments = ("--port", str(free_port), "--credentials", str(tmp_path / "credentials"))
    with practice_engine(*arguments, listens=False) as asking:
        asking.says("retry 1/5")
        assert asking.process.poll() is None
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", free_port)) != 0
    (tmp_path / "credentials").write_text("x")
    with practice_engine(*arguments) as serving:
        assert serving.lines[0] == "Stored credentials found."


def test_a_missing_rom_is_an_error_of_env_init(tmp_path: Path) -> None:
    """The port opens without the ROM; EnvInit names the file that is missing; with the file it plays."""
    with practice_engine("--require-roms", str(tmp_path)) as fresh:
        channel, engine_stub = stub(fresh.address)
        settings = pb.EnvSettings(game_id="tektagt", step_ratio=6, n_players=1)
        with pytest.raises(grpc.RpcError) as refused:
            engine_stub.EnvInit(settings)
        assert "ROM file not found" in refused.value.details()
        assert "tektagt.zip" in refused.value.details()
        fresh.says("ROM file not found")
        (tmp_path / "tektagt.zip").touch()
        assert engine_stub.EnvInit(settings).available_actions.n_moves == 9
        channel.close()


def test_the_speed_is_kept_by_sleeping(make: Make) -> None:
    """At 100 frames/s 20 Steps of 6 frames take 1.2 s, of which the engine works but a fraction."""
    with practice_engine("--fps", "100") as slow:
        env = make("doapp", EnvironmentSettings(frame_shape=(84, 84, 1)), address=slow.address)
        env.reset(seed=1)
        env.step([0, 0])
        started, cpu = time.monotonic(), cpu_seconds(slow.process.pid)
        for _ in range(20):
            env.step([0, 0])
        took = time.monotonic() - started
        assert took >= 1.19
        assert cpu_seconds(slow.process.pid) - cpu < 0.5 * took


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_published_speeds(make: Make) -> None:
    """With --fps published a Step of soulclbr at step_ratio 1 takes at least a sixtieth of a second."""
    with practice_engine("--fps", "published") as slow:
        env = make("soulclbr", EnvironmentSettings(frame_shape=(84, 84, 1), step_ratio=1), address=slow.address)
        env.reset(seed=1)
        env.step([0, 0])
        started = time.monotonic()
        for _ in range(30):
            env.step([0, 0])
        assert time.monotonic() - started >= 29.9 / 60


def test_init_and_reset_take_their_time(make: Make) -> None:
    """EnvInit and Reset last as long as the options say."""
    with practice_engine("--init-seconds", "0.6", "--reset-seconds", "0.4") as slow:
        started = time.monotonic()
        env = make("doapp", EnvironmentSettings(frame_shape=(16, 16, 1)), address=slow.address)
        initialised = time.monotonic()
        env.reset(seed=1)
        assert initialised - started >= 0.6
        assert time.monotonic() - initialised >= 0.4


@pytest.mark.parametrize("players", [1, 2])
def test_canned_steps_fit_like_real_ones(make: Make, players: int) -> None:
    """--canned plays observations that fit their space, for ever, with one player or two."""
    with practice_engine("--canned") as canned:
        kind = EnvironmentSettings if players == 1 else EnvironmentSettingsMultiAgent
        env = make("mvsc", kind(frame_shape=(64, 64, 1)), address=canned.address)
        results = play(env, 300)
        assert len({result[0]["frame"].tobytes() for result in results}) > 20
        assert not any(result[2] for result in results)


def test_a_crash_is_a_crash() -> None:
    """--crash-after N plays N Steps and dies in the next, which the client sees as UNAVAILABLE."""
    with practice_engine("--crash-after", "3") as doomed:
        channel, engine_stub = started(doomed)
        for _ in range(3):
            engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]))
        with pytest.raises(grpc.RpcError) as lost:
            engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]))
        assert lost.value.code() == grpc.StatusCode.UNAVAILABLE
        assert doomed.process.wait(timeout=10) == 139
        channel.close()


def test_a_hang_hangs() -> None:
    """--hang-after N plays N Steps and never answers the next, while the process and its port stay."""
    with practice_engine("--hang-after", "2") as stuck:
        channel, engine_stub = started(stuck)
        for _ in range(2):
            engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]))
        with pytest.raises(grpc.RpcError) as lost:
            engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]), timeout=0.5)
        assert lost.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert stuck.process.poll() is None
        channel.close()


def test_memory_is_eaten() -> None:
    """--eat-memory-after N takes at least 30 MiB more with each Step after the first N."""
    with practice_engine("--eat-memory-after", "1") as hungry:
        channel, engine_stub = started(hungry)
        engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]))
        before = resident_bytes(hungry.process.pid)
        for _ in range(3):
            engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]))
        assert resident_bytes(hungry.process.pid) - before > 3 * (30 << 20)
        channel.close()


def resident_bytes(pid: int) -> int:
    """Memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def started(engine: Engine) -> tuple[grpc.Channel, rpc.EnvServerStub]:
    """A bare client with a game of doapp begun."""
    channel, engine_stub = stub(engine.address)
    settings = pb.EnvSettings(game_id="doapp", step_ratio=1, n_players=1, frame_shape=pb.FrameShape(h=32, w=32, c=1))
    engine_stub.EnvInit(settings)
    engine_stub.Reset(pb.EnvSettings.EpisodeSettings(random_seed=1))
    return channel, engine_stub


def test_deaf_to_sigterm_ended_by_shutdown() -> None:
    """SIGTERM does nothing, as with the real engine; the Shutdown call answers and then ends the process."""
    with practice_engine() as running:
        running.process.send_signal(signal.SIGTERM)
        channel, engine_stub = started(running)
        assert engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()])).observation.frame
        engine_stub.Shutdown(pb.Empty())
        assert running.process.wait(timeout=10) == 0
        channel.close()


def test_ends_with_its_parents_pipe() -> None:
    """--exit-on-stdin-eof: the engine ends when the other end of its standard input is closed, even in a hang."""
    with practice_engine("--hang-after", "0") as stuck:
        channel, engine_stub = started(stuck)
        with pytest.raises(grpc.RpcError):
            engine_stub.Step(pb.Actions(actions=[pb.Actions.Action()]), timeout=0.3)
        assert stuck.process.stdin is not None
        stuck.process.stdin.close()
        assert stuck.process.wait(timeout=10) == 0
        channel.close()


def test_a_taken_port_is_named(free_port: int) -> None:
    """Two engines never share a port: the second says which port is taken and ends with exit code 1."""
    with (
        practice_engine("--port", str(free_port)),
        practice_engine("--port", str(free_port), listens=False) as second,
    ):
        assert second.process.wait(timeout=20) == 1
        assert f"127.0.0.1:{free_port}" in second.says("the port is taken; choose another with --port")


def test_an_idle_engine_does_not_load_what_only_a_game_needs() -> None:
    """Before EnvInit neither numpy nor OpenCV is in memory, so that a pool of idle engines stays small."""
    with practice_engine() as idle:
        maps = Path(f"/proc/{idle.process.pid}/maps").read_text()
        assert "numpy" not in maps
        assert "cv2" not in maps
    assert "numpy" in sys.modules
