"""Statements about leases, their slots, and idempotency keys."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import NotFound
from orchestrator.model import Lease, LeaseState, Slot
from orchestrator.store import rows


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides over one more lease of a pool, in one look."""

    next_seq: int  # the next place in the order of arrival
    queued: int  # leases that wait for the pool
    holes: int  # slots of its leases that wait for an engine
    ready: int  # engines that can be given away
    used: int  # engines held, or waited for, by who asks
    waiting: int  # leases of theirs that wait, for whatever pool


def situation(db: sqlite3.Connection, pool: str, holder: str) -> Situation:
    """How things are for ``holder``, who asks for engines of ``pool``."""
    row = db.execute(
        "SELECT (SELECT coalesce(max(seq), 0) + 1 FROM leases), "
        "(SELECT count(*) FROM leases WHERE pool = :pool AND state = 'pending'), "
        "(SELECT count(*) FROM slots JOIN leases ON leases.id = slots.lease_id "
        "WHERE slots.empty_since IS NOT NULL AND leases.pool = :pool), "
        "(SELECT count(*) FROM engines WHERE pool = :pool AND state = 'ready' AND NOT draining), "
        "coalesce(sum(envs_wanted), 0), coalesce(sum(state = 'pending'), 0) "
        "FROM leases WHERE holder = :holder AND state IN ('pending', 'active')",
        {"pool": pool, "holder": holder},
    ).fetchone()
    return Situation(*row)


def insert(db: sqlite3.Connection, lease: Lease) -> None:
    """Write a new lease, pending or active; its slots come with ``add_slots``."""
    db.execute(
        "INSERT INTO leases (id, seq, state, pool, holder, labels_json, note, envs_wanted, ttl_s, created_at, expires_at, "
        "granted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            lease.id,
            lease.seq,
            lease.state.value,
            lease.pool,
            lease.holder,
            json.dumps(lease.labels, sort_keys=True),
            lease.note,
            lease.envs_wanted,
            lease.ttl_s,
            lease.created_at,
            lease.expires_at,
            lease.granted_at,
        ),
    )


def get(db: sqlite3.Connection, lease_id: str) -> Lease:
    """The lease of that id; NotFound when there is none."""
    row = db.execute("SELECT * FROM leases WHERE id = ?", (lease_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no lease {lease_id!r} of yours: 'cornerman ps' lists those you have.")
    return rows.lease(row)


def version(db: sqlite3.Connection, lease_id: str) -> int:
    """The version of a lease alone, for those who look often; NotFound when there is none."""
    row = db.execute("SELECT version FROM leases WHERE id = ?", (lease_id,)).fetchone()
    return int(row[0]) if row is not None else get(db, lease_id).version


def live(db: sqlite3.Connection, pool: str | None = None) -> list[Lease]:
    """Pending and active leases in order of arrival."""
    found = db.execute("SELECT * FROM leases WHERE state IN ('pending', 'active') ORDER BY +seq")
    return [lease for lease in map(rows.lease, found) if pool is None or lease.pool == pool]


def listed(
    db: sqlite3.Connection,
    *,
    holder: str | None,
    states: Sequence[LeaseState],
    limit: int,
    labels: Mapping[str, str] | None = None,
) -> list[Lease]:
    """Leases of ``holder`` (None: everybody's), in one of ``states`` (none: all), with all of ``labels``; newest first."""
    query, values = "SELECT * FROM leases WHERE 1", list[object]()
    if holder is not None:
        query, values = query + " AND holder = ?", [*values, holder]
    if states:
        query += f" AND state IN ({', '.join('?' * len(states))})"
        values += [state.value for state in states]
    for key, value in (labels or {}).items():
        query += " AND EXISTS (SELECT 1 FROM json_each(labels_json) WHERE key = ? AND value = ?)"
        values += [key, value]
    return [rows.lease(row) for row in db.execute(query + " ORDER BY seq DESC LIMIT ?", [*values, limit])]


def pending_before(db: sqlite3.Connection, pool: str, seq: int) -> int:
    """How many pending leases of a pool came earlier."""
    (count,) = db.execute(
        "SELECT count(*) FROM leases WHERE pool = ? AND state = 'pending' AND seq < ?", (pool, seq)
    ).fetchone()
    return int(count)


def counts(db: sqlite3.Connection, pool: str) -> dict[LeaseState, int]:
    """How many leases of a pool are pending, and how many active."""
    found = db.execute(
        "SELECT state, count(*) FROM leases WHERE pool = ? AND state IN ('pending', 'active') GROUP BY state", (pool,)
    )
    return {LeaseState(row[0]): int(row[1]) for row in found}


def oldest_pending(db: sqlite3.Connection) -> dict[str, float]:
    """When the lease came that waits for longest, by pool."""
    found = db.execute("SELECT pool, min(created_at) FROM leases WHERE state = 'pending' GROUP BY pool")
    return {row[0]: float(row[1]) for row in found}


def count_queued_engines(db: sqlite3.Connection, pool: str) -> int:
    """How many engines the pending leases of a pool ask for."""
    (count,) = db.execute(
        "SELECT coalesce(sum(envs_wanted), 0) FROM leases WHERE pool = ? AND state = 'pending'", (pool,)
    ).fetchone()
    return int(count)


def usage(db: sqlite3.Connection, holder: str) -> tuple[int, int]:
    """Engines held, or waited for, by a principal, and how many of its leases are pending."""
    row = db.execute(
        "SELECT coalesce(sum(envs_wanted), 0), coalesce(sum(state = 'pending'), 0) FROM leases "
        "WHERE holder = ? AND state IN ('pending', 'active')",
        (holder,),
    ).fetchone()
    return int(row[0]), int(row[1])


def activate(db: sqlite3.Connection, lease_id: str, *, now: float, expires_at: float) -> bool:
    """Pending becomes active; False when it was not pending any more."""
    done = db.execute(
        "UPDATE leases SET state = 'active', granted_at = ?, expires_at = ?, version = version + 1 WHERE id = ? AND state = 'pending'",
        (now, expires_at, lease_id),
    )
    return done.rowcount == 1


def renew(db: sqlite3.Connection, lease_id: str, *, expires_at: float) -> bool:
    """A new expiry; False when the lease has ended."""
    done = db.execute(
        "UPDATE leases SET expires_at = ? WHERE id = ? AND state IN ('pending', 'active')", (expires_at, lease_id)
    )
    return done.rowcount == 1


def end(db: sqlite3.Connection, lease_id: str, state: LeaseState, *, because: str, now: float) -> bool:
    """Pending or active becomes ``state``; False when it had ended already."""
    done = db.execute(
        "UPDATE leases SET state = ?, ended_at = ?, ended_because = ?, version = version + 1 "
        "WHERE id = ? AND state IN ('pending', 'active')",
        (state.value, now, because, lease_id),
    )
    if done.rowcount:
        db.execute("DELETE FROM slots WHERE lease_id = ?", (lease_id,))
    return done.rowcount == 1


def touch(db: sqlite3.Connection, lease_id: str) -> None:
    """Something changed that the holder should see."""
    db.execute("UPDATE leases SET version = version + 1 WHERE id = ?", (lease_id,))


def forget_ended(db: sqlite3.Connection, before: float, *, at_most: int = 20_000) -> int:
    """Delete leases that ended before that time, with their idempotency keys; not all at once, because others wait to write."""
    gone = db.execute(
        "DELETE FROM leases WHERE id IN (SELECT id FROM leases WHERE ended_at < ? "
        "AND id NOT IN (SELECT lease_id FROM engines WHERE lease_id IS NOT NULL) LIMIT ?)",
        (before, at_most),
    ).rowcount
    if gone:
        db.execute("DELETE FROM idempotency WHERE lease_id NOT IN (SELECT id FROM leases)")
    return gone


def newest(db: sqlite3.Connection) -> int:
    """The place of the newest lease in the order of arrival, 0 before there was one; it changes when one comes."""
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM leases").fetchone()[0])


def versions(db: sqlite3.Connection) -> dict[str, int]:
    """The version of every active lease."""
    return dict(db.execute("SELECT id, version FROM leases WHERE state = 'active'").fetchall())


def note_seen(db: sqlite3.Connection, lease_id: str, at: float) -> None:
    """Its client is at the relay: from now on calls, and their absence, are seen."""
    db.execute(
        "UPDATE leases SET last_call_at = ? WHERE id = ? AND state = 'active' AND last_call_at IS NULL", (at, lease_id)
    )


def note_called(db: sqlite3.Connection, lease_id: str, at: float) -> bool:
    """Somebody called one of its engines; True when its end had been announced, which holds no more."""
    db.execute("UPDATE leases SET last_call_at = ? WHERE id = ? AND state = 'active'", (at, lease_id))
    done = db.execute(
        "UPDATE leases SET idle_release_at = NULL, version = version + 1 "
        "WHERE id = ? AND state = 'active' AND idle_release_at IS NOT NULL",
        (lease_id,),
    )
    return done.rowcount == 1


def announce_idle(db: sqlite3.Connection, lease_id: str, ends_at: float, *, last_call_at: float) -> bool:
    """It will end for idleness; False when it was called meanwhile, has ended, or that was announced already."""
    done = db.execute(
        "UPDATE leases SET idle_release_at = ?, version = version + 1 "
        "WHERE id = ? AND state = 'active' AND idle_release_at IS NULL AND last_call_at = ?",
        (ends_at, lease_id, last_call_at),
    )
    return done.rowcount == 1


# ---------------------------------------------------------------- slots


def add_slots(db: sqlite3.Connection, lease_id: str, count: int) -> None:
    """Slots 0 to count - 1, each with the first generation in it."""
    db.executemany(
        "INSERT INTO slots (lease_id, rank, generation) VALUES (?, ?, 1)", [(lease_id, rank) for rank in range(count)]
    )


def slots(db: sqlite3.Connection, lease_id: str) -> list[Slot]:
    """The slots of a lease by rank."""
    return [rows.slot(row) for row in db.execute("SELECT * FROM slots WHERE lease_id = ? ORDER BY rank", (lease_id,))]


def empty_slots(db: sqlite3.Connection) -> list[Slot]:
    """Slots of active leases that wait for an engine."""
    return [rows.slot(row) for row in db.execute("SELECT * FROM slots WHERE empty_since IS NOT NULL")]


def count_empty_slots(db: sqlite3.Connection, pool: str) -> int:
    """How many slots of a pool's active leases wait for an engine."""
    (count,) = db.execute(
        "SELECT count(*) FROM slots JOIN leases ON leases.id = slots.lease_id WHERE slots.empty_since IS NOT NULL AND leases.pool = ?",
        (pool,),
    ).fetchone()
    return int(count)


def slot(db: sqlite3.Connection, lease_id: str, rank: int) -> Slot | None:
    """One slot of an active lease, or None."""
    row = db.execute("SELECT * FROM slots WHERE lease_id = ? AND rank = ?", (lease_id, rank)).fetchone()
    return None if row is None else rows.slot(row)


def empty_slot(
    db: sqlite3.Connection, lease_id: str, rank: int, *, because: str, now: float, lost: Sequence[float], steps: int
) -> None:
    """Its engine is lost; ``lost`` are the losses that count by now, ``steps`` what its lane has made until now."""
    db.execute(
        "UPDATE slots SET empty_since = ?, lost_json = ?, lost_because = ?, steps_when_lost = ? WHERE lease_id = ? AND rank = ?",
        (now, json.dumps(lost), because, steps, lease_id, rank),
    )


def fill_slot(db: sqlite3.Connection, lease_id: str, rank: int) -> bool:
    """A fresh engine steps in: one generation on; False when the slot was not empty."""
    done = db.execute(
        "UPDATE slots SET empty_since = NULL, generation = generation + 1 WHERE lease_id = ? AND rank = ? AND empty_since IS NOT NULL",
        (lease_id, rank),
    )
    return done.rowcount == 1


# ---------------------------------------------------------------- idempotency


def find_key(db: sqlite3.Connection, holder: str, key: str, *, after: float) -> tuple[str, str] | None:
    """(lease id, hash of the body) that this key stands for, unless it is older than ``after``."""
    row = db.execute(
        "SELECT lease_id, body_sha256 FROM idempotency WHERE holder = ? AND key = ? AND created_at > ?",
        (holder, key, after),
    ).fetchone()
    return (row[0], row[1]) if row else None


def save_key(db: sqlite3.Connection, holder: str, key: str, *, body_sha256: str, lease_id: str, now: float) -> None:
    """Let this key stand for that lease."""
    db.execute(
        "INSERT INTO idempotency (holder, key, body_sha256, lease_id, created_at) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (holder, key) DO UPDATE SET body_sha256 = excluded.body_sha256, lease_id = excluded.lease_id, "
        "created_at = excluded.created_at",
        (holder, key, body_sha256, lease_id, now),
    )
