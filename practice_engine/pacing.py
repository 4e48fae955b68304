"""Keeps an engine to its speed by sleeping."""

import time
from collections.abc import Callable


class Pacer:
    """Makes each Step last as long as its frames do at a given rate."""

    def __init__(
        self,
        frames_per_s: float | None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`frames_per_s` None means as fast as possible."""
        self._rate, self._now, self._sleep = frames_per_s, now, sleep
        self._overslept = 0.0

    def start(self) -> float:
        """The moment a Step begins."""
        return self._now()

    def finish(self, started: float, frames: int) -> None:
        """Sleep until `frames` frames' time has passed since `started`, less what was slept too long before."""
        if self._rate is None:
            return
        until = started + frames / self._rate - self._overslept
        wait = until - self._now()
        if wait > 0:
            self._sleep(wait)
            self._overslept = min(max(0.0, self._now() - until), 0.005)
        else:
            self._overslept = 0.0
