"""The data plane's messages, version 1: one definition for both ends.

Transport
    One WebSocket (RFC 6455) over TLS carries one lease: ``wss://HOST:8444/v1/leases/LEASE_ID``, header ``Authorization: Bearer RELAY_TOKEN``,
    subprotocol ``cornerman.v1``, WebSocket compression off. A refused handshake answers plain HTTP with one sentence as its body: 401 wrong
    token, 404 unknown lease, 409 the lease waits still, 410 it has ended, 426 another version, 503 the relay is full or stopping.
    Each engine of the lease is a *lane*, numbered by its rank. A plain GET of the same URL with ``/probe`` behind it, and the same token,
    answers 4 MiB that do not compress, by which a client measures the line.

Frames
    A binary WebSocket message is one or more frames, back to back (answers that are ready together travel together). Text messages are an
    error. A frame is a header of 16 bytes in network byte order, then ``size`` bytes of body::

        kind u8 | code u8 | lane u16 | generation u32 | seq u32 | size u32

    ========  ====  =====  ==================================  =========================================================
    kind      dir   no.    code                                body
    ========  ====  =====  ==================================  =========================================================
    HELLO     c->r  1      0                                   JSON, see Hello; the first frame, within 10 s
    WELCOME   r->c  2      0                                   JSON, see Welcome; answers HELLO
    CALL      c->r  3      method (Method)                     the request as the engine's gRPC service takes it
    ANSWER    r->c  4      flags (NEW_STREAM, PLAIN)           engine_us u32 | queue_us u32 | raw_size u32 | data
    FAULT     r->c  5      gRPC status, never 0                one sentence, UTF-8
    LANE      r->c  6      0 replacing, 1 ready                why, UTF-8; ``generation`` is the one now in the slot
    REPLACE   c->r  7      0                                   why, UTF-8: the engine of ``generation`` is of no more use
    BYE       r->c  8      Bye                                 one sentence, UTF-8; the connection closes after it
    ========  ====  =====  ==================================  =========================================================

Calls
    A lane has one call in flight. ``seq`` rises by one at each call of a lane and never falls; ``generation`` is that of the engine the
    caller means. A call runs at most once: one whose number is being run, waits to be run, or was the last to run, gets the answer of that run
    (that is how a client goes on after a broken line: it sends its unanswered calls again); a lower number, or another generation, gets
    FAULT FAILED_PRECONDITION and runs nothing. A client that will not wait for a call any longer may send the next one: it is held until
    the former has ended; of several that are held only the highest number is run, the others get FAULT FAILED_PRECONDITION.
    After a replacement only ENV_INIT is run until it has been run; CLOSE and SHUTDOWN are then answered with an empty reply, because there is
    nothing to close, and do not reach the fresh engine.

Resuming
    HELLO names the ``session`` (random, chosen by the client, kept over reconnects) and, if there was an earlier connection, its relay's
    ``epoch``. WELCOME says the epoch now, and for each lane its state, generation and ``ran``, the highest number taken. Same epoch and session:
    unanswered calls are sent again; a former connection that is still open is dropped. Another epoch (the relay died in between): what was
    unanswered has an unknown outcome; the client fails such a call, sends REPLACE for its lane, and goes on with the others. But after BYE
    STOPPING nothing is unknown: the relay has answered, or given a FAULT to, every call that it had begun, and what is unanswered was
    never run; the client connects again and sends it again, whatever the epoch then is. Another session takes the lease over: the former
    connection gets BYE TAKEN_OVER, and the new one goes on with numbers above ``ran``. Whoever was taken over while it was away, and
    comes back with this relay's epoch, gets BYE TAKEN_OVER as well.

Compression
    ANSWER data is one zstd stream per lane and direction, flushed at each answer, so that earlier frames are the dictionary. NEW_STREAM: this
    answer begins a new stream; forget the old one. PLAIN: the data is the reply as it is, and no part of the stream. Decompressed,
    ANSWER data is ``raw_size`` bytes, bit by bit what the engine sent. The window is at most 2**MAX_WINDOW_LOG bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

WIRE_VERSION = 1
SUBPROTOCOL = "cornerman.v1"
PROBE_SUFFIX = (
    "/probe"  # a GET of the same URL with this behind it answers some MiB, by which a client measures the line
)
DEFAULT_PORT = 8444

MAX_REQUEST_BYTES = 1 << 20  # of one CALL; an engine's largest request is a few KB
MAX_REPLY_BYTES = 8 << 20  # of one ANSWER, raw; the largest frame of any game is 0.74 MB
MAX_TEXT_BYTES = 4096
MAX_JSON_BYTES = 256 << 10
MAX_LANES = 1000
MAX_CLIENT_MESSAGE_BYTES = 4 << 20
MAX_RELAY_MESSAGE_BYTES = 16 << 20
JOIN_BYTES = 1 << 20  # answers are joined into one message up to about this size
MAX_WINDOW_LOG = 23
HELLO_WITHIN_S = 10.0

HEADER = struct.Struct("!BBHIII")
ANSWER_HEAD = struct.Struct("!III")


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    CALL = 3
    ANSWER = 4
    FAULT = 5
    LANE = 6
    REPLACE = 7
    BYE = 8


class Method(IntEnum):
    """The calls of DIAMBRA's ``interface.EnvServer``."""

    ENV_INIT = 1
    RESET = 2
    STEP = 3
    CLOSE = 4
    SHUTDOWN = 5

    @property
    def path(self) -> str:
        """The gRPC path of the call."""
        return _PATHS[self]


_PATHS = {
    Method.ENV_INIT: "/interface.EnvServer/EnvInit",
    Method.RESET: "/interface.EnvServer/Reset",
    Method.STEP: "/interface.EnvServer/Step",
    Method.CLOSE: "/interface.EnvServer/Close",
    Method.SHUTDOWN: "/interface.EnvServer/Shutdown",
}


class Flags(IntFlag):
    """What is special about the data of an ANSWER."""

    NEW_STREAM = 1
    PLAIN = 2


class Bye(IntEnum):
    """Why the relay ends a connection."""

    LEASE_ENDED = 1  # do not come back
    TAKEN_OVER = 2  # another session of the same lease connected; do not come back
    STOPPING = 3  # the relay is stopping or restarting: come back
    PROTOCOL = 4  # the client sent something that is not allowed; do not come back


class Status(IntEnum):
    """The gRPC status codes that the data plane itself gives."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


DEFAULT_DEADLINES_S = {
    Method.ENV_INIT: 120.0,
    Method.RESET: 60.0,
    Method.STEP: 30.0,
    Method.CLOSE: 10.0,
    Method.SHUTDOWN: 10.0,
}


class WireError(ValueError):
    """The peer sent something that the protocol does not allow; the text says what."""


class Frame(NamedTuple):
    """One frame; ``body`` may be a view into the message it came in."""

    kind: Kind
    code: int
    lane: int
    generation: int
    seq: int
    body: bytes | memoryview

    def text(self) -> str:
        """The body as a sentence."""
        return bytes(self.body).decode("utf-8", "replace")


class Answer(NamedTuple):
    """The body of an ANSWER: times in microseconds, ``data`` as it is on the wire."""

    engine_us: int
    queue_us: int
    raw_size: int
    data: memoryview


class _Json(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Hello(_Json):
    """What a client says first; deadlines are seconds by the lower-case name of the method."""

    version: int
    session: str = Field(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    epoch: str | None = Field(default=None, max_length=64)
    deadlines_s: dict[str, FiniteFloat] = Field(default_factory=dict, max_length=16)
    client: str = Field(default="", max_length=200)  # for logs


class LaneInfo(_Json):
    """A lane as WELCOME tells it; ``ran`` is the last number that was run, 0 for none."""

    lane: int
    generation: int
    ready: bool
    ran: int
    fresh: bool  # ENV_INIT has to come first


class Welcome(_Json):
    """What the relay answers to HELLO."""

    version: int
    epoch: str
    resumed: bool  # same epoch and session as the connection before
    lanes: list[LaneInfo]


def frame(
    kind: Kind,
    body: bytes | bytearray | memoryview = b"",
    *,
    code: int = 0,
    lane: int = 0,
    generation: int = 0,
    seq: int = 0,
) -> bytes:
    """One frame as bytes."""
    return HEADER.pack(kind, code, lane, generation, seq, len(body)) + body


def text_frame(kind: Kind, text: str, *, code: int = 0, lane: int = 0, generation: int = 0, seq: int = 0) -> bytes:
    """A frame whose body is a sentence, cut to MAX_TEXT_BYTES."""
    return frame(kind, text.encode()[:MAX_TEXT_BYTES], code=code, lane=lane, generation=generation, seq=seq)


def json_frame(kind: Kind, body: Hello | Welcome) -> bytes:
    """HELLO or WELCOME as bytes."""
    return frame(kind, body.model_dump_json().encode())


def answer_frame(
    data: bytes, *, flags: Flags, lane: int, generation: int, seq: int, engine_us: int, queue_us: int, raw_size: int
) -> bytes:
    """An ANSWER as bytes."""
    head = HEADER.pack(Kind.ANSWER, flags, lane, generation, seq, ANSWER_HEAD.size + len(data))
    return b"".join((head, ANSWER_HEAD.pack(min(engine_us, _U32), min(queue_us, _U32), raw_size), data))


_U32 = 0xFFFFFFFF

_LIMITS = {
    Kind.HELLO: MAX_JSON_BYTES,
    Kind.WELCOME: MAX_JSON_BYTES,
    Kind.CALL: MAX_REQUEST_BYTES,
    Kind.ANSWER: MAX_REPLY_BYTES + ANSWER_HEAD.size + 4096,
    Kind.FAULT: MAX_TEXT_BYTES,
    Kind.LANE: MAX_TEXT_BYTES,
    Kind.REPLACE: MAX_TEXT_BYTES,
    Kind.BYE: MAX_TEXT_BYTES,
}
FROM_CLIENT = frozenset({Kind.HELLO, Kind.CALL, Kind.REPLACE})
FROM_RELAY = frozenset({Kind.WELCOME, Kind.ANSWER, Kind.FAULT, Kind.LANE, Kind.BYE})


def frames(message: bytes | memoryview, allowed: Iterable[Kind]) -> Iterator[Frame]:
    """The frames of a message, each checked before it is given; WireError at the first that is not allowed."""
    view, at, allowed = memoryview(message), 0, frozenset(allowed)
    while at < len(view):
        if len(view) - at < HEADER.size:
            raise WireError("A frame's header is cut short.")
        number, code, lane, generation, seq, size = HEADER.unpack_from(view, at)
        at += HEADER.size
        kind = _KINDS.get(number)
        if kind is None or kind not in allowed:
            raise WireError(f"A frame of kind {number} is not allowed here.")
        if size > _LIMITS[kind]:
            raise WireError(f"A {kind.name} of {size} bytes is longer than {_LIMITS[kind]}.")
        if size > len(view) - at:
            raise WireError(f"A {kind.name} says it has {size} bytes, and {len(view) - at} came.")
        if lane >= MAX_LANES:
            raise WireError(f"There is no lane {lane}.")
        yield Frame(kind, code, lane, generation, seq, view[at : at + size])
        at += size


_KINDS = {int(kind): kind for kind in Kind}
_METHODS = {int(method): method for method in Method}


def method_of(call: Frame) -> Method:
    """The method of a CALL; WireError when there is none of that number."""
    method = _METHODS.get(call.code)
    if method is None:
        raise WireError(f"There is no method {call.code}.")
    return method


def answer_of(answer: Frame) -> Answer:
    """The parts of an ANSWER's body; WireError when it is cut short or promises too much."""
    if len(answer.body) < ANSWER_HEAD.size:
        raise WireError("An ANSWER is cut short.")
    engine_us, queue_us, raw_size = ANSWER_HEAD.unpack_from(answer.body)
    if raw_size > MAX_REPLY_BYTES:
        raise WireError(f"A reply of {raw_size} bytes is longer than {MAX_REPLY_BYTES}.")
    return Answer(engine_us, queue_us, raw_size, memoryview(answer.body)[ANSWER_HEAD.size :])


_Parsed = TypeVar("_Parsed", bound=_Json)


def hello_of(message: Frame) -> Hello:
    """The contents of a HELLO; WireError when they are not right."""
    return _parse(Hello, message)


def welcome_of(message: Frame) -> Welcome:
    """The contents of a WELCOME; WireError when they are not right."""
    return _parse(Welcome, message)


def _parse(model: type[_Parsed], message: Frame) -> _Parsed:
    try:
        return model.model_validate_json(bytes(message.body))
    except ValueError:
        raise WireError(f"The {message.kind.name} is not right.") from None
