"""What the parts of ``benchmarks.vector`` share: the line, how long is measured, and samples taken in turn."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks._wan_rig import Point, Rig
from benchmarks._wan_ways import Step
from benchmarks.wan import BUSY_PERCENT, ENVS, Sample, measured

LINE = {ratio: Point(0.030, 100e6, ratio, turns=5) for ratio in (6, 1)}
NEAR, ONE, SYNC, ASYNC, BLOG, FULL_ASYNC = "near", "one", "sync", "async", "blog", "full"
NAMES = {
    SYNC: "vector, a batch at a time, 128x128x1",
    ASYNC: "vector, whoever is ready, 128x128x1",
    BLOG: "thread pool over open ports, full frames (the blog)",
    FULL_ASYNC: "vector, whoever is ready, full frames",
}
Turns = dict[str, list[Sample]]
Way = Callable[[], contextlib.AbstractContextManager[Step]]


@dataclass(frozen=True)
class Chosen:
    """How long and how often everything is measured."""

    turns: int
    seconds: float
    ppo_steps: int


def taken(rig: Rig, ways: Mapping[str, Way], chosen: Chosen) -> Turns:
    """All ways in turn, so that a noisy moment falls on all."""
    samples: Turns = {name: [] for name in ways}
    for _ in range(chosen.turns):
        for name, way in ways.items():
            with way() as step:
                samples[name].append(measured(rig, step, chosen.seconds))
    return samples


def rates(samples: Sequence[Sample], envs: int = ENVS) -> list[float]:
    """Steps a second in each turn."""
    return [envs / sample.batch_s for sample in samples]


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def plain(step: Step) -> Way:
    """A way that needs nothing around it."""
    return lambda: contextlib.nullcontext(step)


def row(
    name: str, samples: Sequence[Sample], limit: Sequence[float] | None = None, envs: int = ENVS
) -> tuple[object, ...]:
    """A line of the table."""
    busy = [statistics.median(core) for core in zip(*(sample.busy for sample in samples), strict=True)]
    star = "*" if statistics.mean(busy) > BUSY_PERCENT else ""
    rate, most = statistics.median(rates(samples, envs)), statistics.median(limit) if limit else None
    wire = statistics.median(sample.wire_bytes * ENVS / envs for sample in samples)
    cores = " ".join(f"{core:.0f}" for core in busy) + star
    return (name, rate, most if most else "", rate / most if most else "", wire, cores)
