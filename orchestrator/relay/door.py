"""The relay's listening socket. Peers that say nothing, or too little, cost memory: only so many are let wait, the oldest goes first."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MOST_WAITING, MOST_WAITING_OF_PEER = 256, 64
BACKLOG = 512
TIDY_EVERY = 128  # connections: a TLS handshake that fails leaves 256 KB of buffers in a circle of references


@dataclass(frozen=True, slots=True)
class _Waiting:
    peer: str
    since: float
    socket: socket.socket


class Door(socket.socket):
    """Accepts as any socket does, and remembers who has not come in yet: until then a peer has not shown any token.

    A full house does not keep newcomers out, because then an attacker would: it is the one that waits for longest who has
    to go, of the same peer when that one has too many.
    """

    def __init__(self, family: int, *, turned_away: Callable[[str], None] = lambda peer: None) -> None:
        # Named, because asyncio lets small answers leave at once (TCP_NODELAY) only where it sees the protocol.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._turned_away = turned_away
        self._waiting: dict[int, _Waiting] = {}  # by file descriptor, oldest first
        self._accepted = 0

    @classmethod
    def opened(cls, host: str, port: int, *, turned_away: Callable[[str], None] = lambda peer: None) -> Door:
        """A door at that address; OSError when it cannot be had."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        door = cls(family, turned_away=turned_away)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
            door.listen(BACKLOG)
            door.setblocking(False)
        except BaseException:
            door.close()
            raise
        return door

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; makes room for it if need be."""
        connection, address = super().accept()
        peer = str(address[0])
        self._accepted += 1
        if self._accepted % TIDY_EVERY == 0:
            gc.collect()  # else a flood of peers fills the memory long before it would be done by itself
        self._forget_closed()
        self._make_room(peer)
        self._waiting.pop(connection.fileno(), None)
        self._waiting[connection.fileno()] = _Waiting(peer, time.monotonic(), connection)
        return connection, address

    def come_in(self, descriptor: int) -> None:
        """That connection has shown who it is."""
        self._waiting.pop(descriptor, None)

    @property
    def waiting(self) -> int:
        """How many have not come in yet."""
        self._forget_closed()
        return len(self._waiting)

    def _forget_closed(self) -> None:
        for descriptor in [number for number, one in self._waiting.items() if one.socket.fileno() != number]:
            del self._waiting[descriptor]

    def _make_room(self, peer: str) -> None:
        of_peer = [number for number, one in self._waiting.items() if one.peer == peer]
        if len(of_peer) >= MOST_WAITING_OF_PEER:
            self._turn_away(of_peer[0])
        elif len(self._waiting) >= MOST_WAITING:
            self._turn_away(next(iter(self._waiting)))

    def _turn_away(self, descriptor: int) -> None:
        one = self._waiting.pop(descriptor)
        with suppress(OSError):
            one.socket.shutdown(socket.SHUT_RDWR)  # its transport notices, and closes it
        self._turned_away(one.peer)
