"""Everything the page shows at a glance, as far as a caller may see it, in one consistent view."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from client_sdk._version import __version__
from orchestrator.api import views
from orchestrator.api.services import Services
from orchestrator.api.waiting import POOL_SILENT_S
from orchestrator.model import Caller, Engine, Lease, LeaseState
from orchestrator.store import engines, events, idle_stop, leases, meta, meters, pools

LAST_EVENTS = 30
_OF_A_POOL = {
    "name",
    "runtime",
    "image",
    "max_engines",
    "paused",
    "fault",
    "counts",
    "wanted",
    "pending_leases",
    "active_leases",
}
EVENTS_AMONG = 5000
"""So far back it is looked for events of one holder, however few those are."""


def build(parts: Services, caller: Caller) -> dict[str, Any]:
    """Pools, and the leases, engines and events that the caller may see; times are seconds since the epoch."""
    now = parts.now()
    with parts.database.read() as db:
        held = [lease for lease in leases.live(db) if caller.is_admin or lease.holder == caller.principal]
        mine = {lease.id for lease in held}
        found = [one for one in engines.live(db) if caller.is_admin or one.lease_id in mine]
        rates = _rates(db, mine, now)
        return {
            "host": _host(db, parts, now),
            "pools": [
                views.pool(db, pool).model_dump(mode="json", include=_OF_A_POOL)
                for pool in pools.all_of(db, parts.policies)
            ],
            "leases": [_lease(db, lease, rates) for lease in held],
            "engines": [_engine(one, rates) for one in found],
            "events": recent_events(db, None if caller.is_admin else caller.principal),
        }


def who(caller: Caller) -> dict[str, Any]:
    """The caller, for the page."""
    return {"principal": caller.principal, "scope": caller.scope.value, "admin": caller.is_admin}


def dumps(value: Any) -> str:
    """``value`` as JSON without a byte too many."""
    return json.dumps(value, separators=(",", ":"))


def recent_events(db: sqlite3.Connection, holder: str | None) -> list[dict[str, Any]]:
    """The newest events of ``holder``'s leases, or of all, newest first."""
    newest = events.newest(db)
    if holder is None:
        found = events.after(db, newest - LAST_EVENTS, holder=None, limit=LAST_EVENTS)
    else:
        found = events.after(db, newest - EVENTS_AMONG, holder=holder, limit=EVENTS_AMONG)[-LAST_EVENTS:]
    return [event(one) for one in reversed(found)]


def event(inner: events.Event) -> dict[str, Any]:
    """One line of the event log."""
    return {
        "seq": inner.seq,
        "at": round(inner.at, 1),
        "kind": inner.kind,
        "text": inner.text,
        "actor": inner.actor,
        "engine": inner.engine_id,
    }


def _host(db: sqlite3.Connection, parts: Services, now: float) -> dict[str, Any]:
    alive_at = meta.get(db, "pool_alive_at")
    stop = idle_stop.get(db)
    silent = alive_at is None or now - float(alive_at) >= POOL_SILENT_S
    return {
        "name": parts.config.server.public_host,
        "version": __version__,
        "fault": meta.get(db, "host_fault") or None,
        "silent": silent,
        "stops_at": stop.stops_at if stop is not None and stop.announced else None,
    }


def _rates(db: sqlite3.Connection, lease_ids: set[str], now: float) -> Mapping[tuple[str, int], float]:
    """Steps a second by lease and rank."""
    return {
        (one.lease_id, one.rank): round(one.steps_per_s, 1)
        for one in meters.of_leases(db, lease_ids)
        if now - one.updated_at < views.RATE_LASTS_S
    }


def _lease(db: sqlite3.Connection, lease: Lease, rates: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    waits = lease.state is LeaseState.PENDING
    return {
        "id": lease.id,
        "holder": lease.holder,
        "pool": lease.pool,
        "state": lease.state.value,
        "envs": lease.envs_wanted,
        "since": lease.granted_at or lease.created_at,
        "expires": round(lease.expires_at, 1),
        "ttl": lease.ttl_s,
        "idle_end": lease.idle_release_at,
        "place": leases.pending_before(db, lease.pool, lease.seq) + 1 if waits else None,
        "note": lease.note,
        "labels": lease.labels,
        "rate": round(sum(rates.get((lease.id, rank), 0.0) for rank in range(lease.envs_wanted)), 1),
    }


def _engine(inner: Engine, rates: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    place = (inner.lease_id or "", -1 if inner.rank is None else inner.rank)
    return {
        "id": inner.id,
        "pool": inner.pool,
        "state": inner.state.value,
        "since": round(inner.state_since, 1),
        "lease": inner.lease_id,
        "rank": inner.rank,
        "reason": inner.reason,
        "draining": inner.draining,
        "rate": rates.get(place),
    }
