"""One lease on the relay: its lanes, which outlive connections, and the one connection that steps them now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from client_sdk.wire import (
    FROM_CLIENT,
    HELLO_WITHIN_S,
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

MIN_DEADLINE_S, MAX_DEADLINE_S = 0.1, 3600.0
MAX_REASON = 300
FLUSH_WITHIN_S = 2.0

Refused = Callable[[str, str], None]


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
        refused: Refused = lambda lease_id, why: None,
    ) -> None:
        self.lease_id = lease_id
        self.lanes = {
            seat.rank: Lane(seat, call_engine=call_engine, trouble=trouble, deliver=self._deliver) for seat in seats
        }
        self._epoch, self._trouble, self._executor, self._refused = epoch, trouble, executor, refused
        self._connection: Connection | None = None
        self._session: str | None = None  # the client's, of the latest connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._giving_up: set[tuple[int, int]] = set()  # (rank, generation)
        self._ended: tuple[Bye, str] | None = None

    @property
    def connected(self) -> bool:
        """True while a client is there."""
        return self._connection is not None

    @property
    def busy(self) -> bool:
        """True while a call of any lane is being run."""
        return any(lane.busy for lane in self.lanes.values())

    # ------------------------------------------------------------ one connection

    async def serve(self, socket: ServerConnection, *, welcomed: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve one connection until it ends; a second one takes the lease over from the first."""
        connection = Connection(socket, lanes=len(self.lanes), executor=self._executor, sent=self._sent)
        try:
            hello = await self._hello(socket)
        except WireError as error:
            self._refused(self.lease_id, str(error))
            await connection.bye(Bye.PROTOCOL, str(error))
            return
        except ConnectionClosed:
            return
        if self._ended is not None:
            await connection.bye(*self._ended)
            return
        if hello.epoch == self._epoch and self._session not in (None, hello.session):
            await connection.bye(Bye.TAKEN_OVER, "Another client took this lease over while this one was away.")
            return
        self._take_over(connection, hello)
        sending = asyncio.create_task(connection.send_forever())
        try:
            if welcomed is not None:
                await welcomed()
            await self._receive(socket, connection)
        except WireError as error:
            self._refused(self.lease_id, str(error))
            await connection.bye(Bye.PROTOCOL, str(error))
        except ConnectionClosed:
            pass
        finally:
            sending.cancel()
            if self._connection is connection:
                self._connection = None

    async def _hello(self, socket: ServerConnection) -> Hello:
        try:
            message = await asyncio.wait_for(socket.recv(), HELLO_WITHIN_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise WireError(f"No HELLO came within {HELLO_WITHIN_S:g} s.") from None
        found = list(frames(_binary(message), {Kind.HELLO}))
        if len(found) != 1:
            raise WireError("The first message must be one HELLO.")
        hello = hello_of(found[0])
        if hello.version != WIRE_VERSION:
            which = "Cornerman in the notebook" if hello.version < WIRE_VERSION else "Cornerman on the host"
            raise WireError(
                f"The client speaks wire version {hello.version}, this relay {WIRE_VERSION}: upgrade {which}."
            )
        return hello

    def _take_over(self, connection: Connection, hello: Hello) -> None:
        resumed = hello.session == self._session and hello.epoch == self._epoch
        former, self._connection = self._connection, connection
        if former is not None and hello.session == self._session:
            former.drop()  # half open: its client has left it already
        elif former is not None:
            self._spawn(former.bye(Bye.TAKEN_OVER, "Another client connected with this lease."))
        self._session = hello.session
        self._set_deadlines(hello)
        lanes = [lane.info() for lane in self.lanes.values()]
        welcome = Welcome(version=WIRE_VERSION, epoch=self._epoch, resumed=resumed, lanes=lanes)
        connection.tell(json_frame(Kind.WELCOME, welcome))
        self._spawn(connection.measure())

    def _set_deadlines(self, hello: Hello) -> None:
        chosen = {
            method: min(MAX_DEADLINE_S, max(MIN_DEADLINE_S, seconds))
            for method in Method
            if (seconds := hello.deadlines_s.get(method.name.lower())) is not None
        }
        for lane in self.lanes.values():
            lane.deadlines_s.update(chosen)

    async def _receive(self, socket: ServerConnection, connection: Connection) -> None:
        async for message in socket:
            for frame in frames(_binary(message), FROM_CLIENT - {Kind.HELLO}):
                if connection.is_full:
                    await connection.room()
                if connection is self._connection and self._ended is None:
                    self._handle(frame)  # else its goodbye is on its way

    def _handle(self, frame: Frame) -> None:
        lane = self.lanes.get(frame.lane)
        if lane is None:
            raise WireError(f"This lease has no lane {frame.lane}: it has {len(self.lanes)}.")
        if frame.kind is Kind.CALL:
            lane.call(frame)
        elif frame.generation == lane.seat.generation and lane.ready:
            self._give_up(lane.seat, frame.text()[:MAX_REASON] or "it gave no reason")

    def _give_up(self, seat: Seat, reason: str) -> None:
        key = (seat.rank, seat.generation)
        if key not in self._giving_up:
            self._giving_up = {one for one in self._giving_up if one[0] != seat.rank} | {key}
            self._spawn(self._trouble.unwanted(seat, reason))

    # ------------------------------------------------------------ what lanes do

    def _deliver(self, result: Result) -> None:
        if self._connection is not None:
            self._connection.deliver(result)

    def _sent(self, rank: int, wire_bytes: int, queue_s: float) -> None:
        meter = self.lanes[rank].meter
        meter.wire_bytes += wire_bytes
        meter.queue_s += queue_s

    # ------------------------------------------------------------ what happens to the lease

    def update(self, seats: Sequence[Seat]) -> None:
        """Take over what the store says now, and tell the client what has changed."""
        for seat in seats:
            lane = self.lanes.get(seat.rank)
            if lane is not None and lane.reseat(seat) and self._connection is not None:
                text = "a fresh engine is there" if lane.ready else f"its engine is being replaced: {seat.lost_because}"
                self._connection.tell(
                    text_frame(Kind.LANE, text, code=int(lane.ready), lane=seat.rank, generation=seat.generation)
                )

    def look_after(self) -> None:
        """Let go of a client that does not read."""
        if self._connection is not None:
            self._connection.drop_if_unread()

    def lose(self, rank: int, engine_id: str) -> None:
        """The engine serves another lease by now: it is called for this one no more."""
        lane = self.lanes.get(rank)
        if lane is not None and lane.seat.engine_id == engine_id:
            self.update([replace(lane.seat, engine_id=None, address=None, lost_because="it serves another lease")])

    def end(self, text: str) -> None:
        """The lease has ended: nothing is run for it any more; say so and let go."""
        self._ended = (Bye.LEASE_ENDED, text)
        for lane in self.lanes.values():
            lane.abandon(text)
        self._spawn(self._goodbye())

    async def stop(self, timeout_s: float) -> None:
        """The relay stops: let the calls in flight come to their end, answer them, and say that the client is to come back."""
        await asyncio.gather(*(lane.drain(timeout_s) for lane in self.lanes.values()))
        self._ended = (Bye.STOPPING, "The relay is stopping: connect again.")
        await self._goodbye()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FLUSH_WITHIN_S)

    async def _goodbye(self) -> None:
        connection, ended = self._connection, self._ended
        if connection is not None and ended is not None:
            await connection.flush(FLUSH_WITHIN_S)
            await connection.bye(*ended)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise WireError("A text message is not part of the protocol.")
    return message
