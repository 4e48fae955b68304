"""The API as it is served: over TLS, from one process, that ends when it should and that no peer can hold up."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.lanes import ARRIVING
from tests.support.api_server import ApiServer, renew_for
from tests.support.waiting import wait_until

Serve = Callable[..., ApiServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts API processes, and ends them."""
    with contextlib.ExitStack() as undo:

        def start(**settings: Any) -> ApiServer:
            server = ApiServer(tmp_path, **settings)
            undo.callback(server.stop)
            server.start()
            return server

        yield start


def test_a_lease_lives_its_life_over_tls(serve: Serve) -> None:
    """Leasing, renewing, replacing and releasing over TLS under the host's own CA, with one keep-alive connection."""
    server = serve(engine_count=3)
    with server.client() as client:
        status, lease = client.call("POST", "/v1/leases", {"envs": 2}, Idempotency_Key="k")
        assert (status, lease["state"], len(lease["envs"])) == (201, "active", 2)
        path = f"/v1/leases/{lease['id']}"
        assert client.call("POST", "/v1/leases", {"envs": 2}, Idempotency_Key="k") == (200, lease)
        assert client.call("POST", f"{path}/renew")[0] == 200
        status, lease = client.call("POST", f"{path}/envs/1/replace", {"generation": 1, "reason": "hung"})
        assert (status, lease["envs"][1]["generation"]) == (200, 2)
        assert client.call("DELETE", path) == (204, None)
        assert client.call("GET", path)[1]["state"] == "released"
        assert client.call("GET", "/v1/leases/%E2%82%AC/%ff%00")[0] == 404


def test_an_answer_does_not_wait_for_the_network(serve: Serve) -> None:
    """Small answers leave at once: the quickest of many calls takes nowhere near the 40 ms of a delayed acknowledgement."""
    server = serve()
    took = []
    with server.client() as client:
        for _ in range(30):
            began = time.monotonic()
            assert client.call("GET", "/v1/whoami")[0] == 200
            took.append(time.monotonic() - began)
    assert min(took) < 0.03
    assert sorted(took)[10] < 0.04


def test_only_tls_is_spoken(serve: Serve) -> None:
    """Plain HTTP gets no answer, and a client that trusts other CAs refuses the host."""
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"200" not in plain.recv(4096)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(raw, server_hostname="cornerman.internal")


def test_the_api_is_one_process(serve: Serve) -> None:
    """Serving takes one process, of modest size."""
    server = serve()
    pid = server.process.pid
    children = [Path(f"/proc/{pid}/task/{task.name}/children") for task in Path(f"/proc/{pid}/task").iterdir()]
    assert "".join(child.read_text() for child in children).split() == []
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) < 120_000


def _open_streams(server: ApiServer, undo: contextlib.ExitStack) -> None:
    """An event stream and a long poll that are under way."""
    stream = undo.enter_context(server.client(server.admin))
    stream.send("GET", "/v1/events", Accept="text/event-stream")
    assert b"200" in stream.connection.recv(4096)
    poll = undo.enter_context(server.client())
    _, lease = poll.call("POST", "/v1/leases", {"envs": 400, "wait": True})
    poll.send("GET", f"/v1/leases/{lease['id']}?wait_s=30")


@pytest.mark.parametrize("ask", ["SIGTERM", "SIGINT", "stdin"])
def test_the_process_ends_quickly_when_told_to(serve: Serve, ask: str) -> None:
    """SIGTERM, SIGINT, or the end of standard input (whoever started it has gone) end it, streams and long polls first."""
    server = serve()
    with contextlib.ExitStack() as undo:
        _open_streams(server, undo)
        began = time.monotonic()
        if ask == "stdin":
            assert server.process.stdin is not None
            server.process.stdin.close()
        else:
            server.process.send_signal(getattr(signal, ask))
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 8  # a long poll takes 30, a stream for ever


def test_sighup_changes_nothing(serve: Serve) -> None:
    """SIGHUP is not a reason to start anything anew."""
    server = serve()
    server.process.send_signal(signal.SIGHUP)
    with server.client() as client:
        for _ in range(5):
            assert client.call("GET", "/v1/whoami")[0] == 200
    assert server.process.poll() is None


def _says(server: ApiServer) -> tuple[int, str]:
    process = server.spawn()
    code = process.wait(30)
    return code, server.log.read_text().strip().splitlines()[-1]


def test_what_keeps_it_from_serving_is_one_sentence(tmp_path: Path) -> None:
    """A missing certificate, a port that is taken and a wrong configuration each end it with what to do, and no traceback."""
    server = ApiServer(tmp_path)
    try:
        with socket.create_server(("127.0.0.1", server.port)):
            code, said = _says(server)
        assert (code, "choose another server.bind or server.port" in said) == (1, True), said
        (tmp_path / "state" / "tls" / "server.pem").unlink()
        code, said = _says(server)
        assert (code, "cornerman init" in said) == (1, True), said
        server.config_file.write_text("pools = 3")
        code, said = _says(server)
        assert (code, "is not usable" in said) == (1, True), said
        assert "Traceback" not in server.log.read_text()
    finally:
        server.stop()


def test_events_arrive_as_they_happen(serve: Serve) -> None:
    """An event stream over TLS carries an event within moments of its happening; a listener that goes makes room."""
    server = serve(engine_count=1, server={"streams": 1})
    with server.client(server.admin) as listener, server.client() as client:
        listener.send("GET", "/v1/events", Accept="text/event-stream")
        assert b"text/event-stream" in listener.connection.recv(65536)
        assert client.call("GET", "/v1/events", Accept="text/event-stream")[0] == 503
        client.call("POST", "/v1/leases", {"envs": 1})
        text, began = b"", time.monotonic()
        while b"lease.granted" not in text and time.monotonic() - began < 10:
            text += listener.connection.recv(65536)
        assert time.monotonic() - began < 5
    assert "lease.granted" in text.decode()
    paused = itertools.cycle((True, False))
    with server.client(server.admin) as client:

        def has_room() -> bool:
            """The server learns that a peer has gone when it next writes to it."""
            client.call("PATCH", "/v1/pools/main", {"paused": next(paused)})
            return _can_stream(server)

        wait_until(has_room, 20, poll_s=0.3, what="room for another stream")


def _can_stream(server: ApiServer) -> bool:
    with server.client() as client:
        client.send("GET", "/v1/events", Accept="text/event-stream")
        return b"HTTP/1.1 200" in client.connection.recv(4096)


def test_every_peer_that_is_silent_or_slow_waits_alone(serve: Serve) -> None:
    """250 silent TLS peers and 200 long polls are open, and leases are renewed without delay all the while."""
    server = serve(engine_count=8)
    with contextlib.ExitStack() as undo:
        silent = [undo.enter_context(contextlib.closing(server.connect())) for _ in range(250)]
        with server.client() as client:
            _, waiting = client.call("POST", "/v1/leases", {"envs": 400, "wait": True})
        pollers = [undo.enter_context(server.client()) for _ in range(200)]
        for poller in pollers:
            poller.send("GET", f"/v1/leases/{waiting['id']}?wait_s=30")
        worst_s = renew_for(server, seconds=5, leases=8)
        assert worst_s < 1.0
        assert len(silent) == 250
        answers = [poller.receive() for poller in pollers[-180:]]
    refused = [headers["Retry-After"] for status, headers, _ in answers if status == 503]
    assert len(refused) >= 200 - server.config.server.streams - 20
    assert all(int(retry) >= 1 for retry in refused)


def test_bodies_that_never_arrive_hold_up_nobody(serve: Serve) -> None:
    """Sixty calls whose body does not come keep no heartbeat and no look waiting; they are refused, and room comes back."""
    server = serve(engine_count=4)
    head = (
        "POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
        f"Authorization: Bearer {server.lease}\r\n\r\n{{"
    )
    with contextlib.ExitStack() as undo:
        client = undo.enter_context(server.client())
        status, lease = client.call("POST", "/v1/leases", {"envs": 1})
        assert status == 201
        slow = [undo.enter_context(contextlib.closing(server.connect())) for _ in range(60)]
        for connection in slow:
            connection.sendall(head.encode())
        for _ in range(20):
            began = time.monotonic()
            assert client.call("POST", f"/v1/leases/{lease['id']}/renew")[0] == 200
            assert client.call("GET", f"/v1/leases/{lease['id']}")[0] == 200
            assert time.monotonic() - began < 3
        statuses: dict[int, bytes] = {}
        wait_until(lambda: _collect(slow, statuses) >= 60 - ARRIVING, 30, poll_s=0.5, what="refusals of slow calls")
        assert set(statuses.values()) == {b"503"}
        assert client.call("POST", "/v1/leases", {"envs": 1})[0] == 503
        next(connection for number, connection in enumerate(slow) if number not in statuses).close()
        wait_until(lambda: client.call("POST", "/v1/leases", {"envs": 1})[0] == 201, 10)


def _collect(connections: list[ssl.SSLSocket], statuses: dict[int, bytes]) -> int:
    """Note the status of each answer that has arrived; returns how many have."""
    for number, connection in enumerate(connections):
        connection.settimeout(0)
        with contextlib.suppress(ssl.SSLWantReadError, OSError):
            data = connection.recv(4096)
            if data.startswith(b"HTTP/1.1"):
                statuses[number] = data.split(b" ")[1]
    return len(statuses)


def test_a_huge_body_is_refused_without_being_taken_in(serve: Serve) -> None:
    """A body of many megabytes is refused by its announced length, and the process does not grow."""
    server = serve()
    with server.client() as client:
        client.send("POST", "/v1/leases", Content_Type="application/json", Content_Length=str(1 << 30))
        with contextlib.suppress(OSError):
            for _ in range(64):
                client.connection.sendall(b" " * (1 << 16))
        with contextlib.suppress(ConnectionError):
            assert client.receive()[0] == 413
    with server.client() as client:
        assert client.call("GET", "/v1/whoami")[0] == 200


def test_no_token_is_in_the_log(serve: Serve) -> None:
    """Whatever is asked, the log of the process holds no token."""
    server = serve(engine_count=1)
    with server.client(server.admin) as client:
        client.call("POST", "/v1/leases", {"envs": 1, "note": server.admin})
        status, made = client.call("POST", "/v1/tokens", {"principal": "cid"})
        assert status == 201
        client.call("GET", f"/v1/leases/{server.admin}")
        client.call("GET", f"/v1/whoami?token={server.admin}")
    server.process.terminate()
    server.process.wait(10)
    text = server.log.read_text()
    assert "API is listening" in text
    assert server.admin not in text
    assert made["token"] not in text
    assert all(json.loads(line) for line in text.splitlines())


def test_a_stream_can_be_taken_up_where_it_broke_off(serve: Serve) -> None:
    """Last-Event-ID over TLS brings what was missed, and only that."""
    server = serve(engine_count=2)
    with server.client() as client:
        client.call("POST", "/v1/leases", {"envs": 1})
        _, log = client.call("GET", "/v1/events")
        client.call("POST", "/v1/leases", {"envs": 1})
        last = str(log["next"])
        client.send("GET", "/v1/events", Accept="text/event-stream", Last_Event_ID=last)
        text = b""
        while b"data:" not in text:
            text += client.connection.recv(65536)
    numbers = [int(number) for number in re.findall(rb"^id: (\d+)", text, re.MULTILINE)]
    assert numbers
    assert min(numbers) > int(last)


def test_a_second_server_on_the_port_is_refused(serve: Serve) -> None:
    """Two API processes never share one port."""
    server = serve()
    second = subprocess.run(
        server.process.args,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert "cannot listen" in second.stderr
