"""How fast the API leases: a warm lease beside an empty authorised GET, at 50 a second and flat out.

Engines are simulated, and recycle = "reuse" keeps them warm: a released one is ready again at once, and the API alone is measured.
The closed loop runs once more with "per-lease", where every pair also makes the pool end one engine and start another.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Iterator

from benchmarks._host import Caller, at_rate, closed_loop, host, percentile, wait_ready
from benchmarks._report import print_table, write_results

CLIENTS, PER_S, OFFERED, PAIRS = 16, 50.0, 1000, 10_000
GET_S = 10.0
SETTINGS = {"runtime": '"fake"', "requests_per_s": "100000.0", "max_starting": "32", "log_level": '"warning"'}
EMPTY = "/v1/whoami"  # the smallest authorised call there is


def get(caller: Caller) -> float:
    """One empty authorised GET, in seconds."""
    began = time.perf_counter()
    status, _ = caller.call("GET", EMPTY)
    took = time.perf_counter() - began
    assert status == 200, status
    return took


def lease(caller: Caller) -> float:
    """One lease of one warm engine, in seconds; its release is not timed."""
    began = time.perf_counter()
    status, body = caller.call("POST", "/v1/leases", {"envs": 1})
    took = time.perf_counter() - began
    assert status == 201, body
    status, _ = caller.call("DELETE", f"/v1/leases/{json.loads(body)['id']}")
    assert status == 204, status
    return took


def pair(caller: Caller) -> None:
    """One lease and its release; when all engines are on their way, wait as a client does."""
    while True:
        status, body = caller.call("POST", "/v1/leases", {"envs": 1})
        if status == 201:
            break
        assert status == 409, body
        time.sleep(0.005)
    status, _ = caller.call("DELETE", f"/v1/leases/{json.loads(body)['id']}")
    assert status == 204, status


@contextlib.contextmanager
def callers_of(**settings: str) -> Iterator[list[Caller]]:
    """Connections to a daemon with 120 simulated engines ready."""
    arguments = ("--runtime", "process", "--max-engines", "400", "--min-ready", "120")
    with host(*arguments, ports=420, settings={**SETTINGS, **settings}) as daemon:
        callers = [Caller(daemon.url) for _ in range(CLIENTS)]
        wait_ready(callers[0], 120)
        yield callers
        for caller in callers:
            caller.close()


def offered(callers: list[Caller]) -> tuple[list[float], list[float]]:
    """Seconds of GETs and of leases, both offered at the same rate, in turn, so that a noisy moment falls on both."""
    at_rate(PER_S, 100, callers, get)  # warm up
    at_rate(PER_S, 100, callers, lease)
    gets, leases = list[float](), list[float]()
    for _ in range(4):
        gets += at_rate(PER_S, OFFERED // 4, callers, get)
        leases += at_rate(PER_S, OFFERED // 4, callers, lease)
    return gets, leases


def flat_out(callers: list[Caller], pairs: int) -> tuple[float, float, float]:
    """(GETs a second, pairs a second, seconds of the slowest pair); the GETs are measured before and after."""
    rates = [closed_loop(GET_S / 2, 10**9, callers, _get)[0]]
    pair_rate, took = closed_loop(600.0, pairs, callers, pair)
    rates.append(closed_loop(GET_S / 2, 10**9, callers, _get)[0])
    return statistics.mean(rates), pair_rate, max(took)


def _get(caller: Caller) -> None:
    get(caller)


def main() -> None:
    """Measure, print, write."""
    with callers_of(recycle='"reuse"', max_uses="1000000") as callers:
        gets, leases = offered(callers)
        reused = flat_out(callers, PAIRS)
    with callers_of() as callers:
        fresh = flat_out(callers, PAIRS // 10)
    rows = [
        (name, 1000 * percentile(values, 0.5), 1000 * percentile(values, 0.99), 1000 * max(values))
        for name, values in (("empty GET", gets), ("warm lease", leases))
    ]
    print_table(f"{PER_S:.0f} offered a second, ms", ("", "p50", "p99", "slowest"), rows)
    print_table(
        f"{CLIENTS} clients, closed loop",
        ("recycle", "GETs a second", "pairs a second", "ratio", "slowest pair, ms"),
        [
            (name, get, pairs, pairs / get, 1000 * slowest)
            for name, (get, pairs, slowest) in (("reuse", reused), ("per-lease", fresh))
        ],
    )
    figures = {
        "lease.p50_over_get": rows[1][1] / rows[0][1],
        "lease.p99_over_get": rows[1][2] / rows[0][2],
        "lease.pairs_over_get": reused[1] / reused[0],
        "lease.slowest_s": reused[2],
        "lease.pairs_over_get_per_lease": fresh[1] / fresh[0],
        "lease.slowest_s_per_lease": fresh[2],
    }
    write_results("lease", figures)
    print_table("Ratios", ("figure", "value"), list(figures.items()))


if __name__ == "__main__":
    main()
