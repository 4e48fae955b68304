"""The tunnel's local end: a gRPC EnvServer for each lane on a Unix socket, or on 127.0.0.1. Bytes in, bytes out, no protobuf."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio

from client_sdk._line import CallFault, Line
from client_sdk.wire import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Method

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.so_reuseport", 0),
)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_METHODS = {method.path: method for method in Method}

Handler = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


class Gateway(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes every call of one local server on to one lane."""

    def __init__(self, line: Line, rank: int) -> None:
        self._line, self._rank = line, rank
        self._handlers: Mapping[str, grpc.RpcMethodHandler] = {
            path: grpc.unary_unary_rpc_method_handler(self._handler(method)) for path, method in _METHODS.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a method of ``interface.EnvServer``; None for any other."""
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: Method) -> Handler:
        async def handle(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                return (await self._line.call(self._rank, method, request)).data
            except CallFault as fault:
                await context.abort(_CODES.get(fault.status, grpc.StatusCode.UNKNOWN), fault.text)
            raise AssertionError("abort always raises")

        return handle


class Gateways:
    """The local servers of all lanes of a lease."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._servers: list[grpc.aio.Server] = []

    async def open_sockets(self, folder: Path) -> list[str]:
        """Listen on ``folder/RANK.sock`` and return the addresses as the stock client takes them, by rank."""
        return [await self._open(rank, f"unix:{folder / f'{rank}.sock'}") for rank in self._line.ranks]

    async def open_ports(self, ports: Sequence[int] = ()) -> list[str]:
        """Listen on these ports of 127.0.0.1, or on free ones, and return the addresses by rank.

        Any user of this machine can connect.
        """
        wanted = dict(zip(self._line.ranks, ports, strict=False))
        return [await self._open(rank, f"127.0.0.1:{wanted.get(rank, 0)}") for rank in self._line.ranks]

    async def _open(self, rank: int, address: str) -> str:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((Gateway(self._line, rank),))
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as fault:
            raise OSError(f"{address} cannot be listened on") from fault
        await server.start()
        self._servers.append(server)
        return address if address.startswith("unix:") else f"127.0.0.1:{port}"

    async def close(self) -> None:
        """Stop listening; calls in flight are cancelled."""
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*(server.stop(grace=0.2) for server in self._servers))
