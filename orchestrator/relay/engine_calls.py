"""Calls engines over plaintext gRPC on this host. Bytes in, bytes out: no DIAMBRA package, no protobuf."""

from __future__ import annotations

from typing import Protocol

import grpc
import grpc.aio

from client_sdk.wire import MAX_REPLY_BYTES, Method
from orchestrator.relay.lane import EngineCalls, Outcome

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    (
        "grpc.use_local_subchannel_pool",
        1,
    ),  # an engine that follows another on the same port gets a connection of its own
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class GrpcEngine:
    """One engine's channel, and its calls by method."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._calls = {method: self._channel.unary_unary(method.path) for method in Method}

    async def call(self, method: Method, request: bytes, *, timeout_s: float) -> Outcome:
        """The engine's reply, or its error."""
        try:
            return Outcome(await self._calls[method](request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            return Outcome(None, error.code().value[0], error.details() or error.code().name)

    async def close(self) -> None:
        """Close the channel; a call in flight ends as cancelled."""
        await self._channel.close()


class Engines(EngineCalls, Protocol):
    """Calls engines, and keeps what it needs for that until it is told not to."""

    async def keep_only(self, keys: frozenset[str]) -> None:
        """Let go of all engines but these."""

    async def close(self) -> None:
        """Let go of all."""


class GrpcEngines:
    """Calls engines by address, keeping a channel to each."""

    def __init__(self) -> None:
        self._engines: dict[str, GrpcEngine] = {}

    async def __call__(self, key: str, address: str, method: Method, request: bytes, *, timeout_s: float) -> Outcome:
        """Call the engine of id ``key`` at ``address``."""
        engine = self._engines.get(key)
        if engine is None:
            engine = self._engines[key] = GrpcEngine(address)
        return await engine.call(method, request, timeout_s=timeout_s)

    async def keep_only(self, keys: frozenset[str]) -> None:
        """Close the channels of engines that nobody holds any more."""
        for key in [key for key in self._engines if key not in keys]:
            await self._engines.pop(key).close()

    async def close(self) -> None:
        """Close all channels."""
        await self.keep_only(frozenset())
