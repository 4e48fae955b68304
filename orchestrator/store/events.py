"""The event log and the counters that metrics are made of; both are written in the transaction of what they tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEEP = 200_000
"""So many events are kept at most, however short the time they came in."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event log."""

    seq: int
    at: float
    kind: str
    text: str
    pool: str | None = None
    engine_id: str | None = None
    lease_id: str | None = None
    holder: str | None = None
    actor: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


def record(
    db: sqlite3.Connection,
    kind: str,
    text: str,
    *,
    now: float,
    pool: str | None = None,
    engine_id: str | None = None,
    lease_id: str | None = None,
    holder: str | None = None,
    actor: str | None = None,
    token_id: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append to the log; the store counts it. ``token_id`` is the name of the token that ``actor`` came with."""
    told = {**(data or {}), **({"token": token_id} if token_id else {})}
    db.execute(
        "INSERT INTO events (at, kind, text, pool, engine_id, lease_id, holder, actor, data_json) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (now, kind, text, pool, engine_id, lease_id, holder, actor, json.dumps(told)),
    )


def after(db: sqlite3.Connection, seq: int, *, holder: str | None, limit: int) -> list[Event]:
    """Events above ``seq``, oldest first; of ``holder``'s leases only, unless it is None."""
    if holder is None:
        found = db.execute("SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit))
    else:
        found = db.execute(
            "SELECT * FROM events WHERE holder = ? AND seq > ? ORDER BY seq LIMIT ?", (holder, seq, limit)
        )
    return [_event(row) for row in found]


def of_engine(db: sqlite3.Connection, engine_id: str, *, holder: str | None, after: int, limit: int) -> list[Event]:
    """The newest events above ``after`` that are about an engine, newest first; of ``holder``'s leases only, unless it is None."""
    found = db.execute(
        "SELECT * FROM events WHERE seq > ? AND engine_id = ? AND (? IS NULL OR holder = ?) ORDER BY seq DESC LIMIT ?",
        (after, engine_id, holder, holder, limit),
    )
    return [_event(row) for row in found]


def _event(row: sqlite3.Row) -> Event:
    return Event(
        seq=row["seq"],
        at=row["at"],
        kind=row["kind"],
        text=row["text"],
        pool=row["pool"],
        engine_id=row["engine_id"],
        lease_id=row["lease_id"],
        holder=row["holder"],
        actor=row["actor"],
        data=json.loads(row["data_json"]),
    )


def newest(db: sqlite3.Connection) -> int:
    """The highest number given so far."""
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


def forget(db: sqlite3.Connection, before: float, *, keep: int = KEEP, at_most: int = 20_000) -> int:
    """Delete what is older, and all but the newest ``keep``; not everything at once, because others wait to write.

    The newest of all stays, so that numbers never repeat.
    """
    last = newest(db)
    young = db.execute("SELECT seq FROM events WHERE at >= ? ORDER BY seq LIMIT 1", (before,)).fetchone()
    first_kept = max(last - keep + 1, young[0] if young else last)
    return db.execute(
        "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE seq < ? ORDER BY seq LIMIT ?)",
        (min(first_kept, last), at_most),
    ).rowcount


def add(db: sqlite3.Connection, name: str, amount: float = 1.0, *, pool: str = "") -> None:
    """Raise a counter; counters never fall, also when the events they counted are forgotten."""
    db.execute(
        "INSERT INTO counters (name, pool, value) VALUES (?, ?, ?) ON CONFLICT (name, pool) DO UPDATE SET value = value + excluded.value",
        (name, pool, amount),
    )


def counters(db: sqlite3.Connection) -> dict[tuple[str, str], float]:
    """All counters by (name, pool)."""
    return {(row[0], row[1]): row[2] for row in db.execute("SELECT name, pool, value FROM counters")}
