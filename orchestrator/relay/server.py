"""The relay: accepts connections, hands each to the session of its lease, and follows what the store says of the leases."""

from __future__ import annotations

import asyncio
import hmac
import http
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from client_sdk.models import LeaseState
from client_sdk.wire import MAX_CLIENT_MESSAGE_BYTES, PROBE_SUFFIX, SUBPROTOCOL
from orchestrator.errors import CornermanError
from orchestrator.relay import picture, probe
from orchestrator.relay.directory import Directory, Standing
from orchestrator.relay.door import Door
from orchestrator.relay.engine_calls import Engines, GrpcEngines
from orchestrator.relay.lane import Lane, Meter
from orchestrator.relay.refusals import Refusals
from orchestrator.relay.session import Session
from orchestrator.store.database import Changes

log = structlog.get_logger(__name__)

PATH, HEALTH = "/v1/leases/", "/healthz"
OPEN_WITHIN_S = 10.0
PING_EVERY_S, PONG_WITHIN_S = 20.0, 60.0
RECORD_EVERY_S = 5.0
LOOK_AT_LEAST_EVERY_S = 5.0
DRAIN_S = 10.0
WRITE_LIMIT_BYTES = 1 << 20  # of one connection, before its sender waits
LONGEST_TOKEN = 256

# What websockets has to say of each connection is said here, once, or not at all.
_silent = logging.getLogger("orchestrator.relay.websockets")
_silent.setLevel(logging.CRITICAL + 1)


class Relay:
    """All leases of this host; one connection each, and a lane for each engine."""

    def __init__(
        self,
        directory: Directory,
        *,
        token_of: Callable[[str], str],
        engines: Engines | None = None,
        compress_threads: int = 2,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._directory, self._token_of, self._drain_s = directory, token_of, drain_s
        self._engines = engines or GrpcEngines()
        self._executor = ThreadPoolExecutor(compress_threads, thread_name_prefix="compress")
        self._refusals = Refusals()
        self._sessions: dict[str, Session] = {}
        self._standings: dict[str, tuple[int, str]] = {}  # version and pool of each session's lease
        self._holders: dict[str, tuple[str, int]] = {}  # (lease, rank) that an engine was last seen to serve
        self._door: Door | None = None
        self._server: Server | None = None
        self._look_again = asyncio.Event()
        self._stopping = False
        self.epoch = secrets.token_hex(8)

    # ------------------------------------------------------------ connections

    async def listen(self, host: str, port: int, certificate: ssl.SSLContext | None) -> Server:
        """Begin to accept connections; OSError when the address cannot be had."""
        self._door = Door.opened(host, port, turned_away=self._turned_away)
        self._server = await serve(
            self._handle,
            sock=self._door,
            ssl=certificate,
            process_request=self._admit,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            compression=None,
            server_header="cornerman",
            open_timeout=OPEN_WITHIN_S,
            ping_interval=PING_EVERY_S,
            ping_timeout=PONG_WITHIN_S,
            close_timeout=2.0,
            max_size=MAX_CLIENT_MESSAGE_BYTES,
            max_queue=(16, 4),
            write_limit=WRITE_LIMIT_BYTES,
            logger=_silent,
            ssl_handshake_timeout=OPEN_WITHIN_S if certificate else None,
        )
        return self._server

    def _turned_away(self, peer: str) -> None:
        self._refusals.note("waiting", peer, "It opened many connections and did not say who it is on any of them.")

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse in one sentence, before anything else is done for the peer; None lets it in."""
        if request.path == HEALTH:
            return connection.respond(http.HTTPStatus.OK, "ok\n")
        refusal = await self._refusal(request)
        if refusal is None:
            return probe.response() if request.path.endswith(PROBE_SUFFIX) else None
        status, text = refusal
        self._refusals.note(f"status {status.value}", _peer(connection), text)
        return connection.respond(status, f"{text}\n")

    async def _refusal(self, request: Request) -> tuple[http.HTTPStatus, str] | None:
        if not request.path.startswith(PATH):
            return http.HTTPStatus.NOT_FOUND, "This is Cornerman's relay, and it serves the lanes of leases alone."
        lease_id = request.path[len(PATH) :].removesuffix(PROBE_SUFFIX)
        offered = request.headers.get_all("Authorization")
        token = offered[0].removeprefix("Bearer ") if len(offered) == 1 else ""
        if len(token) > LONGEST_TOKEN or not hmac.compare_digest(_bytes(token), _bytes(self._token_of(lease_id))):
            return (
                http.HTTPStatus.UNAUTHORIZED,
                "The relay token is not that of this lease: ask the API for the lease again.",
            )
        if not request.path.endswith(PROBE_SUFFIX) and (fault := _not_ours(request)) is not None:
            return fault
        if self._stopping:
            return http.HTTPStatus.SERVICE_UNAVAILABLE, "The relay is stopping: connect again."
        try:
            return _ended(lease_id, await self._directory.standing(lease_id))
        except CornermanError as trouble:
            return http.HTTPStatus.SERVICE_UNAVAILABLE, str(trouble)

    async def _handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        lease_id = socket.request.path[len(PATH) :]
        try:
            session = await self._session(lease_id)
            if session is None:  # it has ended, or the relay stops, since the connection was admitted
                return
            await session.serve(socket, welcomed=lambda: self._welcomed(lease_id, socket))
        except Exception:  # a connection's edge
            log.exception("a connection failed", lease=lease_id)

    async def _welcomed(self, lease_id: str, socket: ServerConnection) -> None:
        descriptor = socket.transport.get_extra_info("socket").fileno()
        if self._door is not None:
            self._door.come_in(descriptor)
        try:
            await self._directory.connected(lease_id)
        except CornermanError as fault:
            log.warning("a connection cannot be noted", lease=lease_id, fault=str(fault))

    async def _session(self, lease_id: str) -> Session | None:
        standing = await self._directory.standing(lease_id)
        if standing is None or standing.state is not LeaseState.ACTIVE or self._stopping:
            return None
        session = self._sessions.get(lease_id)
        if session is None:
            session = Session(
                lease_id,
                standing.seats,
                epoch=self.epoch,
                call_engine=self._engines,
                trouble=self._directory,
                executor=self._executor,
                refused=lambda lease_id, why: self._refusals.note("protocol", lease_id, why),
            )
            self._sessions[lease_id] = session
            self._standings[lease_id] = standing.version, standing.pool
            self._seat(session)
            self._look_again.set()  # it may have changed since it was read
        return session

    def lanes(self) -> dict[str, Lane]:
        """All lanes by the engine that sits in their slot now."""
        found = {}
        for session in self._sessions.values():
            for lane in session.lanes.values():
                if lane.seat.engine_id is not None:
                    found[lane.seat.engine_id] = lane
        return found

    def status(self) -> str:
        """One line for ``systemctl status``."""
        connected = sum(session.connected for session in self._sessions.values())
        return f"{len(self._sessions)} leases, {connected} connected"

    # ------------------------------------------------------------ following the store

    async def follow(self, changes: Changes) -> None:
        """Keep the sessions as the store says, until cancelled."""
        listening = asyncio.create_task(self._listen_to(changes))
        try:
            while True:
                self._look_again.clear()
                try:
                    await self.catch_up()
                except CornermanError as fault:
                    log.warning("the store cannot be followed", fault=str(fault))
                except Exception:  # the loop's edge: one bad look must not end the relay
                    log.exception("the store cannot be followed")
                await _wait_for(self._look_again, LOOK_AT_LEAST_EVERY_S)
        finally:
            listening.cancel()

    async def _listen_to(self, changes: Changes) -> None:
        seen = 0
        while True:
            seen = await asyncio.to_thread(changes.wait, seen, LOOK_AT_LEAST_EVERY_S)
            self._look_again.set()

    async def catch_up(self) -> None:
        """Take over what has changed in the store, and answer who wants to see a frame."""
        now = await self._directory.look()
        if now.frames:
            await self._show(now.frames)
        changed = False
        for lease_id, session in list(self._sessions.items()):
            version, pool = self._standings[lease_id]
            if now.versions.get(lease_id) == version:
                continue
            changed = True
            standing = await self._directory.standing(lease_id)
            if standing is None or standing.state is not LeaseState.ACTIVE:
                await self._end(lease_id, session, standing)
            else:
                self._standings[lease_id] = standing.version, pool
                session.update(standing.seats)
                self._seat(session)
        if changed:
            await self._let_go_of_engines()

    def _seat(self, session: Session) -> None:
        """An engine that serves a lease serves no other: whoever had it before, and may not know yet, loses it at once."""
        for rank, lane in session.lanes.items():
            engine_id = lane.seat.engine_id
            if engine_id is None:
                continue
            place = (session.lease_id, rank)
            former = self._holders.get(engine_id, place)
            self._holders[engine_id] = place
            if former != place and (other := self._sessions.get(former[0])) is not None:
                other.lose(former[1], engine_id)

    async def _let_go_of_engines(self) -> None:
        seated = {
            lane.seat.engine_id: (session.lease_id, rank)
            for session in self._sessions.values()
            for rank, lane in session.lanes.items()
            if lane.seat.engine_id is not None
        }
        self._holders = seated
        await self._engines.keep_only(frozenset(seated))

    async def _end(self, lease_id: str, session: Session, standing: Standing | None) -> None:
        meters = self._taken_meters(lease_id, session)
        self._sessions.pop(lease_id, None)
        self._standings.pop(lease_id, None)
        because = (standing.because if standing else None) or "it is not known any more"
        session.end(f"Lease {lease_id} has ended: {because.rstrip('.')}.")
        await self._write_down(meters, set())

    # ------------------------------------------------------------ what was done

    async def record_forever(self) -> None:
        """Write down every few seconds what the lanes have done, and look after connections."""
        while True:
            await asyncio.sleep(RECORD_EVERY_S)
            await self.record()
            for session in self._sessions.values():
                session.look_after()

    async def record(self) -> None:
        """Write down what the lanes have done since last time."""
        done: dict[tuple[str, int, str], Meter] = {}
        active: set[str] = set()
        for lease_id, session in self._sessions.items():
            taken = self._taken_meters(lease_id, session)
            if session.busy or any(meter.calls for meter in taken.values()):
                active.add(lease_id)
            done |= taken
        await self._write_down(done, active)

    def _taken_meters(self, lease_id: str, session: Session) -> dict[tuple[str, int, str], Meter]:
        _, pool = self._standings[lease_id]
        taken = {}
        for rank, lane in session.lanes.items():
            if lane.meter.calls or lane.meter.wire_bytes or lane.metered:
                taken[lease_id, rank, pool] = lane.meter
                lane.metered = bool(lane.meter.calls)  # once more after the last, so that its rate falls to 0
                lane.meter = Meter()
        return taken

    async def _write_down(self, done: Mapping[tuple[str, int, str], Meter], active: set[str]) -> None:
        try:
            await self._directory.record(done, active)
        except CornermanError as fault:
            log.warning("what was done cannot be written down now", fault=str(fault))
            for (lease_id, rank, _), meter in done.items():
                if (session := self._sessions.get(lease_id)) is not None:
                    session.lanes[rank].meter.add(meter)

    # ------------------------------------------------------------ frames

    async def _show(self, asked: tuple[tuple[str, str], ...]) -> None:
        lanes = self.lanes()
        answers = {inquiry_id: await self._picture(lanes.get(engine_id)) for inquiry_id, engine_id in asked}
        await self._directory.answer(answers)

    async def _picture(self, lane: Lane | None) -> dict[str, Any]:
        if lane is None or not lane.shown:
            return {"why": "no call of its lease has come through the relay yet"}
        shown = dict(lane.shown)
        return await asyncio.get_running_loop().run_in_executor(self._executor, picture.answer, shown)

    # ------------------------------------------------------------ stopping

    async def stop(self) -> None:
        """Let the calls in flight come to their end, say goodbye, and write down what was done."""
        self._stopping = True
        if self._door is not None and self._server is not None:
            self._server.close(close_connections=False)
        await asyncio.gather(*(session.stop(self._drain_s) for session in self._sessions.values()))
        await self.record()
        await self._engines.close()
        self._executor.shutdown(wait=False)


def _not_ours(request: Request) -> tuple[http.HTTPStatus, str] | None:
    """What to say of a request that opens no WebSocket of this version; None for one that does."""
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        return http.HTTPStatus.UPGRADE_REQUIRED, f"Lanes are reached by a WebSocket that speaks {SUBPROTOCOL}."
    offers = [one.strip() for line in request.headers.get_all("Sec-WebSocket-Protocol") for one in line.split(",")]
    if SUBPROTOCOL not in offers:
        text = f"This relay speaks {SUBPROTOCOL} only: upgrade Cornerman on the older side."
        return http.HTTPStatus.UPGRADE_REQUIRED, text
    return None


def _ended(lease_id: str, standing: Standing | None) -> tuple[http.HTTPStatus, str] | None:
    """What to say of a lease whose lanes cannot be had; None when they can."""
    if standing is None:
        return http.HTTPStatus.NOT_FOUND, f"There is no lease {lease_id}: ask for a new one."
    if standing.state is LeaseState.PENDING:
        return http.HTTPStatus.CONFLICT, f"Lease {lease_id} waits for its engines still: connect when it is active."
    if standing.state is not LeaseState.ACTIVE:
        because = f"{standing.state.value}: {standing.because}"
        return http.HTTPStatus.GONE, f"Lease {lease_id} has ended ({because}): ask for a new one."
    return None


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return str(address[0]) if address else "?"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting}, timeout=timeout_s)
    waiting.cancel()
