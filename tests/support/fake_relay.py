"""A relay for tests of the SDK alone: the protocol's other end in one class, without store, engines or daemon."""

from __future__ import annotations

import asyncio
import contextlib
import http
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import zstandard
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from client_sdk import wire
from client_sdk.wire import Bye, Flags, Frame, Kind, LaneInfo, Method, Status

LEASE, TOKEN = "l-1", "relay-token-58a1"
T = TypeVar("T")
Fault = tuple[int, str]
Engine = Callable[["FakeLane", Method, bytes], Awaitable["bytes | Fault"]]


@dataclass
class FakeLane:
    """An engine's slot; ``steps`` counts what was run on its engine."""

    rank: int
    generation: int = 1
    ready: bool = True
    fresh: bool = False
    ran: int = 0
    steps: int = 0
    last: tuple[Frame, bytes | Fault] | None = None
    running: int | None = None


async def counting(lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
    """An engine whose reply to a step is its number, and else what was asked."""
    return f"step {lane.steps}".encode() if method is Method.STEP else request


@dataclass
class FakeRelay:
    """Runs calls at most once with ``engine``, and obeys the test in everything else."""

    lanes_wanted: int = 2
    engine: Engine = counting
    epoch: str = "epoch-1"
    refusal: tuple[int, str, str] | None = None  # status, content type, body: of every handshake
    muted: bool = False  # runs what it gets and answers nothing
    join: int = 1  # so many answers travel as one message, on the first connection
    spoil: Callable[[bytes], bytes] | None = None  # what is done to a compressed answer, once
    tls: ssl.SSLContext | None = None
    port: int = 0
    session: str | None = None
    connections: int = 0
    messages: int = 0
    calls: list[Frame] = field(default_factory=list)
    given_up: list[tuple[int, int, str]] = field(default_factory=list)
    lanes: dict[int, FakeLane] = field(default_factory=dict)
    socket: ServerConnection | None = None
    _joined: list[bytes] = field(default_factory=list)
    _streams: dict[int, Any] = field(default_factory=dict)
    _server: Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{'ws' if self.tls is None else 'wss'}://127.0.0.1:{self.port}/v1/leases/{LEASE}"

    async def start(self) -> None:
        """Listen, on the port of before if there was one."""
        if not self.lanes:
            self.lanes = {rank: FakeLane(rank) for rank in range(self.lanes_wanted)}
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            self.port,
            ssl=self.tls,
            process_request=self._admit,
            subprotocols=[wire.SUBPROTOCOL],  # type: ignore[list-item]
            compression=None,
            max_size=wire.MAX_CLIENT_MESSAGE_BYTES,
            close_timeout=0.2,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and drop the connection without a word."""
        assert self._server is not None
        self.drop()
        self._server.close()
        await self._server.wait_closed()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self) -> None:
        """Break the connection without a word."""
        if self.socket is not None:
            self.socket.transport.abort()

    def restart(self, epoch: str) -> None:
        """Be another relay that knows nothing of the one before, and drop its connection."""
        self.epoch, self.session = epoch, None
        for lane in self.lanes.values():
            lane.ran, lane.last, lane.running = 0, None, None
        self.drop()

    async def send(self, message: bytes | str) -> None:
        """Send one message as it is."""
        assert self.socket is not None
        await self.socket.send(message)

    async def replace(self, rank: int, *, ready: bool = True) -> None:
        """Another engine sits in the slot, or will."""
        lane = self.lanes[rank]
        lane.generation, lane.ready, lane.fresh, lane.steps = lane.generation + 1, ready, True, 0
        await self.tell_lane(rank)

    async def tell_lane(self, rank: int, why: str = "") -> None:
        """Send LANE as the slot is now."""
        lane = self.lanes[rank]
        await self.send(wire.text_frame(Kind.LANE, why, code=int(lane.ready), lane=rank, generation=lane.generation))

    async def bye(self, why: Bye, text: str) -> None:
        """Say goodbye and close."""
        await self.send(wire.text_frame(Kind.BYE, text, code=why))
        assert self.socket is not None
        await self.socket.close()

    # ------------------------------------------------------------ the protocol

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if self.refusal is not None:
            status, kind, body = self.refusal
            response = connection.respond(http.HTTPStatus(status), body)
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = kind
            return response
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "The relay token is not that of this lease.\n")
        return None

    async def _handle(self, socket: ServerConnection) -> None:
        try:
            (first,) = wire.frames(_bytes(await socket.recv()), {Kind.HELLO})
            hello = wire.hello_of(first)
            resumed = (hello.session, hello.epoch) == (self.session, self.epoch)
            former = None if hello.session == self.session else self.socket
            self.session, self.socket, self._streams = hello.session, socket, {}
            if former is not None:
                with contextlib.suppress(ConnectionClosed):
                    await former.send(wire.text_frame(Kind.BYE, "Another client connected.", code=Bye.TAKEN_OVER))
                    await former.close()
            self.connections += 1
            infos = [
                LaneInfo(
                    lane=lane.rank,
                    generation=lane.generation,
                    ready=lane.ready,
                    ran=max(lane.ran, lane.running or 0),
                    fresh=lane.fresh,
                )
                for lane in self.lanes.values()
            ]
            welcome = wire.Welcome(version=1, epoch=self.epoch, resumed=resumed, lanes=infos)
            await socket.send(wire.json_frame(Kind.WELCOME, welcome))
            async for message in socket:
                self.messages += 1
                for one in wire.frames(_bytes(message), wire.FROM_CLIENT - {Kind.HELLO}):
                    await self._frame(one)
        except ConnectionClosed:
            pass

    async def _frame(self, one: Frame) -> None:
        lane = self.lanes[one.lane]
        if one.kind is Kind.REPLACE:
            self.given_up.append((one.lane, one.generation, one.text()))
            return
        kept = one._replace(body=bytes(one.body))
        self.calls.append(kept)
        if lane.last is not None and lane.last[0].seq == one.seq:
            await self._answer(*lane.last)
        elif lane.running == one.seq:
            return
        elif one.generation != lane.generation:
            await self._answer(kept, (Status.FAILED_PRECONDITION, "The engine was replaced: call make() again."))
        else:
            assert one.seq > lane.ran, "a number was used twice"
            lane.running = one.seq
            task = asyncio.get_running_loop().create_task(self._run(lane, kept))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: FakeLane, call: Frame) -> None:
        method = Method(call.code)
        lane.steps += method is Method.STEP
        session = self.session
        outcome = await self.engine(lane, method, bytes(call.body))
        if session != self.session:  # whose it was has gone
            return
        lane.ran, lane.last, lane.running = call.seq, (call, outcome), None
        if method is Method.ENV_INIT and isinstance(outcome, bytes):
            lane.fresh = False
        if not self.muted:
            await self._answer(call, outcome)

    async def _answer(self, call: Frame, outcome: bytes | Fault) -> None:
        place = {"lane": call.lane, "generation": call.generation, "seq": call.seq}
        if isinstance(outcome, bytes):
            data, flags = self._compress(call.lane, outcome)
            message = wire.answer_frame(data, flags=flags, engine_us=1500, queue_us=20, raw_size=len(outcome), **place)
        else:
            message = wire.text_frame(Kind.FAULT, outcome[1], code=outcome[0], **place)
        self._joined.append(message)
        if len(self._joined) < self.join and self.connections == 1:
            return
        together, self._joined = b"".join(self._joined), []
        with contextlib.suppress(ConnectionClosed):
            await self.send(together)

    def _compress(self, rank: int, reply: bytes) -> tuple[bytes, Flags]:
        if len(reply) < 4:
            return reply, Flags.PLAIN
        flags = Flags(0)
        if rank not in self._streams:
            flags = Flags.NEW_STREAM
            parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=22, write_content_size=0)
            self._streams[rank] = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        stream = self._streams[rank]
        data = stream.compress(reply) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if self.spoil is not None:
            data, self.spoil = self.spoil(data), None
        return data, flags


class RelayThread:
    """A fake relay on a thread of its own, for tests that block; ``do`` runs something on its loop."""

    def __init__(self, relay: FakeRelay) -> None:
        self.relay = relay
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(relay.start())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` beside the relay."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def close(self) -> None:
        """End it."""
        self.do(self.relay.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def relaying(relay: FakeRelay) -> Iterator[RelayThread]:
    """``relay`` on a thread of its own until the end of the block."""
    thread = RelayThread(relay)
    try:
        yield thread
    finally:
        thread.close()


def _bytes(message: str | bytes) -> bytes:
    assert isinstance(message, bytes)
    return message


def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on a loop of its own, at most so long."""

    async def limited() -> T:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(limited())
