"""Questions that only one process can answer: logs and usage of engines the pool's, frames the relay. They meet in the store, and nowhere else."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection
from typing import Any


def ask(db: sqlite3.Connection, kind: str, question: dict[str, Any], *, now: float) -> str:
    """Write a question of ``kind`` ("logs", "stats", "frame") and return its id."""
    inquiry_id = secrets.token_hex(8)
    db.execute(
        "INSERT INTO inquiries (id, kind, question_json, asked_at) VALUES (?, ?, ?, ?)",
        (inquiry_id, kind, json.dumps(question), now),
    )
    return inquiry_id


def open_ones(db: sqlite3.Connection, *, kinds: Collection[str] | None = None) -> list[tuple[str, str, dict[str, Any]]]:
    """(id, kind, question) of what waits for an answer; of these ``kinds``, because each process answers what it can know."""
    found = db.execute("SELECT id, kind, question_json FROM inquiries WHERE answer_json IS NULL ORDER BY asked_at")
    return [(row[0], row[1], json.loads(row[2])) for row in found if kinds is None or row[1] in kinds]


def answer(db: sqlite3.Connection, inquiry_id: str, value: Any) -> None:
    """Answer it."""
    db.execute("UPDATE inquiries SET answer_json = ? WHERE id = ?", (json.dumps(value), inquiry_id))


def answered(db: sqlite3.Connection, inquiry_id: str) -> tuple[Any] | None:
    """The answer in a tuple, or None when there is none yet."""
    row = db.execute("SELECT answer_json FROM inquiries WHERE id = ?", (inquiry_id,)).fetchone()
    return None if row is None or row[0] is None else (json.loads(row[0]),)


def drop(db: sqlite3.Connection, inquiry_id: str) -> None:
    """Nobody waits for it any more."""
    db.execute("DELETE FROM inquiries WHERE id = ?", (inquiry_id,))


def drop_old(db: sqlite3.Connection, before: float) -> None:
    """Delete what was asked before that time: whoever asked has gone."""
    db.execute("DELETE FROM inquiries WHERE asked_at < ?", (before,))
