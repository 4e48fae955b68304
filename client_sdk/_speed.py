"""How fast the line from the host is: bytes that the relay sends for nothing else, timed as they come."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from client_sdk._reach import Route
from client_sdk.wire import PROBE_SUFFIX

CONNECT_WITHIN_S, WATCH_S = 5.0, 1.5
CHUNK_BYTES = 256 * 1024
Arrivals = Sequence[tuple[float, int]]


def bit_per_s(route: Route, *, now: Callable[[], float] = time.perf_counter) -> float | None:
    """Bit/s from the relay to here over one connection; None where that cannot be measured (an older relay, a proxy)."""
    if route.proxy is not None:
        return None
    with contextlib.suppress(OSError):
        return rate_of(_arrivals(route, now))
    return None


def rate_of(arrivals: Arrivals) -> float | None:
    """Bit/s of what came, each entry a time and the bytes so far: of the later two thirds, when TCP has found its pace."""
    total = arrivals[-1][1] if arrivals else 0
    later = [(at, count) for at, count in arrivals if count >= total / 3]
    if len(later) < 2 or later[-1][0] <= later[0][0]:
        return None
    (began, first), (ended, last) = later[0], later[-1]
    return 8 * (last - first) / (ended - began)


def _arrivals(route: Route, now: Callable[[], float]) -> Arrivals:
    parts = urlsplit(route.url)
    host = parts.hostname or ""
    request = f"GET {parts.path}{PROBE_SUFFIX} HTTP/1.1\r\nHost: {route.authority}\r\nAuthorization: Bearer {route.token}\r\n\r\n"
    found: list[tuple[float, int]] = []
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(socket.create_connection((host, route.port), CONNECT_WITHIN_S))
        if route.trusting is not None:
            peer = stack.enter_context(route.trusting.wrap_socket(peer, server_hostname=route.server_hostname))
        peer.sendall(request.encode())
        head = peer.recv(CHUNK_BYTES)
        if b" 200 " not in head[:20]:
            return found
        count, deadline = len(head), now() + WATCH_S
        while now() < deadline and (chunk := peer.recv(CHUNK_BYTES)):
            count += len(chunk)
            found.append((now(), count))
    return found
