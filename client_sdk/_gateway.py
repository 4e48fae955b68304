"""The tunnel's local end: a gRPC EnvServer for each lane on a Unix socket, or on 127.0.0.1. Bytes in, bytes out, no protobuf."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from client_sdk._grpc_server import Answer, Peer, Serve
from client_sdk._lane import CallFault, Outcome
from client_sdk._line import Line
from client_sdk.wire import Method, Status

_METHODS = {method.path: method for method in Method}
_GRPC_CODES = range(1, 17)


def serving(line: Line, rank: int) -> Serve:
    """Passes every call of one local server on to one lane. A client that goes away leaves its call under way."""

    def serve(path: str, request: bytes, answer: Answer) -> None:
        method = _METHODS.get(path)
        if method is None:
            answer(None, Status.UNIMPLEMENTED, f"There is no method {path[:100]} here, only interface.EnvServer's.")
            return

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, CallFault):
                answer(None, outcome.status if outcome.status in _GRPC_CODES else Status.UNKNOWN, outcome.text)
            else:
                answer(outcome.data)

        line.submit(rank, method, request, done)

    return serve


class Gateways:
    """The local servers of all lanes of a lease."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._servers: list[asyncio.AbstractServer] = []
        self._peers: set[Peer] = set()

    async def open_sockets(self, folder: Path) -> list[str]:
        """Listen on ``folder/RANK.sock`` and return the addresses as the stock client takes them, by rank."""
        loop = asyncio.get_running_loop()
        addresses = []
        for rank in self._line.ranks:
            path = folder / f"{rank}.sock"
            self._servers.append(await loop.create_unix_server(self._peer_of(rank), path))
            addresses.append(f"unix:{path}")
        return addresses

    async def open_ports(self, ports: Sequence[int] = ()) -> list[str]:
        """Listen on these ports of 127.0.0.1, or on free ones, and return the addresses by rank.

        Any user of this machine can connect.
        """
        loop = asyncio.get_running_loop()
        wanted = dict(zip(self._line.ranks, ports, strict=False))
        addresses = []
        for rank in self._line.ranks:
            server = await loop.create_server(self._peer_of(rank), "127.0.0.1", wanted.get(rank, 0))
            self._servers.append(server)
            addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return addresses

    def _peer_of(self, rank: int) -> Callable[[], Peer]:
        serve, known = serving(self._line, rank), self._peers
        return lambda: Peer(serve, known=known)

    async def close(self) -> None:
        """Stop listening, and let go of all clients."""
        for server in self._servers:
            server.close()
        for peer in list(self._peers):
            peer.close()
