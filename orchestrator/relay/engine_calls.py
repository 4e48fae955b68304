"""Calls engines over plaintext gRPC on this host. Bytes in, bytes out: no DIAMBRA package, no protobuf, no gRPC library."""

from __future__ import annotations

import asyncio
from typing import Protocol

from client_sdk.wire import Method, Status
from orchestrator.relay.http2 import Connection, request_headers
from orchestrator.relay.lane import EngineCalls, Outcome

CONNECT_WITHIN_S = 5.0


class Engines(EngineCalls, Protocol):
    """Calls engines, and keeps what it needs for that until it is told not to."""

    async def keep_only(self, keys: frozenset[str]) -> None:
        """Let go of all engines but these."""

    async def close(self) -> None:
        """Let go of all."""


class GrpcEngine:
    """One engine's connection, made when it is needed and again when it broke."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._headers: dict[tuple[Method, float], bytes] = {}

    async def call(self, method: Method, request: bytes, *, timeout_s: float) -> Outcome:
        """The engine's reply, or its error."""
        connection = self._connection
        if connection is None or not connection.is_open:
            try:
                connection = await asyncio.wait_for(self._connected(), min(timeout_s, CONNECT_WITHIN_S))
            except (OSError, asyncio.TimeoutError) as fault:
                return Outcome(None, Status.UNAVAILABLE, f"it cannot be connected to ({fault or 'it does not answer'})")
        headers = self._headers.get((method, timeout_s))
        if headers is None:
            headers = self._headers[method, timeout_s] = request_headers(method.path, self._address, timeout_s)
        response = await connection.call(headers, request, timeout_s=timeout_s)
        if response.message is not None:
            return Outcome(response.message)
        return Outcome(None, response.status, response.text or "no reason was given")

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                host, _, port = self._address.rpartition(":")
                loop = asyncio.get_running_loop()
                _, self._connection = await loop.create_connection(Connection, host.strip("[]"), int(port))
            return self._connection

    def close(self) -> None:
        """Close the connection; a call in flight ends."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class GrpcEngines:
    """Calls engines by address, keeping a connection to each."""

    def __init__(self) -> None:
        self._engines: dict[str, GrpcEngine] = {}

    async def __call__(self, key: str, address: str, method: Method, request: bytes, *, timeout_s: float) -> Outcome:
        """Call the engine of id ``key`` at ``address``."""
        engine = self._engines.get(key)
        if engine is None:
            engine = self._engines[key] = GrpcEngine(address)
        return await engine.call(method, request, timeout_s=timeout_s)

    async def keep_only(self, keys: frozenset[str]) -> None:
        """Close the connections to engines that nobody holds any more."""
        for key in [key for key in self._engines if key not in keys]:
            self._engines.pop(key).close()

    async def close(self) -> None:
        """Close all connections."""
        await self.keep_only(frozenset())
