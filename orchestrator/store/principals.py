"""Statements about principals and their tokens. A token's value is nowhere, only its SHA-256."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from orchestrator.errors import NotFound
from orchestrator.model import Caller, Scope


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its value."""

    id: str
    principal: str
    scope: Scope
    note: str
    created_at: float
    last_used_at: float | None


def put_principal(
    db: sqlite3.Connection, name: str, *, max_engines: int | None, max_pending: int | None, now: float
) -> None:
    """Make a principal, or change its quotas: what is None stays as it is, and is no limit for a new one."""
    db.execute(
        "INSERT INTO principals (name, max_engines, max_pending, created_at) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
        "max_engines = coalesce(excluded.max_engines, max_engines), max_pending = coalesce(excluded.max_pending, max_pending)",
        (name, max_engines, max_pending, now),
    )


def delete_principal(db: sqlite3.Connection, name: str) -> None:
    """Forget a principal and its tokens; NotFound when there is none of that name."""
    if not db.execute("DELETE FROM principals WHERE name = ?", (name,)).rowcount:
        raise NotFound(f"There is no principal {name!r}: 'cornerman token list' shows those there are.")


def add_token(db: sqlite3.Connection, token: Token, sha256: str) -> None:
    """Write a token by its hash."""
    db.execute(
        "INSERT INTO tokens (id, principal, scope, sha256, note, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (token.id, token.principal, token.scope.value, sha256, token.note, token.created_at),
    )


def find_token(db: sqlite3.Connection, sha256: str) -> tuple[Caller, str] | None:
    """(who it is, the stored hash to compare in constant time), or None."""
    row = db.execute(
        "SELECT tokens.*, max_engines, max_pending FROM tokens JOIN principals ON principals.name = tokens.principal WHERE sha256 = ?",
        (sha256,),
    ).fetchone()
    if row is None:
        return None
    caller = Caller(
        principal=row["principal"],
        scope=Scope(row["scope"]),
        token_id=row["id"],
        max_engines=row["max_engines"],
        max_pending=row["max_pending"],
    )
    return caller, row["sha256"]


def list_tokens(db: sqlite3.Connection) -> list[Token]:
    """All tokens, oldest first."""
    return [
        Token(row["id"], row["principal"], Scope(row["scope"]), row["note"], row["created_at"], row["last_used_at"])
        for row in db.execute("SELECT * FROM tokens ORDER BY created_at, id")
    ]


def delete_token(db: sqlite3.Connection, token_id: str) -> None:
    """Revoke a token; NotFound when there is none of that id."""
    if not db.execute("DELETE FROM tokens WHERE id = ?", (token_id,)).rowcount:
        raise NotFound(f"There is no token {token_id!r}: 'cornerman token list' shows those there are.")


def note_used(db: sqlite3.Connection, token_id: str, now: float) -> None:
    """Remember when a token was used last."""
    db.execute("UPDATE tokens SET last_used_at = ? WHERE id = ?", (now, token_id))
