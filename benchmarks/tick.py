"""What one round of the pool costs with 100 and with 1,000 simulated engines, a tenth of them leased; no processes, no sockets."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks._report import print_table, write_results
from client_sdk.models import EngineState, Scope
from orchestrator import config as configuration
from orchestrator.leasing import Ask, Leasing
from orchestrator.model import Caller
from orchestrator.policies import policies
from orchestrator.pool import PoolService
from orchestrator.runtimes.fake import FakeRuntime
from orchestrator.store import engines, meta
from orchestrator.store.database import Database

SIZES, ROUNDS, STEADY_S = (100, 1000), 60, 20.0


class Bench:
    """A pool of ``size`` ready engines, without a daemon around it."""

    def __init__(self, folder: Path, size: int) -> None:
        self.config = configuration.build(
            {
                "state_dir": folder,
                "first_port": 20000,
                "last_port": 21999,
                "pools": {
                    "default": {
                        "runtime": "fake",
                        "image": "fake",
                        "min_ready": size - size // 10,
                        "max_engines": size,
                        "max_starting": 64,
                    }
                },
            }
        )
        self.database = Database.open(self.config.database)
        with self.database.write() as db:
            instance = meta.instance(db)
        runtime, by_pool = FakeRuntime(instance), policies(self.config)
        self.leasing = Leasing(self.database, by_pool, time.time)
        self.pool = PoolService(
            database=self.database,
            config=self.config,
            policies=by_pool,
            runtimes={"fake": runtime},
            probe=runtime.probe,
            leasing=self.leasing,
            instance=instance,
        )
        self.size = size

    def fill(self) -> None:
        """Tick until every engine is there, and lease a tenth of them."""
        self.pool.prepare()
        caller = Caller("bench", Scope.LEASE)
        for _ in range(self.size // 10):
            self.leasing.acquire(caller, Ask(envs=1, pool="default", ttl_s=3600.0, wait=True))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            self.pool.tick()
            with self.database.read() as db:
                states = [engine.state for engine in engines.live(db)]
            if states.count(EngineState.READY) + states.count(EngineState.LEASED) == self.size:
                return
            time.sleep(0.02)
        raise SystemExit(f"The pool did not fill: {len(states)} of {self.size}")

    def tick_ms(self) -> list[float]:
        """CPU milliseconds of each of some rounds in which nothing happens."""
        took = []
        for _ in range(ROUNDS):
            began = time.thread_time()
            self.pool.tick()
            took.append(1000 * (time.thread_time() - began))
        return took

    def cpu_percent(self) -> float:
        """Percent of a core that the running loop takes in all, listings and probes included."""
        stop = threading.Event()
        thread = threading.Thread(target=self.pool.run, args=(stop, lambda: None))
        thread.start()
        began, spent = time.perf_counter(), time.process_time()
        time.sleep(STEADY_S)
        percent = 100 * (time.process_time() - spent) / (time.perf_counter() - began)
        stop.set()
        thread.join()
        return percent

    def close(self) -> None:
        """End it."""
        self.pool.close()
        self.database.close()


def main() -> None:
    """Measure, print, write."""
    rows = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="cornerman-bench-") as folder:
            bench = Bench(Path(folder), size)
            try:
                bench.fill()
                rows.append((str(size), statistics.median(bench.tick_ms()), bench.cpu_percent()))
            finally:
                bench.close()
    print_table("Rounds in which nothing happens", ("engines", "tick, CPU ms", "loop, % of a core"), rows)
    figures = {"tick.growth_100_1000": rows[1][1] / rows[0][1], "tick.cpu_percent_1000": rows[1][2]}
    write_results("tick", figures)
    print_table("Ratios", ("figure", "value"), list(figures.items()))


if __name__ == "__main__":
    main()
