"""Prometheus text made of the store: its counters, and counts by pool; never by lease, whose number has no bound."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from client_sdk._version import __version__
from orchestrator.model import EngineState, LeaseState, Policy
from orchestrator.store import engines, events, idle_stop, leases, meta, meters, pools

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAITED = "lease_wait_seconds"
ALARMING = {
    "pool": (
        "engine.failed",
        "engine.stuck",
        "lease.engine_lost",
        "lease.expired",
        "lease.failed",
        "lease.granted",
        "lease.released",
        "pool.degraded",
        "port.quarantined",
    ),
    "host": ("clock.stepped", "engine.stray_removed", "host.idle_failed", "host.unreachable"),
}
"""Kinds of events whose counters are there from the beginning: a rise from nothing to one would be seen by no alert."""
_ABOUT = {_WAITED: "Time that leases waited before they were granted.", **meters.COUNTERS}
_LIVE_STATES = tuple(state for state in EngineState if state is not EngineState.GONE)


def render(
    db: sqlite3.Connection, policies: Mapping[str, Policy], now: float, *, state_dir: Path | None = None
) -> bytes:
    """Everything that can be measured now, in one consistent view; with the free space below ``state_dir``."""
    registry = CollectorRegistry(auto_describe=False)
    from_zero = [(name, pool) for pool in policies for name in (_WAITED, *meters.COUNTERS, *ALARMING["pool"])]
    from_zero += [(name, "") for name in ALARMING["host"]]
    counters = dict.fromkeys(from_zero, 0.0) | events.counters(db)
    registry.register(_Fixed([*_gauges(db, policies, now), *_disk(state_dir), *_counters(counters)]))
    return generate_latest(registry)


class _Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _gauges(db: sqlite3.Connection, policies: Mapping[str, Policy], now: float) -> Iterable[Metric]:
    build = GaugeMetricFamily("cornerman_build_info", "Always 1; the version is in its label.", labels=["version"])
    build.add_metric([__version__], 1)
    yield build
    alive_at = float(meta.get(db, "pool_alive_at") or 0)
    if alive_at:
        yield GaugeMetricFamily(
            "cornerman_pool_process_silent_seconds",
            "Since the pool process gave a sign of life.",
            value=max(0.0, now - alive_at),
        )
    fault = 1.0 if meta.get(db, "host_fault") else 0.0
    yield GaugeMetricFamily("cornerman_engine_host_fault", "1 while the engine host does not answer.", value=fault)
    ends = float(meta.get(db, "certificate_until") or 0)
    if ends:
        about = "When the certificate that is shown ends."
        yield GaugeMetricFamily("cornerman_certificate_expiry_timestamp_seconds", about, value=ends)
    # Never absent: what was said last tells whether a host that is gone has stopped itself.
    about = "When this host stops because nobody uses it; 0 while somebody does, or when it never stops."
    yield GaugeMetricFamily("cornerman_idle_stop_timestamp_seconds", about, value=_stops_at(db))
    yield from _pool_gauges(db, policies, now)


def _stops_at(db: sqlite3.Connection) -> float:
    stop = idle_stop.get(db)
    return 0.0 if stop is None else stop.stops_at


def _disk(state_dir: Path | None) -> Iterable[Metric]:
    try:
        free = None if state_dir is None else shutil.disk_usage(state_dir).free
    except OSError:
        return
    if free is not None:
        yield GaugeMetricFamily("cornerman_state_disk_free_bytes", "Free space on the state's disk.", value=free)


def _pool_gauges(db: sqlite3.Connection, policies: Mapping[str, Policy], now: float) -> Iterable[Metric]:
    state = GaugeMetricFamily("cornerman_engines", "Engines by state.", labels=["pool", "state"])
    held = GaugeMetricFamily("cornerman_leases", "Leases that wait or hold engines.", labels=["pool", "state"])
    settings = {
        "min_ready": GaugeMetricFamily("cornerman_pool_min_ready", "Engines kept ready in reserve.", labels=["pool"]),
        "max_engines": GaugeMetricFamily(
            "cornerman_pool_max_engines", "The most engines the pool holds.", labels=["pool"]
        ),
        "paused": GaugeMetricFamily(
            "cornerman_pool_paused", "1 while an administrator has paused it.", labels=["pool"]
        ),
    }
    waits = GaugeMetricFamily(
        "cornerman_lease_oldest_wait_seconds", "How long the head of the queue waits; 0 without one.", labels=["pool"]
    )
    came = leases.oldest_pending(db)
    degraded = GaugeMetricFamily("cornerman_pool_degraded", "1 while its engines do not come up.", labels=["pool"])
    for pool in pools.all_of(db, policies):
        counts, waiting = engines.counts(db, pool.name), leases.counts(db, pool.name)
        for engine_state in _LIVE_STATES:
            state.add_metric([pool.name, engine_state.value], counts.get(engine_state, 0))
        for lease_state in (LeaseState.PENDING, LeaseState.ACTIVE):
            held.add_metric([pool.name, lease_state.value], waiting.get(lease_state, 0))
        for name, family in settings.items():
            family.add_metric([pool.name], float(getattr(pool, name)))
        degraded.add_metric([pool.name], float(pool.fault is not None))
        waits.add_metric([pool.name], max(0.0, now - came.get(pool.name, now)))
    yield from (state, held, *settings.values(), degraded, waits)


def _counters(counters: Mapping[tuple[str, str], float]) -> Iterable[Metric]:
    """What happened, by kind (``lease.granted``); any other counter under its own name."""
    happened = CounterMetricFamily("cornerman_events", "What happened, by kind.", labels=["kind", "pool"])
    sums: dict[str, CounterMetricFamily] = {}
    for (name, pool), value in sorted(counters.items()):
        if "." in name:
            happened.add_metric([name, pool], value)
            continue
        full = f"cornerman_{re.sub('[^a-z0-9_]', '_', name)}"
        about = _ABOUT.get(name) or f"{name.replace('_', ' ').capitalize()}."
        family = sums.setdefault(full, CounterMetricFamily(full, about, labels=["pool"]))
        family.add_metric([pool], value)
    yield happened
    yield from sums.values()
