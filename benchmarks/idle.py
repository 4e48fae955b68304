"""What 100 idle engines cost the host: CPU and memory of the pool's and the API's processes. Engines are simulated."""

from __future__ import annotations

import time

from benchmarks._host import Caller, host, usage, wait_ready
from benchmarks._report import print_table, write_results

ENGINES, SETTLE_S, MEASURE_S = 100, 10.0, 60.0
SETTINGS = {"runtime": '"fake"', "max_starting": "32", "log_level": '"warning"'}


def main() -> None:
    """Measure, print, write."""
    arguments = ("--runtime", "process", "--max-engines", str(ENGINES + 20), "--min-ready", str(ENGINES))
    with host(*arguments, ports=ENGINES + 40, settings=SETTINGS) as daemon:
        caller = Caller(daemon.url)
        wait_ready(caller, ENGINES)
        caller.close()
        time.sleep(SETTLE_S)
        rows = []
        for pid, line in sorted(daemon.family().items()):
            rows.append((line[-60:], *usage([pid], MEASURE_S / 4)))
        cpu_percent, rss_mb = usage(list(daemon.family()), MEASURE_S)
    print_table(f"{ENGINES} idle engines", ("process", "% of a core", "MB"), [*rows, ("in all", cpu_percent, rss_mb)])
    write_results("idle", {"idle.cpu_percent": cpu_percent, "idle.rss_mb": rss_mb})


if __name__ == "__main__":
    main()
