"""Telling systemd how the daemon is, over the socket that ``NOTIFY_SOCKET`` names; without one, nothing is told."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends the daemon's state to systemd; never raises and never waits, because nothing may depend on it."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._watchdog_s = _watchdog_s(environ)
        self._patted_at = float("-inf")

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    @property
    def watchdog_s(self) -> float | None:
        """How long systemd waits for a life sign, or None when it does not."""
        return self._watchdog_s

    def ready(self) -> None:
        """The daemon is up."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The daemon is on its way down."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send("STATUS=" + " ".join(text.split()))

    def alive(self) -> None:
        """A life sign of the pool's loop, sent on no more often than the watchdog needs."""
        if self._watchdog_s is None:
            return
        now = time.monotonic()
        if now - self._patted_at >= self._watchdog_s / 4:
            self._patted_at = now
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
        ):
            channel.setblocking(False)
            channel.sendto(message.encode(), self._address)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """WATCHDOG_USEC in seconds, when it is meant for this process."""
    with contextlib.suppress(ValueError):
        if int(environ.get("WATCHDOG_PID", os.getpid())) == os.getpid():
            return int(environ.get("WATCHDOG_USEC", "")) / 1e6 or None
    return None
