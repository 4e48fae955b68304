"""Work on engines, on bounded pools of threads: one engine is in one place at a time, and a stuck one holds up nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from orchestrator.errors import CornermanError

log = structlog.get_logger(__name__)

Work = Callable[[], float | None]
"""Does one thing; returns for how many seconds its key is to be left alone, or None."""


class Jobs:
    """Runs work by key. Starting and removing have threads of their own, so that neither can starve the other."""

    def __init__(
        self,
        *,
        workers: int,
        removers: int,
        done: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
        executor: Callable[[int, str], Executor] = ThreadPoolExecutor,
    ) -> None:
        self._starters, self._removers = executor(workers, "engine"), executor(removers, "remove")
        self._done, self._monotonic = done, monotonic
        self._busy: dict[str, str] = {}
        self._resting: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closed = False

    def busy(self) -> dict[str, str]:
        """What is being done, by key; "rest" for what is to be left alone for a while."""
        now = self._monotonic()
        with self._lock:
            self._resting = {key: until for key, until in self._resting.items() if until > now}
            return {**dict.fromkeys(self._resting, "rest"), **self._busy}

    def submit(self, key: str, what: str, work: Work) -> bool:
        """Run ``work`` unless something is being done to ``key`` already; returns whether it will run."""
        with self._lock:
            if key in self._busy or self._closed:
                return False
            self._busy[key] = what
            pool = self._removers if what == "remove" else self._starters
            pool.submit(self._run, key, what, work)
        return True

    def _run(self, key: str, what: str, work: Work) -> None:
        rest: float | None = 1.0
        try:
            rest = None if self._closed else work()
        except CornermanError as error:
            log.warning("work is tried again", key=key, what=what, fault=str(error))
        except Exception:  # the edge of a thread: whatever it was, the next tick tries again
            log.exception("job failed", key=key, what=what)
        finally:
            with self._lock:
                self._busy.pop(key, None)
                if rest:
                    self._resting[key] = self._monotonic() + rest
            self._done()

    def close(self, timeout_s: float) -> None:
        """Take no more work and wait a while for what is under way; what is not done then is taken up again after the next start."""
        with self._lock:
            self._closed = True
        for pool in (self._starters, self._removers):
            pool.shutdown(wait=False)  # what has not begun ends as soon as it begins
        deadline = self._monotonic() + timeout_s
        while self._busy and self._monotonic() < deadline:
            time.sleep(0.02)
