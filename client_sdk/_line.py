"""The client end of the data plane: one connection that is made again when it breaks, and the lanes of a lease on it.

Everything here runs on one asyncio loop: the tunnel's, or the thread's that ``lanes`` keeps.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import zstandard
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from client_sdk._trust import fault_text
from client_sdk._version import __version__
from client_sdk.wire import (
    DEFAULT_DEADLINES_S,
    FROM_RELAY,
    MAX_RELAY_MESSAGE_BYTES,
    MAX_WINDOW_LOG,
    SUBPROTOCOL,
    WIRE_VERSION,
    Bye,
    Flags,
    Frame,
    Hello,
    Kind,
    LaneInfo,
    Method,
    Status,
    Welcome,
    WireError,
    answer_of,
    frame,
    frames,
    json_frame,
    text_frame,
    welcome_of,
)

CONNECT_WITHIN_S = 10.0
PING_EVERY_S, PONG_WITHIN_S = 10.0, 20.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
ANSWER_GRACE_S = 10.0  # on top of the relay's own deadline, which is the one that normally ends a call
_FINAL = frozenset({401, 403, 404, 410, 426})


@dataclass(frozen=True)
class Route:
    """How to reach the relay of a lease. ``server_hostname`` is the name its certificate must bear."""

    url: str
    token: str = field(repr=False)
    trusting: ssl.SSLContext | None = None
    server_hostname: str | None = None
    deadlines_s: Mapping[Method, float] = field(default_factory=dict)


class LineLost(Exception):
    """The relay will have no more of this client: the text says why, and nothing is tried again."""


class CallFault(Exception):
    """A call failed: a gRPC status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Reply:
    """What an engine answered, bit by bit, and how long it took there; times in seconds."""

    data: bytes
    engine_s: float
    queue_s: float
    wire_bytes: int


@dataclass(slots=True)
class _Call:
    seq: int
    generation: int
    method: Method
    request: bytes
    answer: asyncio.Future[Reply]

    def frame(self, lane: int) -> bytes:
        return frame(Kind.CALL, self.request, code=self.method, lane=lane, generation=self.generation, seq=self.seq)


class _Lane:
    """One engine as seen from here."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.generation = 0
        self.fresh = False  # another engine sits there since ENV_INIT was last called
        self.ready = asyncio.Event()
        self.seq = 0
        self.open: _Call | None = None
        self.turn = asyncio.Lock()  # one call at a time, in order
        self._stream: zstandard.ZstdDecompressionObj | None = None

    def take_over(self, info: LaneInfo) -> None:
        """Believe what WELCOME says."""
        if self.generation and info.generation != self.generation:
            self.fresh = True
        self.fresh = self.fresh or info.fresh
        self.generation = info.generation
        self.seq = max(self.seq, info.ran)
        self._stream = None
        self._set_ready(info.ready)

    def change(self, generation: int, ready: bool) -> None:
        """Believe what LANE says."""
        if generation != self.generation:
            self.fresh, self.generation = True, generation
        self._set_ready(ready)

    def _set_ready(self, ready: bool) -> None:
        if ready:
            self.ready.set()
        else:
            self.ready.clear()

    def decode(self, message: Frame) -> Reply:
        """The reply inside an ANSWER."""
        answer = answer_of(message)
        if message.code & Flags.PLAIN:
            data = bytes(answer.data)
        else:
            if message.code & Flags.NEW_STREAM or self._stream is None:
                if not message.code & Flags.NEW_STREAM:
                    raise WireError(f"The stream of lane {self.rank} has no beginning.")
                self._stream = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG).decompressobj()
            try:
                data = self._stream.decompress(answer.data)
            except zstandard.ZstdError as error:
                raise WireError(f"The stream of lane {self.rank} is broken ({error}).") from error
        if len(data) != answer.raw_size:
            raise WireError(f"A reply of lane {self.rank} has {len(data)} bytes instead of {answer.raw_size}.")
        return Reply(data, answer.engine_us / 1e6, answer.queue_us / 1e6, len(answer.data))

    def settle(self, reply: Reply | None, fault: CallFault | None = None) -> None:
        """End the open call."""
        call, self.open = self.open, None
        if call is None or call.answer.done():
            return
        if reply is not None:
            call.answer.set_result(reply)
        else:
            call.answer.set_exception(fault or CallFault(Status.UNKNOWN, "The call came to nothing."))


class Line:
    """The connection of one lease. ``run`` keeps it; ``call`` uses it; a broken line is a pause, not an error."""

    def __init__(self, route: Route, *, changed: Callable[[int], None] = lambda rank: None) -> None:
        self._route, self._changed = route, changed
        self._session = secrets.token_urlsafe(16)
        self._epoch: str | None = None
        self._lanes: dict[int, _Lane] = {}
        self._socket: ClientConnection | None = None
        self._outbox: list[bytes] = []
        self._flushing: asyncio.Task[None] | None = None
        self._lost: str | None = None
        self.opened = asyncio.Event()
        self.connections = 0

    @property
    def ranks(self) -> list[int]:
        """The lanes there are; empty before the first connection."""
        return sorted(self._lanes)

    def generation(self, rank: int) -> int:
        """Which engine in turn sits in the slot."""
        return self._lanes[rank].generation

    # ------------------------------------------------------------ calling

    async def call(self, rank: int, method: Method, request: bytes) -> Reply:
        """Let the engine of ``rank`` run one call; CallFault when it fails, LineLost when the lease is over.

        ENV_INIT waits for an engine that is being replaced; RESET and STEP of a game that went with its engine fail at once.
        Whoever gives up waiting leaves the call under way: the lane is free again when its answer has come.
        """
        return await asyncio.shield(self._call(rank, method, request))

    async def _call(self, rank: int, method: Method, request: bytes) -> Reply:
        lane = self._lanes[rank]
        limit_s = {**DEFAULT_DEADLINES_S, **self._route.deadlines_s}[method]
        async with lane.turn:
            await self._await_engine(lane, method, limit_s)
            lane.seq += 1
            answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            lane.open = call = _Call(lane.seq, lane.generation, method, request, answer)
            if self._socket is not None:
                self._send(call.frame(rank))
            try:
                reply = await answer
            finally:
                if lane.open is call:
                    lane.open = None
            if method is Method.ENV_INIT:
                lane.fresh = lane.generation != call.generation
            return reply

    async def _await_engine(self, lane: _Lane, method: Method, limit_s: float) -> None:
        if self._lost is not None:
            raise LineLost(self._lost)
        if lane.fresh and method is not Method.ENV_INIT:
            raise CallFault(
                Status.FAILED_PRECONDITION, f"The engine of rank {lane.rank} was replaced: call make() again."
            )
        if lane.ready.is_set():
            return
        if method is not Method.ENV_INIT:
            raise CallFault(Status.UNAVAILABLE, f"The engine of rank {lane.rank} is being replaced: call make() again.")
        try:
            await asyncio.wait_for(lane.ready.wait(), limit_s)
        except asyncio.TimeoutError:
            raise CallFault(
                Status.DEADLINE_EXCEEDED, f"Rank {lane.rank} got no fresh engine within {limit_s:g} s."
            ) from None
        if self._lost is not None:
            raise LineLost(self._lost)

    async def give_up(self, rank: int, reason: str) -> None:
        """Say that the engine of ``rank`` is of no more use: a fresh one will take its place."""
        lane = self._lanes[rank]
        if self._socket is not None:
            self._send(text_frame(Kind.REPLACE, reason, lane=rank, generation=lane.generation))

    def _send(self, message: bytes) -> None:
        """Queue a frame; what is queued in one turn of the loop goes as one message."""
        self._outbox.append(message)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._outbox and self._socket is not None:
                batch, self._outbox = self._outbox, []
                await self._socket.send(b"".join(batch))
        except ConnectionClosed:
            pass  # what was not sent is still open on its lane
        finally:
            self._flushing = None

    # ------------------------------------------------------------ keeping the connection

    async def run(self) -> None:
        """Keep the connection until the relay will have no more of it, then raise LineLost."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    async with self._connect() as socket:
                        if await self._serve(socket):
                            pause_s = FIRST_PAUSE_S
                except InvalidStatus as refusal:
                    self._refused(refusal)
                except (
                    OSError,
                    InvalidHandshake,
                    ConnectionClosed,
                    WireError,
                    EOFError,
                    TimeoutError,
                    asyncio.TimeoutError,
                ) as fault:
                    if isinstance(fault, ssl.SSLCertVerificationError) and not self.connections:
                        raise LineLost(
                            f"The relay at {self._route.url} cannot prove to be the host that the connection string names: "
                            f"{fault_text(fault)}."
                        ) from fault
                    self.fault = fault_text(fault)
                await asyncio.sleep(pause_s * (0.75 + random.random() / 2))  # noqa: S311
                pause_s = min(MAX_PAUSE_S, pause_s * 2)
        except LineLost as lost:
            self._end(str(lost))
            raise
        except asyncio.CancelledError:
            self._end("The line was closed.")
            raise

    fault: str | None = None  # why there is no connection, or the last one broke

    def _connect(self) -> connect:
        return connect(
            self._route.url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            additional_headers={"Authorization": f"Bearer {self._route.token}"},
            user_agent_header=f"cornerman/{__version__}",
            ssl=self._route.trusting,
            server_hostname=self._route.server_hostname,
            compression=None,
            open_timeout=CONNECT_WITHIN_S,
            ping_interval=PING_EVERY_S,
            ping_timeout=PONG_WITHIN_S,
            close_timeout=1.0,
            max_size=MAX_RELAY_MESSAGE_BYTES,
            max_queue=(64, 16),
        )

    async def _serve(self, socket: ClientConnection) -> bool:
        await socket.send(json_frame(Kind.HELLO, self._hello()))
        message = await asyncio.wait_for(socket.recv(), CONNECT_WITHIN_S)
        first = next(frames(_binary(message), {Kind.WELCOME, Kind.BYE}), None)
        if first is None:
            raise WireError("The relay's first message is empty.")
        if first.kind is Kind.BYE:
            self._said_bye(first)
            return False
        self._welcome(welcome_of(first))
        self._socket = socket
        try:
            self._resend()
            self.opened.set()
            async for message in socket:
                for one in frames(_binary(message), FROM_RELAY - {Kind.WELCOME}):
                    self._handle(one)
        finally:
            self._socket = None
            self._outbox.clear()
        return True

    def _hello(self) -> Hello:
        return Hello(
            version=WIRE_VERSION,
            session=self._session,
            epoch=self._epoch,
            deadlines_s={method.name.lower(): seconds for method, seconds in self._route.deadlines_s.items()},
            client=f"cornerman {__version__}",
        )

    def _welcome(self, welcome: Welcome) -> None:
        self.connections += 1
        self.fault = None
        known = self._epoch is not None
        self._epoch = welcome.epoch
        for info in welcome.lanes:
            lane = self._lanes.setdefault(info.lane, _Lane(info.lane))
            before = lane.generation
            lane.take_over(info)
            if lane.open is None:
                pass
            elif lane.open.generation != info.generation:
                lane.settle(None, _gone(lane.rank))
            elif known and not welcome.resumed:
                lane.settle(
                    None,
                    CallFault(
                        Status.UNAVAILABLE,
                        f"The relay was restarted: the outcome of rank {lane.rank}'s call is unknown, and its engine is replaced.",
                    ),
                )
                lane.fresh = True
                self._outbox.append(
                    text_frame(Kind.REPLACE, "outcome unknown", lane=lane.rank, generation=lane.generation)
                )
            if before != lane.generation:
                self._changed(lane.rank)

    def _resend(self) -> None:
        """What was queued at the welcome, and the calls that are still open."""
        waiting, self._outbox = self._outbox, []
        for lane in self._lanes.values():
            if lane.open is not None:
                waiting.append(lane.open.frame(lane.rank))
        for message in waiting:
            self._send(message)

    def _handle(self, one: Frame) -> None:
        if one.kind is Kind.BYE:
            self._said_bye(one)
            return
        lane = self._lanes.get(one.lane)
        if lane is None:
            raise WireError(f"The relay speaks of a lane {one.lane} that this lease does not have.")
        if one.kind is Kind.LANE:
            self._lane_changed(lane, one)
            return
        reply = (
            lane.decode(one) if one.kind is Kind.ANSWER else None
        )  # also of one nobody waits for: the stream goes on
        call = lane.open
        if call is None or (call.seq, call.generation) != (one.seq, one.generation):
            return
        lane.settle(reply, None if reply else CallFault(one.code, one.text()))

    def _lane_changed(self, lane: _Lane, one: Frame) -> None:
        before = lane.generation
        lane.change(one.generation, bool(one.code))
        if lane.open is not None and lane.open.generation != one.generation:
            lane.settle(None, _gone(lane.rank))
        if before != lane.generation:
            self._changed(lane.rank)

    def _said_bye(self, bye: Frame) -> None:
        if bye.code == Bye.STOPPING:
            raise EOFError(bye.text())
        raise LineLost(bye.text())

    def _refused(self, refusal: InvalidStatus) -> None:
        body = (refusal.response.body or b"").decode("utf-8", "replace").strip()
        status = refusal.response.status_code
        text = body or f"The relay answered with status {status}."
        if status in _FINAL:
            raise LineLost(text)
        self.fault = text

    def _end(self, why: str) -> None:
        self._lost = why
        for lane in self._lanes.values():
            lane.settle(None, CallFault(Status.UNAVAILABLE, why))
            lane.ready.set()  # whoever waits for an engine is told
        self.opened.set()

    @property
    def lost(self) -> str | None:
        """Why there will be no more connections, or None."""
        return self._lost


def _gone(rank: int) -> CallFault:
    return CallFault(Status.UNAVAILABLE, f"The engine of rank {rank} was replaced during the call: call make() again.")


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise WireError("The relay sent a text message.")
    return message
