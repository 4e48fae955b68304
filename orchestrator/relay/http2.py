"""The little of HTTP/2 (RFC 9113) that unary gRPC calls to an engine on this host need: bytes in, bytes out.

The gRPC library's calls cost two and a half times as much CPU, and threads of its own (docs/decisions/0022). Engines are asked to send headers without compression state, so that the same header
block always means the same: each is decoded once.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

import hpack

from client_sdk.wire import MAX_REPLY_BYTES, Status

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 4, 5
CANCEL, REFUSED_STREAM, ENHANCE_YOUR_CALM = 8, 7, 11

LARGEST_FRAME = (1 << 24) - 1
WINDOW = 2 * MAX_REPLY_BYTES  # of a stream, and of a connection before it is opened further
MOST_HEADERS = 64 * 1024
SMALLEST_BUFFER = 64 * 1024
LAST_STREAM = (1 << 31) - 1

_HEAD = struct.Struct("!HBBBI")  # length (24 bits), type, flags, stream
_SETTING = struct.Struct("!HI")
_U32 = struct.Struct("!I")
_MESSAGE = struct.Struct("!BI")  # compressed?, length

_OUR_SETTINGS = b"".join(
    _SETTING.pack(*one)
    for one in (
        (HEADER_TABLE_SIZE, 0),
        (ENABLE_PUSH, 0),
        (INITIAL_WINDOW_SIZE, WINDOW),
        (MAX_FRAME_SIZE, LARGEST_FRAME),
    )
)
_RST_STATUS = {CANCEL: Status.CANCELLED, ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED}


class Response(NamedTuple):
    """What a call came to: a ``message`` with status 0, or a gRPC status above 0 and its text."""

    status: int
    text: str = ""
    message: bytes | None = None


class PeerFault(Exception):
    """The peer does not keep to the protocol."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """One HTTP/2 frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def request_headers(path: str, authority: str, timeout_s: float) -> bytes:
    """The header block of a call, in literals that need no state."""
    milliseconds = max(1, min(99_999_999, round(timeout_s * 1000)))
    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            b"\x04" + _text(path),
            b"\x01" + _text(authority),
            b"\x00" + _text("content-type") + _text("application/grpc"),
            b"\x00" + _text("te") + _text("trailers"),
            b"\x00" + _text("user-agent") + _text("cornerman-relay"),
            b"\x00" + _text("grpc-timeout") + _text(f"{milliseconds}m"),
        )
    )


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > 126:
        raise ValueError(f"{value[:20]!r}... is too long for a header")
    return bytes((len(raw),)) + raw


@dataclass(slots=True)
class _Stream:
    answer: asyncio.Future[Response]
    window: int
    expected: int = -1  # bytes of the reply; -1 before its beginning has come
    compressed: bool = False
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    unsent: bytes = b""  # of the request, as long as the peer's window is closed
    timer: asyncio.TimerHandle | None = None


class Connection(asyncio.BufferedProtocol):
    """One connection to an engine; many calls may be under way on it. A reply is copied once, out of the buffer it is read into."""

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(SMALLEST_BUFFER))
        self._filled = 0
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._window = self._peer_window = 65535
        self._peer_frame = 16384
        self._received = 0
        self._headers: tuple[int, int, bytearray] | None = None  # stream, flags, so far
        self._blocked: deque[int] = deque()
        self._known: dict[bytes, dict[str, str]] = {}
        self._why: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls can be begun."""
        return self._transport is not None and self._why is None and self._next < LAST_STREAM

    # ------------------------------------------------------------ calls

    async def call(self, headers: bytes, message: bytes, *, timeout_s: float) -> Response:
        """One call; ``headers`` is a block by ``request_headers``."""
        if not self.is_open or self._transport is None:
            return Response(Status.UNAVAILABLE, self._why or "Not connected")
        number, self._next = self._next, self._next + 2
        stream = _Stream(self._loop.create_future(), self._peer_window)
        self._streams[number] = stream
        stream.timer = self._loop.call_later(timeout_s, self._time_out, number)
        body = _MESSAGE.pack(0, len(message)) + message
        start = frame(HEADERS, headers, flags=END_HEADERS, stream=number)
        if len(body) <= min(self._window, stream.window, self._peer_frame):
            self._window -= len(body)
            self._transport.write(start + frame(DATA, body, flags=END_STREAM, stream=number))
        else:
            stream.unsent = body
            self._transport.write(start)
            self._blocked.append(number)
            self._send_blocked()
        try:
            return await stream.answer
        finally:
            self._forget(number, reset=not stream.answer.done() or stream.answer.cancelled())

    def _time_out(self, number: int) -> None:
        self._finish(number, Response(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"), reset=True)

    def _forget(self, number: int, *, reset: bool) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None and stream.timer is not None:
            stream.timer.cancel()
        if reset and stream is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(RST_STREAM, _U32.pack(CANCEL), stream=number))

    def _finish(self, number: int, response: Response, *, reset: bool = False) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            self._forget(number, reset=reset)
            if not stream.answer.done():
                stream.answer.set_result(response)
            if self._why is not None and not self._streams and self._transport is not None:
                self.close()  # the peer has said goodbye, and this was the last call

    def _send_blocked(self) -> None:
        """Send on of requests that are larger than the windows the peer gives."""
        for _ in range(len(self._blocked)):
            number = self._blocked.popleft()
            stream = self._streams.get(number)
            if stream is None or self._transport is None:
                continue
            while stream.unsent and (room := min(self._window, stream.window, self._peer_frame)) > 0:
                part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
                self._window -= len(part)
                stream.window -= len(part)
                flags = 0 if stream.unsent else END_STREAM
                self._transport.write(frame(DATA, part, flags=flags, stream=number))
            if stream.unsent:
                self._blocked.append(number)

    # ------------------------------------------------------------ what the peer sends

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        opened = frame(WINDOW_UPDATE, _U32.pack(WINDOW))
        transport.write(PREFACE + frame(SETTINGS, _OUR_SETTINGS) + opened)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._grow(2 * len(self._buffer))
        return self._buffer[self._filled :]

    def _grow(self, size: int) -> None:
        larger = memoryview(bytearray(size))
        larger[: self._filled] = self._buffer[: self._filled]
        self._buffer = larger

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            self._read_frames()
        except PeerFault as fault:
            self.close(f"The engine does not speak HTTP/2 as it should: {fault}")

    def eof_received(self) -> bool:
        return False

    def _read_frames(self) -> None:
        """Handle every whole frame, and keep the rest, at the front, with room for all of its frame."""
        buffer, at = self._buffer, 0
        while self._filled - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            end = at + _HEAD.size + (high << 8) + low
            if end > self._filled:
                break
            self._handle(kind, flags, stream & LAST_STREAM, buffer[at + _HEAD.size : end])
            at = end
        if at:
            rest = bytes(buffer[at : self._filled])
            buffer[: len(rest)] = rest
            self._filled = len(rest)
        if self._filled >= _HEAD.size:
            high, low = _HEAD.unpack_from(buffer)[:2]
            whole = _HEAD.size + (high << 8) + low
            if whole > len(buffer):
                self._grow(whole + SMALLEST_BUFFER)

    def _handle(self, kind: int, flags: int, stream: int, payload: memoryview) -> None:
        if self._headers is not None and kind != CONTINUATION:
            raise PeerFault("its headers are cut short")
        if kind == DATA:
            self._on_data(flags, stream, payload)
        elif kind == HEADERS:
            payload = _unpadded(flags, payload)
            self._on_headers(flags, stream, bytes(payload[5:] if flags & PRIORITY else payload))
        elif kind == CONTINUATION:
            self._on_continuation(flags, stream, bytes(payload))
        elif kind == WINDOW_UPDATE:
            self._on_window(stream, _number(payload) & LAST_STREAM)
        elif kind == SETTINGS and not flags & ACK:
            self._on_settings(payload)
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, bytes(payload), flags=ACK))
        elif kind == RST_STREAM:
            code = _number(payload)
            status = _RST_STATUS.get(code, Status.UNAVAILABLE if code == REFUSED_STREAM else Status.INTERNAL)
            self._finish(stream, Response(status, f"The engine broke the call off (HTTP/2 error {code})"))
        elif kind == GOAWAY:
            self._on_goaway(payload)
        elif kind == PUSH_PROMISE:
            raise PeerFault("it pushes what nobody asked for")

    def _on_data(self, flags: int, number: int, payload: memoryview) -> None:
        self._received += len(payload)
        if self._received >= WINDOW // 2:  # open the connection's window again
            self._write(frame(WINDOW_UPDATE, _U32.pack(self._received)))
            self._received = 0
        stream = self._streams.get(number)
        if stream is None:
            return  # a call that was given up
        data = _unpadded(flags, payload)
        if stream.expected < 0:
            data = self._beginning(stream, data)
        if stream.expected > MAX_REPLY_BYTES:
            text = f"The engine's reply is larger than {MAX_REPLY_BYTES} bytes"
            self._finish(number, Response(Status.RESOURCE_EXHAUSTED, text), reset=True)
            return
        if data:
            stream.parts.append(bytes(data))
            stream.size += len(data)
        if flags & END_STREAM or 0 <= stream.expected < stream.size:
            self._finish(number, Response(Status.INTERNAL, "The engine's reply is not one message and its status"))

    def _beginning(self, stream: _Stream, data: memoryview) -> memoryview:
        """Take the head of the message off the first data, which is whole in all but the oddest cases."""
        if stream.parts:
            data = memoryview(b"".join((*stream.parts, data)))
            stream.parts, stream.size = [], 0
        if len(data) < _MESSAGE.size:
            return data
        compressed, stream.expected = _MESSAGE.unpack_from(data)
        stream.compressed = bool(compressed)
        return data[_MESSAGE.size :]

    def _on_headers(self, flags: int, number: int, block: bytes) -> None:
        if not flags & END_HEADERS:
            self._headers = number, flags, bytearray(block)
            return
        stream = self._streams.get(number)
        headers = self._decoded(block)
        if stream is None:
            return
        if flags & END_STREAM:
            self._finish(number, _response(headers, stream))
        elif headers.get(":status", "200") != "200":
            text = f"The engine answered with HTTP status {headers[':status']}"
            self._finish(number, Response(Status.UNAVAILABLE, text), reset=True)

    def _on_continuation(self, flags: int, number: int, block: bytes) -> None:
        if self._headers is None or self._headers[0] != number:
            raise PeerFault("it continues headers that were not begun")
        _, first, so_far = self._headers
        so_far += block
        if len(so_far) > MOST_HEADERS:
            raise PeerFault("its headers have no end")
        if flags & END_HEADERS:
            self._headers = None
            self._on_headers(first | END_HEADERS, number, bytes(so_far))

    def _decoded(self, block: bytes) -> dict[str, str]:
        known = self._known.get(block)
        if known is None:
            try:
                decoder = hpack.Decoder(max_header_list_size=MOST_HEADERS)
                decoder.max_allowed_table_size = decoder.header_table_size = 0  # as our settings say
                known = {str(name): str(value) for name, value in decoder.decode(block)}
            except (hpack.HPACKError, UnicodeDecodeError) as error:
                raise PeerFault(f"its headers cannot be read ({error})") from error
            if len(self._known) >= 64:
                self._known.clear()
            self._known[block] = known
        return known

    def _on_window(self, number: int, more: int) -> None:
        if number == 0:
            self._window += more
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
        if self._blocked:
            self._send_blocked()

    def _on_settings(self, payload: memoryview) -> None:
        if len(payload) % _SETTING.size:
            raise PeerFault("its settings are cut short")
        for name, value in _SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._peer_window
                self._peer_window = value
            elif name == MAX_FRAME_SIZE:
                self._peer_frame = value
        self._write(frame(SETTINGS, flags=ACK))
        self._send_blocked()

    def _on_goaway(self, payload: memoryview) -> None:
        """Nothing new is begun here; calls that the peer will not run end, the others go on."""
        if len(payload) < 8:
            raise PeerFault("its goodbye is cut short")
        self._why = "The engine is going away"
        last = _number(payload[:4]) & LAST_STREAM
        for number in [number for number in self._streams if number > last]:
            self._finish(number, Response(Status.UNAVAILABLE, self._why))
        if not self._streams:
            self.close(self._why)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # ------------------------------------------------------------ ending

    def close(self, why: str = "The connection was closed") -> None:
        """End it; calls under way end as UNAVAILABLE."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()
        self._end(self._why)

    def connection_lost(self, fault: Exception | None) -> None:
        self._why = self._why or (f"{fault}" if fault else "The engine closed the connection")
        self._end(self._why)

    def _end(self, why: str) -> None:
        self._transport = None
        for number in list(self._streams):
            self._finish(number, Response(Status.UNAVAILABLE, why))
        self._ended()


def _response(headers: dict[str, str], stream: _Stream) -> Response:
    """What trailers and data say of a call that has ended."""
    try:
        status = int(headers["grpc-status"])
    except (KeyError, ValueError):
        return Response(Status.UNKNOWN, "The engine's reply has no status")
    if status != 0:
        return Response(status, unquote(headers.get("grpc-message", "")))
    if stream.compressed or stream.size != stream.expected:
        return Response(Status.INTERNAL, "The engine's reply is not one plain message")
    return Response(0, message=stream.parts[0] if len(stream.parts) == 1 else b"".join(stream.parts))


def _unpadded(flags: int, payload: memoryview) -> memoryview:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise PeerFault("its padding is wrong")
    return payload[1 : len(payload) - payload[0]]


def _number(payload: memoryview) -> int:
    if len(payload) != _U32.size:
        raise PeerFault("a frame is cut short")
    return int(_U32.unpack(payload)[0])
