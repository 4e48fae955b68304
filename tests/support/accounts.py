"""Reading a daemon's books from outside: what its database says, held against itself."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One engine that is not gone, as the database has it."""

    id: str
    name: str
    state: str
    port: int
    lease_id: str | None
    rank: int | None


@contextlib.contextmanager
def reading(database: Path) -> Iterator[sqlite3.Connection]:
    """One consistent view of a database, for reading only."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        yield connection


def instance(database: Path) -> str:
    """The installation's own name, which its containers carry."""
    with reading(database) as db:
        return str(db.execute("SELECT value FROM meta WHERE key = 'instance'").fetchone()[0])


def engines(database: Path) -> list[Row]:
    """All engines that are not gone."""
    with reading(database) as db:
        return _engines(db)


def _engines(db: sqlite3.Connection) -> list[Row]:
    found = db.execute("SELECT id, name, state, port, lease_id, rank FROM engines WHERE state <> 'gone'")
    return [Row(**dict(row)) for row in found]


def check(database: Path) -> None:
    """AssertionError unless no port, name or place is had twice, and every active lease has all its places."""
    with reading(database) as db:
        live = _engines(db)
        active = {row["id"]: row["envs_wanted"] for row in db.execute("SELECT * FROM leases WHERE state = 'active'")}
        slots = [dict(row) for row in db.execute("SELECT lease_id, rank, empty_since FROM slots")]
    for what in ("port", "name"):
        values = [getattr(engine, what) for engine in live]
        assert len(values) == len(set(values)), f"a {what} is had twice: {live}"
    places = {(engine.lease_id, engine.rank) for engine in live if engine.state == "leased"}
    assert len(places) == sum(engine.state == "leased" for engine in live), f"a place is had twice: {live}"
    assert {lease_id for lease_id, _ in places} <= set(active), f"an ended lease has engines: {live}"
    for lease_id, wanted in active.items():
        ranks = {slot["rank"]: slot["empty_since"] for slot in slots if slot["lease_id"] == lease_id}
        assert set(ranks) == set(range(wanted)), f"lease {lease_id} has places {ranks}, not {wanted}"
        for rank, empty_since in ranks.items():
            assert (empty_since is None) == ((lease_id, rank) in places), f"place {rank} of {lease_id} is in no order"
