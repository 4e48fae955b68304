"""The little of gRPC over HTTP/2 (RFC 9113) that serving unary calls on this machine needs: bytes in, bytes out.

The gRPC library costs the tunnel half a millisecond of CPU a call and a second thread to hand each call over to; this costs a
fifth of that on the loop that carries the line. Clients are asked to send headers without compression state, so that the same
header block always means the same: each is decoded once.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import quote

import hpack

from client_sdk.wire import MAX_REQUEST_BYTES, Status

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 1, 3, 4, 5, 6
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, COMPRESSION_ERROR = 1, 3, 5, 6, 9
NO_ERROR = 0

OUR_FRAME_BYTES = 16_384  # what a client may send in one frame
WINDOW = 2 * MAX_REQUEST_BYTES
MOST_STREAMS = 64
MOST_HEADER_BYTES = 16_384
MOST_BLOCKS = 64  # header blocks that are remembered
MAX_WINDOW = (1 << 31) - 1
LARGE = 64 * 1024

_HEAD = struct.Struct("!HBBBI")  # length (24 bits), type, flags, stream
_SETTING = struct.Struct("!HI")
_U32 = struct.Struct("!I")
_MESSAGE = struct.Struct("!BI")  # compressed?, length


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that leaves no state behind; both parts shorter than 127 bytes, or the value encoded with its own length."""
    size = bytes([len(value)]) if len(value) < 127 else b"\x7f" + _varint(len(value) - 127)
    return b"\x00" + bytes([len(name)]) + name + size + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_OPENING = b"\x88" + _literal(b"content-type", b"application/grpc")  # :status 200
_DONE = _literal(b"grpc-status", b"0")
_HELLO = _frame(
    SETTINGS,
    0,
    0,
    b"".join(
        _SETTING.pack(*one)
        for one in (
            (HEADER_TABLE_SIZE, 0),
            (MAX_CONCURRENT_STREAMS, MOST_STREAMS),
            (INITIAL_WINDOW_SIZE, WINDOW),
            (MAX_HEADER_LIST_SIZE, MOST_HEADER_BYTES),
        )
    ),
) + _frame(WINDOW_UPDATE, 0, 0, _U32.pack(WINDOW))


class Answer(Protocol):
    """Tells what a call came to: a message, or a gRPC status and one sentence; once."""

    def __call__(self, message: bytes | None, status: int = 0, text: str = "") -> None:
        """Send it, if the client is still there."""


Serve = Callable[[str, bytes, Answer], None]  # path, message, where the answer goes


class _Violation(Exception):
    """The client does not keep to the protocol."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class _Stream:
    number: int
    path: str
    window: int
    request: bytearray = field(default_factory=bytearray)
    half_closed: bool = False  # the client has sent all it has to say
    answered: bool = False
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    trailers: bytes = b""


class Peer(asyncio.Protocol):
    """One client's connection; ``serve`` is called with each complete request."""

    def __init__(self, serve: Serve, *, known: set[Peer] | None = None) -> None:
        self._serve = serve
        self._known: set[Peer] = set() if known is None else known
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._greeted = False
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        self._decoder = hpack.Decoder(max_header_list_size=MOST_HEADER_BYTES)
        self._blocks: dict[bytes, str] = {}
        self._stateless = False  # the client has agreed to keep no state of headers
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, headers that are not complete yet
        self._window = 65_535  # what we may send
        self._first_window = 65_535
        self._frame_bytes = 16_384
        self._unacknowledged = 0  # bytes of data received and not given back to the connection's window

    # ------------------------------------------------------------ the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast(asyncio.Transport, transport)
        self._known.add(self)
        self._transport.write(_HELLO)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget all calls; what they come to interests nobody."""
        self._known.discard(self)
        self._transport = None
        self._streams.clear()

    def data_received(self, data: bytes) -> None:
        """Take in what has come, and let go of a client that breaks the rules."""
        self._buffer += data
        try:
            self._read()
        except _Violation as fault:
            if self._transport is not None:
                reason = str(fault).encode()[:200]
                self._transport.write(_frame(GOAWAY, 0, 0, _U32.pack(self._last) + _U32.pack(fault.code) + reason))
                self._transport.close()

    def close(self) -> None:
        """Say that no more calls are taken, and close."""
        if self._transport is not None:
            self._transport.write(_frame(GOAWAY, 0, 0, _U32.pack(self._last) + _U32.pack(NO_ERROR)))
            self._transport.close()

    # ------------------------------------------------------------ frames

    def _read(self) -> None:
        buffer, at = self._buffer, 0
        if not self._greeted:
            if not PREFACE.startswith(bytes(buffer[: len(PREFACE)])):
                raise _Violation(PROTOCOL_ERROR, "This is not HTTP/2.")
            if len(buffer) < len(PREFACE):
                return
            self._greeted, at = True, len(PREFACE)
        while len(buffer) - at >= _HEAD.size and self._transport is not None:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            size = high << 8 | low
            if size > OUR_FRAME_BYTES:
                raise _Violation(FRAME_SIZE_ERROR, f"A frame of {size} bytes is too large.")
            if len(buffer) - at - _HEAD.size < size:
                break
            at += _HEAD.size
            self._take(kind, flags, stream & MAX_WINDOW, bytes(buffer[at : at + size]))
            at += size
        del buffer[:at]

    def _take(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
            raise _Violation(PROTOCOL_ERROR, "Headers were interrupted.")
        if kind == DATA:
            self._data(number, flags, body)
        elif kind == HEADERS:
            self._headers(number, flags, body)
        elif kind == CONTINUATION:
            self._continue(flags, body)
        elif kind == WINDOW_UPDATE:
            self._widen(number, body)
        elif kind == PING:
            self._ping(flags, body)
        elif kind == SETTINGS:
            self._settings(flags, body)
        elif kind == RST_STREAM:
            self._streams.pop(number, None)
        elif kind == PUSH_PROMISE:
            raise _Violation(PROTOCOL_ERROR, "A client promises nothing.")
        # PRIORITY, GOAWAY and what is not known: nothing to do

    def _ping(self, flags: int, body: bytes) -> None:
        if len(body) != 8:
            raise _Violation(FRAME_SIZE_ERROR, "A ping has 8 bytes.")
        if not flags & ACK:
            self._write(_frame(PING, ACK, 0, body))

    def _settings(self, flags: int, body: bytes) -> None:
        if flags & ACK:
            self._decoder.header_table_size = 0
            self._decoder.max_allowed_table_size = 0
            self._stateless = True
            return
        if len(body) % _SETTING.size:
            raise _Violation(FRAME_SIZE_ERROR, "The settings are cut short.")
        for name, value in _SETTING.iter_unpack(body):
            if name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise _Violation(FLOW_CONTROL_ERROR, "A window cannot be that large.")
                for stream in self._streams.values():
                    stream.window += value - self._first_window
                self._first_window = value
            elif name == MAX_FRAME_SIZE:
                self._frame_bytes = max(16_384, min(value, (1 << 24) - 1))
        self._write(_frame(SETTINGS, ACK, 0))
        self._send_on()

    def _widen(self, number: int, body: bytes) -> None:
        if len(body) != 4:
            raise _Violation(FRAME_SIZE_ERROR, "A window's update has 4 bytes.")
        more = _U32.unpack(body)[0] & MAX_WINDOW
        if number == 0:
            self._window += more
            if self._window > MAX_WINDOW:
                raise _Violation(FLOW_CONTROL_ERROR, "A window cannot be that large.")
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
        self._send_on()

    # ------------------------------------------------------------ requests

    def _headers(self, number: int, flags: int, body: bytes) -> None:
        body = _unpadded(flags, body)
        if flags & PRIORITY:
            body = body[5:]
        self._block = (number, flags, bytearray(body))
        if flags & END_HEADERS:
            self._open()

    def _continue(self, flags: int, body: bytes) -> None:
        if self._block is None:
            raise _Violation(PROTOCOL_ERROR, "There is nothing to continue.")
        self._block[2].extend(body)
        if len(self._block[2]) > MOST_HEADER_BYTES:
            raise _Violation(PROTOCOL_ERROR, "The headers are too long.")
        if flags & END_HEADERS:
            self._open()

    def _open(self) -> None:
        assert self._block is not None
        (number, flags, block), self._block = self._block, None
        path = self._path(bytes(block))
        if number in self._streams:  # trailers of a request: it ends
            self._end(self._streams[number])
            return
        if number % 2 == 0 or number <= self._last:
            raise _Violation(PROTOCOL_ERROR, f"Stream {number} cannot be opened.")
        self._last = number
        stream = self._streams[number] = _Stream(number, path, self._first_window)
        if len(self._streams) > MOST_STREAMS:
            self._refuse(stream, Status.RESOURCE_EXHAUSTED, "Too many calls at once.")
        elif flags & END_STREAM:
            self._end(stream)

    def _path(self, block: bytes) -> str:
        found = self._blocks.get(block)
        if found is None:
            try:
                headers = dict(self._decoder.decode(block, raw=True))
            except hpack.HPACKError as fault:
                raise _Violation(COMPRESSION_ERROR, "The headers cannot be read.") from fault
            found = bytes(headers.get(b":path", b"")).decode("ascii", "replace")
            if self._stateless and len(self._blocks) < MOST_BLOCKS:
                self._blocks[block] = found
        return found

    def _data(self, number: int, flags: int, body: bytes) -> None:
        self._give_back(len(body))
        stream = self._streams.get(number)
        if stream is None or stream.answered:
            if number == 0 or number > self._last:
                raise _Violation(PROTOCOL_ERROR, f"Stream {number} is not open.")
            return  # it has been reset, or answered already
        stream.request += _unpadded(flags, body)
        if len(stream.request) > MAX_REQUEST_BYTES + _MESSAGE.size:
            self._refuse(stream, Status.RESOURCE_EXHAUSTED, f"A request is longer than {MAX_REQUEST_BYTES} bytes.")
        elif flags & END_STREAM:
            self._end(stream)

    def _give_back(self, size: int) -> None:
        """Open the connection's window again; that of a stream is large enough for a whole request."""
        self._unacknowledged += size
        if self._unacknowledged > WINDOW // 2:
            self._write(_frame(WINDOW_UPDATE, 0, 0, _U32.pack(self._unacknowledged)))
            self._unacknowledged = 0

    def _end(self, stream: _Stream) -> None:
        """The request is complete."""
        stream.half_closed = True
        request, stream.request = stream.request, bytearray()
        if stream.answered:
            return
        if len(request) < _MESSAGE.size:
            self._refuse(stream, Status.INTERNAL, "The request has no message.")
            return
        compressed, size = _MESSAGE.unpack_from(request)
        if compressed or size != len(request) - _MESSAGE.size:
            self._refuse(stream, Status.UNIMPLEMENTED, "A request is one message, and not compressed.")
            return
        number = stream.number

        def answer(message: bytes | None, status: int = 0, text: str = "") -> None:
            self._answer(number, message, status, text)

        self._serve(stream.path, bytes(memoryview(request)[_MESSAGE.size :]), answer)

    # ------------------------------------------------------------ answers

    def _refuse(self, stream: _Stream, status: int, text: str) -> None:
        self._answer(stream.number, None, status, text)

    def _answer(self, number: int, message: bytes | None, status: int, text: str) -> None:
        stream = self._streams.get(number)
        if stream is None or stream.answered or self._transport is None:
            return
        stream.answered = True
        if message is None:
            words = quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode("ascii")[:3500]
            block = _OPENING + _literal(b"grpc-status", b"%d" % status) + _literal(b"grpc-message", words)
            self._write(_frame(HEADERS, END_HEADERS | END_STREAM, number, block))
            self._close_stream(stream)
            return
        trailers = _frame(HEADERS, END_HEADERS | END_STREAM, number, _DONE)
        opening = _frame(HEADERS, END_HEADERS, number, _OPENING)
        prefix = _MESSAGE.pack(0, len(message))
        size = len(prefix) + len(message)
        if size <= min(self._window, stream.window, self._frame_bytes):
            self._window -= size
            head = opening + _HEAD.pack(size >> 8, size & 0xFF, DATA, 0, number) + prefix
            if size < LARGE:
                self._write(head + message + trailers)
            else:  # a copy of a frame costs more than two more calls of the system
                self._write(head)
                self._write(message)
                self._write(trailers)
            self._close_stream(stream)
            return
        body = prefix + message
        self._write(opening)
        stream.unsent, stream.trailers = memoryview(body), trailers
        self._send(stream)

    def _send_on(self) -> None:
        for stream in list(self._streams.values()):
            if stream.unsent:
                self._send(stream)

    def _send(self, stream: _Stream) -> None:
        """As much of a reply as both windows let through."""
        parts: list[bytes | memoryview] = []
        while stream.unsent:
            size = min(len(stream.unsent), self._window, stream.window, self._frame_bytes)
            if size <= 0:
                break
            parts += (_HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream.number), stream.unsent[:size])
            stream.unsent = stream.unsent[size:]
            self._window -= size
            stream.window -= size
        if not stream.unsent:
            parts.append(stream.trailers)
        if parts:
            self._write(b"".join(parts))
        if not stream.unsent:
            self._close_stream(stream)

    def _close_stream(self, stream: _Stream) -> None:
        self._streams.pop(stream.number, None)
        if not stream.half_closed:  # the client is to stop sending
            self._write(_frame(RST_STREAM, 0, stream.number, _U32.pack(NO_ERROR)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _unpadded(flags: int, body: bytes) -> bytes:
    if not flags & PADDED:
        return body
    if not body or body[0] >= len(body):
        raise _Violation(PROTOCOL_ERROR, "There is more padding than frame.")
    return body[1 : len(body) - body[0]]
