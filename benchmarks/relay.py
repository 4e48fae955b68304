"""What a step costs the relay in CPU, and how far full frames shrink."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from diambra.engine import interface_pb2 as pb

from benchmarks._host import host
from benchmarks._report import print_table, write_results
from client_sdk import models
from client_sdk._api import Api
from client_sdk._line import Line
from client_sdk._reach import Route
from client_sdk.models import LeaseRequest, LeaseState
from client_sdk.wire import Method
from orchestrator.relay.codec import Encoder
from practice_engine.games import all_games
from practice_engine.rules import Setup
from practice_engine.session import Session

ENVS, GAME, STEP_RATIO = 12, "doapp", 6
SHAPES = {"small": (128, 128, 1), "full": (480, 512, 3)}
WARM_UP_S, ROUND_S, ROUNDS = 4.0, 5.0, 5
FIGHT_STEPS = 300


@dataclass(frozen=True)
class Figures:
    """Of one round: CPU of the relay and of this client a step, in milliseconds, and how busy the machine was."""

    steps_per_s: float
    relay_ms: float
    client_ms: float
    ratio: float
    busy_percent: float


@dataclass
class Count:
    """What the players did."""

    steps: int = 0
    raw: int = 0
    wire: int = 0


async def play(line: Line, rank: int, shape: tuple[int, int, int], count: Count) -> None:
    """Step one lane until cancelled."""
    settings = pb.EnvSettings(
        game_id=GAME,
        frame_shape=pb.FrameShape(h=shape[0], w=shape[1], c=1 if shape[2] == 1 else 0),
        step_ratio=STEP_RATIO,
        n_players=1,
    )
    # Half an hour of continues, so that the game never ends while it is measured.
    episode = pb.EnvSettings.EpisodeSettings(random_seed=1 + rank, difficulty=3, continue_game=-1000)
    await line.call(rank, Method.ENV_INIT, settings.SerializeToString())
    await line.call(rank, Method.RESET, episode.SerializeToString())
    chance = random.Random(rank)
    while True:
        action = pb.Actions.Action(move=chance.randrange(9), attack=chance.randrange(8))
        reply = await line.call(rank, Method.STEP, pb.Actions(actions=[action]).SerializeToString())
        count.steps += 1
        count.raw += len(reply.data)
        count.wire += reply.wire_bytes


async def rounds(lease: models.Lease, shape: tuple[int, int, int], relay: psutil.Process) -> list[Figures]:
    """Step all lanes at the engines' own speed, and measure several rounds of it."""
    assert lease.relay is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # on loopback, to what this run started
    line, count = Line(Route(lease.relay.url, lease.relay.token, trusting=context)), Count()
    keeping = asyncio.create_task(line.run())
    await asyncio.wait_for(line.opened.wait(), 20)
    playing = [asyncio.create_task(play(line, rank, shape, count)) for rank in line.ranks]
    try:
        await asyncio.sleep(WARM_UP_S)
        return [await measured(count, relay) for _ in range(ROUNDS)]
    finally:
        for task in (*playing, keeping):
            task.cancel()
        await asyncio.gather(*playing, keeping, return_exceptions=True)


async def measured(count: Count, relay: psutil.Process) -> Figures:
    """One round."""
    count.steps = count.raw = count.wire = 0
    psutil.cpu_percent()
    before, mine, began = spent(relay), time.process_time(), time.perf_counter()
    await asyncio.sleep(ROUND_S)
    took_s, steps = time.perf_counter() - began, max(1, count.steps)
    return Figures(
        steps_per_s=steps / took_s,
        relay_ms=1000 * (spent(relay) - before) / steps,
        client_ms=1000 * (time.process_time() - mine) / steps,
        ratio=count.raw / max(1, count.wire),
        busy_percent=psutil.cpu_percent(),
    )


def spent(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def fights() -> Iterator[tuple[str, float]]:
    """Each game, and how far its full frames shrink for a client at a distance; played, not pre-rendered."""
    for game_id, game in sorted(all_games().items()):
        chance, encoder, raw, wire = random.Random(1), Encoder(), 0, 0
        session = Session(game, frame_shape=game.frame_shape, step_ratio=STEP_RATIO)
        session.reset(Setup(seed=1), steps=0)
        for number in range(FIGHT_STEPS):
            action = [(chance.randrange(game.n_moves), chance.randrange(game.n_attacks))]
            reply = bytes(session.step(action, steps=number))
            raw, wire = raw + len(reply), wire + len(encoder.encode(reply)[0])
        yield game_id, raw / wire


def main() -> int:
    """Measure everything, print the tables, write the results."""
    shrinking = dict(fights())
    print_table(
        f"Full frames of {FIGHT_STEPS} Steps at step_ratio {STEP_RATIO}, compressed for a client at a distance",
        ("game", "shrink to 1/"),
        list(shrinking.items()),
    )
    rows, relay_ms = [], {}
    environ = {"CORNERMAN_PRACTICE_FPS": "published", "CORNERMAN_PRACTICE_CANNED": "1"}
    with host("--runtime", "process", "--max-engines", str(ENVS), "--min-ready", "0", environ=environ) as daemon:
        (pid,) = daemon.relay_pids()
        with daemon.session(daemon.url) as session:
            api = Api(session)
            lease = api.create(LeaseRequest(envs=ENVS, wait=True, ttl_s=900.0), key=os.urandom(8).hex())
            while lease.state is LeaseState.PENDING:
                lease = api.await_change(lease.id, after_version=lease.version, wait_s=10)
            for name, shape in SHAPES.items():
                found = asyncio.run(rounds(lease, shape, psutil.Process(pid)))
                relay_ms[name] = statistics.median(one.relay_ms for one in found)
                typical = sorted(found, key=lambda one: one.relay_ms)[len(found) // 2]
                rows.append(
                    (
                        "x".join(map(str, shape)),
                        typical.steps_per_s,
                        typical.relay_ms,
                        typical.client_ms,
                        typical.ratio,
                        typical.busy_percent,
                    )
                )
    print_table(
        f"{ENVS} environments of {GAME} at published speed and step_ratio {STEP_RATIO}, on this machine",
        ("frame", "steps/s", "relay ms", "client ms", "shrink to 1/", "both cores busy %"),
        rows,
    )
    write_results(
        "relay",
        {
            "relay.cpu_ms_small": relay_ms["small"],
            "relay.cpu_ms_full": relay_ms["full"],
            "frames.ratio": min(shrinking.values()),
        },
        add=True,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
