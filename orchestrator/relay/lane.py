"""One lane: runs each numbered call at most once, keeps the last answer for a resend, and knows when its engine was replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from client_sdk.wire import DEFAULT_DEADLINES_S, Frame, LaneInfo, Method, Status, WireError, method_of


@dataclass(frozen=True, slots=True)
class Seat:
    """Who sits in a slot now, as the store has it; ``address`` is None while the engine is being replaced."""

    rank: int
    generation: int
    engine_id: str | None
    address: str | None
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: ``reply`` as the engine sent it, or a gRPC status and a sentence."""

    reply: bytes | None
    status: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """An outcome with the call it belongs to, kept until the next call of its lane; times are in seconds."""

    rank: int
    generation: int
    seq: int
    method: Method
    outcome: Outcome
    engine_s: float = 0.0
    queue_s: float = 0.0


class EngineCalls(Protocol):
    """Calls an engine."""

    async def __call__(self, key: str, address: str, method: Method, request: bytes, *, timeout_s: float) -> Outcome:
        """The engine's reply, or its error; UNAVAILABLE when it is gone, DEADLINE_EXCEEDED when it hangs."""


class Trouble(Protocol):
    """Is told of engines that died or hang, and finds the words for it."""

    async def died(self, seat: Seat, text: str) -> str:
        """The engine broke off: note it, and return a sentence with rank, engine and reason."""

    async def hung(self, seat: Seat, method: Method, after_s: float) -> str:
        """The engine did not answer in time: note it, and return a sentence."""

    async def unwanted(self, seat: Seat, reason: str) -> None:
        """The client has no more use for the engine."""


@dataclass(slots=True)
class Meter:
    """What a lane has done since it was last asked; bytes on the wire are counted by the connection."""

    steps: int = 0
    calls: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0
    engine_s: float = 0.0
    queue_s: float = 0.0
    last_call_at: float | None = None  # monotonic


class Lane:
    """One engine of one lease. Lives as long as the lease, whatever happens to connections."""

    def __init__(
        self,
        seat: Seat,
        *,
        call_engine: EngineCalls,
        trouble: Trouble,
        deliver: Callable[[Result], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seat = seat
        self.fresh = False  # a new engine stepped in: ENV_INIT has to come first
        self.deadlines_s = dict(DEFAULT_DEADLINES_S)
        self.env_init: bytes | None = None  # the last one that went well: a spare can be made ready with it
        self.meter = Meter()
        self.ran = 0
        self.last: Result | None = None
        self._call_engine, self._trouble, self._deliver, self._monotonic = call_engine, trouble, deliver, monotonic
        self._running: asyncio.Task[None] | None = None
        self._running_seq = 0

    @property
    def ready(self) -> bool:
        """True when an engine sits in the slot."""
        return self.seat.address is not None

    @property
    def busy(self) -> bool:
        """True while a call is being run."""
        return self._running is not None

    def info(self) -> LaneInfo:
        """The lane as WELCOME tells it."""
        return LaneInfo(
            lane=self.seat.rank,
            generation=self.seat.generation,
            ready=self.ready,
            ran=max(self.ran, self._running_seq),
            fresh=self.fresh,
        )

    def reseat(self, seat: Seat) -> bool:
        """Take over what the store says now; True when the client should be told."""
        if seat == self.seat:
            return False
        if seat.generation != self.seat.generation:
            self.fresh = True
        self.seat = seat
        return True

    def call(self, frame: Frame) -> None:
        """Run a CALL, or deliver again what it came to; WireError when two calls of a lane are sent at once."""
        method, seat = method_of(frame), self.seat
        if frame.seq == self._running_seq and self.busy:
            return  # its answer will be delivered when it is there
        if self.last is not None and (frame.seq, frame.generation) == (self.last.seq, self.last.generation):
            self._deliver(self.last)
            return
        if self.busy:
            raise WireError(f"Lane {seat.rank} has a call in flight already.")
        refusal = self._refusal(frame, method)
        if refusal is not None:
            self._deliver(Result(seat.rank, frame.generation, frame.seq, method, refusal))
            return
        self._running_seq = frame.seq
        self._running = asyncio.create_task(self._run(frame.seq, method, bytes(frame.body)))

    def _refusal(self, frame: Frame, method: Method) -> Outcome | None:
        seat = self.seat
        if frame.generation != seat.generation:
            return Outcome(
                None, Status.FAILED_PRECONDITION, f"The engine of rank {seat.rank} was replaced: call make() again."
            )
        if frame.seq <= self.ran:
            return Outcome(
                None,
                Status.FAILED_PRECONDITION,
                f"Call {frame.seq} of rank {seat.rank} was overtaken by call {self.ran}.",
            )
        if seat.address is None:
            return Outcome(
                None, Status.UNAVAILABLE, f"The engine of rank {seat.rank} is being replaced: call make() again."
            )
        if self.fresh and method in (Method.RESET, Method.STEP):
            return Outcome(
                None, Status.FAILED_PRECONDITION, f"The engine of rank {seat.rank} was replaced: call make() again."
            )
        return None

    async def _run(self, seq: int, method: Method, request: bytes) -> None:
        seat, began = self.seat, self._monotonic()
        self.meter.last_call_at = began
        outcome = Outcome(None, Status.INTERNAL, "The relay failed while it ran this call.")
        try:
            assert seat.address is not None
            timeout_s = self.deadlines_s[method]
            outcome = await self._call_engine(seat.engine_id or "", seat.address, method, request, timeout_s=timeout_s)
            took = self._monotonic() - began
            outcome = await self._explained(seat, method, outcome, took)
            if outcome.reply is not None and method is Method.ENV_INIT:
                self.fresh, self.env_init = False, request
        finally:
            result = Result(seat.rank, seat.generation, seq, method, outcome, engine_s=self._monotonic() - began)
            self.last, self.ran, self._running = result, seq, None
            self._count(result)
            self._deliver(result)

    async def _explained(self, seat: Seat, method: Method, outcome: Outcome, took_s: float) -> Outcome:
        if method in (Method.CLOSE, Method.SHUTDOWN):
            return outcome
        if outcome.status == Status.DEADLINE_EXCEEDED:
            return Outcome(None, outcome.status, await self._trouble.hung(seat, method, took_s))
        if outcome.status == Status.UNAVAILABLE:
            return Outcome(None, outcome.status, await self._trouble.died(seat, outcome.text))
        return outcome

    def _count(self, result: Result) -> None:
        meter = self.meter
        meter.calls += 1
        meter.steps += result.method is Method.STEP
        meter.engine_s += result.engine_s
        meter.raw_bytes += len(result.outcome.reply or b"")

    async def settle(self, timeout_s: float) -> None:
        """Wait for the call in flight, if there is one, at most so long."""
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=timeout_s)

    def abandon(self) -> None:
        """The lease is over: nobody wants to know what the call in flight comes to."""
        if self._running is not None:
            self._running.cancel()
