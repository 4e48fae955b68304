"""Steps a second over a long line: the stock client over open ports and through the tunnel, and lanes in process.

One machine plays notebook, line and host; the engines play pre-rendered frames at their published speed. Each way is measured
for a few seconds at a time, all of them in turn, so that a noisy moment falls on all; beside it stands the limit
``N / (T0 + R + 8*N*b/W)``, with T0 the time of the same batch over direct connections without distance.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks._report import print_table, write_results
from benchmarks._wan_plot import draw
from benchmarks._wan_rig import Point, Rig, probed, rig
from benchmarks._wan_ways import FULL, SMALL, Step, Stock
from client_sdk.lanes import Lanes

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "wan.png"
ENVS, WARM_UP, BUSY_PERCENT = 12, 2, 85.0
MAIN = Point(0.030, 100e6, 6, turns=5)
POINTS = (MAIN, Point(0.010, 1e9, 6, turns=2), Point(0.080, 50e6, 6, turns=2), Point(0.030, 100e6, 1, turns=2))
BLOG, DIRECT_SMALL, TUNNEL_FULL, TUNNEL_SMALL, LANES = "blog", "direct_small", "tunnel_full", "tunnel_small", "lanes"
WAYS = {
    BLOG: "open ports, full frames (the blog)",
    DIRECT_SMALL: "open ports, 128x128x1",
    TUNNEL_FULL: "tunnel, full frames",
    TUNNEL_SMALL: "tunnel, 128x128x1",
    LANES: "lanes in process, 128x128x1",
}
NEAR_FULL, NEAR_SMALL = "near_full", "near_small"  # T0: direct, without distance
NEAR = {BLOG: NEAR_FULL, TUNNEL_FULL: NEAR_FULL, DIRECT_SMALL: NEAR_SMALL, TUNNEL_SMALL: NEAR_SMALL, LANES: NEAR_SMALL}


@dataclass(frozen=True)
class Sample:
    """One way for a few seconds: seconds of a batch, bytes a step down the line, and percent that each core was busy."""

    batch_s: float
    wire_bytes: float
    busy: tuple[float, ...]


@dataclass
class Outcome:
    """All turns at one point, by way."""

    point: Point
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def rates(self, way: str) -> list[float]:
        """Steps a second in each turn."""
        return [ENVS / sample.batch_s for sample in self.samples[way]]

    def rate(self, way: str) -> float:
        """Steps a second, the median of the turns."""
        return statistics.median(self.rates(way))

    def limits(self, way: str) -> list[float]:
        """What that way could reach at best, in each turn."""
        return [
            ENVS / (near.batch_s + self.point.rtt_s + 8 * ENVS * sample.wire_bytes / self.point.bit_per_s)
            for sample, near in zip(self.samples[way], self.samples[NEAR[way]], strict=True)
        ]

    def limit(self, way: str) -> float:
        """The same, the median of the turns."""
        return statistics.median(self.limits(way))

    def busy(self, way: str) -> list[float]:
        """Percent that each core was busy, the median of the turns."""
        return [statistics.median(core) for core in zip(*(sample.busy for sample in self.samples[way]), strict=True)]

    def is_busy(self, way: str) -> bool:
        """Whether the processor and not the line set the limit."""
        return statistics.mean(self.busy(way)) > BUSY_PERCENT


def measured(rig: Rig, step: Step, seconds: float) -> Sample:
    """Step for so long, and at least three times."""
    for _ in range(WARM_UP):
        step()
    _, bytes_before = rig.counted()
    cores_before = psutil.cpu_times(percpu=True)
    began, batches = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or batches < 3:
        step()
        batches += 1
    took = time.perf_counter() - began
    after = psutil.cpu_times(percpu=True)
    busy = tuple(_busy(one, other) for one, other in zip(cores_before, after, strict=True))
    return Sample(took / batches, (rig.counted()[1] - bytes_before) / (batches * ENVS), busy)


def _busy(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    spent = {name: getattr(after, name) - getattr(before, name) for name in ("idle", "iowait")}
    total = sum(after[:8]) - sum(before[:8])  # what follows, guests' time, is in these already
    return 100 * (1 - sum(spent.values()) / total) if total > 0 else 0.0


class Play:
    """All environments and the ways to step them."""

    def __init__(self, rig: Rig, *, step_ratio: int) -> None:
        self._rig, self.step_ratio = rig, step_ratio
        full, small, lanes = (rig.lease(ENVS, via=via) for via in ("tunnel", "tunnel", "direct"))
        near_full, near_small = ([env.address or "" for env in lease.envs] for lease in (full, small))
        self._stocks = [
            Stock(near, frame_shape=shape, step_ratio=step_ratio)
            for near, shape in ((near_full, FULL), (near_small, SMALL), (lanes.addresses, SMALL))
        ]
        by_full, by_small, by_lanes = self._stocks
        self.ways = {
            NEAR_FULL: by_full.way(near_full),
            NEAR_SMALL: by_small.way(near_small),
            BLOG: by_full.way([rig.over_line(address) for address in near_full]),
            DIRECT_SMALL: by_small.way([rig.over_line(address) for address in near_small]),
            TUNNEL_FULL: by_full.way(full.addresses),
            TUNNEL_SMALL: by_small.way(small.addresses),
            LANES: by_lanes.way_by_lanes(rig.stack.enter_context(Lanes.of(lanes))),
        }
        for stock in self._stocks:
            rig.stack.callback(stock.close)

    def at(self, point: Point, *, turns: int, seconds: float) -> Outcome:
        """Measure all ways at one point."""
        if point.step_ratio != self.step_ratio:
            self.step_ratio = point.step_ratio
            for stock in self._stocks:
                stock.play_at(point.step_ratio)
        self._rig.lay(point)
        outcome = Outcome(point, {way: [] for way in self.ways})
        for _ in range(turns):
            for way, step in self.ways.items():
                outcome.samples[way].append(measured(self._rig, step, seconds))
        return outcome


def check_line(rig: Rig, points: Iterable[Point]) -> list[tuple[object, ...]]:
    """Measure the line at every point against what it is set to."""
    rows = list[tuple[object, ...]]()
    for point in points:
        rig.lay(point)
        rtt_s, bit_per_s = probed(rig.line)
        rows.append((str(point), 1e3 * point.rtt_s, 1e3 * rtt_s, point.bit_per_s / 1e6, bit_per_s / 1e6))
    return rows


def rows_of(outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    """The table, a row for each way at each point."""
    return [
        (
            f"{outcome.point}: {name}",
            outcome.rate(way),
            outcome.limit(way),
            outcome.rate(way) / outcome.limit(way),
            statistics.median(sample.wire_bytes for sample in outcome.samples[way]),
            1e3 * statistics.median(sample.batch_s for sample in outcome.samples[NEAR[way]]),
            " ".join(f"{core:.0f}" for core in outcome.busy(way)) + ("*" if outcome.is_busy(way) else ""),
        )
        for outcome in outcomes
        for way, name in WAYS.items()
    ]


def figures_of(outcome: Outcome) -> dict[str, float]:
    """The ratios, each the median of those of the turns."""

    def ratio(over: Sequence[float], under: Sequence[float]) -> float:
        return statistics.median(a / b for a, b in zip(over, under, strict=True))

    return {
        "wan.over_blog": ratio(outcome.rates(TUNNEL_FULL), outcome.rates(BLOG)),
        "wan.small_over_direct": ratio(outcome.rates(TUNNEL_SMALL), outcome.rates(DIRECT_SMALL)),
        "wan.limit_small": ratio(outcome.rates(TUNNEL_SMALL), outcome.limits(TUNNEL_SMALL)),
        "wan.lanes_limit_small": ratio(outcome.rates(LANES), outcome.limits(LANES)),
    }


HEAD = ("", "steps/s", "limit", "of limit", "bytes/step", "T0 ms", "cores %")
NOTE = (
    f"{ENVS} environments of doapp stepped as a batch, practice engines with pre-rendered frames at published speed; notebook, "
    "line and host are one machine. The limit is N / (T0 + R + 8·N·b/W): T0 is the time of the same batch over direct "
    "connections without distance, measured in the same run, R the round trip, b the bytes a step on a line of W bit/s. "
    f"A star marks points where the cores were busy above {BUSY_PERCENT:.0f} %: there the processor is the limit, not the line."
)


def main() -> None:
    """Measure, print, draw, write; ``--quick`` takes one short turn at the main point and writes nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    chosen = parser.parse_args()
    points = POINTS[:1] if chosen.quick else POINTS
    with rig(3 * ENVS) as end:
        line_rows = check_line(end, points)
        print_table(
            "The line against its settings", ("", "ms set", "ms measured", "Mbit/s set", "Mbit/s measured"), line_rows
        )
        play = Play(end, step_ratio=points[0].step_ratio)
        outcomes = [play.at(one, turns=1 if chosen.quick else one.turns, seconds=chosen.seconds) for one in points]
    rows = rows_of(outcomes)
    print_table(f"{ENVS} environments of doapp (* both cores busy above {BUSY_PERCENT:.0f} %)", HEAD, rows)
    figures = figures_of(outcomes[0])
    print_table("Ratios", ("figure", "value"), list(figures.items()))
    if chosen.quick:
        return
    draw(
        PICTURE,
        points=[str(outcome.point) for outcome in outcomes],
        ways={
            name: [(outcome.rate(way), outcome.limit(way), outcome.is_busy(way)) for outcome in outcomes]
            for way, name in WAYS.items()
        },
    )
    write_results("wan", figures, head=HEAD, rows=rows, note=NOTE)


if __name__ == "__main__":
    main()
