"""Statements about engines. Every change of state goes through ``model.transition``, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from orchestrator.errors import InvalidTransition, NotFound
from orchestrator.model import Engine, EngineState, Happening, transition
from orchestrator.store import rows

_SELECT = f"SELECT {rows.ENGINE} FROM engines"  # noqa: S608 - column names of ours


def insert(db: sqlite3.Connection, engine: Engine) -> None:
    """Write the intent to have this engine."""
    columns = ", ".join(rows.ENGINE_COLUMNS)
    marks = ", ".join("?" * len(rows.ENGINE_COLUMNS))
    db.execute(f"INSERT INTO engines ({columns}) VALUES ({marks})", _values(engine))  # noqa: S608 - column names of ours
    db.execute(
        "INSERT INTO ports (port, last_used_at) VALUES (?, ?) ON CONFLICT (port) DO UPDATE SET last_used_at = excluded.last_used_at",
        (engine.port, engine.created_at),
    )


def get(db: sqlite3.Connection, engine_id: str) -> Engine:
    """The engine of that id, also when it is gone; NotFound after that was forgotten."""
    row = db.execute(f"{_SELECT} WHERE id = ?", (engine_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no engine {engine_id!r}: 'cornerman ps' lists those there are.")
    return rows.engine(row)


def live(db: sqlite3.Connection, *, runtime: str | None = None) -> list[Engine]:
    """All engines that are not gone, or those of one runtime, oldest first."""
    found = map(rows.engine, db.execute(f"{_SELECT} WHERE state <> 'gone' ORDER BY created_at, id"))
    return [engine for engine in found if runtime is None or engine.runtime == runtime]


def live_ids(db: sqlite3.Connection) -> set[str]:
    """The ids of all engines that are not gone."""
    return {row[0] for row in db.execute("SELECT id FROM engines WHERE state <> 'gone'")}


def of_lease(db: sqlite3.Connection, lease_id: str) -> list[Engine]:
    """The engines a lease holds now, by rank."""
    return [rows.engine(row) for row in db.execute(f"{_SELECT} WHERE lease_id = ? ORDER BY rank", (lease_id,))]


def ready(db: sqlite3.Connection, pool: str, limit: int) -> list[Engine]:
    """Up to ``limit`` engines that can be given away, those ready for longest first."""
    found = db.execute(
        f"{_SELECT} WHERE pool = ? AND state = 'ready' AND NOT draining ORDER BY ready_at, id LIMIT ?",
        (pool, limit),
    )
    return [rows.engine(row) for row in found]


def outdated(db: sqlite3.Connection, pool: str, pinned: str | None) -> tuple[int, int]:
    """How many engines of a pool are of another image than ``pinned``: idle or starting ones, and leased ones."""
    row = db.execute(
        "SELECT coalesce(sum(state IN ('starting', 'ready')), 0), coalesce(sum(state = 'leased'), 0) FROM engines "
        "WHERE pool = ? AND state <> 'gone' AND image <> ?",
        (pool, pinned),
    ).fetchone()
    return int(row[0]), int(row[1])


def count_ready(db: sqlite3.Connection, pool: str) -> int:
    """How many engines of a pool can be given away."""
    (count,) = db.execute(
        "SELECT count(*) FROM engines WHERE pool = ? AND state = 'ready' AND NOT draining", (pool,)
    ).fetchone()
    return int(count)


def counts(db: sqlite3.Connection, pool: str) -> dict[EngineState, int]:
    """How many engines of a pool are in each state, those gone left out."""
    found = db.execute("SELECT state, count(*) FROM engines WHERE pool = ? AND state <> 'gone' GROUP BY state", (pool,))
    return {EngineState(row[0]): int(row[1]) for row in found}


def happen(db: sqlite3.Connection, engine: Engine, event: Happening, now: float) -> Engine:
    """Let ``event`` happen to ``engine``, which must have been read in this transaction; returns it as it is then."""
    after = transition(engine, event, now)
    if after is not engine:
        done = db.execute(
            "UPDATE engines SET state = ?, state_since = ?, ready_at = ?, lease_id = ?, rank = ?, uses = ?, reason = ?, probed_at = ? "
            "WHERE id = ? AND state = ?",
            (
                after.state.value,
                after.state_since,
                after.ready_at,
                after.lease_id,
                after.rank,
                after.uses,
                after.reason,
                after.probed_at,
                after.id,
                engine.state.value,
            ),
        )
        if done.rowcount != 1:  # read outside of this transaction, and changed by somebody since
            raise InvalidTransition(engine.state, event)
        if after.state is EngineState.GONE:
            db.execute("UPDATE ports SET last_used_at = ? WHERE port = ?", (now, after.port))
    return after


def note_created(db: sqlite3.Connection, engine_id: str, handle: str) -> None:
    """Remember what the engine host calls it."""
    db.execute("UPDATE engines SET handle = ? WHERE id = ?", (handle, engine_id))


def note_started(db: sqlite3.Connection, engine_id: str, now: float) -> None:
    """The clock of its start deadline begins at its first start; starting a started one again does not wind it back."""
    db.execute(
        "UPDATE engines SET started_at = coalesce(started_at, ?) WHERE id = ? AND state = 'starting'", (now, engine_id)
    )


def restart_clocks(db: sqlite3.Connection, now: float, *, runtimes: Iterable[str]) -> None:
    """Nobody could look after the engines that start on these hosts: the time until now does not count."""
    db.executemany(
        "UPDATE engines SET state_since = :now, started_at = CASE WHEN started_at IS NULL THEN NULL ELSE :now END "
        "WHERE state = 'starting' AND runtime = :runtime",
        [{"now": now, "runtime": runtime} for runtime in runtimes],
    )


def note_probes(db: sqlite3.Connection, passed: Iterable[str], failed: Iterable[str], *, now: float) -> None:
    """Write down a round of probes; of engines that are not ready any more it says nothing."""
    db.executemany(
        "UPDATE engines SET probed_at = ?, probe_failures = 0 WHERE id = ? AND state = 'ready'",
        [(now, engine_id) for engine_id in passed],
    )
    db.executemany(
        "UPDATE engines SET probed_at = ?, probe_failures = probe_failures + 1 WHERE id = ? AND state = 'ready'",
        [(now, engine_id) for engine_id in failed],
    )


def move_port(db: sqlite3.Connection, engine_id: str, port: int, now: float) -> None:
    """Give an engine that could not have its port another one."""
    db.execute("UPDATE engines SET port = ?, handle = NULL WHERE id = ? AND state = 'starting'", (port, engine_id))
    db.execute(
        "INSERT INTO ports (port, last_used_at) VALUES (?, ?) ON CONFLICT (port) DO UPDATE SET last_used_at = excluded.last_used_at",
        (port, now),
    )


def drain(db: sqlite3.Connection, engine_id: str, reason: str) -> None:
    """Let an engine end with its lease, or at once if it has none; of one that is going already nothing changes."""
    db.execute(
        "UPDATE engines SET draining = 1, reason = ? WHERE id = ? AND state IN ('starting', 'ready', 'leased')",
        (reason, engine_id),
    )


def forget_gone(db: sqlite3.Connection, before: float) -> int:
    """Delete the rows of engines gone since before that time."""
    return db.execute("DELETE FROM engines WHERE state = 'gone' AND state_since < ?", (before,)).rowcount


def used_ports(db: sqlite3.Connection) -> set[int]:
    """Ports of all engines that are not gone."""
    return {row[0] for row in db.execute("SELECT port FROM engines WHERE state <> 'gone'")}


def port_history(db: sqlite3.Connection) -> dict[int, tuple[float, float]]:
    """For every port ever used: when it was used last, and until when it is left alone."""
    return {row[0]: (row[1], row[2]) for row in db.execute("SELECT port, last_used_at, quarantined_until FROM ports")}


def quarantine_port(db: sqlite3.Connection, port: int, until: float) -> None:
    """Leave a port alone that is held by something unseen."""
    db.execute(
        "INSERT INTO ports (port, quarantined_until) VALUES (?, ?) "
        "ON CONFLICT (port) DO UPDATE SET quarantined_until = excluded.quarantined_until",
        (port, until),
    )


def _values(engine: Engine) -> tuple[object, ...]:
    values = [getattr(engine, name) for name in rows.ENGINE_COLUMNS]
    values[rows.ENGINE_COLUMNS.index("state")] = engine.state.value
    return tuple(values)
