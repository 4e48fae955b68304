"""How fast the practice engine is: in process on one core, and through gRPC beside an empty call of as many bytes."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc
from diambra.engine import interface_pb2 as pb

from benchmarks._report import print_table, write_results
from practice_engine.games import all_games
from practice_engine.rules import Setup
from practice_engine.session import Session

SHAPES = {"small": (128, 128, 1), "full": (480, 512, 3)}
ROUNDS, ROUND_S, IN_PROCESS_S = 8, 0.7, 4.0
Call = Callable[[], bytes]

# Answers each call with the same bytes, on the same kind of server as the engine's.
EMPTY_SERVER = """
import sys, threading, grpc
from concurrent.futures import ThreadPoolExecutor
answer = bytes(int(sys.argv[1]))
server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)))
handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("empty", {"Call": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"Server listening on 127.0.0.1:{port}", flush=True)
sys.stdin.read()
"""


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """The address of a server that runs as a child process until the block ends."""
    child = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        line = next(line for line in child.stdout if line.startswith("Server listening on "))
        yield line.split()[-1]
    finally:
        child.stdin.close()
        child.wait(timeout=10)


def in_process_fps(shape: tuple[int, int, int]) -> float:
    """Frames/s of Steps at step_ratio 1, encoded for the wire, on one core; the button masher starts anew at the end."""
    game, chance = all_games()["doapp"], random.Random(1)
    session = Session(game, frame_shape=shape, step_ratio=1)
    actions = [[(chance.randrange(game.n_moves), chance.randrange(game.n_attacks))] for _ in range(997)]
    frames, seed = 0, 0
    session.reset(Setup(seed=seed), steps=0)
    for i in range(600):  # poses are drawn when they first occur
        session.step(actions[i // 6], steps=0)
    spent = time.process_time()
    while time.process_time() - spent < IN_PROCESS_S:
        seed += 1
        session.reset(Setup(seed=seed), steps=0)
        for i in range(300):
            session.step(actions[i // 6], steps=i)
        frames += 300
    return frames / (time.process_time() - spent)


def rate(call: Call, seconds: float) -> float:
    """Calls a second, one after the other."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(20):
            call()
        count += 20
    return count / (time.perf_counter() - started)


def channel(stack: ExitStack, address: str) -> grpc.Channel:
    """A channel to a server, ready to use."""
    made = stack.enter_context(grpc.insecure_channel(address, options=(("grpc.max_receive_message_length", -1),)))
    grpc.channel_ready_future(made).result(timeout=20)
    return made


def engine_call(stack: ExitStack, shape: tuple[int, int, int], step_ratio: int) -> tuple[Call, int]:
    """A call that plays one Step of an engine in another process, and the size of its answer in bytes."""
    engine = channel(
        stack,
        stack.enter_context(
            serving("-m", "practice_engine", "--host=127.0.0.1", "--port=0", "--fps=unlimited", "--exit-on-stdin-eof")
        ),
    )
    settings = pb.EnvSettings(
        game_id="doapp",
        frame_shape=pb.FrameShape(h=shape[0], w=shape[1], c=1 if shape[2] == 1 else 0),
        step_ratio=step_ratio,
        n_players=1,
    )
    engine.unary_unary("/interface.EnvServer/EnvInit", pb.EnvSettings.SerializeToString)(settings)
    # Half an hour of continues, so that the game never ends while it is measured.
    episode = pb.EnvSettings.EpisodeSettings(random_seed=1, difficulty=3, continue_game=-1000)
    engine.unary_unary("/interface.EnvServer/Reset", pb.EnvSettings.EpisodeSettings.SerializeToString)(episode)
    step = engine.unary_unary("/interface.EnvServer/Step")
    chance = random.Random(1)
    requests = [
        pb.Actions(
            actions=[pb.Actions.Action(move=chance.randrange(9), attack=chance.randrange(8))]
        ).SerializeToString()
        for _ in range(499)
    ]
    index = 0

    def call() -> bytes:
        nonlocal index
        index = (index + 1) % len(requests)
        return bytes(step(requests[index]))

    for _ in range(400):
        call()
    return call, len(call())


def through_grpc(shape: tuple[int, int, int], step_ratio: int) -> tuple[float, float]:
    """Steps a second of the engine and calls a second of the empty server, taken by turns: the medians of all turns."""
    with ExitStack() as stack:
        play, size = engine_call(stack, shape, step_ratio)
        empty = channel(stack, stack.enter_context(serving("-c", EMPTY_SERVER, str(size)))).unary_unary("/empty/Call")
        pairs = [(rate(play, ROUND_S), rate(lambda: bytes(empty(b"")), ROUND_S)) for _ in range(ROUNDS)]
    return statistics.median(p for p, _ in pairs), statistics.median(e for _, e in pairs)


def main() -> int:
    """Measure everything, print the tables, write the results."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    fps = {name: in_process_fps(shape) for name, shape in SHAPES.items()}
    os.sched_setaffinity(0, cores)
    print_table(
        "Practice engine in process, one core, step_ratio 1",
        ("frame", "frames/s"),
        [("x".join(map(str, shape)), fps[name]) for name, shape in SHAPES.items()],
    )
    ratios: dict[str, float] = {}
    rows = []
    for name, shape in SHAPES.items():
        for step_ratio in (1, 6):
            steps, empty = through_grpc(shape, step_ratio)
            ratios[f"{name}_{step_ratio}"] = steps / empty
            rows.append(("x".join(map(str, shape)), step_ratio, steps, empty, steps / empty))
    print_table(
        "Through gRPC, one call after the other", ("frame", "step_ratio", "steps/s", "empty calls/s", "ratio"), rows
    )
    figures = {f"engine.fps_{name}": value for name, value in fps.items()}
    figures |= {f"engine.grpc_ratio_{name}": value for name, value in ratios.items()}
    # The figure that is held to the aim is the worse of the two shapes, at one frame a Step as the frames/s are.
    figures["engine.grpc_ratio"] = min(ratios["small_1"], ratios["full_1"])
    write_results("engine", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
