"""The client end of the data plane: one connection that is made again when it breaks, and the lanes of a lease on it.

Everything here runs on one asyncio loop: the tunnel's, or that of the thread that ``lanes`` keeps. A broken line is a pause
for its callers, and not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from websockets.exceptions import ConnectionClosed

from client_sdk._lane import Call, CallFault, Done, Lane, Outcome, Reply, Stream
from client_sdk._reach import (
    CONNECT_WITHIN_S,
    FIRST_CONNECT_WITHIN_S,
    Route,
    Socket,
    Turned,
    Untrusted,
    dial,
    explain,
)
from client_sdk._version import __version__
from client_sdk.wire import (
    DEFAULT_DEADLINES_S,
    FROM_RELAY,
    WIRE_VERSION,
    Answer,
    Bye,
    Frame,
    Hello,
    Kind,
    Method,
    Status,
    Welcome,
    WireError,
    answer_of,
    frames,
    json_frame,
    text_frame,
    welcome_of,
)

__all__ = ["CallFault", "Line", "LineLost", "Reply", "Route"]

LOOK_EVERY_S, HELD_UP_S = 0.5, 3.0
PING_WHEN_SILENT_S, DEAD_WHEN_SILENT_S = 4.0, 10.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
ANSWER_GRACE_S = 10.0  # on top of the relay's own deadline, which is the one that normally ends a call
REASON_GRACE_S = 3.0  # the reason why an engine was lost may come a little after its successor
DECODE_ELSEWHERE_BYTES = 64 * 1024
_AFTER_WELCOME = FROM_RELAY - {Kind.WELCOME}


class LineLost(Exception):
    """There will be no more connection: the text says why, and nothing is tried again."""

    def __init__(self, text: str, *, bye: Bye | None = None, untrusted: bool = False) -> None:
        super().__init__(text)
        self.bye = bye
        self.untrusted = untrusted


class Line:
    """The connection of one lease. ``run`` keeps it; ``call`` and ``submit`` use it.

    ``changed`` is told the rank of a lane that has another engine.
    """

    def __init__(self, route: Route, *, changed: Callable[[int], None] = lambda rank: None) -> None:
        self._route, self._changed = route, changed
        self._limits_s = {**DEFAULT_DEADLINES_S, **route.deadlines_s}
        self._session = secrets.token_urlsafe(16)
        self._epoch: str | None = None
        self._nothing_unknown = False  # the relay has said goodbye: what it did not answer was not run
        self._lanes: dict[int, Lane] = {}
        self._socket: Socket | None = None
        self._outbox: list[bytes] = []
        self._flushing: asyncio.Task[None] | None = None
        self._decoding: dict[int, list[tuple[Frame, Answer]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="cornerman-decode")
        self._broke_because: str | None = None  # when it was we who let go of the connection
        self._down_since = time.monotonic()
        self._out_of_patience: CallFault | None = None
        self.opened = asyncio.Event()  # a connection was there, or there will never be one
        self.connections = 0
        self.fault: str | None = None  # why there is no connection just now
        self.lost: LineLost | None = None  # why there will never be another

    @property
    def ranks(self) -> list[int]:
        """The lanes there are; empty before the first connection."""
        return sorted(self._lanes)

    def generation(self, rank: int) -> int:
        """Which engine in turn sits in the slot."""
        return self._lanes[rank].generation

    # ------------------------------------------------------------ calling

    async def call(self, rank: int, method: Method, request: bytes) -> Reply:
        """Let the engine of ``rank`` run one call; CallFault when it fails.

        ENV_INIT waits for an engine that is being replaced; RESET and STEP of a game that went with its engine fail at
        once. Whoever gives up waiting leaves the call under way, and the next one of the lane comes after it.
        """
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.submit(rank, method, request, lambda outcome: None if answer.done() else answer.set_result(outcome))
        outcome = await answer
        if isinstance(outcome, CallFault):
            raise outcome
        return outcome

    def submit(self, rank: int, method: Method, request: bytes, done: Done) -> None:
        """Begin one call; ``done`` is told its outcome on this loop. Calls of one lane run in order, one at a time."""
        lane = self._lanes[rank]
        fault = self._unusable()
        if fault is not None:
            done(fault)
            return
        lane.waiting.append(Call(method, request, done, limit_s=self._limits_s[method], since=time.monotonic()))
        self._advance(lane)

    @property
    def out_of_reach(self) -> str | None:
        """Why calls are refused until the line comes back, or None."""
        return None if self._out_of_patience is None else self._out_of_patience.text

    def _unusable(self) -> CallFault | None:
        if self.lost is not None:
            return CallFault(Status.UNAVAILABLE, str(self.lost))
        return self._out_of_patience

    def _advance(self, lane: Lane) -> None:
        """Start what waits, or answer it, as far as the lane's state allows."""
        while lane.open is None and lane.waiting:
            call = lane.waiting[0]
            verdict = lane.verdict(call)
            if verdict is False:
                return
            lane.waiting.popleft()
            if verdict is True:
                lane.begin(call)
                self._send_call(lane, call)
            else:
                call.finish(verdict)

    def _settle(self, lane: Lane, outcome: Outcome) -> None:
        lane.end(outcome, now=time.monotonic())
        self._advance(lane)

    def give_up(self, rank: int, reason: str) -> None:
        """Say that the engine of ``rank`` is of no more use: a fresh one will take its place."""
        lane = self._lanes[rank]
        lane.unwanted = (lane.generation, reason)
        self._send_unwanted(lane)

    def _send_unwanted(self, lane: Lane) -> None:
        if lane.unwanted is not None and self._socket is not None:
            generation, reason = lane.unwanted
            self._send(text_frame(Kind.REPLACE, reason, lane=lane.rank, generation=generation))

    def _send_call(self, lane: Lane, call: Call) -> None:
        if self._socket is not None:
            call.sent, call.since = True, time.monotonic()
            self._send(call.frame(lane.rank))

    def _send(self, message: bytes) -> None:
        """Queue a frame; what is queued in one turn of the loop goes as one message."""
        self._outbox.append(message)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._outbox and (socket := self._socket) is not None:
                batch, self._outbox = self._outbox, []
                with contextlib.suppress(ConnectionClosed):  # what was not sent is still open on its lane
                    await socket.send_soon(batch[0] if len(batch) == 1 else b"".join(batch))
        finally:
            self._flushing = None

    # ------------------------------------------------------------ keeping the connection

    async def run(self) -> None:
        """Keep the connection until the relay will have no more of it, then raise LineLost."""
        watching = asyncio.create_task(self._watch())
        try:
            await self._keep_connected()
        except LineLost as lost:
            self._end(lost)
            raise
        except asyncio.CancelledError:
            self._end(LineLost("The line was closed."))
            raise
        finally:
            watching.cancel()
            self._decoders.shutdown(wait=False)

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            before = self.connections
            within_s = FIRST_CONNECT_WITHIN_S if not before or failures % 3 == 2 else CONNECT_WITHIN_S
            try:
                async with dial(self._route, within_s=within_s) as socket:
                    assert isinstance(socket, Socket)
                    try:
                        await self._serve(socket)
                    except ConnectionClosed:
                        if socket.broke is None:
                            raise
                    if socket.broke is not None:  # it says more than the connection's end that followed
                        raise socket.broke
            except LineLost:
                raise
            except (
                Exception
            ) as fault:  # also one of our own: the next connection brings what was not understood once more
                await self._note(fault)
            failures = failures + 1 if self.connections == before else 0
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**failures)
            await asyncio.sleep(pause_s * (0.75 + random.random() / 2))  # noqa: S311

    async def _note(self, fault: BaseException) -> None:
        """Keep in words why there is no connection; LineLost when there will never be one."""
        if self._broke_because is not None:
            self.fault, self._broke_because = self._broke_because, None
            return
        try:
            self.fault = await explain(self._route, fault, first=not self.connections)
        except Turned as turned:
            raise LineLost(str(turned)) from fault
        except Untrusted as untrusted:
            raise LineLost(str(untrusted), untrusted=True) from fault

    async def _serve(self, socket: Socket) -> None:
        await socket.send(json_frame(Kind.HELLO, self._hello()))
        greeting = await asyncio.wait_for(socket.recv(), CONNECT_WITHIN_S)
        first, *others = [*frames(_binary(greeting), FROM_RELAY)] or [Frame(Kind.FAULT, 0, 0, 0, 0, b"")]
        if first.kind not in (Kind.WELCOME, Kind.BYE):
            raise WireError("The relay's first message is not a WELCOME.")
        if first.kind is Kind.BYE:
            self._said_bye(first)
        self._welcome(welcome_of(first))
        self._socket = socket
        try:
            self._resend()
            for one in others:
                self._handle(one)
            self.opened.set()
            socket.deliver = self._message
            async for message in socket:  # those that came before, or that are not one frame
                self._message(_binary(message))
        finally:
            socket.deliver = None
            self._socket, self._down_since = None, time.monotonic()
            self._outbox.clear()
            self._decoding.clear()

    def _hello(self) -> Hello:
        return Hello(
            version=WIRE_VERSION,
            session=self._session,
            epoch=self._epoch,
            deadlines_s={method.name.lower(): seconds for method, seconds in self._route.deadlines_s.items()},
            client=f"cornerman {__version__}",
        )

    def _welcome(self, welcome: Welcome) -> None:
        unknown = self._epoch is not None and not welcome.resumed and not self._nothing_unknown
        self.connections += 1
        self.fault, self._out_of_patience, self._nothing_unknown = None, None, False
        self._epoch = welcome.epoch
        for info in welcome.lanes:
            lane = self._lanes.setdefault(info.lane, Lane(info.lane))
            before = lane.generation
            lane.take_over(info)
            if lane.open is not None and lane.open.generation != info.generation:
                self._settle(lane, lane.gone())
            elif lane.open is not None and lane.open.sent and unknown:
                lane.fresh, lane.unwanted = True, (lane.generation, "the outcome of its last call is unknown")
                self._settle(lane, _unknown(lane.rank))
            else:
                self._advance(lane)
            if before != lane.generation:
                self._changed(lane.rank)

    def _resend(self) -> None:
        """Engines that were given up, and the calls that are still open."""
        for lane in self._lanes.values():
            self._send_unwanted(lane)
            if lane.open is not None:
                self._send_call(lane, lane.open)

    # ------------------------------------------------------------ what the relay says

    def _message(self, message: bytes | memoryview) -> None:
        found = [*frames(message, _AFTER_WELCOME)]
        for one in found:
            self._handle(one, alone=len(found) == 1)

    def _handle(self, one: Frame, *, alone: bool = False) -> None:
        if one.kind is Kind.BYE:
            self._said_bye(one)
            return
        lane = self._lanes.get(one.lane)
        if lane is None:
            raise WireError(f"The relay speaks of a lane {one.lane} that this lease does not have.")
        if one.kind is Kind.LANE:
            self._lane_changed(lane, one)
        elif one.kind is Kind.ANSWER:
            self._answer(lane, one, alone=alone)
        elif one.kind is Kind.FAULT:
            self._outcome(lane, one, CallFault(one.code, one.text()))
        else:
            raise WireError(f"A second {one.kind.name} came.")

    def _answer(self, lane: Lane, one: Frame, *, alone: bool) -> None:
        """Decode an answer, also one that nobody waits for: the stream goes on.

        Large ones that come together are decoded off the loop, at the same time; for one by itself that is a detour.
        """
        answer, queue = answer_of(one), self._decoding.get(lane.rank)
        if queue is not None:
            queue.append((one, answer))
        elif answer.raw_size < DECODE_ELSEWHERE_BYTES or (alone and not self._decoding):
            self._outcome(lane, one, _reply(answer, lane.stream.decode(one.code, answer)))
        else:
            self._decoding[lane.rank] = queue = [(one, answer)]
            task = asyncio.get_running_loop().create_task(self._decode_elsewhere(lane, lane.stream, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _decode_elsewhere(self, lane: Lane, stream: Stream, queue: list[tuple[Frame, Answer]]) -> None:
        loop, socket = asyncio.get_running_loop(), self._socket
        while queue:
            one, answer = queue[0]
            try:
                data = await loop.run_in_executor(self._decoders, stream.decode, one.code, answer)
            except Exception as fault:
                if self.lost is None and lane.stream is stream:
                    self._break(socket, str(fault) or type(fault).__name__)
                return
            if lane.stream is not stream:
                return
            queue.pop(0)
            if not queue:
                self._decoding.pop(lane.rank, None)
            self._outcome(lane, one, _reply(answer, data))

    def _outcome(self, lane: Lane, one: Frame, outcome: Outcome) -> None:
        call = lane.open
        if call is not None and (call.seq, call.generation) == (one.seq, one.generation):
            self._settle(lane, outcome)

    def _lane_changed(self, lane: Lane, one: Frame) -> None:
        before = lane.generation
        lane.change(one.generation, bool(one.code), one.text())
        if before != lane.generation:
            lane.replaced_at = time.monotonic()
            self._changed(lane.rank)
        self._advance(lane)

    def _said_bye(self, bye: Frame) -> None:
        if bye.code == Bye.STOPPING:
            self._nothing_unknown = True
            raise EOFError(bye.text())
        why = Bye(bye.code) if bye.code in set(Bye) else Bye.PROTOCOL
        raise LineLost(bye.text() or f"The relay ended the connection ({why.name}).", bye=why)

    # ------------------------------------------------------------ watching

    async def _watch(self) -> None:
        """See what no message tells: a line that is dead, and calls that wait for too long."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            if now - looked_at < HELD_UP_S:  # else this process itself was asleep, and knows nothing of the line
                await self._look_at_line(now)
                for lane in self._lanes.values():
                    self._look_at_lane(lane, now)
            looked_at = now

    async def _look_at_line(self, now: float) -> None:
        socket = self._socket
        if socket is None:
            if self._out_of_patience is None and now - self._down_since > self._route.patience_s:
                why = self.fault or "it does not answer"
                self._out_of_patience = CallFault(
                    Status.UNAVAILABLE, f"No line to the relay for {self._route.patience_s:.0f} s: {why}"
                )
                for lane in self._lanes.values():
                    lane.fail_all(self._out_of_patience)
            return
        silent_s = now - socket.heard_at
        if silent_s > DEAD_WHEN_SILENT_S:
            self._break(socket, f"nothing was heard for {silent_s:.0f} s")
        elif silent_s > PING_WHEN_SILENT_S:
            with contextlib.suppress(ConnectionClosed, asyncio.TimeoutError):
                await asyncio.wait_for(socket.ping(), LOOK_EVERY_S)

    def _look_at_lane(self, lane: Lane, now: float) -> None:
        call = lane.open
        if call is not None and self._socket is not None:
            if call.generation != lane.generation and now - lane.replaced_at > REASON_GRACE_S:
                self._settle(lane, lane.gone())
            elif not call.given_up and now - call.since > call.limit_s + ANSWER_GRACE_S:
                call.given_up = True
                call.finish(CallFault(Status.DEADLINE_EXCEEDED, f"Rank {lane.rank} got no answer from the relay."))
                self.give_up(lane.rank, "its call was not answered")
        elif call is None and lane.waiting and now - lane.waiting[0].since > lane.waiting[0].limit_s:
            late = lane.waiting.popleft()
            late.finish(
                late.first_fault
                or CallFault(
                    Status.DEADLINE_EXCEEDED, f"Rank {lane.rank} got no fresh engine within {late.limit_s:g} s."
                )
            )
            self._advance(lane)

    def _break(self, socket: Socket | None, why: str) -> None:
        """Let go of a connection at once; another is made."""
        self._broke_because = f"The line to the relay at {self._route.authority} broke: {why}."
        if socket is not None:
            socket.transport.abort()

    def _end(self, lost: LineLost) -> None:
        self.lost = lost
        for lane in self._lanes.values():
            lane.fail_all(CallFault(Status.UNAVAILABLE, str(lost)))
        self.opened.set()


def _reply(answer: Answer, data: bytes) -> Reply:
    return Reply(data, answer.engine_us / 1e6, answer.queue_us / 1e6, len(answer.data))


def _unknown(rank: int) -> CallFault:
    return CallFault(
        Status.UNAVAILABLE,
        f"The relay was restarted: the outcome of rank {rank}'s call is unknown, and its engine is replaced. Call make() again.",
    )


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise WireError("The relay sent a text message.")
    return message
