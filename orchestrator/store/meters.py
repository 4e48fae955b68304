"""What the lanes of leases have done: for ``cornerman status`` by lane, for metrics by pool."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.store import events

COUNTERS = {
    "relay_steps": "Steps that the relay carried.",
    "relay_raw_bytes": "Bytes of the engines' replies, as the engines sent them.",
    "relay_wire_bytes": "Bytes of those replies as they were sent to clients.",
    "relay_engine_seconds": "Time that calls through the relay spent in engines.",
    "relay_queue_seconds": "Time that calls spent in the relay itself.",
}


@dataclass(frozen=True, slots=True)
class LaneMeter:
    """One lane's totals since its lease began; times in seconds."""

    lease_id: str
    rank: int
    steps: int
    raw_bytes: int
    wire_bytes: int
    engine_s: float
    queue_s: float
    steps_per_s: float  # over the last time it was recorded
    updated_at: float


def add(
    db: sqlite3.Connection,
    lease_id: str,
    rank: int,
    *,
    pool: str,
    steps: int,
    raw_bytes: int,
    wire_bytes: int,
    engine_s: float,
    queue_s: float,
    now: float,
) -> None:
    """Add what a lane has done since last time; nothing when its lease was forgotten meanwhile."""
    db.execute(
        "INSERT INTO meters (lease_id, rank, steps, raw_bytes, wire_bytes, engine_s, queue_s, steps_per_s, updated_at) "
        "SELECT id, ?, ?, ?, ?, ?, ?, 0, ? FROM leases WHERE id = ? "
        "ON CONFLICT (lease_id, rank) DO UPDATE SET steps = steps + excluded.steps, raw_bytes = raw_bytes + excluded.raw_bytes, "
        "wire_bytes = wire_bytes + excluded.wire_bytes, engine_s = engine_s + excluded.engine_s, queue_s = queue_s + excluded.queue_s, "
        "steps_per_s = excluded.steps / max(0.001, excluded.updated_at - updated_at), updated_at = excluded.updated_at",
        (rank, steps, raw_bytes, wire_bytes, engine_s, queue_s, now, lease_id),
    )
    for name, amount in (
        ("relay_steps", float(steps)),
        ("relay_raw_bytes", float(raw_bytes)),
        ("relay_wire_bytes", float(wire_bytes)),
        ("relay_engine_seconds", engine_s),
        ("relay_queue_seconds", queue_s),
    ):
        events.add(db, name, amount, pool=pool)


def of_leases(db: sqlite3.Connection, lease_ids: Collection[str]) -> list[LaneMeter]:
    """The totals of all lanes of these leases."""
    return [meter for lease_id in lease_ids for meter in of_lease(db, lease_id)]


def of_lease(db: sqlite3.Connection, lease_id: str) -> list[LaneMeter]:
    """The totals of a lease's lanes by rank."""
    return [
        LaneMeter(**{name: row[name] for name in LaneMeter.__slots__})
        for row in db.execute("SELECT * FROM meters WHERE lease_id = ? ORDER BY rank", (lease_id,))
    ]


def steps(db: sqlite3.Connection, lease_id: str, rank: int) -> int:
    """Steps that a lane has made since its lease began, as last recorded."""
    row = db.execute("SELECT steps FROM meters WHERE lease_id = ? AND rank = ?", (lease_id, rank)).fetchone()
    return 0 if row is None else int(row[0])


def rate_of_active(db: sqlite3.Connection, *, after: float) -> float:
    """Steps a second of all lanes of active leases that were written of since ``after``."""
    (rate,) = db.execute(
        "SELECT coalesce(sum(steps_per_s), 0) FROM leases JOIN meters ON meters.lease_id = leases.id "
        "WHERE leases.state = 'active' AND meters.updated_at > ?",
        (after,),
    ).fetchone()
    return float(rate)
