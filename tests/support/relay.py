"""A relay in the test's own loop: engines that do as the test says, a directory without a store, and clients that speak frames."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import zstandard
from websockets.asyncio.client import ClientConnection, connect

from client_sdk import models
from client_sdk.models import LeaseState
from client_sdk.wire import (
    FROM_RELAY,
    MAX_RELAY_MESSAGE_BYTES,
    MAX_WINDOW_LOG,
    SUBPROTOCOL,
    WIRE_VERSION,
    Flags,
    Frame,
    Hello,
    Kind,
    Method,
    Status,
    Welcome,
    answer_of,
    frame,
    frames,
    json_frame,
    text_frame,
    welcome_of,
)
from orchestrator.relay.directory import Directory, Standing, Standings
from orchestrator.relay.lane import Meter, Outcome, Seat
from orchestrator.relay.server import Relay

LEASE = "l-1"
TEST_WITHIN_S = 60.0


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an ``async def`` test to its end in a loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*arguments, **named), TEST_WITHIN_S)

        asyncio.run(bounded())

    return run


async def until(condition: Callable[[], object], *, within_s: float = 10.0, what: str = "the condition") -> None:
    """Let the loop go on until ``condition`` holds."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true within {within_s:g} s"
        await asyncio.sleep(0.005)


class FakeEngines:
    """Engines by id: each counts its steps, waits at its gate while that is shut, and fails as the test says."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Method, bytes]] = []
        self.steps: Counter[str] = Counter()
        self.shut: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}  # of the next call
        self.reply_bytes = 0
        self.kept: frozenset[str] | None = None
        self._opened = asyncio.Event()

    async def __call__(self, key: str, address: str, method: Method, request: bytes, *, timeout_s: float) -> Outcome:
        self.calls.append((key, method, request))
        deadline = asyncio.get_running_loop().time() + timeout_s
        while key in self.shut:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return Outcome(None, Status.DEADLINE_EXCEEDED, "too late")
            self._opened.clear()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._opened.wait(), left)
        if key in self.outcomes:
            return self.outcomes.pop(key)
        self.steps[key] += method is Method.STEP
        return Outcome(f"{key} {method.name} {self.steps[key]}".encode().ljust(self.reply_bytes, b"."))

    def open(self, key: str) -> None:
        """Let what waits at the gate go on."""
        self.shut.discard(key)
        self._opened.set()

    async def keep_only(self, keys: frozenset[str]) -> None:
        self.kept = keys

    async def close(self) -> None:
        self.kept = frozenset()


class FakeDirectory(Directory):
    """What the store would say of the leases, in memory; and what the relay wrote."""

    def __init__(self, **leases: int) -> None:
        self.standings: dict[str, Standing] = {}
        self.told: list[str] = []
        self.seen: list[str] = []
        self.active: Counter[str] = Counter()
        self.meters: dict[tuple[str, int], Meter] = {}
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[str, Any] = {}
        for name, envs in (leases or {"l_1": 1}).items():
            self.grant(name.replace("_", "-"), envs)

    def grant(self, lease_id: str, envs: int) -> None:
        """A lease has its engines."""
        seats = tuple(
            Seat(lease_id, rank, 1, f"{lease_id}/e{rank}.1", f"127.0.0.1:{rank}", "main") for rank in range(envs)
        )
        self.standings[lease_id] = Standing(LeaseState.ACTIVE, None, 1, "main", seats)

    def change(self, lease_id: str, **changes: Any) -> None:
        """The store changes."""
        standing = self.standings[lease_id]
        self.standings[lease_id] = replace(standing, version=standing.version + 1, **changes)

    def empty(self, lease_id: str, rank: int, because: str = "it died") -> None:
        """A slot loses its engine."""
        self._reseat(lease_id, rank, engine_id=None, address=None, lost_because=because)

    def fill(self, lease_id: str, rank: int) -> None:
        """A fresh engine steps into a slot."""
        generation = self.standings[lease_id].seats[rank].generation + 1
        engine_id = f"{lease_id}/e{rank}.{generation}"
        self._reseat(lease_id, rank, engine_id=engine_id, address="127.0.0.1:9", generation=generation)

    def _reseat(self, lease_id: str, rank: int, **changes: Any) -> None:
        seats = list(self.standings[lease_id].seats)
        seats[rank] = replace(seats[rank], **changes)
        self.change(lease_id, seats=tuple(seats))

    async def standing(self, lease_id: str) -> Standing | None:
        await asyncio.sleep(0)
        return self.standings.get(lease_id)

    async def look(self) -> Standings:
        await asyncio.sleep(0)
        active = {name: one.version for name, one in self.standings.items() if one.state is LeaseState.ACTIVE}
        asked, self.asked = tuple(self.asked), []
        return Standings(active, asked)

    async def answer(self, answers: Mapping[str, Any]) -> None:
        self.answers |= answers

    async def died(self, seat: Seat, text: str) -> str:
        self.told.append(f"died {seat.engine_id}: {text}")
        return f"The engine of rank {seat.rank} ({seat.engine_id}) died: {text}."

    async def hung(self, seat: Seat, method: Method, after_s: float) -> str:
        self.told.append(f"hung {seat.engine_id}: {method.name} {after_s:g}")
        return f"The engine of rank {seat.rank} ({seat.engine_id}) did not answer."

    async def unwanted(self, seat: Seat, reason: str) -> None:
        self.told.append(f"unwanted {seat.engine_id}: {reason}")

    async def connected(self, lease_id: str) -> None:
        self.seen.append(lease_id)

    async def record(self, done: Mapping[tuple[str, int, str], Meter], active: Collection[str]) -> None:
        for (lease_id, rank, _), meter in done.items():
            self.meters.setdefault((lease_id, rank), Meter()).add(meter)
        self.active.update(active)


def token_of(lease_id: str) -> str:
    """What opens a lease here."""
    return f"token-of-{lease_id}"


class Client:
    """One connection, frame by frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.welcome: Welcome | None = None
        self._frames: deque[Frame] = deque()
        self._streams: dict[int, Any] = {}

    async def hello(
        self, session: str = "session-1", *, epoch: str | None = None, step_s: float | None = None, version: int = 0
    ) -> Welcome:
        """Say HELLO and read the WELCOME."""
        deadlines = {} if step_s is None else {"step": step_s}
        await self.send(
            json_frame(
                Kind.HELLO,
                Hello(version=version or WIRE_VERSION, session=session, epoch=epoch, deadlines_s=deadlines),
            )
        )
        self.welcome = welcome_of(await self.read(Kind.WELCOME))
        return self.welcome

    async def send(self, message: bytes | str) -> None:
        """Send a message as it is."""
        await self.socket.send(message)

    async def call(
        self, seq: int, method: Method = Method.STEP, *, lane: int = 0, generation: int = 1, body: bytes = b"a"
    ) -> None:
        """Send a CALL."""
        await self.send(frame(Kind.CALL, body, code=method, lane=lane, generation=generation, seq=seq))

    async def give_up(self, *, lane: int = 0, generation: int = 1, why: str = "no good") -> None:
        """Send a REPLACE."""
        await self.send(text_frame(Kind.REPLACE, why, lane=lane, generation=generation))

    async def read(self, kind: Kind | None = None, *, within_s: float = 10.0) -> Frame:
        """The next frame, which must be of ``kind``."""
        while not self._frames:
            message = await asyncio.wait_for(self.socket.recv(), within_s)
            assert isinstance(message, bytes)
            self._frames.extend(frames(message, FROM_RELAY))
        found = self._frames.popleft()
        assert kind is None or found.kind is kind, f"{found.kind.name} {found.code}: {found.text()}"
        return found

    async def answer(self, **call: Any) -> tuple[int, bytes]:
        """The next frame, an ANSWER: its number and the engine's reply."""
        found = await self.read(Kind.ANSWER)
        return found.seq, self.decoded(found)

    def decoded(self, found: Frame) -> bytes:
        """The reply inside an ANSWER."""
        answer = answer_of(found)
        data = bytes(answer.data)
        if not found.code & Flags.PLAIN:
            if found.code & Flags.NEW_STREAM:
                decompressor = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG)
                self._streams[found.lane] = decompressor.decompressobj()
            data = self._streams[found.lane].decompress(data)
        assert len(data) == answer.raw_size
        return data

    async def fault(self) -> tuple[int, int, str]:
        """The next frame, a FAULT: its number, status and text."""
        found = await self.read(Kind.FAULT)
        return found.seq, found.code, found.text()

    async def step(self, seq: int, **where: Any) -> bytes:
        """A STEP and its reply."""
        await self.call(seq, **where)
        number, reply = await self.answer()
        assert number == seq
        return reply


class RelayHouse:
    """A relay that listens on 127.0.0.1, with TLS if it has a certificate."""

    def __init__(self, *, drain_s: float = 5.0, certificate: ssl.SSLContext | None = None, **leases: int) -> None:
        self.certificate = certificate
        self.directory = FakeDirectory(**leases)
        self.engines = FakeEngines()
        self.drain_s = drain_s
        self.port = 0

    async def start(self) -> None:
        """Begin, as a process of its own would: nothing is known of a former life."""
        self.relay = Relay(self.directory, token_of=token_of, engines=self.engines, drain_s=self.drain_s)
        server = await self.relay.listen("127.0.0.1", self.port, self.certificate)
        self.port = server.sockets[0].getsockname()[1]

    @contextlib.asynccontextmanager
    async def client(
        self, lease_id: str = LEASE, *, token: str | None = None, path: str | None = None
    ) -> AsyncIterator[Client]:
        """A connection that has said nothing yet."""
        async with connect(
            f"{'wss' if self.certificate else 'ws'}://127.0.0.1:{self.port}{path or f'/v1/leases/{lease_id}'}",
            ssl=ssl._create_unverified_context() if self.certificate else None,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            additional_headers={"Authorization": f"Bearer {token_of(lease_id) if token is None else token}"},
            compression=None,
            max_size=MAX_RELAY_MESSAGE_BYTES,
            ping_interval=None,
            close_timeout=0.5,
        ) as socket:
            yield Client(socket)


@contextlib.asynccontextmanager
async def real_client(lease: models.Lease, *, ca: Path | None = None) -> AsyncIterator[Client]:
    """A connection to the relay that a real daemon's lease names, whose certificate ``ca`` must have signed."""
    assert lease.relay is not None
    trusting = ssl.create_default_context(cafile=ca) if ca else ssl._create_unverified_context()
    async with connect(
        lease.relay.url,
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
        additional_headers={"Authorization": f"Bearer {lease.relay.token}"},
        compression=None,
        ssl=trusting,
        max_size=MAX_RELAY_MESSAGE_BYTES,
        ping_interval=None,
        close_timeout=0.5,
    ) as socket:
        yield Client(socket)


@contextlib.asynccontextmanager
async def relay_house(
    *, drain_s: float = 5.0, certificate: ssl.SSLContext | None = None, **leases: int
) -> AsyncIterator[RelayHouse]:
    """A relay for one test; leases are named with underscores: ``l_1=2`` is lease l-1 with two engines."""
    house = RelayHouse(drain_s=drain_s, certificate=certificate, **leases)
    await house.start()
    try:
        yield house
    finally:
        await house.relay.stop()
