"""What a step costs through tunnel and relay, and over lanes in process, beside the same step made directly; all on loopback.

The ways take turns in one run, round by round, and a figure is the median of the rounds' ratios: what else the machine does
meanwhile hits them alike. Tunnel against direct is DIAMBRA's own client stepping one environment. Lanes exist for batches, so
they are set against a pool of threads that steps as many engines by plain gRPC, calls and bytes alone on both sides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import psutil

from benchmarks._host import Caller, host, wait_ready
from benchmarks._report import print_table, write_results
from client_sdk import Cornerman, Lease
from client_sdk.lanes import Lanes, Method
from tests.support.play import Game, over_grpc

GAME, STEP_RATIO, BATCH = "doapp", 6, 12
SMALL, FULL = (128, 128, 1), (0, 0, 0)
Step = Callable[[], object]


@dataclass(frozen=True)
class Compared:
    """Two ways of making the same step, in milliseconds, and the median of their rounds' ratios."""

    direct_ms: float
    other_ms: float
    ratio: float
    busy_percent: float


def stock(address: str, shape: tuple[int, int, int]) -> Step:
    """A step of DIAMBRA's own environment on the engine at ``address``."""
    import diambra.arena

    settings = diambra.arena.EnvironmentSettings()
    settings.splash_screen, settings.step_ratio, settings.continue_game = False, STEP_RATIO, -1000.0
    if shape != FULL:
        settings.frame_shape = shape
    os.environ["DIAMBRA_ENVS"] = address
    env: Any = diambra.arena.make(GAME, settings, rank=0, log_level=logging.ERROR)
    env.reset(seed=1)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return step


def by_threads(lease: Lease) -> Step:
    """A step of all engines by plain gRPC, each on a thread."""
    for address in lease.addresses:
        _begin(Game(over_grpc(address), frame_shape=SMALL))
    calls = []
    for address in lease.addresses:
        calls.append(grpc.insecure_channel(address).unary_unary(Method.STEP.path))
    threads, request = ThreadPoolExecutor(len(calls)), Game.step_request()
    return lambda: list(threads.map(lambda call: call(request), calls))


def by_lanes(lanes: Lanes) -> Step:
    """A step of all engines over the lanes, as one batch."""

    def send(rank: int) -> Callable[[Method, bytes], bytes]:
        return lambda method, request: lanes.call(rank, method, request).data

    for rank in lanes.ranks:
        _begin(Game(send(rank), frame_shape=SMALL))
    batch = [(rank, Method.STEP, Game.step_request()) for rank in lanes.ranks]

    def step() -> None:
        for call in lanes.wait(lanes.begin(batch)):
            call.result()

    return step


def _begin(game: Game) -> None:
    game.make()
    game.reset()


def compare(direct: Step, other: Step, *, rounds: int, steps: int) -> Compared:
    """Let both make ``steps`` in turn, round by round; the first round only warms up."""
    taken: list[tuple[float, float]] = []
    psutil.cpu_percent()
    for number in range(rounds + 1):
        ways = (direct, other) if number % 2 else (other, direct)
        found = {way: _median_ms(way, steps) for way in ways}
        if number:
            taken.append((found[direct], found[other]))
    return Compared(
        statistics.median(one for one, _ in taken),
        statistics.median(two for _, two in taken),
        statistics.median(two / one for one, two in taken),
        psutil.cpu_percent(),
    )


def _median_ms(step: Step, steps: int) -> float:
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


@contextlib.contextmanager
def two_leases(fps: str, *, envs: int) -> Iterator[tuple[Cornerman, Lease, Lease]]:
    """A host with engines of that speed; one direct lease, and another by the tunnel."""
    environ = {"CORNERMAN_PRACTICE_FPS": fps, "CORNERMAN_PRACTICE_CANNED": "0"}
    most = str(2 * envs)
    with host("--runtime", "process", "--min-ready", most, "--max-engines", most, environ=environ) as daemon:
        caller = Caller(daemon.admin_url)
        wait_ready(caller, 2 * envs)
        caller.close()
        client = Cornerman(daemon.url, quiet=True)
        with client.lease(envs=envs, via="direct") as direct, client.lease(envs=envs, via="tunnel") as tunnel:
            yield client, direct, tunnel


def one_environment(fps: str, shapes: Sequence[tuple[int, int, int]], *, rounds: int, steps: int) -> list[Compared]:
    """The stock client's step, directly and through the tunnel."""
    found = []
    for shape in shapes:
        with two_leases(fps, envs=1) as (_, direct, tunnel):
            ways = stock(direct.addresses[0], shape), stock(tunnel.addresses[0], shape)
            found.append(compare(*ways, rounds=rounds, steps=steps))
    return found


def a_batch(*, rounds: int, steps: int) -> Compared:
    """A step of ``BATCH`` engines, by threads and over lanes."""
    with two_leases("unlimited", envs=BATCH) as (_, direct, tunnel), Lanes.of(tunnel) as lanes:
        return compare(by_threads(direct), by_lanes(lanes), rounds=rounds, steps=steps)


def main() -> int:
    """Measure, print, write."""
    warnings.simplefilter("ignore")
    small, full = one_environment("published", (SMALL, FULL), rounds=8, steps=10)
    (unlimited,) = one_environment("unlimited", (SMALL,), rounds=15, steps=60)
    batch = a_batch(rounds=15, steps=15)
    rows = [
        ("tunnel, published speed, 128x128x1", small),
        ("tunnel, published speed, 480x512x3", full),
        ("tunnel, unlimited, 128x128x1", unlimited),
        (f"lanes, {BATCH} at once, unlimited, 128x128x1", batch),
    ]
    print_table(
        f"A step of {GAME} at step_ratio {STEP_RATIO} on loopback, beside the same one made directly",
        ("way", "direct ms", "this way ms", "ratio", "both cores busy %"),
        [(name, one.direct_ms, one.other_ms, one.ratio, one.busy_percent) for name, one in rows],
    )
    write_results(
        "relay",
        {
            "relay.over_direct_small": small.ratio,
            "relay.over_direct_full": full.ratio,
            "relay.over_direct_unlimited": unlimited.ratio,
            "relay.lanes_over_direct_unlimited": batch.ratio,
        },
        add=True,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
