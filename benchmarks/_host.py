"""A host of a benchmark's own: init, serve, and plain TLS connections that cost the client next to nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from client_sdk._url import Target, parse
from tests.support.real_daemon import RealDaemon, set_up


@contextlib.contextmanager
def host(
    *arguments: str,
    ports: int = 40,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[RealDaemon]:
    """A running daemon in a temporary folder; it is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="cornerman-bench-") as folder:
        daemon = set_up(Path(folder), *arguments, ports=ports, settings=settings, environ=environ)
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.close()


class Caller:
    """One keep-alive TLS connection to the API."""

    def __init__(self, url: str) -> None:
        self._target: Target = parse(url)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # on loopback, to what this run started
        plain = socket.create_connection((self._target.host, self._target.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain)
        self._file = self._socket.makefile("rb")
        self._head = f"Host: bench\r\nAuthorization: Bearer {self._target.token.get_secret_value()}\r\n"

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """One call: status and body."""
        data = json.dumps(body).encode() if body is not None else b""
        kind = "Content-Type: application/json\r\n" if body is not None else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{kind}Content-Length: {len(data)}\r\n\r\n"
        self._socket.sendall(head.encode() + data)
        status = int(self._file.readline().split()[1])
        length = 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, self._file.read(length) if length else b""

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()


def as_json(answer: tuple[int, bytes]) -> Any:
    """The body of an answer that is no refusal."""
    status, body = answer
    if status >= 400:
        raise SystemExit(f"The API refused with {status}: {body.decode()}")
    return json.loads(body)


def pool_counts(caller: Caller) -> dict[str, int]:
    """Engines of the first pool by state."""
    counts: dict[str, int] = as_json(caller.call("GET", "/v1/pools"))["pools"][0]["counts"]
    return counts


def wait_ready(caller: Caller, count: int, *, within_s: float = 90.0) -> None:
    """Wait until the first pool has that many engines ready."""
    deadline = time.monotonic() + within_s
    while pool_counts(caller)["ready"] < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"The pool did not fill: {pool_counts(caller)}")
        time.sleep(0.1)


def at_rate(per_s: float, count: int, callers: list[Caller], work: Callable[[Caller], float]) -> list[float]:
    """Let ``count`` pieces of work begin at fixed times, whatever the earlier ones take; the seconds that each returned."""
    took: list[float] = []
    lock, numbers, start = threading.Lock(), iter(range(count)), time.perf_counter() + 0.1

    def go(caller: Caller) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, start + number / per_s - time.perf_counter()))
            seconds = work(caller)
            with lock:
                took.append(seconds)

    _together(go, callers)
    return took


def closed_loop(
    seconds: float, most: int, callers: list[Caller], work: Callable[[Caller], None]
) -> tuple[float, list[float]]:
    """Every caller works without pause until the time is over or ``most`` is done: (rate in all, seconds of each piece)."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    def go(caller: Caller) -> None:
        while (began := time.perf_counter()) < end and len(took) < most:
            work(caller)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    _together(go, callers)
    return len(took) / (time.perf_counter() - began), took


def _together(go: Callable[[Caller], None], callers: list[Caller]) -> None:
    threads = [threading.Thread(target=go, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of all lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def usage(pids: list[int], seconds: float) -> tuple[float, float]:
    """(percent of a core, resident MB in all) of these processes over that time."""
    processes = [psutil.Process(pid) for pid in pids]
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    began = time.perf_counter()
    time.sleep(seconds)
    spent = sum(sum(process.cpu_times()[:2]) for process in processes) - before
    return 100 * spent / (time.perf_counter() - began), sum(process.memory_info().rss for process in processes) / 2**20
