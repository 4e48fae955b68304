"""An HTTP proxy that does CONNECT, as companies have one: it alone knows where the name of the host leads."""

from __future__ import annotations

import base64
import contextlib
import socket
import socketserver
import threading
from collections.abc import Collection
from types import TracebackType

HEAD_BYTES = 65536


class HttpProxy:
    """Listens on 127.0.0.1 until ``close``; ``tunnels`` are the places that it was asked for and connected to.

    Every name leads to ``to``. ``ports`` are those that it connects to (all without), ``login`` is ``user:password``.
    """

    def __init__(
        self, to: str = "127.0.0.1", *, ports: Collection[int] | None = None, login: str | None = None
    ) -> None:
        self.to, self.ports, self.login = to, ports, login
        self.tunnels: list[str] = []
        self.refused: list[str] = []
        self._open: set[socket.socket] = set()
        owner = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                owner.serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """As it stands in https_proxy."""
        login = f"{self.login}@" if self.login else ""
        return f"http://{login}127.0.0.1:{self._server.server_address[1]}"

    def serve(self, client: socket.socket) -> None:
        """One client's connection, from CONNECT to its end."""
        head = b""
        while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
            head += client.recv(1) or b"\r\n\r\n"
        method, _, rest = head.decode("latin-1").partition(" ")
        place = rest.partition(" ")[0]
        port = int(place.rpartition(":")[2] or 0) if method == "CONNECT" else 0
        if (
            self.login
            and f"basic {base64.b64encode(self.login.encode()).decode()}".lower() not in head.decode().lower()
        ):
            self._refuse(client, place, b"407 Proxy Authentication Required")
        elif not port or (self.ports is not None and port not in self.ports):
            self._refuse(client, place, b"403 Forbidden")
        else:
            with socket.create_connection((self.to, port)) as far:
                self.tunnels.append(place)
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._open |= {client, far}
                back = threading.Thread(target=_copy, args=(far, client), daemon=True)
                back.start()
                _copy(client, far)
                back.join()
                self._open -= {client, far}

    def _refuse(self, client: socket.socket, place: str, status: bytes) -> None:
        self.refused.append(place)
        client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def break_tunnels(self) -> None:
        """End all connections, as proxies do that are restarted or do not like long ones."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self.break_tunnels()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> HttpProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
