"""Waiting in the main thread for signals and for other threads, without losing any of either."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wakeups:
    """Sleeps until the time is over, a stop signal came or somebody called ``wake``.

    A pipe, because an Event must not be set in a signal handler that may interrupt its own waiting. SIGHUP stops as well: it
    means that the terminal of a daemon in the foreground was closed.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def catch_signals(self) -> None:
        """From now on the stop signals set ``stopping``, for the whole life of this process; main thread only."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                signal.signal(number, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True
        self.wake()

    def wake(self) -> None:
        """End the current or the next sleep; safe in signal handlers and from any thread."""
        with contextlib.suppress(OSError):  # full: there is enough in it to wake anybody
            os.write(self._writer, b"\0")

    def sleep(self, timeout_s: float) -> None:
        """Sleep for at most ``timeout_s``."""
        ready, _, _ = select.select([self._reader], [], [], timeout_s)
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 65536)
