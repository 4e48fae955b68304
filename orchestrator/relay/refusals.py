"""Says once what is refused again and again: an attack must not fill the log."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

EVERY_S = 60.0
MOST_KEPT = 1000


class Refusals:
    """Logs each kind of refusal of each place once a minute at most, with how many there were in between."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def note(self, kind: str, place: str, why: str) -> None:
        """``place`` is where it came from: a peer's address, or a lease."""
        key, now = (kind, place), self._monotonic()
        told_at, more = self._told.get(key, (-EVERY_S, 0))
        if now - told_at < EVERY_S:
            self._told[key] = (told_at, more + 1)
            return
        self._told[key] = (now, 0)
        self._told.move_to_end(key)
        if len(self._told) > MOST_KEPT:
            self._told.popitem(last=False)
        log.warning("refused", kind=kind, place=place, why=why, **({"more_before": more} if more else {}))
