"""When an unused host will stop: written by the daemon, shown by API, dashboard and commands."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass

from orchestrator.store import meta

_KEY = "idle_stop"


@dataclass(frozen=True, slots=True)
class IdleStop:
    """Since when the host is unused and when it stops, in seconds since the epoch; ``announced``: there is an event of it."""

    since: float
    stops_at: float
    announced: bool


def get(db: sqlite3.Connection) -> IdleStop | None:
    """What the daemon last wrote down; None while the host is used, or when it never stops by itself."""
    text = meta.get(db, _KEY)
    return IdleStop(**json.loads(text)) if text else None


def put(db: sqlite3.Connection, stop: IdleStop | None) -> None:
    """Write it down."""
    meta.put(db, _KEY, "" if stop is None else json.dumps(asdict(stop)))
