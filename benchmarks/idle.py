"""What 100 idle engines cost the host: CPU and memory of the daemon (pool and API); beside it the relay, a unit of its own.

Engines are simulated.
"""

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
        names = {pid: _name(line) for pid, line in daemon.family().items()}
        rows = [(name, *usage([pid], MEASURE_S / 2)) for pid, name in names.items()]
        daemon_pids = [pid for pid, name in names.items() if name != "relay"]
        cpu_percent, rss_mb = usage(daemon_pids, MEASURE_S)
    print_table(
        f"{ENGINES} idle engines", ("process", "% of a core", "MB"), [*rows, ("pool + API", cpu_percent, rss_mb)]
    )
    figures = {"idle.cpu_percent": cpu_percent, "idle.rss_mb": rss_mb}
    for name, percent, megabytes in rows:
        figures |= {f"idle.{name}_cpu_percent": percent, f"idle.{name}_rss_mb": megabytes}
    write_results("idle", figures)


def _name(line: str) -> str:
    return "api" if "api.server" in line else "relay" if "orchestrator.relay" in line else "pool"


if __name__ == "__main__":
    main()
