"""Statements about the installation itself, its life signs, and steps of its clock."""

from __future__ import annotations

import secrets
import sqlite3


def instance(db: sqlite3.Connection) -> str:
    """This installation's own name on the engine hosts, made once."""
    db.execute("INSERT OR IGNORE INTO meta (key, value) VALUES ('instance', ?)", (secrets.token_hex(6),))
    return str(db.execute("SELECT value FROM meta WHERE key = 'instance'").fetchone()[0])


def put(db: sqlite3.Connection, key: str, value: str) -> None:
    """Remember a value."""
    db.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def get(db: sqlite3.Connection, key: str) -> str | None:
    """A remembered value, or None."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def shift_clock(db: sqlite3.Connection, delta: float, now: float) -> None:
    """The wall clock was stepped by ``delta`` seconds: move what is measured against it, and give every live lease a whole TTL."""
    db.execute(
        "UPDATE engines SET state_since = state_since + :d, created_at = created_at + :d, started_at = started_at + :d, "
        "ready_at = ready_at + :d, probed_at = probed_at + :d WHERE state <> 'gone'",
        {"d": delta},
    )
    db.execute(
        "UPDATE leases SET granted_at = granted_at + :d, last_call_at = min(:now, last_call_at + :d), "
        "idle_release_at = idle_release_at + :d, expires_at = :now + ttl_s "
        "WHERE state IN ('pending', 'active')",
        {"d": delta, "now": now},
    )
    db.execute("UPDATE pools SET retry_at = retry_at + ? WHERE retry_at > 0", (delta,))
    db.execute("UPDATE pools SET repin_retry_at = repin_retry_at + ? WHERE repin_retry_at > 0", (delta,))
    db.execute("UPDATE ports SET quarantined_until = quarantined_until + ? WHERE quarantined_until > 0", (delta,))
    db.execute(
        "UPDATE slots SET empty_since = empty_since + :d, "
        "lost_json = (SELECT json_group_array(at.value + :d) FROM json_each(lost_json) AS at)",
        {"d": delta},
    )


def extend_leases(db: sqlite3.Connection, now: float) -> None:
    """After a start: whoever held a lease when the daemon went away gets at least one TTL to come back, and is not idle yet."""
    db.execute(
        "UPDATE leases SET last_call_at = ?, version = version + (idle_release_at IS NOT NULL), idle_release_at = NULL "
        "WHERE state = 'active' AND last_call_at IS NOT NULL",
        (now,),
    )
    db.execute("UPDATE leases SET expires_at = max(expires_at, ? + ttl_s) WHERE state IN ('pending', 'active')", (now,))
