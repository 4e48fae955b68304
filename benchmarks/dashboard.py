"""What the dashboard costs: the first page with 200 engines, and the host and its steps while a page watches 32 of them.

The page is a program that asks as the page's scripts do (its live stream, and pictures as soon as it is told to), because a
browser on this machine would take the cores that are measured. Watched and unwatched rounds take turns in one run: what else the
machine does meanwhile hits both alike.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPSConnection
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext
from urllib.parse import quote, urlencode

import psutil

from benchmarks._host import Caller, host, wait_ready
from benchmarks._report import print_table, write_results
from client_sdk import Cornerman, Lease
from client_sdk._url import parse
from client_sdk.lanes import Lanes, Method
from tests.support.play import Game
from tests.support.real_daemon import RealDaemon

ENGINES, WATCHED = 200, 32
ROUNDS, ROUND_S = 12, 8.0
PACE_S = 0.4  # between two steps of an engine that is only watched
LOADS = 30
SHAPE = (0, 0, 0)  # as the game draws: the dearest to show


class Visitor:
    """A logged-in browser's connection."""

    def __init__(self, url: str) -> None:
        target = parse(url)
        context = SSLContext(PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, CERT_NONE  # on loopback, to what this run started
        self._line = HTTPSConnection(target.host, target.port, context=context, timeout=60)
        self._cookie = ""
        text = self.get("/").decode()
        csrf = re.search(r'name="csrf" value="([^"]+)"', text)
        assert csrf is not None
        form = urlencode({"token": target.token.get_secret_value(), "csrf": csrf.group(1)})
        self._line.request(
            "POST", "/login", form, {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
        )
        self._answer(303)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Cookie": self._cookie}

    def _answer(self, status: int) -> bytes:
        response = self._line.getresponse()
        body = response.read()
        assert response.status == status, (response.status, body)
        if (cookie := response.getheader("Set-Cookie")) is not None:
            self._cookie = cookie.partition(";")[0]
        return body

    def get(self, path: str) -> bytes:
        """What is at ``path``."""
        self._line.request("GET", path, headers=self._headers)
        return self._answer(200)

    def load(self) -> tuple[float, int]:
        """The page and all that it names, one after the other: (seconds, bytes)."""
        began = time.perf_counter()
        page = self.get("/")
        size = len(page)
        for path in dict.fromkeys(re.findall(r"/dashboard/static/[0-9a-f]{12}/[\w.-]+", page.decode())):
            size += len(self.get(path))
        return time.perf_counter() - began, size

    def follow(self, stop: threading.Event) -> None:
        """Read the live stream until ``stop``."""
        self._line.request("GET", "/dashboard/stream", headers=self._headers)
        response = self._line.getresponse()
        with suppress(OSError, ValueError, AttributeError):  # closed while it reads
            while not stop.is_set() and response.read1(65536):
                pass

    def watch(self, engine_ids: list[str], stop: threading.Event) -> int:
        """Ask for pictures as the page's wall does until ``stop``; how many came."""
        marks, count = dict.fromkeys(engine_ids, ""), 0
        while not stop.is_set():
            query = "&".join(f"e={quote(f'{engine_id}:{mark}')}" for engine_id, mark in marks.items())
            found = json.loads(self.get(f"/dashboard/pictures?{query}"))
            for engine_id, shown in found["pictures"].items():
                marks[engine_id] = shown["mark"]
                count += "jpeg" in shown
            stop.wait(found["wait_s"])
        return count

    def close(self) -> None:
        """Hang up."""
        self._line.close()


def first_page() -> tuple[float, float, int]:
    """(median, slowest ms of a load, its bytes) with 200 simulated engines, half of them leased."""
    settings = {"runtime": '"fake"', "max_starting": "64", "requests_per_s": "10000.0", "log_level": '"warning"'}
    arguments = ("--runtime", "process", "--max-engines", str(ENGINES), "--min-ready", str(ENGINES))
    with host(*arguments, ports=ENGINES + 20, settings=settings) as daemon:
        caller = Caller(daemon.admin_url)
        wait_ready(caller, ENGINES)
        for _ in range(4):
            status, body = caller.call("POST", "/v1/leases", {"envs": ENGINES // 8, "ttl_s": 600})
            assert status == 201, body
        visitor = Visitor(daemon.admin_url)
        loads = [visitor.load() for _ in range(LOADS + 3)][3:]
        visitor.close()
        caller.close()
    times = [1000 * seconds for seconds, _ in loads]
    return statistics.median(times), max(times), loads[-1][1]


@contextmanager
def watching(daemon: RealDaemon, engine_ids: list[str]) -> Iterator[list[int]]:
    """A page looks at these engines inside the block; then the list has the number of pictures it got."""
    stop, counts = threading.Event(), list[int]()
    stream, wall = Visitor(daemon.admin_url), Visitor(daemon.admin_url)
    threads = [
        threading.Thread(target=stream.follow, args=(stop,), daemon=True),
        threading.Thread(target=lambda: counts.append(wall.watch(engine_ids, stop))),
    ]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        threads[1].join()
        stream.close()
        wall.close()
        threads[0].join(3)


class Players:
    """Steps all engines of a lease now and then, and the first one without pause, whose steps are timed."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        for rank in lanes.ranks:
            game = Game(lambda method, request, rank=rank: lanes.call(rank, method, request).data, frame_shape=SHAPE)  # type: ignore[misc]
            game.make()
            game.reset()
        self._others = [(rank, Method.STEP, Game.step_request()) for rank in lanes.ranks[1:]]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _go(self) -> None:
        while not self._stop.wait(PACE_S):
            self._lanes.wait(self._lanes.begin(self._others))

    def steps_ms(self, seconds: float) -> list[float]:
        """Milliseconds of each step of the first engine in that time."""
        took, end = list[float](), time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            self._lanes.call(self._lanes.ranks[0], Method.STEP, Game.step_request())
            took.append(1000 * (time.perf_counter() - began))
        return took

    def close(self) -> None:
        """No more."""
        self._stop.set()
        self._thread.join()


def one_round(players: Players, pids: list[int]) -> tuple[float, float]:
    """(median ms of a step, percent of a core of the daemon's processes)."""
    processes = [psutil.Process(pid) for pid in pids]
    before, began = sum(sum(one.cpu_times()[:2]) for one in processes), time.perf_counter()
    took = players.steps_ms(ROUND_S)
    spent = sum(sum(one.cpu_times()[:2]) for one in processes) - before
    return statistics.median(took), 100 * spent / (time.perf_counter() - began)


def watched(rounds: int, count: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]], float]:
    """Rounds (step ms, CPU percent) without and with a page that watches, and pictures a second of each engine."""
    most = str(count)
    environ = {"CORNERMAN_PRACTICE_FPS": "published"}
    plain, seen, pictures = list[tuple[float, float]](), list[tuple[float, float]](), 0
    with ExitStack() as undo:
        daemon = undo.enter_context(
            host("--runtime", "process", "--min-ready", most, "--max-engines", most, ports=count + 20, environ=environ)
        )
        caller = Caller(daemon.admin_url)
        undo.callback(caller.close)
        wait_ready(caller, count, within_s=240)
        lease: Lease = undo.enter_context(Cornerman(daemon.url, quiet=True).lease(envs=count, via="tunnel"))
        lanes = undo.enter_context(Lanes.of(lease))
        players = Players(lanes)
        undo.callback(players.close)
        engine_ids = [str(env.engine_id) for env in lease.model.envs]
        pids = [pid for pid, line in daemon.family().items() if "practice_engine" not in line]
        for number in range(rounds + 1):
            for watches in (True, False) if number % 2 else (False, True):
                if watches:
                    with watching(daemon, engine_ids) as counts:
                        found = one_round(players, pids)
                    pictures += counts[0] if number else 0
                else:
                    found = one_round(players, pids)
                if number:  # the first one warms up
                    (seen if watches else plain).append(found)
    return plain, seen, pictures / (rounds * ROUND_S * count)


def main() -> int:
    """Measure, print, write."""
    rounds, count = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (ROUNDS, WATCHED)  # fewer to try it out
    page_ms, slowest_ms, size = first_page()
    plain, seen, per_s = watched(rounds, count)
    slowdown = statistics.median(two[0] / one[0] for one, two in zip(plain, seen, strict=True))
    cpu = statistics.median(two[1] - one[1] for one, two in zip(plain, seen, strict=True))
    figures = {
        "dashboard.first_page_ms": page_ms,
        "dashboard.first_page_slowest_ms": slowest_ms,
        "dashboard.page_bytes": size,
        "dashboard.watch_cpu_percent": cpu,
        "dashboard.step_slowdown": slowdown,
        "dashboard.pictures_per_s": per_s,
    }
    print_table(
        f"{count} engines, rounds of {ROUND_S:g} s in turn",
        ("", "step ms", "daemon's CPU %"),
        [
            (name, statistics.median(one[0] for one in found), statistics.median(one[1] for one in found))
            for name, found in (("nobody watches", plain), ("a page watches", seen))
        ],
    )
    print_table("Figures", ("figure", "value"), list(figures.items()))
    write_results(
        "dashboard",
        figures,
        note=f"A page that watches {count} engines at 480x512x3, {rounds} rounds of {ROUND_S:g} s with and without it in turn.",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
