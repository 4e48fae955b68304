"""From what the store knows to what goes over the wire."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from client_sdk import models
from orchestrator import planning
from orchestrator.leasing import LeaseView
from orchestrator.model import Engine, EngineState, LeaseState, Policy, Pool
from orchestrator.store import engines, events, leases, meta, meters, principals
from orchestrator.store.idle_stop import IdleStop

RATE_LASTS_S = 30.0
_LIVE_STATES = tuple(state for state in EngineState if state is not EngineState.GONE)


def lease(view: LeaseView, relay: models.Relay | None = None) -> models.Lease:
    """A lease; ``relay`` is for its holder's eyes alone."""
    inner = view.lease
    return models.Lease(
        id=inner.id,
        state=inner.state,
        pool=inner.pool,
        holder=inner.holder,
        labels=inner.labels,
        note=inner.note,
        envs_wanted=inner.envs_wanted,
        created_at=at(inner.created_at),
        expires_at=None if inner.ended else at(inner.expires_at),
        ttl_s=inner.ttl_s,
        queue_position=view.queue_position,
        ended_because=inner.ended_because,
        idle_release_at=None if inner.ended or inner.idle_release_at is None else at(inner.idle_release_at),
        version=inner.version,
        relay=relay,
        envs=[
            models.Env(
                rank=env.rank,
                engine_id=env.engine_id,
                generation=env.generation,
                state=env.state,
                address=env.address,
            )
            for env in view.envs
        ],
    )


def engine(
    inner: Engine,
    stats: dict[str, Any] | None,
    policies: Mapping[str, Policy],
    carried: models.LaneStats | None = None,
) -> models.Engine:
    """An engine by the host that its clients reach it by; ``stats`` is what the pool process said of its usage, ``carried`` what the relay wrote down."""
    policy = policies.get(inner.pool)
    stats = stats or {}
    return models.Engine(
        id=inner.id,
        pool=inner.pool,
        state=inner.state,
        since=at(inner.state_since),
        reason=inner.reason,
        lease_id=inner.lease_id,
        rank=inner.rank,
        host=policy.advertise if policy else inner.host,
        port=inner.port,
        container=inner.handle,
        image=inner.image,
        uses=inner.uses,
        created_at=at(inner.created_at),
        cpu_percent=stats.get("cpu_percent"),
        memory_bytes=stats.get("memory_bytes"),
        lane=carried,
    )


def lane(inner: meters.LaneMeter, now: float) -> models.LaneStats:
    """What the relay has carried on a lane; one that was not written of for long does nothing."""
    return models.LaneStats(
        steps=inner.steps,
        steps_per_s=inner.steps_per_s if now - inner.updated_at < RATE_LASTS_S else 0.0,
        raw_bytes=inner.raw_bytes,
        wire_bytes=inner.wire_bytes,
        ratio=inner.raw_bytes / inner.wire_bytes if inner.wire_bytes else None,
        engine_s=inner.engine_s,
        queue_s=inner.queue_s,
    )


def pool(db: sqlite3.Connection, inner: Pool) -> models.Pool:
    """A pool with what is in it."""
    counts, held = engines.counts(db, inner.name), leases.counts(db, inner.name)
    queued = 0 if inner.paused else leases.count_queued_engines(db, inner.name)
    demand = queued + leases.count_empty_slots(db, inner.name)
    unreachable = meta.get(db, "host_fault") if inner.policy.runtime == "docker" else None
    fault = inner.fault or unreachable or None
    outdated, outdated_leased = engines.outdated(db, inner.name, inner.pinned)
    return models.Pool(
        name=inner.name,
        runtime=inner.policy.runtime,
        image=inner.image,
        pinned=inner.pinned,
        upgrading=inner.repin > 0,
        image_fault=inner.repin_fault,
        outdated=outdated,
        outdated_leased=outdated_leased,
        allowed_images=list(inner.policy.allowed_images),
        expose=inner.policy.expose,
        min_ready=inner.min_ready,
        max_engines=inner.max_engines,
        paused=inner.paused,
        degraded=fault is not None,
        fault=fault,
        fault_at=None if inner.fault_at is None else at(inner.fault_at),
        counts={state: counts.get(state, 0) for state in _LIVE_STATES},
        wanted=planning.wanted(inner, leased=counts.get(EngineState.LEASED, 0), demand=demand),
        pending_leases=held.get(LeaseState.PENDING, 0),
        active_leases=held.get(LeaseState.ACTIVE, 0),
    )


def idle_stop(inner: IdleStop) -> models.IdleStop:
    """When an unused host stops."""
    return models.IdleStop(since=at(inner.since), stops_at=at(inner.stops_at), announced=inner.announced)


def event(inner: events.Event) -> models.Event:
    """One line of the event log."""
    return models.Event(
        seq=inner.seq,
        at=at(inner.at),
        kind=inner.kind,
        text=inner.text,
        pool=inner.pool,
        engine_id=inner.engine_id,
        lease_id=inner.lease_id,
        actor=inner.actor,
        data=inner.data,
    )


def token(inner: principals.Token) -> models.Token:
    """A token without its value."""
    return models.Token(**_token(inner))


def new_token(inner: principals.Token, value: str) -> models.NewToken:
    """A token with its value, for this once."""
    return models.NewToken(**_token(inner), token=value)


def _token(inner: principals.Token) -> dict[str, Any]:
    return {
        "id": inner.id,
        "principal": inner.principal,
        "scope": inner.scope,
        "note": inner.note,
        "created_at": at(inner.created_at),
        "last_used_at": None if inner.last_used_at is None else at(inner.last_used_at),
    }


def at(seconds: float) -> datetime:
    """Seconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
