"""One lane as the client knows it: its engine's generation, its numbered calls, and the stream that its answers come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, NamedTuple, cast

import zstandard

from client_sdk.wire import (
    MAX_RELAY_MESSAGE_BYTES,
    MAX_WINDOW_LOG,
    Answer,
    Flags,
    Kind,
    LaneInfo,
    Method,
    Status,
    WireError,
    frame,
)

_ENDING = (Method.CLOSE, Method.SHUTDOWN)
_ENGINE_LOST = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
_NEW_STREAM, _PLAIN = int(Flags.NEW_STREAM), int(Flags.PLAIN)  # an enumeration's own "&" takes a microsecond


class CallFault(Exception):
    """A call failed: a gRPC status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status or Status.UNKNOWN
        self.text = text


class Reply(NamedTuple):
    """What an engine answered, bit by bit, and how long it took there; times in seconds."""

    data: bytes
    engine_s: float = 0.0
    queue_s: float = 0.0
    wire_bytes: int = 0


Outcome = Reply | CallFault
Done = Callable[[Outcome], None]


def _nobody_waits(outcome: Outcome) -> None:
    """The outcome of a call that was given up."""


@dataclass(slots=True, eq=False)
class Call:
    """One call, from the moment it is asked for; ``done`` is told its outcome once."""

    method: Method
    request: bytes
    done: Done
    limit_s: float
    since: float  # monotonic; when it was asked for, and later when it was last sent
    seq: int = 0
    generation: int = 0
    sent: bool = False
    given_up: bool = False  # nobody expects an answer any more
    newer_than: int = -1  # it waits for an engine of a higher generation than this
    first_fault: CallFault | None = None

    def finish(self, outcome: Outcome) -> None:
        """Tell the outcome; a second one is nobody's."""
        done, self.done = self.done, _nobody_waits
        done(outcome)

    def frame(self, rank: int) -> bytes:
        """The call as it goes on the wire."""
        return frame(Kind.CALL, self.request, code=self.method, lane=rank, generation=self.generation, seq=self.seq)


class Lane:
    """One engine of a lease as seen from here; no input or output."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.generation = 0
        self.replaced_at = 0.0  # monotonic
        self.fresh = False  # another engine sits there since ENV_INIT last went well
        self.ready = False
        self.why = ""  # it is not ready
        self.seq = 0
        self.open: Call | None = None
        self.waiting: deque[Call] = deque()
        self.unwanted: tuple[int, str] | None = None  # generation and reason of an engine that was given up
        self.stream = Stream(rank)

    # ------------------------------------------------------------ what the relay says

    def take_over(self, info: LaneInfo) -> None:
        """Believe what WELCOME says; a new connection has new streams."""
        self.fresh = self.fresh or info.fresh
        self.seq = max(self.seq, info.ran)
        self.stream = Stream(self.rank)
        self.change(info.generation, info.ready, "")

    def change(self, generation: int, ready: bool, why: str) -> None:
        """Believe what LANE says."""
        if self.generation and generation != self.generation:
            self.fresh = True
        self.generation, self.ready = generation, ready
        self.why = "" if ready else why or self.why
        if self.unwanted is not None and self.unwanted[0] != generation:
            self.unwanted = None

    # ------------------------------------------------------------ calls

    def verdict(self, call: Call) -> Outcome | bool:
        """Whether the first waiting call may start: True, False (not yet), or what to tell its caller instead."""
        gone = self.fresh or not self.ready
        if call.method in _ENDING and gone:
            return Reply(b"")  # an empty message of any type: there is nothing left to close
        if call.method is Method.ENV_INIT:
            return self.ready and self.generation > call.newer_than and self.unwanted is None
        if self.fresh:
            return CallFault(
                Status.FAILED_PRECONDITION, f"The engine of rank {self.rank} was replaced: call make() again."
            )
        if not self.ready:
            because = f" ({self.why.rstrip('.')})" if self.why else ""
            return CallFault(
                Status.UNAVAILABLE, f"The engine of rank {self.rank} is being replaced{because}: call make() again."
            )
        return True

    def begin(self, call: Call) -> None:
        """Number ``call`` and make it the open one."""
        self.seq += 1
        call.seq, call.generation, call.sent = self.seq, self.generation, False
        self.open = call

    def end(self, outcome: Outcome, *, now: float) -> None:
        """The open call has come to ``outcome``. An ENV_INIT that lost its engine waits for the next one, once."""
        call, self.open = self.open, None
        if call is None:
            return
        if call.method is Method.ENV_INIT:
            if isinstance(outcome, Reply):
                self.fresh = self.generation != call.generation
            elif call.first_fault is None and self._engine_lost(call, outcome):
                call.newer_than, call.first_fault, call.since = call.generation, outcome, now
                self.waiting.appendleft(call)
                return
        call.finish(outcome)

    def _engine_lost(self, call: Call, fault: CallFault) -> bool:
        stale = fault.status == Status.FAILED_PRECONDITION and self.generation != call.generation
        return stale or fault.status in _ENGINE_LOST

    def fail_all(self, fault: CallFault) -> None:
        """Tell everybody who waits; an open call that was sent stays open, because its answer may come yet."""
        if self.open is not None:
            self.open.finish(fault)
            self.open = self.open if self.open.sent else None
        waiting, self.waiting = self.waiting, deque()
        for call in waiting:
            call.finish(fault)

    def gone(self) -> CallFault:
        """What a call is told whose engine was replaced under it."""
        return CallFault(
            Status.UNAVAILABLE, f"The engine of rank {self.rank} was replaced during the call: call make() again."
        )


class Stream:
    """The decompressing end of one lane over one connection. Never yields more than a reply says it has."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._source = _Source()
        self._reader: zstandard.ZstdDecompressionReader | None = None

    def decode(self, flags: int, answer: Answer) -> bytes:
        """The reply inside an ANSWER; WireError when the stream is broken. Waits for no lock of the interpreter."""
        if flags & _PLAIN:
            data = bytes(answer.data)
        else:
            if flags & _NEW_STREAM:
                decompressor = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG)
                source = cast(IO[bytes], self._source)
                self._reader = decompressor.stream_reader(source, read_size=MAX_RELAY_MESSAGE_BYTES)
            if self._reader is None:
                raise WireError(f"The stream of lane {self._rank} has no beginning.")
            self._source.chunk = answer.data
            try:
                data = self._reader.read1(answer.raw_size + 1)  # one more, to see that there is no more
            except zstandard.ZstdError as error:
                raise WireError(f"The stream of lane {self._rank} is broken ({error}).") from error
        if len(data) != answer.raw_size:
            raise WireError(f"A reply of lane {self._rank} does not have the {answer.raw_size} bytes that it promised.")
        return data


class _Source:
    """Hands the reader the one chunk that has come."""

    def __init__(self) -> None:
        self.chunk: bytes | memoryview = b""

    def read(self, size: int) -> bytes | memoryview:
        chunk, self.chunk = self.chunk, b""
        return chunk
