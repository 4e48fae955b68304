"""How long a vector environment waits for one whose engine was killed, without and with a spare that has the game ready."""

from __future__ import annotations

import os
import signal
import statistics
import time
from contextlib import ExitStack
from typing import Any

from benchmarks._vector_samples import Chosen
from benchmarks._vector_ways import settings
from benchmarks._wan_rig import Rig, rig
from benchmarks._wan_ways import SMALL
from client_sdk import Lease, make_vec
from client_sdk.lanes import Lanes

ENVS, INIT_S = 3, "2"


def healing(chosen: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """Seconds of the step that begins the next episode after a loss; EnvInit takes two."""
    took: dict[int, list[float]] = {0: [], 1: []}
    with rig(3 * ENVS, init_seconds=INIT_S) as end:
        for spares, found in took.items():
            with ExitStack() as stack:
                lease = end.lease(ENVS + spares, via="direct")
                lanes = stack.enter_context(Lanes.of(lease))
                vec = make_vec(lanes, "doapp", settings(SMALL, 6), seed=1, spares=spares)
                stack.callback(vec.close)
                vec.reset()
                found += [_healed(end, lease, vec, spares) for _ in range(chosen.turns)]
                lease.release()
    rows: list[tuple[object, ...]] = [
        (
            f"seconds of the step after a loss, EnvInit of {INIT_S} s, {spares} spares",
            statistics.median(found),
            "",
            "",
            "",
            "",
        )
        for spares, found in took.items()
    ]
    return {f"vec.heal_s_spares{spares}": statistics.median(found) for spares, found in took.items()}, rows


def _healed(end: Rig, lease: Lease, vec: Any, spares: int) -> float:
    while vec.spares_ready < spares:
        vec.step(vec.action_space.sample())
    lease.refresh()
    rank = vec.envs[0].unwrapped.arena_engine.rank
    os.kill(end.daemon.engine_pid(lease.envs[rank].address), signal.SIGKILL)
    while not vec.step(vec.action_space.sample())[3][0]:
        continue
    began = time.perf_counter()
    vec.step(vec.action_space.sample())
    return time.perf_counter() - began
