"""The line a starting engine has not ended: Docker's logs hold a line back until it ends, so they never show a prompt.

An engine that asks for credentials waits on such a line for ever; whoever is attached to its terminal sees it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Any

from docker import APIClient
from docker.types import CancellableStream

LISTEN_S = 120.0  # by then an engine answers, or its start has failed
_KEPT = 4096
_UP = b"Server listening"


class Consoles:
    """Listens to the terminals of engines while they start; one thread for each, until it is up or LISTEN_S have passed."""

    def __init__(self) -> None:
        self._unfinished: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def listen(self, api: APIClient, handle: str) -> None:
        """Attach to an engine that is about to be started."""
        terminal = api.attach_socket(handle, params={"stdout": 1, "stderr": 1, "stream": 1})
        with self._lock:
            self._unfinished[handle] = b""
        threading.Thread(target=self._follow, args=(handle, terminal), name="console", daemon=True).start()

    def unfinished(self, handle: str) -> bytes:
        """What the engine has written after its last complete line, while it is listened to."""
        with self._lock:
            return self._unfinished.get(handle, b"")

    def forget(self, handle: str) -> None:
        """Stop listening to an engine."""
        with self._lock:
            self._unfinished.pop(handle, None)

    def forget_all(self) -> None:
        """Stop listening to all engines."""
        with self._lock:
            self._unfinished.clear()

    def _follow(self, handle: str, terminal: Any) -> None:
        give_up_at = time.monotonic() + LISTEN_S
        try:
            with contextlib.suppress(OSError, ValueError):
                while time.monotonic() < give_up_at and self._wanted(handle):
                    if not select.select([terminal], [], [], 0.5)[0]:
                        continue
                    data = terminal.recv(_KEPT) if hasattr(terminal, "recv") else os.read(terminal.fileno(), _KEPT)
                    if not data or not self._note(handle, data):
                        break
        finally:
            self.forget(handle)
            _hang_up(terminal)

    def _wanted(self, handle: str) -> bool:
        with self._lock:
            return handle in self._unfinished

    def _note(self, handle: str, data: bytes) -> bool:
        """Keep the unfinished line; False when nothing more is of interest."""
        with self._lock:
            if handle not in self._unfinished:
                return False
            text = self._unfinished[handle] + data
            self._unfinished[handle] = text.rpartition(b"\n")[2][-_KEPT:]
        return _UP not in text


def _hang_up(terminal: Any) -> None:
    # Closing the file alone leaves the connection open, and Docker would write to it until the engine blocks.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        CancellableStream(iter(()), terminal._response).close()
    with contextlib.suppress(OSError, ValueError):
        terminal.close()
