"""The line that other tests and benchmarks play over does what its settings say."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.link import Link, LinkProcess, Settings, linked


@contextlib.contextmanager
def echo(*, answer: bytes | None = None) -> Iterator[int]:
    """A server that sends back what it gets, or ``answer`` for each piece of it; its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while got := peer.recv(65536):
                peer.sendall(got if answer is None else answer)

    def accept() -> None:
        while not ended.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def connect(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=10)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def read(peer: socket.socket, size: int) -> None:
    while size > 0:
        got = peer.recv(min(size, 1 << 20))
        assert got, "the connection ended"
        size -= len(got)


def round_trips(port: int, count: int) -> list[float]:
    with connect(port) as peer:
        peer.sendall(b"x")
        read(peer, 1)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            peer.sendall(b"x")
            read(peer, 1)
            took.append(time.perf_counter() - began)
        return took


def test_distance() -> None:
    """A round trip takes as long as it should, with less than 10 % more in the median."""
    with echo() as port, linked(("127.0.0.1", port), Settings(rtt_s=0.03)) as link:
        took = round_trips(link.port, 25)
    assert min(took) >= 0.03
    assert statistics.median(took) < 0.033


def test_bandwidth_is_shared() -> None:
    """Three connections together get the line's bandwidth, and no more."""
    size = 800_000
    with echo(answer=bytes(size)) as port, linked(("127.0.0.1", port), Settings(bit_per_s=40e6)) as link:
        peers = [connect(link.port) for _ in range(3)]

        def fetch(peer: socket.socket) -> None:
            with peer:
                peer.sendall(b"x")
                read(peer, size)

        threads = [threading.Thread(target=fetch, args=(peer,)) for peer in peers]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        took = time.perf_counter() - began
        counted = link.counts()
    assert counted["down"] == 3 * size
    assert 3 * size * 8 / took == pytest.approx(40e6, rel=0.1)


def test_bounded_queue() -> None:
    """Whoever sends more than the line takes has to wait: no more is on its way than the queue and the sockets hold."""
    with echo() as port, linked(("127.0.0.1", port), Settings(bit_per_s=8e6, queue_bytes=100_000)) as link:
        with connect(link.port) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            peer.settimeout(0.2)
            sent = 0
            began = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                while sent < 20_000_000:
                    sent += peer.send(bytes(65536))
            taken = link.counts()["up"]
            took = time.perf_counter() - began
        assert sent < 20_000_000
        assert taken <= 8e6 / 8 * took + 100_000 + 2 * 16_384


def test_cut_and_mended() -> None:
    """While the line is cut nothing gets through, and what was sent meanwhile arrives when it is mended."""
    with echo() as port, linked(("127.0.0.1", port)) as link, connect(link.port) as peer:
        peer.sendall(b"a")
        read(peer, 1)
        link.cut()
        peer.sendall(b"b")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        link.mend()
        peer.settimeout(5)
        read(peer, 1)


def test_cut_and_dropped() -> None:
    """A connection that was dropped stays silent after the line is mended, while a new one works."""
    with echo() as port, linked(("127.0.0.1", port)) as link, connect(link.port) as peer:
        peer.sendall(b"a")
        read(peer, 1)
        link.cut(drop=True)
        with connect(link.port) as second:
            second.sendall(b"c")
            link.mend()
            second.settimeout(5)
            read(second, 1)
        peer.sendall(b"b")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)


def test_reset() -> None:
    """Both ends of a connection are told when it is reset."""
    with echo() as port, linked(("127.0.0.1", port)) as link, connect(link.port) as peer:
        peer.sendall(b"a")
        read(peer, 1)
        link.reset()
        peer.settimeout(5)
        with pytest.raises(ConnectionResetError):
            peer.recv(1)


def test_end_of_a_connection_travels() -> None:
    """When one end closes, the other end reads its end, after everything that was sent before."""
    with echo() as port, linked(("127.0.0.1", port), Settings(rtt_s=0.01)) as link, connect(link.port) as peer:
        peer.sendall(b"abc")
        peer.shutdown(socket.SHUT_WR)
        read(peer, 3)
        assert peer.recv(1) == b""


def test_process_of_its_own() -> None:
    """The line as a process obeys the same commands, and ends with its standard input."""
    with echo() as port:
        link = LinkProcess(("127.0.0.1", port), Settings(rtt_s=0.02))
        try:
            assert min(round_trips(link.port, 3)) >= 0.02
            assert link.command("counts")["accepted"] == 1
        finally:
            link.close()


def test_many_places_on_one_line() -> None:
    """One line leads to several places under one count of bytes, and its distance can change while connections go on."""
    with echo() as first, echo(answer=bytes(1000)) as second:
        link = LinkProcess(("127.0.0.1", first), Settings(rtt_s=0.02))
        try:
            port = link.add(("127.0.0.1", second))
            with connect(port) as peer:
                peer.sendall(b"x")
                read(peer, 1000)
                link.change(rtt_s=0.05, bit_per_s=None)
                began = time.perf_counter()
                peer.sendall(b"x")
                read(peer, 1000)
                assert time.perf_counter() - began >= 0.05
            assert min(round_trips(link.port, 3)) >= 0.05
            assert link.command("counts")["down"] == 2 * 1000 + 4
        finally:
            link.close()


def test_port_of_ones_choice() -> None:
    """A line can take the place of another under the same port."""
    with echo() as port:
        first = Link(("127.0.0.1", port))
        first.close()
        second = Link(("127.0.0.1", port), port=first.port)
        try:
            assert round_trips(second.port, 1)
        finally:
            second.close()
