"""The page's live stream: the state when it has changed, and each new sample of the charts, as server-sent events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from orchestrator.api.lanes import Place
from orchestrator.api.services import Services
from orchestrator.dashboard import state
from orchestrator.dashboard.history import History, as_event
from orchestrator.dashboard.sessions import Session
from orchestrator.model import Caller

LOOK_EVERY_S, LOOK_AT_LEAST_EVERY_S, PING_S = 1.0, 5.0, 15.0


class LiveStream:
    """Server-sent events until the browser goes, its session or token ends, or the server stops; holds its places so long."""

    def __init__(
        self,
        parts: Services,
        caller: Caller,
        session: Session,
        *,
        is_over: Callable[[Session], bool],
        history: History,
        place: Place,
        watchers: threading.BoundedSemaphore,
    ) -> None:
        self._parts, self._caller, self._session, self._is_over = parts, caller, session, is_over
        self._history, self._place = history, place
        self._watchers: threading.BoundedSemaphore | None = watchers
        self._begun, self._state, self._sampled_at = False, "", 0.0
        self._looked_at = -LOOK_EVERY_S

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """What is new, or a comment when there was nothing for a while."""
        if not self._begun:
            self._begun = True
            return b"retry: 3000\n\n"
        ping_at = time.monotonic() + PING_S
        while self._may_go_on():
            number = self._parts.changes.number
            self._parts.stopping.wait(max(0.0, self._looked_at + LOOK_EVERY_S - time.monotonic()))
            self._looked_at = time.monotonic()
            found = self._news()
            if found:
                return found
            if time.monotonic() >= ping_at:
                return b": ping\n\n"
            self._parts.changes.wait(number, LOOK_AT_LEAST_EVERY_S)
        self.close()
        raise StopIteration

    def _may_go_on(self) -> bool:
        token = self._session.token_sha256 or ""
        return (
            not self._parts.stopping.is_set()
            and not self._is_over(self._session)
            and self._parts.tokens.still_valid(token)
        )

    def _news(self) -> bytes:
        found = b""
        written = state.dumps(state.build(self._parts, self._caller))
        if written != self._state:
            self._state = written
            found += f"event: state\ndata: {written}\n\n".encode()
        samples = self._history.after(self._sampled_at)
        if samples:
            self._sampled_at = samples[-1][0] or 0.0
            found += f"event: samples\ndata: {state.dumps(as_event(samples))}\n\n".encode()
        return found

    def close(self) -> None:
        """The browser has gone, or the stream has ended."""
        watchers, self._watchers = self._watchers, None
        if watchers is not None:
            watchers.release()
        self._place.leave()
