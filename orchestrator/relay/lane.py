"""One lane: runs each numbered call at most once, keeps the last answer for a resend, and knows when its engine was replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from client_sdk.wire import DEFAULT_DEADLINES_S, Frame, LaneInfo, Method, Status, method_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """Who sits in a slot now, as the store has it; ``address`` is None while the engine is being replaced."""

    lease_id: str
    rank: int
    generation: int
    engine_id: str | None
    address: str | None
    pool: str = ""
    lost_because: str | None = None  # why the engine before this one, or the one that is missing, was lost


class Outcome(NamedTuple):
    """What a call came to: ``reply`` as the engine sent it, or a gRPC status and a sentence."""

    reply: bytes | None
    status: int = 0
    text: str = ""


class Result(NamedTuple):
    """An outcome with the call it belongs to, kept until the next call of its lane; times in seconds, ``ended_at`` monotonic."""

    rank: int
    generation: int
    seq: int
    method: Method
    outcome: Outcome
    engine_s: float = 0.0
    queue_s: float = 0.0  # until the engine was called
    ended_at: float = 0.0


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
    """What a lane has done since it was last asked."""

    steps: int = 0
    calls: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0
    engine_s: float = 0.0
    queue_s: float = 0.0

    def add(self, other: Meter) -> None:
        """Put back what could not be written down."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Call:
    seq: int
    generation: int
    method: Method
    request: bytes
    arrived_at: float


@dataclass(slots=True)
class _Run:
    """A call that is being run, on the engine that sat in the slot when it began."""

    call: _Call
    seat: Seat
    began_at: float
    ended_at: float | None = None  # the engine has answered, or failed: what remains is to say why
    task: asyncio.Task[None] | None = None


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
        self.stopping = False  # nothing new is begun
        self.deadlines_s = dict(DEFAULT_DEADLINES_S)
        self.env_init: bytes | None = None  # the last one that went well: a spare can be made ready with it
        self.shown: dict[Method, bytes] = {}  # the last reply to each method of this game: what its picture is made of
        self.meter = Meter()
        self.metered = False  # there was something to write down last time
        self.ran = 0
        self.last: Result | None = None
        self._call_engine, self._trouble, self._deliver, self._monotonic = call_engine, trouble, deliver, monotonic
        self._run: _Run | None = None
        self._held: _Call | None = None

    @property
    def ready(self) -> bool:
        """True when an engine sits in the slot."""
        return self.seat.address is not None

    @property
    def busy(self) -> bool:
        """True while a call is being run."""
        return self._run is not None

    def info(self) -> LaneInfo:
        """The lane as WELCOME tells it."""
        return LaneInfo(
            lane=self.seat.rank,
            generation=self.seat.generation,
            ready=self.ready,
            ran=self._highest,
            fresh=self.fresh,
        )

    @property
    def _highest(self) -> int:
        """The highest number that was taken."""
        known = [self.ran]
        if self._run is not None:
            known.append(self._run.call.seq)
        if self._held is not None:
            known.append(self._held.seq)
        return max(known)

    # ------------------------------------------------------------ calls

    def call(self, frame: Frame) -> None:
        """Run a CALL, hold it until the one before has ended, or deliver again what it came to."""
        method, last = method_of(frame), self.last
        if last is not None and frame.seq == last.seq and frame.generation == last.generation:
            self._deliver(last)
            return
        if self._is_known(frame) or self.stopping:
            return  # its answer comes when it is there; or never, and then the client's next connection sends it again
        call = _Call(frame.seq, frame.generation, method, bytes(frame.body), self._monotonic())
        refusal = self._refusal(call)
        if refusal is not None:
            self._tell(call, refusal)
        elif self._run is None:
            self._begin(call)
        else:
            self._hold(call)

    def _is_known(self, frame: Frame) -> bool:
        calls = (self._run.call if self._run else None, self._held)
        return any(call and (call.seq, call.generation) == (frame.seq, frame.generation) for call in calls)

    def _hold(self, call: _Call) -> None:
        former, self._held = self._held, call
        if former is not None:
            self._tell(former, self._overtaken(former.seq, call.seq))

    def _refusal(self, call: _Call) -> Outcome | None:
        seat = self.seat
        if call.generation != seat.generation:
            return _replaced(seat)
        if call.seq <= self._highest:
            return self._overtaken(call.seq, self._highest)
        return self._unplayable(call.method)

    def _unplayable(self, method: Method) -> Outcome | None:
        """What to say at once of a call that the slot's engine cannot run, or should not; None when it is to run."""
        if method in (Method.CLOSE, Method.SHUTDOWN):
            return Outcome(b"") if self.fresh or not self.ready else None
        if not self.ready:
            return Outcome(
                None, Status.UNAVAILABLE, f"The engine of rank {self.seat.rank} is being replaced: call make() again."
            )
        return _replaced(self.seat) if self.fresh and method is not Method.ENV_INIT else None

    def _overtaken(self, seq: int, by: int) -> Outcome:
        text = f"Call {seq} of rank {self.seat.rank} was overtaken by call {by}, and was not run."
        return Outcome(None, Status.FAILED_PRECONDITION, text)

    def _tell(self, call: _Call, outcome: Outcome) -> None:
        """Answer a call that is not run; it leaves no trace."""
        self._deliver(Result(self.seat.rank, call.generation, call.seq, call.method, outcome))

    def _begin(self, call: _Call) -> None:
        self._run = run = _Run(call, self.seat, self._monotonic())
        run.task = asyncio.create_task(self._carry_out(run))

    async def _carry_out(self, run: _Run) -> None:
        call, seat = run.call, run.seat
        timeout_s = self.deadlines_s[call.method]
        try:
            outcome = await self._call_engine(
                seat.engine_id or "", seat.address or "", call.method, call.request, timeout_s=timeout_s
            )
            run.ended_at = self._monotonic()
            if outcome.reply is None:
                outcome = await self._explained(seat, call.method, outcome, timeout_s)
        except Exception:  # a call's edge: its client must hear something
            log.exception("a call failed in the relay", lease=seat.lease_id, rank=seat.rank)
            outcome = Outcome(None, Status.INTERNAL, "The relay failed while it ran this call: its log says why.")
        self._finish(run, outcome)

    async def _explained(self, seat: Seat, method: Method, outcome: Outcome, timeout_s: float) -> Outcome:
        if method in (Method.CLOSE, Method.SHUTDOWN):
            return outcome
        if outcome.status == Status.DEADLINE_EXCEEDED:
            return Outcome(None, outcome.status, await self._trouble.hung(seat, method, timeout_s))
        if outcome.status == Status.UNAVAILABLE:
            return Outcome(None, outcome.status, await self._trouble.died(seat, outcome.text))
        return outcome

    def _finish(self, run: _Run, outcome: Outcome) -> None:
        """The call has come to ``outcome``; again changes nothing."""
        if self._run is not run:
            return
        call, now = run.call, self._monotonic()
        ended_at = run.ended_at if run.ended_at is not None else now
        self._run, self.ran = None, call.seq
        if outcome.reply is not None and run.seat.generation == self.seat.generation:
            self._remember(call, outcome.reply)
        self.last = Result(
            rank=self.seat.rank,
            generation=call.generation,
            seq=call.seq,
            method=call.method,
            outcome=outcome,
            engine_s=ended_at - run.began_at,
            queue_s=run.began_at - call.arrived_at,
            ended_at=ended_at,
        )
        self._count(self.last)
        self._deliver(self.last)
        held, self._held = self._held, None
        if held is not None and not self.stopping:
            refusal = self._refusal(held)
            if refusal is None:
                self._begin(held)
            else:
                self._tell(held, refusal)

    def _remember(self, call: _Call, reply: bytes) -> None:
        if call.method is Method.ENV_INIT:
            self.fresh, self.env_init = False, call.request
            self.shown.clear()
        self.shown[call.method] = reply

    def _count(self, result: Result) -> None:
        meter = self.meter
        meter.calls += 1
        meter.steps += result.method is Method.STEP
        meter.engine_s += result.engine_s
        meter.raw_bytes += len(result.outcome.reply or b"")

    # ------------------------------------------------------------ what happens to it

    def reseat(self, seat: Seat) -> bool:
        """Take over what the store says now; True when the client should be told. A call on an engine that is lost ends."""
        before, self.seat = self.seat, seat
        if seat.generation != before.generation:
            self.fresh = True
        run = self._run
        if run is not None and run.ended_at is None and run.seat.engine_id != seat.engine_id:
            because = (seat.lost_because or "it was replaced").rstrip(".")
            self._abandon(
                run, f"The engine of rank {seat.rank} ({run.seat.engine_id}) is gone: {because}. Call make() again."
            )
        return (seat.generation, seat.address) != (before.generation, before.address)

    def abandon(self, text: str) -> None:
        """The lease is over: what is under way, or held, comes to nothing."""
        held, self._held = self._held, None
        if self._run is not None:
            self._abandon(self._run, text)
        if held is not None:
            self._tell(held, Outcome(None, Status.UNAVAILABLE, text))

    def _abandon(self, run: _Run, text: str) -> None:
        if run.task is not None:
            run.task.cancel()
        self._finish(run, Outcome(None, Status.UNAVAILABLE, text))

    async def drain(self, timeout_s: float) -> None:
        """Begin nothing new, and let the call in flight come to its end; after ``timeout_s`` its outcome is unknown."""
        self.stopping, run = True, self._run
        if run is not None and run.task is not None:
            await asyncio.wait({run.task}, timeout=timeout_s)
            self._abandon(run, f"The relay was stopped, and the outcome of rank {self.seat.rank}'s call is unknown.")


def _replaced(seat: Seat) -> Outcome:
    because = f" ({seat.lost_because.rstrip('.')})" if seat.lost_because else ""
    return Outcome(
        None,
        Status.FAILED_PRECONDITION,
        f"The engine of rank {seat.rank} was replaced{because}: call make() again.",
    )
