"""A Unix socket before a Docker Engine that can lose the answer to a call which was carried out."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class LossyDocker:
    """Passes everything on; after ``lose(path)`` the next request for that path is carried out and never answered."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = f"unix://{folder / 'lossy.sock'}"
        self.lost = 0
        self._upstream = url.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.url.removeprefix("unix://"))
        self._listener.listen()
        self._to_lose: list[bytes] = []
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, path: str, times: int = 1) -> None:
        """The next ``times`` requests whose first line holds ``path`` go unanswered."""
        with self._lock:
            self._to_lose += [path.encode()] * times

    def cut(self) -> None:
        """End all connections there are."""
        with self._lock:
            peers, self._open = self._open, []
        self._end(peers)

    def close(self) -> None:
        """End all connections, and take no more."""
        self._end([self._listener])
        self.cut()

    @staticmethod
    def _end(peers: list[socket.socket]) -> None:
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                with self._lock:
                    self._open += [client, server]
                mute = threading.Event()
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, mute), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                first_line = data.partition(b"\r\n")[0]
                with self._lock:
                    hit = next((path for path in self._to_lose if path in first_line), None)
                    if hit is not None:
                        self._to_lose.remove(hit)
                        self.lost += 1
                        mute.set()
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if not mute.is_set():
                    client.sendall(data)
