"""One WebSocket connection of a lease: what the lanes deliver is encoded, joined and sent. A slow reader stalls only itself."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

import structlog
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from client_sdk.wire import JOIN_BYTES, Bye, Kind, Method, answer_frame, text_frame
from orchestrator.relay.codec import Encoder
from orchestrator.relay.lane import Result

log = structlog.get_logger(__name__)

ENCODE_ELSEWHERE_BYTES = 64 * 1024  # replies above this are compressed off the loop
MOST_OWED = 64  # results that may wait, besides two for each lane, before nothing more is read
UNREAD_FOR_S = 60.0  # a client that takes nothing for so long is let go; its lease goes on
BYE_WITHIN_S = 2.0
ROUND_TRIPS = 3
NEAR_S = 0.005  # a client within this is on the same machine or network


class _Owed:
    """What a lane's results wait for; its answers are encoded one after the other, because they are one stream."""

    __slots__ = ("encoder", "generation", "results")

    def __init__(self, is_far: Callable[[], bool]) -> None:
        self.results: deque[Result] = deque()
        self.encoder = Encoder(is_far)
        self.generation = -1


class Connection:
    """Sends what the lanes deliver. Nothing is encoded while the client does not read, so little piles up."""

    def __init__(
        self, socket: ServerConnection, *, lanes: int, executor: Executor, sent: Callable[[int, int, float], None]
    ) -> None:
        self.socket = socket
        self._executor, self._sent = executor, sent
        self._most_owed = 2 * lanes + MOST_OWED
        self._lanes: dict[int, _Owed] = {}
        self._ready: deque[int] = deque()  # lanes whose next result can be encoded
        self._outbox: deque[bytes] = deque()
        self._owed = 0
        self._wake = asyncio.Event()
        self._sending = asyncio.Event()  # set whenever something was handed over
        self._encoding: set[asyncio.Future[bytes]] = set()
        self._sending_since: float | None = None
        self._round_trip_s: float | None = None

    # ------------------------------------------------------------ what is to be sent

    def deliver(self, result: Result) -> None:
        """Send what a call came to, unless that is under way already."""
        lane = self._lanes.get(result.rank)
        if lane is None:
            lane = self._lanes[result.rank] = _Owed(self._is_far)
        if lane.results and any((one.seq, one.generation) == (result.seq, result.generation) for one in lane.results):
            return
        if result.outcome.reply is None and not lane.results:
            self.tell(_fault(result))
            return
        lane.results.append(result)
        self._owed += 1
        if len(lane.results) == 1:
            self._ready.append(result.rank)
            self._wake.set()

    def tell(self, frame: bytes) -> None:
        """Send a frame that is part of no stream; in the order of the calls, and before answers that are not made yet."""
        self._outbox.append(frame)
        self._wake.set()

    async def room(self) -> None:
        """Wait until the client has read enough of what it is owed."""
        while self.is_full:
            self._sending.clear()
            await self._sending.wait()

    @property
    def is_full(self) -> bool:
        """True when nothing more should be read from the client."""
        return self._owed + len(self._outbox) >= self._most_owed

    # ------------------------------------------------------------ sending

    async def measure(self) -> None:
        """Find out how far the client is: the best of a few round trips through whatever lies between."""
        with suppress(ConnectionClosed):
            for _ in range(ROUND_TRIPS):
                took_s = await (await self.socket.ping())
                self._round_trip_s = took_s if self._round_trip_s is None else min(took_s, self._round_trip_s)

    def _is_far(self) -> bool:
        return self._round_trip_s is None or self._round_trip_s > NEAR_S

    async def send_forever(self) -> None:
        """Send until the connection is closed; what is ready at the same moment goes as one message."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._ready or self._outbox:
                    batch = self._batch()
                    if batch:
                        self._sending_since = time.monotonic()
                        await self._send(batch)
                        self._sending_since = None
                    self._sending.set()
        except ConnectionClosed:
            return
        except Exception:  # a connection's edge: its client comes back, and gets what it is owed in new streams
            log.exception("a connection cannot be sent to")
            self.drop()

    async def _send(self, batch: bytes) -> None:
        """Send a message; as long as the client reads, without what ``send`` does to let others wait for it."""
        socket = self.socket
        if _CAN_SEND_NOW and socket.state is State.OPEN and not socket.transport.get_write_buffer_size():
            socket.protocol.send_binary(batch)
            socket.send_data()
        else:
            await socket.send(batch)

    def drop_if_unread(self) -> None:
        """Let go of a client that has taken nothing for long. (A deadline for each sending would cost more than it.)"""
        if self._sending_since is not None and time.monotonic() - self._sending_since > UNREAD_FOR_S:
            self.drop()

    def _batch(self) -> bytes:
        batch: list[bytes] = []
        size = 0
        while self._outbox and size < JOIN_BYTES:
            frame = self._outbox.popleft()
            batch.append(frame)
            size += len(frame)
        while self._ready and size < JOIN_BYTES:
            made = self._encoded(self._ready.popleft())
            if made is not None:
                batch.append(made)
                size += len(made)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def _encoded(self, rank: int) -> bytes | None:
        """The next result of a lane as a frame; None when that is made elsewhere."""
        lane = self._lanes[rank]
        result = lane.results[0]
        reply = result.outcome.reply
        if reply is None:
            frame = _fault(result)
        elif len(reply) <= ENCODE_ELSEWHERE_BYTES:
            frame = self._encode(lane, result, reply)
        else:
            loop = asyncio.get_running_loop()
            made = loop.run_in_executor(self._executor, self._encode, lane, result, reply)
            self._encoding.add(made)
            made.add_done_callback(lambda made: self._encoded_elsewhere(rank, made))
            return None
        self._settled(rank, frame)
        return frame

    def _encoded_elsewhere(self, rank: int, made: asyncio.Future[bytes]) -> None:
        self._encoding.discard(made)
        fault = None if made.cancelled() else made.exception()
        if made.cancelled() or fault is not None:  # a stream that is broken is of no use: begin anew
            log.error("an answer cannot be compressed", fault=repr(fault))
            self.drop()
            return
        self.tell(made.result())
        self._settled(rank, made.result())

    def _settled(self, rank: int, frame: bytes) -> None:
        lane = self._lanes[rank]
        result = lane.results.popleft()
        if result.outcome.reply is not None:
            waited_s = max(0.0, time.monotonic() - result.ended_at) if result.ended_at else 0.0
            self._sent(rank, len(frame), result.queue_s + waited_s)
        self._owed -= 1
        self._sending.set()
        if lane.results:
            self._ready.append(rank)
            self._wake.set()

    def _encode(self, lane: _Owed, result: Result, reply: bytes) -> bytes:
        if result.method is Method.ENV_INIT or lane.generation != result.generation:
            lane.encoder.restart()
            lane.generation = result.generation
        data, flags = lane.encoder.encode(reply)
        waited_s = max(0.0, time.monotonic() - result.ended_at) if result.ended_at else 0.0
        return answer_frame(
            data,
            flags=flags,
            lane=result.rank,
            generation=result.generation,
            seq=result.seq,
            engine_us=int(result.engine_s * 1e6),
            queue_us=int((result.queue_s + waited_s) * 1e6),
            raw_size=len(reply),
        )

    # ------------------------------------------------------------ ending

    async def flush(self, within_s: float) -> None:
        """Wait until everything that is owed was handed to the socket, at most so long."""
        deadline = time.monotonic() + within_s
        while (self._owed or self._outbox or self._encoding) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def bye(self, why: Bye, text: str) -> None:
        """Say why, and close."""
        try:
            await asyncio.wait_for(self._bye(text_frame(Kind.BYE, text, code=why)), BYE_WITHIN_S)
        except (ConnectionClosed, asyncio.TimeoutError, TimeoutError):
            self.drop()

    async def _bye(self, frame: bytes) -> None:
        await self.socket.send(frame)
        await self.socket.close()

    def drop(self) -> None:
        """Let go at once, without a word."""
        with suppress(AttributeError):  # it has no transport yet, or one that has just ended
            self.socket.transport.abort()


_CAN_SEND_NOW = hasattr(ServerConnection, "send_data")  # which websockets does not promise to keep


def _fault(result: Result) -> bytes:
    outcome = result.outcome
    return text_frame(
        Kind.FAULT,
        outcome.text,
        code=outcome.status,
        lane=result.rank,
        generation=result.generation,
        seq=result.seq,
    )
