"""The probe that decides whether an engine answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from orchestrator.probes import GrpcProbe, reached
from tests.support.ports import free_port


@pytest.fixture
def grpc_port() -> Iterator[int]:
    """The port of a real gRPC server without services."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait(5)


def test_a_grpc_server_passes(grpc_port: int) -> None:
    """A live gRPC server passes the probe, whatever services it has, and again after a hundred probes."""
    probe = GrpcProbe()
    assert all(probe("127.0.0.1", grpc_port, timeout_s=5) for _ in range(100))


def test_the_wildcard_address_is_reached_by_loopback(grpc_port: int) -> None:
    """An engine that listens on every address is probed on the loopback one."""
    assert GrpcProbe()("0.0.0.0", grpc_port, timeout_s=5)
    assert reached("::") == "::1"


def test_a_proxy_variable_does_not_matter(grpc_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 39: a proxy variable in the daemon's environment does not come between it and its engines."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert GrpcProbe()("127.0.0.1", grpc_port, timeout_s=5)


def test_an_open_port_proves_nothing() -> None:
    """Report 24: a port that accepts connections and stays silent fails the probe, after its timeout and not much later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        assert not GrpcProbe()("127.0.0.1", listener.getsockname()[1], timeout_s=0.3)
    assert 0.25 < time.monotonic() - began < 3


def test_nobody_there_fails_at_once() -> None:
    """A port on which nobody listens fails the probe without waiting for its timeout."""
    began = time.monotonic()
    assert not GrpcProbe()("127.0.0.1", free_port(), timeout_s=30)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0", b"", b"\xff" * 64])
def test_another_server_fails(answer: bytes) -> None:
    """Report 24: whatever else listens on the port (a web server, one that hangs up) fails the probe."""
    with socket.create_server(("127.0.0.1", 0)) as listener, futures.ThreadPoolExecutor(1) as threads:

        def reply() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(answer)

        replying = threads.submit(reply)
        assert not GrpcProbe()("127.0.0.1", listener.getsockname()[1], timeout_s=1)
        replying.result(5)
