"""The vector environment beside AsyncVectorEnv and SubprocVecEnv over open ports."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks._vector_samples import LINE, NAMES, SYNC, Chosen, plain, rates, row, taken
from benchmarks._vector_ways import gymnasium_way, sb3_way, sync_way, vector
from benchmarks._wan_rig import Rig, rig
from benchmarks._wan_ways import SMALL, Step
from benchmarks.wan import measured
from client_sdk.lanes import Lanes

COUNTS = (4, 8, 12, 16)
MANY = 64


def others(chosen: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """Beside AsyncVectorEnv and SubprocVecEnv over open ports, for several numbers of environments and both step_ratios."""
    rows = list[tuple[object, ...]]()
    least: dict[str, list[float]] = {"async": [], "subproc": []}
    for step_ratio, count in itertools.product(LINE, COUNTS):
        with rig(3 * count) as end, ExitStack() as stack:
            lanes = stack.enter_context(Lanes.of(end.lease(count, via="direct")))
            far = [[end.over_line(env.address or "") for env in end.lease(count, via="direct").envs] for _ in range(2)]
            steps = {
                "vector": sync_way(stack.enter_context(vector(lanes, SMALL, step_ratio))),
                "async": stack.enter_context(gymnasium_way(far[0], SMALL, step_ratio)),
                "subproc": stack.enter_context(sb3_way(far[1], SMALL, step_ratio)),
            }
            end.lay(LINE[step_ratio])
            samples = taken(end, {name: plain(step) for name, step in steps.items()}, chosen)
        for name in least:
            mine, theirs = rates(samples["vector"], count), rates(samples[name], count)
            least[name].append(statistics.median(mine) / statistics.median(theirs))
        names = {"vector": NAMES[SYNC], "async": "AsyncVectorEnv, open ports", "subproc": "SubprocVecEnv, open ports"}
        where = f"{count} environments, step_ratio {step_ratio}"
        rows += [row(f"{where}: {names[name]}", samples[name], envs=count) for name in samples]
    return {"vec.min_over_async": min(least["async"]), "vec.min_over_subproc": min(least["subproc"])}, rows


def many(_: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """How it goes on with many environments, each way once and alone: so many workers do not fit beside one another."""

    def lanes_step(end: Rig) -> Step:
        lanes = end.stack.enter_context(Lanes.of(end.lease(MANY, via="direct")))
        return sync_way(end.stack.enter_context(vector(lanes, SMALL, 6)))

    def others_step(end: Rig, way: Callable[..., contextlib.AbstractContextManager[Step]]) -> Step:
        far = [end.over_line(env.address or "") for env in end.lease(MANY, via="direct").envs]
        return end.stack.enter_context(way(far, SMALL, 6))

    ways: dict[str, Callable[[Rig], Step]] = {
        NAMES[SYNC]: lanes_step,
        "AsyncVectorEnv, open ports": partial(others_step, way=gymnasium_way),
        "SubprocVecEnv, open ports": partial(others_step, way=sb3_way),
    }
    rows = []
    for name, way in ways.items():
        with rig(MANY) as end:
            step = way(end)
            end.lay(LINE[6])
            rows.append(row(f"{MANY} environments: {name}", [measured(end, step, 10.0)], envs=MANY))
    return {}, rows
