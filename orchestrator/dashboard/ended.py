"""Sessions that were logged out of before their time: a copy of their cookie is good for nothing, also after a restart."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading

from orchestrator.dashboard.sessions import Session
from orchestrator.interfaces import Now
from orchestrator.store import meta
from orchestrator.store.database import Database

MOST = 1000
"""So many are remembered; of more, those that would have ended by themselves soonest are forgotten."""
_KEY = "dashboard_ended"


class Ended:
    """What the store remembers of them, by a hash of their secret."""

    def __init__(self, database: Database, now: Now) -> None:
        self._now, self._lock = now, threading.Lock()
        with database.read() as db:
            self._until = _read(db)

    def has(self, session: Session) -> bool:
        """Whether somebody logged out of it."""
        return _name(session) in self._until

    def add(self, session: Session) -> None:
        """From now on it is over."""
        now = self._now()
        with self._lock:
            known = {**self._until, _name(session): session.expires_at}
            newest = sorted(((at, name) for name, at in known.items() if at > now), reverse=True)[:MOST]
            self._until = {name: at for at, name in newest}

    def keep(self, db: sqlite3.Connection) -> None:
        """Have the store remember them."""
        meta.put(db, _KEY, json.dumps(self._until))


def _read(db: sqlite3.Connection) -> dict[str, float]:
    return dict(json.loads(meta.get(db, _KEY) or "{}"))


def _name(session: Session) -> str:
    return hashlib.sha256(session.csrf.encode("utf-8", "replace")).hexdigest()[:32]
