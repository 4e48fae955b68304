"""Which calls may hold how many of the server's threads, so that no kind of call keeps the others out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import Unavailable

RESERVE = 4
ARRIVING = 16
LOGINS, LOGINS_EACH = 64, 2
"""So many forms of log-ins may be on their way, and so many of one address: no token is needed to begin one, and nothing ends
one that does not come. A thread for each is there only while it is needed."""
PATIENCE_S = 0.25
BODY_PATIENCE_S = 0.05


class Lanes:
    """Threads belong to long polls and event streams (``streams`` of them), to ordinary calls, and the rest to vital ones.

    Vital are calls that keep a lease alive or give it back: nothing may hold them up. An ordinary call waits a moment
    for its turn, a stream not at all. The server has ``ARRIVING`` threads more for calls whose body is yet to come, and ``LOGINS`` for
    those of strangers.
    """

    def __init__(self, threads: int, streams: int) -> None:
        reserve = min(RESERVE, max(1, (threads - streams) // 2))
        self.ordinary = threading.BoundedSemaphore(max(1, threads - streams - reserve))
        self.streams = threading.BoundedSemaphore(streams)
        self.arriving = threading.BoundedSemaphore(ARRIVING)
        self._logins = Counter[str]()
        self._logins_lock = threading.Lock()

    def enter(self, *, vital: bool) -> Place:
        """A place for a call that begins; Unavailable when there is none."""
        if vital:
            return Place(self, None)
        if not self.ordinary.acquire(timeout=PATIENCE_S):
            raise _full()
        return Place(self, self.ordinary)

    @contextmanager
    def body(self) -> Iterator[None]:
        """A place for as long as a body takes to arrive; Unavailable when too many others are yet to come."""
        if not self.arriving.acquire(timeout=BODY_PATIENCE_S):
            raise _full()
        try:
            yield
        finally:
            self.arriving.release()

    @contextmanager
    def login(self, place: str) -> Iterator[None]:
        """As ``body``, for somebody from ``place`` who has shown no token yet."""
        with self._logins_lock:
            if self._logins[place] >= LOGINS_EACH or self._logins.total() >= LOGINS:
                raise _full()
            self._logins[place] += 1
        try:
            yield
        finally:
            with self._logins_lock:
                self._logins[place] -= 1
                if not self._logins[place]:
                    del self._logins[place]


def _full() -> Unavailable:
    return Unavailable("More calls are under way than can be served: try again in a moment.", retry_after_s=1)


class Place:
    """What a call holds until it leaves."""

    def __init__(self, lanes: Lanes, held: threading.BoundedSemaphore | None) -> None:
        self._lanes, self._held = lanes, held

    def become_stream(self) -> None:
        """Go on as a long poll or event stream; Unavailable when too many are open."""
        if not self._lanes.streams.acquire(blocking=False):
            raise Unavailable(
                "Too many long polls and event streams are open: try again in a few seconds.", retry_after_s=3
            )
        self.leave()
        self._held = self._lanes.streams

    def leave(self) -> None:
        """Make room; again changes nothing."""
        held, self._held = self._held, None
        if held is not None:
            held.release()
