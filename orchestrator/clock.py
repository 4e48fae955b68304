"""Notices when the wall clock is stepped, or the machine slept."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.interfaces import Now

TOLERANCE_S = 5.0


class ClockWatch:
    """Compares how far the wall clock went with how far the monotonic one did."""

    def __init__(self, now: Now, monotonic: Callable[[], float], *, tolerance_s: float = TOLERANCE_S) -> None:
        self._now, self._monotonic, self._tolerance_s = now, monotonic, tolerance_s
        self._offset = now() - monotonic()

    def read(self) -> tuple[float, float | None]:
        """The time now, and by how many seconds the wall clock was stepped since the last call, None if it just ran.

        What is decided by this very reading cannot fall for a step that comes a moment later.
        """
        now = self._now()
        offset = now - self._monotonic()
        step = offset - self._offset
        if abs(step) <= self._tolerance_s:
            return now, None
        self._offset = offset
        return now, step
