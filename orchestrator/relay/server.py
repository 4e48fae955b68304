"""The relay process: one TLS port for all leases. Started as ``cornerman relay`` or ``python -m orchestrator.relay --config PATH``."""

from __future__ import annotations

import asyncio
import hmac
import http
import secrets
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from client_sdk.models import LeaseState
from client_sdk.wire import MAX_CLIENT_MESSAGE_BYTES, SUBPROTOCOL, Bye
from orchestrator.relay.directory import Directory, Standing
from orchestrator.relay.engine_calls import GrpcEngines
from orchestrator.relay.lane import Meter
from orchestrator.relay.session import Session
from orchestrator.store.database import Changes

log = structlog.get_logger(__name__)

PATH = "/v1/leases/"
OPEN_WITHIN_S = 10.0
PING_EVERY_S, PONG_WITHIN_S = 20.0, 60.0
RECORD_EVERY_S = 5.0
LOOK_AT_LEAST_EVERY_S = 5.0
DRAIN_S = 10.0
MOST_CONNECTIONS = 4096
WRITE_LIMIT_BYTES = 4 << 20  # of one connection, before its sender waits


class Relay:
    """Accepts connections, hands each to the session of its lease, and follows what the store says of the leases."""

    def __init__(
        self,
        directory: Directory,
        *,
        token_of: Callable[[str], str],
        compress_threads: int = 2,
        most_connections: int = 2048,
    ) -> None:
        self._directory, self._token_of = directory, token_of
        self._engines = GrpcEngines()
        self._executor = ThreadPoolExecutor(compress_threads, thread_name_prefix="compress")
        self._sessions: dict[str, Session] = {}
        self._versions: dict[str, int] = {}
        self._pools: dict[str, str] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._stopping = False
        self.epoch = secrets.token_hex(8)

    # ------------------------------------------------------------ connections

    async def listen(self, host: str, port: int, trusting: ssl.SSLContext | None) -> Server:
        """Begin to accept connections."""
        return await serve(
            self._handle,
            host,
            port,
            ssl=trusting,
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
            ssl_handshake_timeout=OPEN_WITHIN_S if trusting else None,
        )

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse in one sentence, before anything else is done for the peer; None lets it in."""
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "ok\n")
        if not request.path.startswith(PATH):
            return connection.respond(http.HTTPStatus.NOT_FOUND, "This is Cornerman's relay: it serves leases alone.\n")
        lease_id = request.path[len(PATH) :]
        offered = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(offered.encode(), self._token_of(lease_id).encode()):
            return connection.respond(
                http.HTTPStatus.UNAUTHORIZED,
                "The relay token is not that of this lease: ask the API for the lease again.\n",
            )
        if self._stopping:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "The relay is stopping: connect again.\n")
        standing = await self._directory.standing(lease_id)
        refusal = _refusal(lease_id, standing)
        if refusal is not None:
            return connection.respond(*refusal)
        if SUBPROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", ""):
            return connection.respond(
                http.HTTPStatus.UPGRADE_REQUIRED,
                f"This relay speaks {SUBPROTOCOL} only: upgrade Cornerman on the older side.\n",
            )
        return None

    async def _handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        lease_id = socket.request.path[len(PATH) :]
        session = await self._session(lease_id)
        if session is not None:
            await session.serve(socket)

    async def _session(self, lease_id: str) -> Session | None:
        async with self._opening.setdefault(lease_id, asyncio.Lock()):
            session = self._sessions.get(lease_id)
            if session is None:
                standing = await self._directory.standing(lease_id)
                if standing is None or standing.state is not LeaseState.ACTIVE or self._stopping:
                    return None
                session = Session(
                    lease_id,
                    standing.seats,
                    epoch=self.epoch,
                    call_engine=self._engines,
                    trouble=self._directory,
                    executor=self._executor,
                )
                self._sessions[lease_id] = session
                self._versions[lease_id], self._pools[lease_id] = standing.version, standing.pool
            return session

    def status(self) -> str:
        """One line for ``systemctl status``."""
        connected = sum(session.connected for session in self._sessions.values())
        return f"{len(self._sessions)} leases, {connected} connected"

    # ------------------------------------------------------------ following the store

    async def follow(self, changes: Changes) -> None:
        """Keep the sessions as the store says, until cancelled."""
        seen = 0
        while True:
            await self._catch_up()
            number = changes.number
            if number <= seen:
                await asyncio.to_thread(changes.wait, seen, LOOK_AT_LEAST_EVERY_S)
                number = changes.number
            seen = number

    async def _catch_up(self) -> None:
        if not self._sessions:
            return
        now = await self._directory.versions()
        for lease_id, session in list(self._sessions.items()):
            if now.get(lease_id) == self._versions.get(lease_id):
                continue
            standing = await self._directory.standing(lease_id)
            if standing is None or standing.state is not LeaseState.ACTIVE:
                await self._end(lease_id, session, standing)
            else:
                self._versions[lease_id] = standing.version
                session.update(standing.seats)
        await self._engines.keep_only(
            frozenset(
                lane.seat.engine_id or "" for session in self._sessions.values() for lane in session.lanes.values()
            )
        )

    async def _end(self, lease_id: str, session: Session, standing: Standing | None) -> None:
        for table in (self._sessions, self._versions, self._pools, self._opening):
            table.pop(lease_id, None)
        because = (standing.because if standing else None) or "it is not known any more"
        await session.end(f"Lease {lease_id} has ended: {because}.")

    async def record_forever(self) -> None:
        """Write down every few seconds what the lanes have done."""
        while True:
            await asyncio.sleep(RECORD_EVERY_S)
            await self.record()

    async def record(self) -> None:
        """Write down what the lanes have done since last time."""
        done: dict[tuple[str, int, str], Meter] = {}
        active: dict[str, float] = {}
        for lease_id, session in self._sessions.items():
            for rank, lane in session.lanes.items():
                meter = lane.meter
                if lane.busy or meter.calls:
                    active[lease_id] = time.time()
                if meter.calls or meter.wire_bytes:
                    done[lease_id, rank, self._pools[lease_id]] = meter
                    lane.meter = Meter()
        await self._directory.record(done, active)

    # ------------------------------------------------------------ stopping

    async def stop(self) -> None:
        """Let the calls in flight come to their end, say goodbye, and write down what was done."""
        self._stopping = True
        await asyncio.gather(*(session.drain(DRAIN_S) for session in self._sessions.values()))
        await asyncio.gather(
            *(session.end("The relay is stopping.", why=Bye.STOPPING) for session in self._sessions.values())
        )
        await self.record()
        await self._engines.close()
        self._executor.shutdown(wait=False)


def _refusal(lease_id: str, standing: Standing | None) -> tuple[http.HTTPStatus, str] | None:
    if standing is None:
        return http.HTTPStatus.NOT_FOUND, f"There is no lease {lease_id}: ask for a new one.\n"
    if standing.state is LeaseState.PENDING:
        return http.HTTPStatus.CONFLICT, f"Lease {lease_id} waits for its engines still: connect when it is active.\n"
    if standing.state is not LeaseState.ACTIVE:
        return (
            http.HTTPStatus.GONE,
            f"Lease {lease_id} has ended ({standing.state.value}: {standing.because}): ask for a new one.\n",
        )
    return None
