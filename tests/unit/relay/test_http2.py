"""The relay's own gRPC calls, against the gRPC library's servers and against peers that do everything differently."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import hpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client_sdk.wire import MAX_REPLY_BYTES, Method, Status
from orchestrator.relay import http2
from orchestrator.relay.engine_calls import GrpcEngine, GrpcEngines
from orchestrator.relay.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from tests.support.relay import looped, until

# ---------------------------------------------------------------- the gRPC library's server


def _answer(request: bytes, context: grpc.ServicerContext) -> bytes:
    """What a test asks for: ``size N``, ``fail CODE TEXT``, ``wait S``, or an echo."""
    word, _, rest = request.partition(b" ")
    if word == b"size":
        return bytes(int(rest))
    if word == b"fail":
        code, _, text = rest.decode().partition(" ")
        context.abort(grpc.StatusCode[code], text)
    if word == b"wait":
        time.sleep(float(rest))
    return request


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[tuple[str, grpc.Server]]:
    """A server of ``interface.EnvServer`` that answers as asked."""
    options = (("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    server = grpc.server(ThreadPoolExecutor(8), options=options)
    handlers = {name: grpc.unary_unary_rpc_method_handler(_answer) for name in ("EnvInit", "Reset", "Step")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("interface.EnvServer", handlers),))
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield address, server
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize("size", [0, 1, 5, 16_379, 16_384, 70_000, 737_280, MAX_REPLY_BYTES])
def test_replies_of_any_size_come_whole(size: int) -> None:
    """From nothing to the largest that there may be."""

    @looped
    async def call(address: str) -> None:
        engine = GrpcEngine(address)
        for _ in range(3):
            outcome = await engine.call(Method.STEP, b"size %d" % size, timeout_s=20)
            assert outcome.reply == bytes(size)
        engine.close()

    with serving() as (address, _):
        call(address)


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 65_530, 65_536, 1 << 20])
def test_requests_of_any_size_arrive_whole(size: int) -> None:
    """A request larger than the peer's windows is sent on as they open."""

    @looped
    async def call(address: str) -> None:
        engine, request = GrpcEngine(address), bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        outcome = await engine.call(Method.ENV_INIT, request, timeout_s=20)
        assert outcome.reply == request
        engine.close()

    with serving() as (address, _):
        call(address)


def test_many_calls_on_one_connection() -> None:
    """Hundreds of calls, some at the same time, some large: windows are opened again, and nothing gets mixed up."""

    @looped
    async def call(address: str) -> None:
        engine = GrpcEngine(address)
        for number in range(300):
            assert (await engine.call(Method.STEP, b"step %d" % number, timeout_s=20)).reply == b"step %d" % number
        for _ in range(6):
            sizes = [1_000_000, 3, 700_000, 40_000]
            found = await asyncio.gather(*(engine.call(Method.STEP, b"size %d" % size, timeout_s=20) for size in sizes))
            assert [len(outcome.reply or b"") for outcome in found] == sizes
        engine.close()

    with serving() as (address, _):
        call(address)


def test_an_engines_own_error_is_passed_on() -> None:
    """Status and text of the engine arrive as they are, whatever characters the text has."""

    @looped
    async def call(address: str) -> None:
        engine = GrpcEngine(address)
        outcome = await engine.call(
            Method.ENV_INIT, "fail NOT_FOUND rom «doapp.zip» fehlt, 100 %\nsehr".encode(), timeout_s=20
        )
        assert (outcome.reply, outcome.status) == (None, Status.NOT_FOUND)
        assert outcome.text == "rom «doapp.zip» fehlt, 100 %\nsehr"
        assert (await engine.call(Method.CLOSE, b"", timeout_s=20)).status == grpc.StatusCode.UNIMPLEMENTED.value[0]
        engine.close()

    with serving() as (address, _):
        call(address)


def test_a_reply_that_is_too_large_is_refused() -> None:
    """What no client would take is not taken from the engine either, and the next call is well."""

    @looped
    async def call(address: str) -> None:
        engine = GrpcEngine(address)
        outcome = await engine.call(Method.STEP, b"size %d" % (MAX_REPLY_BYTES + 1), timeout_s=20)
        assert outcome.status == Status.RESOURCE_EXHAUSTED
        assert (await engine.call(Method.STEP, b"next", timeout_s=20)).reply == b"next"
        engine.close()

    with serving() as (address, _):
        call(address)


def test_a_deadline_ends_a_call_and_not_the_connection() -> None:
    """A call past its deadline is DEADLINE_EXCEEDED in time; a later one is answered."""

    @looped
    async def call(address: str) -> None:
        engine = GrpcEngine(address)
        began = time.monotonic()
        outcome = await engine.call(Method.STEP, b"wait 1.5", timeout_s=0.2)
        assert outcome.status == Status.DEADLINE_EXCEEDED
        assert time.monotonic() - began < 1.2
        assert (await engine.call(Method.STEP, b"next", timeout_s=20)).reply == b"next"
        engine.close()

    with serving() as (address, _):
        call(address)


def test_a_cancelled_call_is_reset() -> None:
    """Whoever gives up a call leaves nothing behind."""

    @looped
    async def call(address: str) -> None:
        engine = GrpcEngine(address)
        waiting = asyncio.create_task(engine.call(Method.STEP, b"wait 1", timeout_s=20))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert engine._connection is not None
        assert engine._connection._streams == {}
        assert (await engine.call(Method.STEP, b"next", timeout_s=20)).reply == b"next"
        engine.close()

    with serving() as (address, _):
        call(address)


def test_an_engine_that_dies_and_one_that_takes_its_place() -> None:
    """A call under way ends UNAVAILABLE, one to nobody too; a new engine on the same port is reached."""

    @looped
    async def call() -> None:
        engine = GrpcEngine(address)
        under_way = asyncio.create_task(engine.call(Method.STEP, b"wait 3", timeout_s=20))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.stop, 0)
        assert (await under_way).status in (Status.UNAVAILABLE, Status.CANCELLED)
        await until(lambda: engine._connection is None or not engine._connection.is_open)
        outcome = await engine.call(Method.STEP, b"hello?", timeout_s=20)
        assert outcome.status == Status.UNAVAILABLE
        assert "cannot be connected to" in outcome.text
        with serving(int(address.rpartition(":")[2])):
            assert (await engine.call(Method.STEP, b"next", timeout_s=20)).reply == b"next"
        engine.close()

    with serving() as (address, server):
        call()


def test_engines_that_nobody_holds_are_let_go() -> None:
    """Connections are kept by engine, and closed when the engine is not wanted any more."""

    @looped
    async def call(address: str) -> None:
        engines = GrpcEngines()
        for key in ("e1", "e2"):
            assert (await engines(key, address, Method.STEP, b"a", timeout_s=20)).reply == b"a"
        first, second = (engines._engines[key]._connection for key in ("e1", "e2"))
        assert first is not None
        assert second is not None
        await engines.keep_only(frozenset({"e2"}))
        assert (first.is_open, second.is_open) == (False, True)
        await engines.close()
        assert not second.is_open

    with serving() as (address, _):
        call(address)


# ---------------------------------------------------------------- peers that do it differently

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_encode = hpack.Encoder()
OK_HEADERS = b"\x88" + b"\x00\x0ccontent-type\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"


def _message(body: bytes, *, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


@contextlib.asynccontextmanager
async def _peer(act: Peer) -> AsyncIterator[GrpcEngine]:
    """A peer that has read the preface and the first call, and then acts."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                assert await reader.readexactly(len(PREFACE)) == PREFACE
                writer.write(frame(SETTINGS))
                while (await _read(reader))[0] != HEADERS:
                    pass
                await act(reader, writer)
                await writer.drain()
                await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    engine = GrpcEngine(f"127.0.0.1:{port}")
    try:
        yield engine
    finally:
        engine.close()
        server.close()
        await asyncio.gather(*(task for task in serving if task is not None), return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[4], payload


def _played(*pieces: bytes) -> Peer:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return act


def _call(act: Peer, *, timeout_s: float = 5.0) -> tuple[bytes | None, int, str]:
    found: list[tuple[bytes | None, int, str]] = []

    @looped
    async def run() -> None:
        async with _peer(act) as engine:
            outcome = await engine.call(Method.STEP, b"a", timeout_s=timeout_s)
            found.append((outcome.reply, outcome.status, outcome.text))

    run()
    return found[0]


def _plain_answer(body: bytes) -> bytes:
    return (
        frame(HEADERS, OK_HEADERS, flags=END_HEADERS, stream=1)
        + frame(DATA, _message(body), stream=1)
        + frame(HEADERS, TRAILERS, flags=END_HEADERS | END_STREAM, stream=1)
    )


def test_an_answer_may_come_byte_by_byte() -> None:
    """However the bytes arrive, the reply is the same."""
    answer = _plain_answer(b"hello")
    assert _call(_played(*(answer[i : i + 1] for i in range(len(answer)))))[0] == b"hello"


def test_padding_priority_continuations_and_many_pieces_are_understood() -> None:
    """A peer may pad its frames, split its headers and send a message in any pieces."""
    headers = b"\x00\x00\x00\x00\x10" + OK_HEADERS[:1]
    pieces = (
        frame(HEADERS, bytes((3,)) + headers + bytes(3), flags=http2.PRIORITY | PADDED, stream=1),
        frame(CONTINUATION, OK_HEADERS[1:10], stream=1),
        frame(CONTINUATION, OK_HEADERS[10:], flags=END_HEADERS, stream=1),
        frame(DATA, b"\x00\x00", stream=1),
        frame(DATA, b"", stream=1),
        frame(DATA, b"\x02" + b"\x00\x00\x05he" + b"\x00\x00", flags=PADDED, stream=1),
        frame(DATA, b"llo", stream=1),
        frame(99, b"an extension", stream=1),
        frame(HEADERS, TRAILERS[:5], flags=END_STREAM, stream=1),
        frame(CONTINUATION, TRAILERS[5:], flags=END_HEADERS, stream=1),
    )
    assert _call(_played(b"".join(pieces)))[0] == b"hello"


def test_a_call_may_end_with_trailers_alone() -> None:
    """An error without a body is passed on."""
    trailers = OK_HEADERS + b"\x00\x0bgrpc-status\x015" + b"\x00\x0cgrpc-message\x06no%20x"
    answer = frame(HEADERS, trailers, flags=END_HEADERS | END_STREAM, stream=1)
    assert _call(_played(answer)) == (None, 5, "no x")


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (frame(RST_STREAM, (8).to_bytes(4, "big"), stream=1), Status.CANCELLED, "HTTP/2 error 8"),
        (frame(RST_STREAM, (7).to_bytes(4, "big"), stream=1), Status.UNAVAILABLE, "HTTP/2 error 7"),
        (frame(RST_STREAM, (2).to_bytes(4, "big"), stream=1), Status.INTERNAL, "HTTP/2 error 2"),
        (frame(GOAWAY, bytes(8)), Status.UNAVAILABLE, "going away"),
        (frame(HEADERS, b"\x8d", flags=END_HEADERS, stream=1), Status.UNAVAILABLE, "HTTP status 404"),
        (
            frame(HEADERS, OK_HEADERS, flags=END_HEADERS, stream=1) + frame(DATA, b"abc", flags=END_STREAM, stream=1),
            Status.INTERNAL,
            "not one message and its status",
        ),
        (
            frame(HEADERS, OK_HEADERS, flags=END_HEADERS, stream=1)
            + frame(DATA, _message(b"zip", compressed=1), stream=1)
            + frame(HEADERS, TRAILERS, flags=END_HEADERS | END_STREAM, stream=1),
            Status.INTERNAL,
            "not one plain message",
        ),
        (
            frame(HEADERS, OK_HEADERS, flags=END_HEADERS, stream=1)
            + frame(DATA, _message(b"one") + _message(b"two"), stream=1),
            Status.INTERNAL,
            "not one message",
        ),
        (frame(HEADERS, OK_HEADERS, flags=END_HEADERS | END_STREAM, stream=1), Status.UNKNOWN, "no status"),
        (frame(HEADERS, b"\xbe", flags=END_HEADERS, stream=1), Status.UNAVAILABLE, "headers cannot be read"),
        (frame(HEADERS, b"", stream=1) + frame(PING, bytes(8)), Status.UNAVAILABLE, "cut short"),
        (frame(CONTINUATION, b"", stream=1), Status.UNAVAILABLE, "not begun"),
        (frame(DATA, b"\x09abc", flags=PADDED, stream=1), Status.UNAVAILABLE, "padding is wrong"),
        (frame(PUSH_PROMISE, bytes(8), stream=1), Status.UNAVAILABLE, "nobody asked for"),
        (frame(SETTINGS, b"abc"), Status.UNAVAILABLE, "settings are cut short"),
        (frame(WINDOW_UPDATE, b"ab"), Status.UNAVAILABLE, "cut short"),
    ],
)
def test_what_a_peer_may_say_or_not_is_a_status_and_words(answer: bytes, status: int, words: str) -> None:
    """Refusals, broken messages and breaches of the protocol each end the call with a reason."""
    reply, found, text = _call(_played(answer))
    assert (reply, found) == (None, status)
    assert words in text


def test_headers_without_end_are_refused() -> None:
    """A peer cannot fill the memory with headers."""
    pieces = [frame(HEADERS, b"x", stream=1)] + [frame(CONTINUATION, bytes(16_000), stream=1)] * 6
    assert "have no end" in _call(_played(*pieces))[2]


def test_a_peer_with_small_windows_gets_a_large_request_in_pieces() -> None:
    """Windows and frame size of the peer are kept to, and pings are answered."""
    seen: list[bytes] = []
    ponged: list[bytes] = []
    request = bytes(range(256)) * 40

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        small = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (100).to_bytes(4, "big")
        large = MAX_FRAME_SIZE.to_bytes(2, "big") + (16_384).to_bytes(4, "big")
        writer.write(frame(SETTINGS, small + large) + frame(PING, b"12345678"))
        while sum(map(len, seen)) < len(request) + 5 or not ponged:
            kind, flags, payload = await asyncio.wait_for(_read(reader), 5)
            if kind == DATA:
                seen.append(payload)
                writer.write(frame(WINDOW_UPDATE, (1000).to_bytes(4, "big"), stream=1))
                writer.write(frame(WINDOW_UPDATE, (1000).to_bytes(4, "big")))
            elif kind == PING and flags & ACK:
                ponged.append(payload)
        writer.write(_plain_answer(b"done"))

    @looped
    async def run() -> None:
        async with _peer(act) as engine:
            outcome = await engine.call(Method.ENV_INIT, request, timeout_s=10)
            assert outcome.reply == b"done"

    run()
    assert b"".join(seen) == _message(request)
    assert ponged == [b"12345678"]


def test_a_goodbye_lets_calls_that_were_taken_end() -> None:
    """After GOAWAY a call that the peer still runs is answered; the next one makes another connection."""

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(GOAWAY, (1).to_bytes(4, "big") + bytes(4)) + _plain_answer(b"last words"))

    @looped
    async def run() -> None:
        async with _peer(act) as engine:
            for _ in range(2):
                assert (await engine.call(Method.STEP, b"a", timeout_s=5)).reply == b"last words"

    run()


def test_a_peer_that_says_nothing_is_a_deadline() -> None:
    """A peer that accepts and never answers ends the call in time."""
    assert _call(_played(), timeout_s=0.3)[1] == Status.DEADLINE_EXCEEDED


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                lambda kind, flags, stream, payload: frame(kind, payload, flags=flags, stream=stream),
                st.integers(0, 10),
                st.integers(0, 63),
                st.integers(0, 3),
                st.binary(max_size=40),
            ),
        ),
        max_size=8,
    )
)
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    """Whatever a peer sends, the call ends with a reply or a status."""
    reply, status, text = _call(_played(*pieces), timeout_s=0.05)
    assert reply is not None or (status > 0 and text)
