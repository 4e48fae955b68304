"""The tunnel's HTTP/2, frame by frame: what a client may do, and what it may not."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk import _grpc_server as h2
from client_sdk._grpc_server import Answer, Peer, Serve
from client_sdk.wire import MAX_REQUEST_BYTES, Status

_HEAD = struct.Struct("!HBBBI")
Frame = tuple[int, int, int, bytes]  # kind, flags, stream, body


def frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def message(body: bytes) -> bytes:
    return struct.pack("!BI", 0, len(body)) + body


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True


class Client:
    """One end of a connection to a Peer that echoes, unless the test answers by itself."""

    def __init__(self, serve: Serve | None = None) -> None:
        self.asked: list[tuple[str, bytes, Answer]] = []
        self.wire = Wire()
        self.peer = Peer(serve or (lambda path, request, answer: self.asked.append((path, request, answer))))
        self.peer.connection_made(self.wire)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.frames()

    def greet(self, *options: tuple[int, int]) -> None:
        body = b"".join(struct.pack("!HI", *option) for option in options)
        self.say(h2.PREFACE + frame(h2.SETTINGS, body=body))
        self.frames()
        self.encoder.header_table_size = 0
        self.say(frame(h2.SETTINGS, h2.ACK))

    def say(self, data: bytes) -> None:
        self.peer.data_received(data)

    def headers(self, path: str = "/interface.EnvServer/Step") -> bytes:
        return bytes(
            self.encoder.encode(
                [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
            )
        )

    def call(self, stream: int, body: bytes, *, path: str = "/interface.EnvServer/Step") -> None:
        self.say(frame(h2.HEADERS, h2.END_HEADERS, stream, self.headers(path)))
        data = message(body)
        for at in range(0, len(data), 16_384):
            last = at + 16_384 >= len(data)
            self.say(frame(h2.DATA, h2.END_STREAM if last else 0, stream, data[at : at + 16_384]))

    def frames(self) -> list[Frame]:
        """What was written since last time."""
        data, found = self.wire.written, []
        self.wire.written = b""
        while data:
            high, low, kind, flags, stream = _HEAD.unpack_from(data)
            size = high << 8 | low
            found.append((kind, flags, stream, data[9 : 9 + size]))
            data = data[9 + size :]
        return found

    def goodbye(self) -> bytes | None:
        """The reason of a GOAWAY, if one was said."""
        for kind, _, _, body in self.frames():
            if kind == h2.GOAWAY:
                return body[8:]
        return None


def reply(frames: list[Frame]) -> bytes:
    """The message inside the DATA frames."""
    return b"".join(body for kind, _, _, body in frames if kind == h2.DATA)[5:]


def status(client: Client, frames: list[Frame]) -> tuple[int, str]:
    """gRPC status and message of the trailers."""
    found: dict[str, str] = {}
    for kind, _, _, body in frames:
        if kind == h2.HEADERS:
            found.update({str(name): str(value) for name, value in client.decoder.decode(body)})
    return int(found["grpc-status"]), found.get("grpc-message", "")


def test_call_and_answer() -> None:
    """A call's path and message arrive, and its answer is headers, a message and trailers with status 0."""
    client = Client()
    client.greet()
    client.call(1, b"request")
    ((path, request, answer),) = client.asked
    assert (path, request) == ("/interface.EnvServer/Step", b"request")
    answer(b"reply")
    frames = client.frames()
    assert [kind for kind, *_ in frames] == [h2.HEADERS, h2.DATA, h2.HEADERS]
    assert reply(frames) == b"reply"
    assert status(client, frames) == (0, "")
    assert frames[-1][1] & h2.END_STREAM
    answer(b"again")
    assert client.frames() == []


@pytest.mark.parametrize("size", [1, 3, 9, 100, 4096])
def test_any_pieces(size: int) -> None:
    """It does not matter in what pieces the bytes come."""
    whole = Client()
    whole.encoder.header_table_size = 0
    data = h2.PREFACE + frame(h2.SETTINGS) + frame(h2.SETTINGS, h2.ACK)
    for stream in (1, 3):
        data += frame(h2.HEADERS, h2.END_HEADERS, stream, whole.headers())
        data += frame(h2.DATA, h2.END_STREAM, stream, message(b"x" * 5000))
    for at in range(0, len(data), size):
        whole.say(data[at : at + size])
    assert [request for _, request, _ in whole.asked] == [b"x" * 5000] * 2


def test_headers_in_every_form() -> None:
    """Headers may be padded, have a priority, be split, and use what HPACK has; a block known already means the same again."""
    client = Client()
    client.greet()
    block = client.headers("/a")
    client.say(frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 1, b"\x03" + block + bytes(3)))
    client.say(frame(h2.DATA, h2.END_STREAM | h2.PADDED, 1, b"\x02" + message(b"1") + bytes(2)))
    client.say(frame(h2.HEADERS, h2.END_HEADERS | h2.PRIORITY, 3, bytes(5) + client.headers("/b")))
    client.say(frame(h2.DATA, h2.END_STREAM, 3, message(b"2")))
    block = client.headers("/c")
    client.say(frame(h2.HEADERS, 0, 5, block[:4]) + frame(h2.CONTINUATION, 0, 5, block[4:9]))
    client.say(frame(h2.CONTINUATION, h2.END_HEADERS, 5, block[9:]))
    client.say(frame(h2.DATA, 0, 5, message(b"3")) + frame(h2.DATA, h2.END_STREAM, 5))
    client.say(frame(h2.HEADERS, h2.END_HEADERS, 7, block) + frame(h2.DATA, h2.END_STREAM, 7, message(b"4")))
    assert [(path, request) for path, request, _ in client.asked] == [
        ("/a", b"1"),
        ("/b", b"2"),
        ("/c", b"3"),
        ("/c", b"4"),
    ]


def test_small_windows() -> None:
    """A reply waits for the client's windows, of the stream and of the connection, and comes whole in frames that it allows."""
    body = os.urandom(300_000)
    client = Client()
    client.greet((h2.INITIAL_WINDOW_SIZE, 1000))
    client.call(1, b"")
    client.asked[0][2](body)
    frames = client.frames()
    assert sum(len(data) for kind, _, _, data in frames if kind == h2.DATA) == 1000
    while not any(flags & h2.END_STREAM for _, flags, _, _ in frames):
        client.say(frame(h2.WINDOW_UPDATE, 0, 1, struct.pack("!I", 40_000)))
        client.say(frame(h2.WINDOW_UPDATE, 0, 0, struct.pack("!I", 30_000)))
        more = client.frames()
        assert more, "the reply stopped"
        frames += more
    assert reply(frames) == body
    assert max(len(data) for kind, _, _, data in frames if kind == h2.DATA) <= 16_384
    client.call(3, b"")
    client.asked[1][2](b"next")
    assert reply(client.frames()) == b"next"


def test_window_that_the_client_changes() -> None:
    """A change of the initial window counts for replies under way too."""
    client = Client()
    client.greet((h2.INITIAL_WINDOW_SIZE, 0))
    client.call(1, b"")
    client.asked[0][2](b"x" * 1000)
    assert reply(client.frames()) == b""
    client.say(frame(h2.SETTINGS, body=struct.pack("!HI", h2.INITIAL_WINDOW_SIZE, 5000)))
    assert reply(client.frames()) == b"x" * 1000


def test_windows_are_opened_again() -> None:
    """A client that sends much over time is never stopped by the connection's window."""
    client = Client(lambda path, request, answer: answer(b""))
    client.greet()
    left = 65_535 + h2.WINDOW
    for number in range(60):
        client.call(2 * number + 1, bytes(100_000))
        left -= 100_005
        for kind, _, stream, body in client.frames():
            if kind == h2.WINDOW_UPDATE and stream == 0:
                left += struct.unpack("!I", body)[0]
        assert left > 0


def test_pings_and_what_is_not_known() -> None:
    """A ping is answered; frames of unknown kinds, priorities and goodbyes are passed over."""
    client = Client()
    client.greet()
    client.say(frame(h2.PING, 0, 0, b"12345678"))
    assert client.frames() == [(h2.PING, h2.ACK, 0, b"12345678")]
    client.say(frame(h2.PING, h2.ACK, 0, b"12345678") + frame(2, 0, 1, bytes(5)) + frame(77, 9, 9, b"?"))
    client.say(frame(h2.GOAWAY, 0, 0, bytes(8)))
    assert client.frames() == []
    assert not client.wire.closed


def test_reset_stream() -> None:
    """What a call comes to that its client has reset is not sent, and the connection goes on."""
    client = Client()
    client.greet()
    client.call(1, b"1")
    client.say(frame(h2.RST_STREAM, 0, 1, struct.pack("!I", 8)))
    client.asked[0][2](b"too late")
    assert client.frames() == []
    client.call(3, b"2")
    client.asked[1][2](b"fine")
    assert reply(client.frames()) == b"fine"


def test_sentence_of_a_fault() -> None:
    """A status comes with its sentence, whatever characters it has, and however long it is."""
    client = Client()
    client.greet()
    for number, text in enumerate(["Rank 0 – gone: 100 % sure, “call make()” again.", "x" * 3000, "a\r\nb"]):
        client.call(2 * number + 1, b"")
        client.asked[-1][2](None, Status.UNAVAILABLE, text)
        code, words = status(client, client.frames())
        assert (code, unquote(words)) == (Status.UNAVAILABLE, text)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (bytes(3), Status.INTERNAL),
        (b"\x01" + message(b"abc")[1:], Status.UNIMPLEMENTED),
        (message(b"abc")[:-1], Status.UNIMPLEMENTED),
        (message(b"abc") * 2, Status.UNIMPLEMENTED),
    ],
    ids=["no message", "compressed", "cut short", "two messages"],
)
def test_request_that_is_not_one_message(data: bytes, code: int) -> None:
    """A request that is not one plain message is refused with a status, and reaches no engine."""
    client = Client()
    client.greet()
    client.say(frame(h2.HEADERS, h2.END_HEADERS, 1, client.headers()) + frame(h2.DATA, h2.END_STREAM, 1, data))
    assert status(client, client.frames())[0] == code
    assert client.asked == []
    client.call(3, b"next")
    assert client.asked[0][1] == b"next"


def test_too_large_request() -> None:
    """A request beyond the limit is refused while it comes, its memory is not kept, and the connection goes on."""
    client = Client()
    client.greet()
    client.call(1, bytes(MAX_REQUEST_BYTES + 1))
    assert status(client, client.frames())[0] == Status.RESOURCE_EXHAUSTED
    client.call(3, b"next")
    assert [request for _, request, _ in client.asked] == [b"next"]


def test_too_many_calls() -> None:
    """A client with more calls under way than any has is refused the next one."""
    client = Client()
    client.greet()
    for number in range(h2.MOST_STREAMS + 1):
        client.call(2 * number + 1, b"")
    assert len(client.asked) == h2.MOST_STREAMS
    assert status(client, client.frames())[0] == Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        h2.PREFACE + frame(h2.PING, 0, 0, b"short"),
        h2.PREFACE + frame(h2.SETTINGS, 0, 0, b"12345"),
        h2.PREFACE + frame(h2.SETTINGS, 0, 0, struct.pack("!HI", h2.INITIAL_WINDOW_SIZE, 1 << 31)),
        h2.PREFACE + frame(h2.WINDOW_UPDATE, 0, 0, b"123"),
        h2.PREFACE + frame(h2.WINDOW_UPDATE, 0, 0, struct.pack("!I", (1 << 31) - 1)) * 2,
        h2.PREFACE + frame(h2.DATA, 0, 1, b"x"),
        h2.PREFACE + frame(h2.DATA, 0, 0, b"x"),
        h2.PREFACE + frame(h2.HEADERS, h2.END_HEADERS, 2, b"\x82"),
        h2.PREFACE + frame(h2.HEADERS, 0, 1, b"\x82") + frame(h2.PING, 0, 0, bytes(8)),
        h2.PREFACE + frame(h2.CONTINUATION, h2.END_HEADERS, 1, b"\x82"),
        h2.PREFACE + frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
        h2.PREFACE + frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 1, b"\x09\x82"),
        h2.PREFACE + frame(h2.HEADERS, 0, 1, bytes(9000)) + frame(h2.CONTINUATION, 0, 1, bytes(9000)),
        h2.PREFACE + frame(h2.PUSH_PROMISE, 0, 1, bytes(4)),
        h2.PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    ],
)
def test_violation(data: bytes) -> None:
    """A client that breaks the protocol is told goodbye with a reason, and its connection is closed."""
    client = Client()
    client.say(data)
    assert client.goodbye()
    assert client.wire.closed
    assert client.asked == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.builds(
                frame,
                st.integers(0, 12),
                st.integers(0, 255),
                st.integers(0, 9),
                st.binary(max_size=60),
            ),
            st.binary(max_size=40),
        ),
        max_size=12,
    )
)
def test_noise(pieces: list[bytes]) -> None:
    """Whatever comes, nothing but a goodbye happens."""
    client = Client(lambda path, request, answer: answer(request))
    client.say(h2.PREFACE)
    for piece in pieces:
        if not client.wire.closed:
            client.say(piece)
    assert len(client.peer._buffer) <= h2.OUR_FRAME_BYTES + 9


def test_client_that_goes_away() -> None:
    """Answers to a client that has gone go nowhere, and closing twice is fine."""
    known: set[Peer] = set()
    asked: list[Answer] = []
    serve: Callable[..., None] = lambda path, request, answer: asked.append(answer)  # noqa: E731
    wire, peer = Wire(), Peer(serve, known=known)
    peer.connection_made(wire)
    assert known == {peer}
    encoder = hpack.Encoder()
    peer.data_received(h2.PREFACE + frame(h2.SETTINGS))
    block = bytes(encoder.encode([(":path", "/a")]))
    peer.data_received(frame(h2.HEADERS, h2.END_HEADERS, 1, block) + frame(h2.DATA, h2.END_STREAM, 1, message(b"")))
    peer.connection_lost(None)
    written = wire.written
    asked[0](b"too late")
    peer.close()
    assert wire.written == written
    assert known == set()
