"""The API process: serves the app over TLS until its parent goes or says so. Started by the pool process.

    python -m orchestrator.api.server --config PATH

It ends on SIGTERM, on SIGINT, and when its standard input reaches its end: whoever started it holds the other end.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.log import LogLevels
from granian.server import MTServer

from orchestrator import logs, tls_files
from orchestrator.api.app import Api, create_app
from orchestrator.api.lanes import ARRIVING, LOGINS
from orchestrator.config import Config, load
from orchestrator.errors import CornermanError
from orchestrator.lock import using
from orchestrator.store.database import Database

ENDS_WITHIN_S = 3.0
MOST_CONNECTIONS = 8192
BACKLOG = 2048
_M_ARENA_MAX = -8


class Server(MTServer):
    """granian within this process: its worker is a thread, where the stock one would be a second process (and 30 MB).

    That is the class granian has for free-threaded Python; with an interpreter lock its calls take turns, as in any
    threaded server.
    """

    def __init__(self, app: Api, config: Config) -> None:
        certificate, key = tls_files.serving(config) if config.server.tls else (None, None)
        super().__init__(
            "orchestrator.api.app",
            address=config.server.bind,
            port=config.server.port,
            interface=Interfaces.WSGI,
            blocking_threads=config.server.threads + ARRIVING + LOGINS,
            blocking_threads_idle_timeout=600,
            http=HTTPModes.http1,  # one connection is one call at a time, so that the lanes mean what they say
            websockets=False,
            backpressure=MOST_CONNECTIONS,  # connections, also silent ones
            ssl_cert=certificate,
            ssl_key=key,
            log_level=LogLevels.error,
            log_dictconfig={"version": 1, "disable_existing_loggers": False},  # ours is set up already
        )
        self._app = app

    def run(self) -> None:
        """Serve until told to end."""
        self.serve(target_loader=lambda: self._app, wrap_loader=False)

    def end(self) -> None:
        """Let go of streams, then stop; the process is ended if that takes too long."""
        threading.Thread(target=_end_anyway, name="end", daemon=True).start()
        self._app.stop()
        self.interrupt_signal = True
        self.main_loop_interrupt.set()

    def signal_handler_interrupt(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        """SIGTERM or SIGINT: what it does must not run inside the handler, because locks may be held there."""
        threading.Thread(target=self.end, name="stop", daemon=True).start()

    def signal_handler_reload(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        """SIGHUP: there is nothing to reload; granian would start a second worker."""

    def _init_shared_socket(self) -> None:
        """granian's own would share the port with any other server, silently."""
        listener = listen(self.bind_addr, self.bind_port).detach()
        self._shd: Any = SocketHolder(listener, False, BACKLOG)  # type: ignore[call-arg]

    def _check_gil(self) -> None:
        """granian would refuse an interpreter with a lock here."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that no other server shares, and whose connections end when their other side is dead.

    Connections inherit its options.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
        ):
            listener.setsockopt(level, option, value)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def serve(config: Config) -> None:
    """Serve until SIGTERM, SIGINT or the end of standard input."""
    database = Database.open(config.database)
    app = create_app(config, database)
    app.dashboard.start()
    server = Server(app, config)
    threading.Thread(target=_watch_parent, args=(server,), name="parent", daemon=True).start()
    log = structlog.get_logger("cornerman.api")
    server.on_startup(lambda: log.info("API is listening", bind=config.server.bind, port=config.server.port))
    server.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the API process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="cornerman-api", description="The API process of a Cornerman daemon.")
    parser.add_argument("--config", type=Path, required=True, help="the configuration file")
    chosen = parser.parse_args(arguments)
    _use_few_arenas()
    try:
        config = load(chosen.config)
        logs.configure(config.log_level)
        with using(config.database):
            serve(config)
    except (CornermanError, OSError) as fault:
        print(f"cornerman: {_words(fault)}", file=sys.stderr)  # noqa: T201 - for the journal, whatever the log is
        return 1
    return 0


def _words(fault: Exception) -> str:
    if isinstance(fault, OSError):
        return f"The API cannot listen ({fault.strerror or fault}): choose another server.bind or server.port."
    return str(fault)


def _watch_parent(server: Server) -> None:
    """Blocks until whoever holds the other end of standard input has gone."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    server.end()


def _end_anyway() -> None:
    time.sleep(ENDS_WITHIN_S)
    os._exit(0)


def _use_few_arenas() -> None:
    """Keep glibc from holding memory back in an arena for each of many threads."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # calls may still be under way on threads that the interpreter knows nothing of
