"""One lease on the relay: its lanes, which outlive connections, and the one connection that steps them now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import structlog
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from client_sdk.wire import (
    FROM_CLIENT,
    HELLO_WITHIN_S,
    MAX_TEXT_BYTES,
    WIRE_VERSION,
    Bye,
    Frame,
    Hello,
    Kind,
    Method,
    Welcome,
    WireError,
    frames,
    hello_of,
    json_frame,
    text_frame,
)
from orchestrator.relay.connection import Connection
from orchestrator.relay.lane import EngineCalls, Lane, Result, Seat, Trouble

log = structlog.get_logger(__name__)

MIN_DEADLINE_S, MAX_DEADLINE_S = 0.1, 3600.0


class Session:
    """Everything the relay knows of one lease."""

    def __init__(
        self,
        lease_id: str,
        seats: Sequence[Seat],
        *,
        epoch: str,
        call_engine: EngineCalls,
        trouble: Trouble,
        executor: Executor,
        pictures: Callable[[str, Result], None] | None = None,
    ) -> None:
        self.lease_id = lease_id
        self.lanes = {
            seat.rank: Lane(seat, call_engine=call_engine, trouble=trouble, deliver=self._deliver) for seat in seats
        }
        self._epoch, self._trouble, self._executor, self._pictures = epoch, trouble, executor, pictures
        self._connection: Connection | None = None
        self._session: str | None = None  # the client's, of the latest connection
        self._ended: str | None = None

    @property
    def connected(self) -> bool:
        """True while a client is there."""
        return self._connection is not None

    async def serve(self, socket: ServerConnection) -> None:
        """Serve one connection until it ends; a second one takes the lease over from the first."""
        try:
            hello = await self._hello(socket)
        except WireError as error:
            await self._refuse(socket, str(error))
            return
        except (ConnectionClosed, TimeoutError):
            await self._refuse(socket, f"No HELLO came within {HELLO_WITHIN_S:g} s.")
            return
        resumed = hello.session == self._session and hello.epoch == self._epoch
        connection = Connection(socket, session=hello.session, executor=self._executor, sent=self._sent)
        former, self._connection, self._session = self._connection, connection, hello.session
        if former is not None:
            why = "The same client connected again." if resumed else "Another client connected with this lease."
            await former.bye(Bye.STOPPING if resumed else Bye.TAKEN_OVER, why)
        self._set_deadlines(hello)
        connection.tell(self._welcome(resumed))
        sending = asyncio.create_task(connection.send_forever())
        try:
            await self._receive(socket, connection)
        except WireError as error:
            log.warning("protocol error", lease=self.lease_id, fault=str(error))
            await connection.bye(Bye.PROTOCOL, str(error))
        except ConnectionClosed:
            pass
        finally:
            sending.cancel()
            if self._connection is connection:
                self._connection = None

    async def _hello(self, socket: ServerConnection) -> Hello:
        async with asyncio.timeout(HELLO_WITHIN_S):
            message = await socket.recv(decode=False)
        first = next(frames(message, {Kind.HELLO}), None)
        if first is None:
            raise WireError("The first message is empty.")
        hello = hello_of(first)
        if hello.version != WIRE_VERSION:
            which = "Cornerman in the notebook" if hello.version < WIRE_VERSION else "Cornerman on the host"
            raise WireError(
                f"The client speaks wire version {hello.version}, this relay {WIRE_VERSION}: upgrade {which}."
            )
        return hello

    async def _refuse(self, socket: ServerConnection, text: str) -> None:
        try:
            async with asyncio.timeout(2.0):
                await socket.send(text_frame(Kind.BYE, text, code=Bye.PROTOCOL))
                await socket.close()
        except (ConnectionClosed, TimeoutError):
            socket.transport.abort()

    def _set_deadlines(self, hello: Hello) -> None:
        chosen = {
            method: min(MAX_DEADLINE_S, max(MIN_DEADLINE_S, seconds))
            for method in Method
            if (seconds := hello.deadlines_s.get(method.name.lower())) is not None
        }
        for lane in self.lanes.values():
            lane.deadlines_s.update(chosen)

    def _welcome(self, resumed: bool) -> bytes:
        lanes = [lane.info() for lane in self.lanes.values()]
        return json_frame(Kind.WELCOME, Welcome(version=WIRE_VERSION, epoch=self._epoch, resumed=resumed, lanes=lanes))

    async def _receive(self, socket: ServerConnection, connection: Connection) -> None:
        async for message in socket:
            if not isinstance(message, bytes):
                raise WireError("A text message is not part of the protocol.")
            for frame in frames(message, FROM_CLIENT - {Kind.HELLO}):
                if connection is not self._connection:
                    return
                await self._handle(frame)

    async def _handle(self, frame: Frame) -> None:
        lane = self.lanes.get(frame.lane)
        if lane is None:
            raise WireError(f"This lease has no lane {frame.lane}: it has {len(self.lanes)}.")
        if frame.kind is Kind.CALL:
            lane.call(frame)
        elif frame.generation == lane.seat.generation and lane.ready:
            await self._trouble.unwanted(lane.seat, frame.text()[:MAX_TEXT_BYTES] or "its client gave no reason")

    def _deliver(self, result: Result) -> None:
        if self._pictures is not None and result.outcome.reply is not None:
            self._pictures(self.lease_id, result)
        if self._connection is not None:
            self._connection.deliver(result)

    def _sent(self, rank: int, size: int) -> None:
        self.lanes[rank].meter.wire_bytes += size

    def update(self, seats: Sequence[Seat]) -> None:
        """Take over what the store says now, and tell the client what has changed."""
        for seat in seats:
            lane = self.lanes.get(seat.rank)
            if lane is not None and lane.reseat(seat) and self._connection is not None:
                text = "a fresh engine is there" if lane.ready else "its engine is being replaced"
                self._connection.tell(
                    text_frame(Kind.LANE, text, code=int(lane.ready), lane=seat.rank, generation=seat.generation)
                )

    async def end(self, text: str, *, why: Bye = Bye.LEASE_ENDED) -> None:
        """The lease has ended, or the relay stops: say so and let go."""
        for lane in self.lanes.values():
            if why is Bye.LEASE_ENDED:
                lane.abandon()
        if self._connection is not None:
            await self._connection.bye(why, text)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the calls in flight, at most so long."""
        await asyncio.gather(*(lane.settle(timeout_s) for lane in self.lanes.values()))
