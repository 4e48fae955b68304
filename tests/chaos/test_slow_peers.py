"""Peers that are silent, half-way through something, or that never read: leases live on beside them."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.api_server import ApiServer, Client, renew_for
from tests.support.waiting import wait_until

FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """A running API process with twenty engines ready."""
    server = ApiServer(tmp_path, engine_count=20)
    server.start()
    yield server
    server.stop()


def _silent(server: ApiServer) -> socket.socket:
    """Connects, and says nothing."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def _half_hello(server: ApiServer) -> socket.socket:
    """Begins a TLS hello, and leaves it at that."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = server.context.wrap_bio(incoming, outgoing, server_hostname="cornerman.internal")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    peer = _silent(server)
    peer.sendall(outgoing.read()[:40])
    return peer


def _half_request(server: ApiServer) -> socket.socket:
    """Shakes hands, and sends half a request."""
    peer = server.connect()
    peer.sendall(b"GET /v1/whoami HTTP/1.1\r\nHost: corner")
    return peer


def test_500_silent_connections_and_200_long_polls_cost_no_lease(server: ApiServer) -> None:
    """500 silent, half-open or idle connections and 200 long polls are there, and twenty leases are renewed without delay."""
    with contextlib.ExitStack() as undo:
        kinds = (_silent, _half_hello, ApiServer.connect, _half_request)
        peers = [undo.enter_context(contextlib.closing(kinds[number % 4](server))) for number in range(500)]
        with server.client(server.admin) as client:
            _, waiting = client.call("POST", "/v1/leases", {"envs": 400, "wait": True, "ttl_s": 600})
            client.call("PATCH", "/v1/pools/main", {"paused": False})
        pollers = [undo.enter_context(server.client(server.admin)) for _ in range(200)]
        for poller in pollers:
            poller.send("GET", f"/v1/leases/{waiting['id']}?wait_s=30")
        assert renew_for(server, seconds=8, leases=20) < 1.5
        assert len(peers) == 500
        statuses = [poller.receive()[0] for poller in pollers]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= server.config.server.streams
    with server.client() as client:
        assert client.call("GET", "/v1/whoami")[0] == 200


def test_listeners_that_never_read_hold_up_nobody(server: ApiServer) -> None:
    """Event streams whose listeners stop reading take no more than their share, and the process still ends at once."""
    with contextlib.ExitStack() as undo:
        for _ in range(server.config.server.streams):
            deaf = undo.enter_context(server.client(server.admin))
            deaf.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.send("GET", "/v1/events", Accept="text/event-stream")
        client = undo.enter_context(server.client(server.admin))
        wait_until(
            lambda: client.call("GET", "/v1/events", Accept="text/event-stream")[0] == 503, 20, what="all streams taken"
        )
        for number in range(300):
            note = "x" * 800
            client.call("POST", "/v1/tokens", {"principal": f"p{number}", "note": note})
        assert renew_for(server, seconds=3, leases=4) < 1.5
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(10) == 0
        assert time.monotonic() - began < 5


def _begin_login(server: ApiServer, source: str) -> ssl.SSLSocket:
    """Sends the head of a log-in, and none of its form."""
    peer = server.connect(source=source)
    peer.sendall(f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\nContent-Length: 500\r\n\r\n".encode())
    return peer


def _log_in(server: ApiServer, source: str) -> int:
    """The status of a whole log-in."""
    with contextlib.closing(server.connect(source=source)) as connection:
        client = Client(connection, None)
        client.send("GET", "/")
        _, headers, page = client.receive()
        secret = re.search(rb'name="csrf" value="([^"]+)"', page)
        assert secret is not None
        form = urlencode({"token": server.lease, "csrf": secret[1].decode()})
        cookie = headers["Set-Cookie"].partition(";")[0]
        head = f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\nContent-Length: {len(form)}\r\nCookie: {cookie}"
        connection.sendall(f"{head}\r\n\r\n{form}".encode())
        return client.receive()[0]


def test_logins_that_never_arrive_hold_up_nobody(server: ApiServer) -> None:
    """Strangers need no token to begin a log-in: however many never send their form, calls and leases go on, and others log in."""
    with contextlib.ExitStack() as undo:
        for number in range(60):  # five from each of twelve addresses
            undo.enter_context(contextlib.closing(_begin_login(server, f"127.0.0.{2 + number // 5}")))
        for _ in range(10):
            with server.client() as client:
                assert client.call("GET", "/v1/whoami")[0] == 200
                status, lease = client.call("POST", "/v1/leases", {"envs": 1})
                assert status == 201
                assert client.call("DELETE", f"/v1/leases/{lease['id']}")[0] == 204
        assert _log_in(server, "127.0.0.1") == 303
