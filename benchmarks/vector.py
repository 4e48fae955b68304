"""The vector environment over a long line: a batch at a time, whoever is ready, and beside the vectors of others.

One machine plays notebook, line and host, as in ``benchmarks.wan``. Needs Stable-Baselines3, so it runs in .venv-sb3.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if importlib.util.find_spec("stable_baselines3") is None:
    root = Path(__file__).resolve().parent.parent
    subprocess.run([root / "scripts" / "setup", "sb3"], check=True)
    python = root / ".venv-sb3" / "bin" / "python"
    os.execv(python, [str(python), "-m", "benchmarks.vector", *sys.argv[1:]])

from benchmarks._host import host
from benchmarks._report import print_table, write_results
from benchmarks._vector_healing import healing
from benchmarks._vector_others import many, others
from benchmarks._vector_samples import (
    ASYNC,
    BLOG,
    FULL_ASYNC,
    LINE,
    NAMES,
    NEAR,
    ONE,
    SYNC,
    Chosen,
    Turns,
    Way,
    plain,
    rates,
    ratio,
    row,
    taken,
)
from benchmarks._vector_ways import async_way, sync_way, vector
from benchmarks._wan_rig import Point, rig
from benchmarks._wan_ways import FULL, SMALL, Step, Stock
from benchmarks.wan import BUSY_PERCENT, ENVS
from client_sdk import Cornerman
from client_sdk.lanes import Lanes

EPISODES = tuple(60 + 7 * rank for rank in range(ENVS))  # steps, where resets are in the mix

# ------------------------------------------------------------ beside what is possible


def sync_limits(point: Point, samples: Turns) -> list[float]:
    """What a batch at a time could reach in each turn."""
    return [
        ENVS / (near.batch_s + point.rtt_s + 8 * ENVS * sample.wire_bytes / point.bit_per_s)
        for near, sample in zip(samples[NEAR], samples[SYNC], strict=True)
    ]


def async_limits(point: Point, samples: Turns) -> list[float]:
    """What stepping whoever is ready could reach in each turn: each environment waits for its own engine and the line alone."""
    return [ENVS / (point.rtt_s + one.batch_s) for one in samples[ONE]]


def limits(chosen: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """The vector beside the limits, and full frames beside the blog's way."""
    figures, rows = dict[str, float](), list[tuple[object, ...]]()
    with rig(4 * ENVS) as end:
        small, full = (Lanes.of(end.lease(ENVS, via="direct")) for _ in range(2))
        near, far = ([env.address or "" for env in end.lease(ENVS, via="direct").envs] for _ in range(2))
        for lanes in (small, full):
            end.stack.callback(lanes.close)
        for step_ratio, point in LINE.items():
            end.lay(Point(0.0, 1e9, step_ratio, turns=1))
            with ExitStack() as stack:
                direct = Stock(near, frame_shape=SMALL, step_ratio=step_ratio)
                stack.callback(direct.close)
                vec = stack.enter_context(vector(small, SMALL, step_ratio))
                alone = direct.envs[0]
                ways: dict[str, Way] = {
                    NEAR: plain(direct.way(near)),
                    ONE: plain(partial(alone.step, [0, 0])),
                    SYNC: plain(sync_way(vec)),
                    ASYNC: partial(async_way, vec),
                }
                if step_ratio == 6:
                    blog = Stock(far, frame_shape=FULL, step_ratio=step_ratio)
                    stack.callback(blog.close)
                    large = stack.enter_context(vector(full, FULL, step_ratio))
                    ways[BLOG] = plain(blog.way([end.over_line(address) for address in far]))
                    ways[FULL_ASYNC] = partial(async_way, large)
                end.lay(point)
                samples = taken(end, ways, chosen)
            batch, ready = sync_limits(point, samples), async_limits(point, samples)
            suffix = "" if step_ratio == 6 else f"_ratio{step_ratio}"
            figures[f"vec.sync_limit{suffix}"] = ratio(rates(samples[SYNC]), batch)
            figures[f"vec.async_limit{suffix}"] = ratio(rates(samples[ASYNC]), ready)
            if step_ratio == 6:
                figures["vec.full_over_blog"] = ratio(rates(samples[FULL_ASYNC]), rates(samples[BLOG]))
            by_way = {SYNC: batch, ASYNC: ready, FULL_ASYNC: ready}
            rows += [row(f"{point}: {NAMES[way]}", samples[way], by_way.get(way)) for way in NAMES if way in samples]
    return figures, rows


def resets(chosen: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """Resets of three seconds in the mix: a batch waits for them, whoever is ready does not."""
    with rig(ENVS, reset_seconds="3") as end:
        lanes = Lanes.of(end.lease(ENVS, via="direct"))
        end.stack.callback(lanes.close)
        end.lay(LINE[6])
        with vector(lanes, SMALL, 6, lengths=EPISODES) as vec:
            ways: dict[str, Way] = {SYNC: plain(sync_way(vec)), ASYNC: partial(async_way, vec)}
            samples = taken(end, ways, Chosen(max(1, chosen.turns // 2), 15 * chosen.seconds, 0))
    figures = {"vec.async_over_sync_resets": ratio(rates(samples[ASYNC]), rates(samples[SYNC]))}
    return figures, [row(f"the same with resets of 3 s: {NAMES[way]}", samples[way]) for way in samples]


# ------------------------------------------------------------ beside others


@dataclass(frozen=True)
class Cost:
    """What a batch costs: seconds of the clock, and of this process's CPU."""

    clock_s: float
    cpu_s: float


def costs(step: Step, seconds: float) -> Cost:
    """Step for so long."""
    for _ in range(5):
        step()
    began, cpu, batches = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        step()
        batches += 1
    return Cost((time.perf_counter() - began) / batches, (time.process_time() - cpu) / batches)


def loopback(chosen: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """Beside the stock client with a thread pool, on loopback, with engines as fast as they can be."""
    pool = ("--runtime", "process", "--max-engines", str(2 * ENVS), "--min-ready", str(2 * ENVS))
    environ = {"CORNERMAN_PRACTICE_CANNED": "1", "CORNERMAN_PRACTICE_FPS": "unlimited"}
    shape = (84, 84, 1)
    with host(*pool, ports=2 * ENVS + 8, environ=environ) as daemon, ExitStack() as stack:
        sdk = Cornerman(daemon.url, quiet=True)
        mine, theirs = (stack.enter_context(sdk.lease(ENVS, via="direct", timeout_s=180.0)) for _ in range(2))
        stock = Stock(theirs.addresses, frame_shape=shape, step_ratio=6)
        stack.callback(stock.close)
        vec = stack.enter_context(vector(stack.enter_context(Lanes.of(mine)), shape, 6))
        ways = {"thread pool": stock.way(theirs.addresses), "vector": sync_way(vec)}
        found: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(chosen.turns):
            for name, step in ways.items():
                found[name].append(costs(step, chosen.seconds))
    figures = {
        "vec.over_threadpool_loopback": ratio(
            [cost.clock_s for cost in found["thread pool"]], [cost.clock_s for cost in found["vector"]]
        ),
        "vec.client_cpu_ratio": ratio(
            [cost.cpu_s for cost in found["vector"]], [cost.cpu_s for cost in found["thread pool"]]
        ),
    }
    rows: list[tuple[object, ...]] = [
        (
            f"loopback, unlimited engines, 84x84x1: {name}",
            ENVS / statistics.median(cost.clock_s for cost in costs_of),
            "",
            "",
            "",
            f"{1e3 * statistics.median(cost.cpu_s for cost in costs_of):.1f} ms of CPU a batch",
        )
        for name, costs_of in found.items()
    ]
    return figures, rows


def ppo(chosen: Chosen) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """A training over the line beside the same one without distance."""
    from benchmarks import _vector_ppo  # with PyTorch, which no worker of the others needs

    found = dict[str, _vector_ppo.Training]()
    for name, point in {"without distance": Point(0.0, 1e9, 6, turns=1), "over the line": LINE[6]}.items():
        with rig(ENVS, canned="0") as end, Lanes.of(end.lease(ENVS, via="direct")) as lanes:
            end.lay(point)
            found[name] = _vector_ppo.train(lanes, chosen.ppo_steps)
    near, far = found["without distance"], found["over the line"]
    rows: list[tuple[object, ...]] = [
        (
            f"PPO, {one.steps:,} steps, {name}",
            one.steps / one.took_s,
            "",
            "",
            "",
            f"{one.reward:+.3f} reward an episode",
        )
        for name, one in found.items()
    ]
    return {
        "ppo.wan_over_local": far.took_s / near.took_s,
        "ppo.reward_difference": abs(far.reward - near.reward),
    }, rows


PARTS = {
    "limits": limits,
    "resets": resets,
    "healing": healing,
    "loopback": loopback,
    "others": others,
    "many": many,
    "ppo": ppo,
}
HEAD = ("", "steps/s", "limit", "of limit", "bytes/step", "cores %")
NOTE = (
    f"doapp on practice engines at published speed with pre-rendered frames, {ENVS} environments unless it says otherwise; notebook, line "
    "and host are one machine. A batch at a time is held against N / (T0 + R + 8·N·b/W) as on the page of wan, whoever is ready against "
    "N / (R + t), with t the time of one environment's step by itself without distance. PPO plays games that are drawn live. "
    f"A star marks what kept the cores busy above {BUSY_PERCENT:.0f} %: there the processor is the limit."
)


def _parts(names: Sequence[str]) -> Iterator[str]:
    yield from (name for name in PARTS if not names or name in names)


def main() -> None:
    """Measure, print, write; ``--quick`` takes one short turn and writes nothing; chosen parts are written beside the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    chosen = Chosen(1, 1.0, 1536) if given.quick else Chosen(5, given.seconds, 12_288)
    figures, rows = dict[str, float](), list[tuple[object, ...]]()
    for name in _parts(given.parts):
        found, lines = PARTS[name](chosen)
        print_table(name, HEAD, lines)
        print_table("", ("figure", "value"), list(found.items()))
        figures.update(found)
        rows += lines
    if not given.quick:
        write_results("vector", figures, head=HEAD, rows=rows, note=NOTE, add=bool(given.parts))


if __name__ == "__main__":
    main()
