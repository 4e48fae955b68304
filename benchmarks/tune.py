"""Whether advice is right: the steps a second that ``lease.advise()`` predicts beside those that are then reached.

Measured and reached in turn, over lines of several lengths, with full and with small frames, stepped together and in groups. One
machine plays notebook, line and host; engines play pre-rendered frames at their published speed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from diambra.arena import EnvironmentSettings, SpaceTypes

from benchmarks._report import print_table, write_results
from benchmarks._wan_rig import Point, rig
from benchmarks.wan import BUSY_PERCENT
from client_sdk import make_vec
from client_sdk._advice import Advice
from client_sdk._advice_model import SMALL, batch, enough_groups, in_groups
from client_sdk._tune import WatchedLanes, line_speed, measured

FULL = (0, 0, 0)
WARM_UP = 3
POINTS = (
    Point(0.030, 100e6, 6, turns=3),
    Point(0.030, 100e6, 1, turns=3),
    Point(0.080, 50e6, 6, turns=3),
    Point(0.010, 1e9, 6, turns=3),
)
TOGETHER_FULL, TOGETHER_SMALL, GROUPS = "full frames", "128x128x1", "128x128x1 in groups"


@dataclass
class Compared:
    """One way to play at one point: what was predicted and what was reached, turn by turn, and how busy the cores were."""

    name: str
    predicted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was reached: the median of the turns."""
        return abs(statistics.median(p / r for p, r in zip(self.predicted, self.reached, strict=True)) - 1)

    @property
    def is_busy(self) -> bool:
        """Whether the processor had no time left, which no advice can know of a host elsewhere."""
        return statistics.median(self.busy) > BUSY_PERCENT


def settings(frame_shape: tuple[int, int, int], step_ratio: int) -> Any:
    """Of doapp."""
    return EnvironmentSettings(
        game_id="doapp", frame_shape=frame_shape, step_ratio=step_ratio, action_space=SpaceTypes.MULTI_DISCRETE
    )


def predictions(advice: Advice) -> dict[str, float]:
    """What the advice says of each way to play."""
    line, small, envs = advice.line, advice.small, advice.envs
    assert small is not None
    groups = enough_groups(line, small, envs=envs)
    return {
        TOGETHER_FULL: advice.predicted,
        TOGETHER_SMALL: batch(line, small, envs=envs).steps_per_s,
        GROUPS: in_groups(line, small, envs=envs, groups=groups),
    }


def reached(lanes: WatchedLanes, played: Any, *, seconds: float, groups: int = 1) -> float:
    """Steps a second that the vector environment makes, all together or in so many groups."""
    vec = make_vec(lanes, "doapp", played, seed=2)
    try:
        vec.reset()
        if groups == 1:
            return _together(vec, seconds)
        return _in_groups(vec, seconds, at_least=-(-vec.num_envs // groups))
    finally:
        vec.close()
        lanes.steps()


def _together(vec: Any, seconds: float) -> float:
    for _ in range(WARM_UP):
        vec.step(vec.action_space.sample())
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        vec.step(vec.action_space.sample())
        steps += vec.num_envs
    return steps / (time.perf_counter() - began)


def _in_groups(vec: Any, seconds: float, *, at_least: int) -> float:
    def go_on(environments: Any) -> None:
        vec.send([vec.single_action_space.sample() for _ in environments], environments)

    go_on(np.arange(vec.num_envs))
    for _ in range(WARM_UP):
        go_on(vec.recv(at_least)[-1]["env_id"])
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        ready = vec.recv(at_least)[-1]["env_id"]
        steps += len(ready)
        go_on(ready)
    rate = steps / (time.perf_counter() - began)
    vec.recv(vec.num_envs)
    return rate


def compare(lanes: WatchedLanes, point: Point, speed: float | None, *, turns: int, seconds: float) -> list[Compared]:
    """Advice and what comes of it, in turn; a turn is held against the advice before and after it, so that both see the same machine."""
    ways = {name: Compared(f"{point}: {name}") for name in (TOGETHER_FULL, TOGETHER_SMALL, GROUPS)}
    full, small = settings(FULL, point.step_ratio), settings(SMALL, point.step_ratio)

    def advise() -> Advice:
        return measured(lanes, "doapp", full, speed=speed, seconds=seconds)

    before = advise()
    for _ in range(turns):
        assert before.small is not None
        groups = enough_groups(before.line, before.small, envs=before.envs)
        for name, played, count in ((TOGETHER_FULL, full, 1), (TOGETHER_SMALL, small, 1), (GROUPS, small, groups)):
            psutil.cpu_percent()
            ways[name].reached.append(reached(lanes, played, seconds=seconds, groups=count))
            ways[name].busy.append(psutil.cpu_percent())
        after = advise()
        for name, way in ways.items():
            way.predicted.append((predictions(before)[name] + predictions(after)[name]) / 2)
        before = after
    print(f"\n{point}\n{before}", flush=True)
    return list(ways.values())


HEAD = ("", "predicted", "reached", "off by", "cores %")
NOTE = (
    "{envs} environments of doapp; advice from {seconds:g} s of play with full and as much with small frames, before and after the vector environment "
    "played as long; medians of all turns. A star marks ways that kept the cores busy above "
    f"{BUSY_PERCENT:.0f} %: notebook, line and host share one machine here."
)


def rows_of(compared: Sequence[Compared]) -> list[tuple[object, ...]]:
    """The table."""
    return [
        (
            one.name + ("*" if one.is_busy else ""),
            statistics.median(one.predicted),
            statistics.median(one.reached),
            f"{100 * one.error:.0f} %",
            f"{statistics.median(one.busy):.0f}",
        )
        for one in compared
    ]


def main() -> None:
    """Measure, print, write; ``--quick`` takes one short turn at the first two points and writes nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--envs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    compared: list[Compared] = []
    with rig(chosen.envs) as end:
        lease = end.lease(chosen.envs, via="direct")
        lanes = end.stack.enter_context(WatchedLanes.of(lease))
        assert isinstance(lanes, WatchedLanes)
        for point in POINTS[:2] if chosen.quick else POINTS:
            end.lay(point)
            speed = line_speed(lease)
            turns = 1 if chosen.quick else point.turns
            compared += compare(lanes, point, speed, turns=turns, seconds=chosen.seconds)
    rows = rows_of(compared)
    print_table(f"{chosen.envs} environments of doapp", HEAD, rows)
    together = [one.error for one in compared if not one.name.endswith(GROUPS)]
    grouped = [one.error for one in compared if one.name.endswith(GROUPS)]
    figures = {"tune.prediction_error": max(together), "tune.groups_prediction_error": max(grouped)}
    print_table("Figures", ("figure", "value"), list(figures.items()))
    if not chosen.quick:
        note = NOTE.format(envs=chosen.envs, seconds=chosen.seconds)
        write_results("tune", figures, head=HEAD, rows=rows, note=note)


if __name__ == "__main__":
    main()
