"""Child processes of the daemon (the API, the relay): started, watched, and started again when they die or hang."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from orchestrator.errors import CornermanError
from orchestrator.probes import reached

log = structlog.get_logger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 10.0
STEADY_AFTER_S = 30.0
STOP_S = 5.0
ASK_EVERY_S, ANSWER_S = 10.0, 10.0
HUNG_AFTER_S = 60.0
_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What systemd said to the daemon, and to no child of it."""


def _trusting_context() -> ssl.SSLContext:
    """For our own children, which are asked for nothing but a sign of life. The machine's CAs alone would cost 40 ms to load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_CONTEXT = _trusting_context()


class PortTaken(CornermanError):
    """A port of ours cannot be had."""


@dataclass(frozen=True, slots=True)
class Listens:
    """Where a child answers ``GET /healthz``; ``section`` is the one of the configuration that says so."""

    section: str
    bind: str
    port: int
    tls: bool


def claim(place: Listens, *, patience_s: float = 5.0) -> None:
    """Raise PortTaken unless the port can be had; a predecessor that is ending is given ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while (fault := _bind_fault(place)) is not None:
        if fault.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
            raise PortTaken(port_text(place, fault)) from fault
        time.sleep(0.1)


def _bind_fault(place: Listens) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            place.bind, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as fault:
        return fault
    return None


def port_text(place: Listens, fault: OSError) -> str:
    """One sentence about a port that cannot be had."""
    if fault.errno == errno.EADDRINUSE:
        return (
            f"Port {place.port} on {place.bind} is taken by another program: stop that one, or set another "
            f"{place.section}.port in the configuration."
        )
    if fault.errno == errno.EACCES:
        return f"Port {place.port} is reserved for root: set a {place.section}.port above 1023 in the configuration."
    return (
        f"Nothing can listen on {place.bind} ({fault.strerror or fault}): set {place.section}.bind to an address of "
        "this host."
    )


class Child:
    """One child; ``wake`` is called from a thread when it ends. Its standard input tells it that we are gone."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        place: Listens,
        *,
        wake: Callable[[], None],
        stop_s: float | None = None,
    ) -> None:
        self.name = name
        self._command, self._place, self._wake, self._stop_s = tuple(command), place, wake, stop_s
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = self._retry_at = self._asked_at = self._answered_at = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self.deaths = 0  # since it answered last

    def look_after(self) -> None:
        """Start it when it is not there and its rest is over; end it when it has not answered for long."""
        now = time.monotonic()
        if self._process is not None and not _ended(self._process):
            self._watch(now)
            return
        if self._process is not None:
            self._note_death(self._process, now)
        if now >= self._retry_at:
            self._start(now)

    def _start(self, now: float) -> None:
        # Its own session: Ctrl-C on a terminal is for the daemon, which ends it in good order.
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in _OURS},
        )
        self._process, self._started_at, self._asked_at, self._answered_at = process, now, now, now
        threading.Thread(target=self._await_end, args=(process,), name=f"{self.name}-end", daemon=True).start()

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._wake()

    def _note_death(self, process: subprocess.Popen[bytes], now: float) -> None:
        self._forget(process)
        self.deaths += 1
        if now - self._started_at >= STEADY_AFTER_S:
            self._backoff_s = FIRST_BACKOFF_S
        text = f"the {self.name} ended and is started again"
        log.error(text, exit_code=process.returncode, in_s=self._backoff_s)
        self._retry_at = now + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, MAX_BACKOFF_S)

    def _watch(self, now: float) -> None:
        """Ask now and then, in a thread of its own, because an answer may take long; no answer for long is no life."""
        if now - self._answered_at > HUNG_AFTER_S and self._process is not None:
            text = f"the {self.name} does not answer and is ended"
            log.error(text, unanswered_s=round(now - self._answered_at))
            self._kill(self._process)
        elif now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            threading.Thread(target=self.answers, name=f"{self.name}-ask", daemon=True).start()

    def answers(self, *, timeout_s: float = ANSWER_S) -> bool:
        """Whether it answers a request now."""
        place = self._place
        connection: http.client.HTTPConnection
        if place.tls:
            connection = http.client.HTTPSConnection(
                reached(place.bind), place.port, timeout=timeout_s, context=_CONTEXT
            )
        else:
            connection = http.client.HTTPConnection(reached(place.bind), place.port, timeout=timeout_s)
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        self._answered_at, self.deaths = time.monotonic(), 0
        return True

    def restart(self) -> None:
        """End it in good order; the next ``look_after`` starts it again."""
        self.close()
        self._retry_at = 0.0

    def close(self) -> None:
        """End it in good order, or by force when it takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        if not _ended(process):
            process.terminate()
            deadline = time.monotonic() + (STOP_S if self._stop_s is None else self._stop_s)
            while not _ended(process):
                if time.monotonic() >= deadline:
                    log.warning(f"the {self.name} did not end in time and is killed")
                    break
                time.sleep(0.02)
        self._forget(process)

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        self._kill(process)  # before it is collected, while its session's number is certainly still its own
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._process = None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; it is not collected by this, so that its number is not given to another process yet."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
