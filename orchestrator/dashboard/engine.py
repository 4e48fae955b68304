"""One engine as the page shows it: what it is, what happened to it, what it uses and what it wrote."""

from __future__ import annotations

import sqlite3
from typing import Any

from orchestrator.api import views
from orchestrator.api.services import Services
from orchestrator.api.waiting import LOGS_WITHIN_S, STATS_WITHIN_S, Inquiries
from orchestrator.dashboard import state
from orchestrator.errors import NotFound
from orchestrator.model import Caller, Engine, EngineState
from orchestrator.store import engines, events, leases, meters

LOG_LINES = 200
HISTORY_AMONG = 50_000
"""An engine's history is looked for in so many of the newest events."""
MOST_HISTORY = 60


def visible(db: sqlite3.Connection, caller: Caller, engine_id: str) -> Engine:
    """The engine, when the caller may see it: an administrator all, anybody else those of its own leases."""
    engine = engines.get(db, engine_id)
    if caller.is_admin:
        return engine
    if engine.lease_id is None or leases.get(db, engine.lease_id).holder != caller.principal:
        raise NotFound(f"There is no engine {engine_id!r} of yours: it is gone, or serves no lease of yours any more.")
    return engine


def seen_by(db: sqlite3.Connection, caller: Caller, engine_ids: list[str]) -> set[str]:
    """Those of these engines that the caller may see and that serve a lease."""
    marks = ", ".join("?" * len(engine_ids))
    query = (
        "SELECT engines.id FROM engines JOIN leases ON leases.id = engines.lease_id "  # noqa: S608 - marks alone
        f"WHERE engines.id IN ({marks}) AND (? OR leases.holder = ?)"
    )
    return {row[0] for row in db.execute(query, (*engine_ids, caller.is_admin, caller.principal))}


def describe(parts: Services, caller: Caller, engine_id: str) -> dict[str, Any]:
    """What the store knows of it."""
    with parts.database.read() as db:
        engine = visible(db, caller, engine_id)
        lease = leases.get(db, engine.lease_id) if engine.lease_id else None
        slot = leases.slot(db, lease.id, engine.rank) if lease and engine.rank is not None else None
        lane = next((one for one in meters.of_lease(db, lease.id) if one.rank == engine.rank), None) if lease else None
        return {
            "engine": views.engine(
                engine, None, parts.policies, views.lane(lane, parts.now()) if lane else None
            ).model_dump(mode="json"),
            "holder": lease.holder if lease else None,
            "note": lease.note if lease else None,
            "generation": slot.generation if slot else None,
            "draining": engine.draining,
            "history": _history(db, engine, None if caller.is_admin else caller.principal),
        }


def inside(parts: Services, inquiries: Inquiries, caller: Caller, engine_id: str) -> dict[str, Any]:
    """Its CPU and memory and the end of its log, as far as the pool process says in time; None where it does not."""
    with parts.database.read() as db:
        engine = visible(db, caller, engine_id)
    if engine.handle is None:
        return {"cpu_percent": None, "memory_bytes": None, "lines": []}
    usage = inquiries.ask(parts, "stats", {"engine_ids": [engine.id]}, STATS_WITHIN_S) or {}
    log = inquiries.ask(parts, "logs", {"engine_id": engine.id, "tail": LOG_LINES}, LOGS_WITHIN_S)
    used = usage.get(engine.id, {})
    return {
        "cpu_percent": used.get("cpu_percent"),
        "memory_bytes": used.get("memory_bytes"),
        "lines": None if log is None else log["lines"],
    }


def _history(db: sqlite3.Connection, engine: Engine, holder: str | None) -> list[dict[str, Any]]:
    """What happened to it, newest first; its intent has no event, but a row."""
    found = events.of_engine(db, engine.id, holder=holder, after=events.newest(db) - HISTORY_AMONG, limit=MOST_HISTORY)
    shown = [state.event(one) for one in found]
    if engine.state is EngineState.LEASED:  # leases are granted as a whole, without an event for each engine
        shown.append(_told(engine, engine.state_since, "engine.leased", f"it serves rank {engine.rank} of its lease"))
    shown.append(_told(engine, engine.created_at, "engine.starting", f"it was to start on port {engine.port}"))
    return sorted(shown, key=lambda one: (float(one["at"]), int(one["seq"])), reverse=True)


def _told(engine: Engine, at: float, kind: str, text: str) -> dict[str, Any]:
    """What the row of an engine tells of its past."""
    seq = -1 if kind == "engine.starting" else 0
    return {"seq": seq, "at": round(at, 1), "kind": kind, "text": text, "actor": None, "engine": engine.id}
