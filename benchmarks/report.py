"""Writes docs/benchmarks.md from benchmarks/results/*.json: each figure beside the aim it is held to."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REPORT = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Aim:
    """What one figure means, and the bound it should keep: at most ``most``, at least ``least``."""

    text: str
    most: float | None = None
    least: float | None = None

    def kept_by(self, figure: float) -> bool:
        """Whether ``figure`` is on the right side of the bound."""
        return (self.most is None or figure <= self.most) and (self.least is None or figure >= self.least)

    def bound(self) -> str:
        """The bound in words."""
        if self.most is not None:
            return f"at most {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else ""


AIMS = {
    "relay.over_direct_small": Aim(
        "Loopback: a step at published speed through tunnel and relay, as a multiple of a direct one, 128x128x1",
        most=1.05,
    ),
    "relay.over_direct_full": Aim("The same with 480x512x3", most=1.12),
    "relay.over_direct_unlimited": Aim("The same with an unlimited engine, 128x128x1", most=2.6),
    "relay.lanes_over_direct_unlimited": Aim("The same, 12 environments by lanes in process", most=1.2),
    "relay.cpu_ms_small": Aim("CPU of the relay for a step of 128x128x1, in ms", most=0.5),
    "relay.cpu_ms_full": Aim("The same for 480x512x3", most=2.5),
    "frames.ratio": Aim("Full frames of the practice engine's fights shrink to 1/", least=30),
    "lease.p50_over_get": Aim("Warm lease at 50 a second: p50, as a multiple of an empty authorised GET's", most=1.5),
    "lease.p99_over_get": Aim("The same, p99", most=2.5),
    "lease.pairs_over_get": Aim(
        "Lease and release pairs of 16 clients, closed loop: share of that GET's rate", least=0.35
    ),
    "lease.slowest_s": Aim("The slowest of 10,000 such pairs, in seconds", most=1.0),
    "pool.fill_ratio": Aim("Filling a pool of 16 containers, as a multiple of the Docker SDK alone", most=1.2),
    "heal.seconds_p95": Aim("A killed engine of an active lease is replaced and answers: p95, in seconds", most=1.5),
    "tick.growth_100_1000": Aim("Growth of a tick's cost from 100 to 1,000 simulated engines", most=12),
    "tick.cpu_percent_1000": Aim("1,000 simulated engines: percent of a core", most=5),
    "idle.cpu_percent": Aim("100 idle engines: percent of a core", most=1),
    "idle.rss_mb": Aim("100 idle engines: resident memory, in MB", most=150),
    "engine.fps_small": Aim("Practice engine in process on one core, 128x128x1: frames a second", least=2000),
    "engine.fps_full": Aim("The same at 480x512x3", least=400),
    "engine.grpc_ratio": Aim(
        "Practice engine through gRPC: share of the rate of an empty call of as many bytes", least=0.5
    ),
    "dashboard.first_page_ms": Aim("Dashboard with 200 engines, page and all its files on loopback, in ms", most=150),
    "dashboard.page_bytes": Aim("The same in bytes", most=200_000),
    "dashboard.watch_cpu_percent": Aim("A page watching 32 engines: percent of a core", most=5),
    "dashboard.step_slowdown": Aim("A step while that page watches, as a multiple of one without", most=1.03),
    "wan.over_blog": Aim("30 ms, 100 Mbit/s, step_ratio 6, stock script: tunnel over open ports, full frames", least=5),
    "wan.small_over_direct": Aim("The same with 128x128x1 frames", least=0.95),
    "wan.limit_small": Aim("The tunnel's share of what is possible, 128x128x1", least=0.8),
    "wan.lanes_limit_small": Aim("The same of lanes in process", least=0.88),
    "tune.prediction_error": Aim(
        "The farthest that a predicted speed is off what is reached, stepped together", most=0.15
    ),
    "tune.groups_prediction_error": Aim("The same in groups", most=0.15),
    "vec.sync_limit": Aim("Vector, a batch at a time, 30 ms, 128x128x1: share of what is possible", least=0.88),
    "vec.sync_limit_ratio1": Aim("The same at step_ratio 1", least=0.75),
    "vec.async_limit": Aim("Vector, whoever is ready: share of N / (R + t)", least=0.9),
    "vec.async_limit_ratio1": Aim("The same at step_ratio 1", least=0.85),
    "vec.async_over_sync_resets": Aim(
        "With resets of 3 s in the mix: whoever is ready over a batch at a time", least=1.5
    ),
    "vec.full_over_blog": Aim("Full frames, 100 Mbit/s: whoever is ready over the blog's way", least=6.5),
    "vec.over_threadpool_loopback": Aim(
        "Loopback, unlimited engines, 84x84x1: over the stock client with a thread pool", least=1.2
    ),
    "vec.client_cpu_ratio": Aim(
        "CPU of the client for a batch of 12 small frames: share of the stock client's", most=0.4
    ),
    "vec.heal_s_spares1": Aim(
        "Seconds a batch waits for one whose engine was killed, EnvInit of 2 s, with a spare", most=1
    ),
    "vec.min_over_async": Aim("4 to 16 environments, 30 ms: over AsyncVectorEnv, the worst of them", least=1),
    "vec.min_over_subproc": Aim("The same over SubprocVecEnv", least=1),
    "ppo.wan_over_local": Aim("PPO over 30 ms: its time as a multiple of that without distance", most=1.5),
    "ppo.reward_difference": Aim("Difference of the mean rewards that both reach", most=0.05),
}


def main() -> int:
    """Read every result, write the page, and say how many figures keep their aim; exit code 1 without any result."""
    results = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    if not results:
        print(f"There are no results in {RESULTS}: run 'make bench' first.", file=sys.stderr)
        return 1
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(page(results))
    figures = {key: value for result in results.values() for key, value in result["figures"].items()}
    judged = [AIMS[key].kept_by(value) for key, value in figures.items() if key in AIMS]
    print(f"{REPORT.relative_to(ROOT)}: {sum(judged)} of {len(judged)} figures keep their aim")
    for key in AIMS:
        if key not in figures:
            print(f"  not measured: {key}")
    return 0


def page(results: dict[str, dict[str, Any]]) -> str:
    """The whole page in Markdown for ``results``, which maps a benchmark's name to what it wrote."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench` from `benchmarks/results/*.json`; do not edit. Each ratio has both its",
        "sides measured in one run. Figures of different runs compare only on the same machine.",
        "",
    ]
    for name, result in results.items():
        lines += [f"## {name}", "", f"Machine: {_machine(result['machine'])}", ""]
        lines += ["| figure | key | measured | aim | kept |", "|---|---|---|---|---|"]
        lines += [_row(key, value) for key, value in result["figures"].items()]
        lines += ["", *_more(name, result)]
    return "\n".join(lines)


def _more(name: str, result: dict[str, Any]) -> list[str]:
    """What a benchmark has to show besides its figures: how it was measured, a picture, a table."""
    lines = list[str]()
    if "note" in result:
        lines += [result["note"], ""]
    if (PICTURES / f"{name}.png").is_file():
        lines += [f"![{name}](images/{name}.png)", ""]
    if "table" in result:
        rows = [result["table"]["head"], ["---"] * len(result["table"]["head"]), *result["table"]["rows"]]
        lines += [*(f"| {' | '.join(cell.replace('*', chr(92) + '*') for cell in row)} |" for row in rows), ""]
    return lines


def _row(key: str, value: float) -> str:
    aim = AIMS.get(key)
    if aim is None:
        return f"| | `{key}` | {_number(value)} | | |"
    return f"| {aim.text} | `{key}` | {_number(value)} | {aim.bound()} | {'yes' if aim.kept_by(value) else '**no**'} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _machine(machine: str | dict[str, Any]) -> str:
    return machine if isinstance(machine, str) else ", ".join(f"{key} {value}" for key, value in machine.items())


if __name__ == "__main__":
    sys.exit(main())
