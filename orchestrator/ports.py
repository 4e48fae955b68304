"""Which host port an engine gets."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Collection

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.store import engines

PREFERRED_BELOW = 32768
"""From here on Linux hands the same numbers to outgoing connections, unless they are reserved."""
QUARANTINE_S = 600.0


def can_bind(host: str, port: int) -> bool:
    """True when nothing on this machine holds that address now; of another machine's address nothing can be said, so True."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno not in _HELD
    return True


def choose(
    db: sqlite3.Connection,
    *,
    first: int,
    last: int,
    host: str,
    taken: Collection[int],
    now: float,
    is_free: Callable[[str, int], bool] = can_bind,
) -> int:
    """A port of first..last that no engine has, no container holds and nothing listens on: preferred ones first, then the one unused for longest.

    To be committed with the engine's row, in the same transaction. RuntimeFault(PORT_TAKEN) when none is left.
    """
    used, history = engines.used_ports(db), engines.port_history(db)

    def rank(port: int) -> tuple[bool, float, int]:
        return port >= PREFERRED_BELOW, history.get(port, (0.0, 0.0))[0], port

    for port in sorted((p for p in range(first, last + 1) if p not in used and p not in taken), key=rank):
        if history.get(port, (0.0, 0.0))[1] <= now and is_free(host, port):
            return port
    raise RuntimeFault(
        FaultKind.PORT_TAKEN,
        f"No port of {first}-{last} is free on {host}: end what holds them ('ss -ltnp' shows it), or widen first_port..last_port.",
    )


_HELD = frozenset({98, 48, 13})  # EADDRINUSE on Linux and macOS, EACCES
