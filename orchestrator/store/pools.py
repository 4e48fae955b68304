"""Statements about pools: the settings that change while they run, and what is wrong with them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from orchestrator.errors import NotFound
from orchestrator.model import FETCH, LOOK_UP, Policy, Pool


def configure(db: sqlite3.Connection, name: str, *, min_ready: int, max_engines: int, image: str) -> bool:
    """Take over what the file says, unless it says the same as last time: then what was changed while running stays.

    True when the file says something new of a pool that was known.
    """
    says = json.dumps([min_ready, max_engines, image])
    before = db.execute("SELECT configured FROM pools WHERE name = ?", (name,)).fetchone()
    db.execute(
        "INSERT INTO pools (name, min_ready, max_engines, image, configured) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET min_ready = excluded.min_ready, max_engines = excluded.max_engines, "
        "pinned = CASE WHEN image = excluded.image THEN pinned END, image = excluded.image, configured = excluded.configured, "
        "repin = 0, repin_fault = NULL, repin_retry_at = 0 "
        "WHERE configured <> excluded.configured",
        (name, min_ready, max_engines, image, says),
    )
    return before is not None and before[0] != says


def get(db: sqlite3.Connection, name: str, policies: Mapping[str, Policy]) -> Pool:
    """The pool of that name; NotFound when it is not configured."""
    row = db.execute("SELECT * FROM pools WHERE name = ?", (name,)).fetchone() if name in policies else None
    if row is None:
        raise NotFound(f"There is no pool {name!r}: 'cornerman status' lists those there are.")
    return _pool(row, policies[name])


def all_of(db: sqlite3.Connection, policies: Mapping[str, Policy]) -> list[Pool]:
    """The configured pools by name."""
    found = db.execute("SELECT * FROM pools ORDER BY name")
    return [_pool(row, policies[row["name"]]) for row in found if row["name"] in policies]


def update(db: sqlite3.Connection, name: str, *, min_ready: int, max_engines: int, image: str, paused: bool) -> None:
    """Change the settings of a running pool; until another image is looked up engines are started from the one before."""
    db.execute(
        "UPDATE pools SET repin = CASE WHEN image = :image THEN repin ELSE 1 END, repin_fault = NULL, repin_retry_at = 0, "
        "min_ready = :min_ready, max_engines = :max_engines, image = :image, paused = :paused, fail_streak = 0, retry_at = 0 "
        "WHERE name = :name",
        {"image": image, "min_ready": min_ready, "max_engines": max_engines, "paused": paused, "name": name},
    )


def ask_fresh(db: sqlite3.Connection, name: str) -> None:
    """Its image is to be fetched anew, because its name may mean another one now."""
    db.execute("UPDATE pools SET repin = ?, repin_fault = NULL, repin_retry_at = 0 WHERE name = ?", (FETCH, name))


def note_repin_fault(db: sqlite3.Connection, name: str, *, image: str, fault: str, retry_at: float) -> bool:
    """``image`` cannot be had; True when that is news. Nothing is noted when the pool shall have another one by now."""
    row = db.execute("SELECT repin_fault FROM pools WHERE name = ? AND image = ? AND repin", (name, image)).fetchone()
    if row is None:
        return False
    db.execute("UPDATE pools SET repin_fault = ?, repin_retry_at = ? WHERE name = ?", (fault, retry_at, name))
    return bool(row[0] != fault)


def pin(db: sqlite3.Connection, name: str, *, image: str, pinned: str | None, done: int = LOOK_UP) -> bool:
    """Remember what ``image`` resolved to; False when the pool has been given another image meanwhile.

    ``done`` is what was done for it: of what was asked for since, more is still to be done.
    """
    changed = db.execute(
        "UPDATE pools SET pinned = ?, repin_fault = NULL, repin_retry_at = 0, repin = CASE WHEN repin > ? THEN repin ELSE 0 END "
        "WHERE name = ? AND image = ?",
        (pinned, done, name, image),
    )
    return changed.rowcount == 1


def note_fault(db: sqlite3.Connection, name: str, *, fault: str, retry_at: float, again: bool, now: float) -> bool:
    """Write down a failed start, as one more in a row if ``again``; True when the pool was fine before."""
    row = db.execute("SELECT fault FROM pools WHERE name = ?", (name,)).fetchone()
    db.execute(
        "UPDATE pools SET fail_streak = fail_streak + ?, fault = ?, fault_at = ?, retry_at = ? WHERE name = ?",
        (again, fault, now, retry_at, name),
    )
    return row is not None and row[0] is None


def note_success(db: sqlite3.Connection, name: str) -> bool:
    """An engine came up: True when the pool was degraded before."""
    return (
        db.execute(
            "UPDATE pools SET fail_streak = 0, fault = NULL, fault_at = NULL, retry_at = 0 WHERE name = ? AND fault IS NOT NULL",
            (name,),
        ).rowcount
        == 1
    )


def _pool(row: sqlite3.Row, policy: Policy) -> Pool:
    return Pool(
        name=row["name"],
        policy=policy,
        min_ready=row["min_ready"],
        max_engines=row["max_engines"],
        image=row["image"],
        pinned=row["pinned"],
        paused=bool(row["paused"]),
        fail_streak=row["fail_streak"],
        retry_at=row["retry_at"],
        fault=row["fault"],
        fault_at=row["fault_at"],
        repin=row["repin"],
        repin_fault=row["repin_fault"],
        repin_retry_at=row["repin_retry_at"],
    )
