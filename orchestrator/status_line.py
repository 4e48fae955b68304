"""What ``systemctl status`` shows of the daemon, in one line."""

from __future__ import annotations

from orchestrator.config import Config
from orchestrator.model import EngineState
from orchestrator.policies import policies
from orchestrator.store import engines, idle_stop, meta, pools
from orchestrator.store.database import Database


def status_line(database: Database, config: Config, now: float) -> str:
    """Each pool's engines, what is wrong, and when the host stops because nobody uses it."""
    by_pool = policies(config)
    with database.read() as db:
        live, fault, stop = engines.live(db), meta.get(db, "host_fault"), idle_stop.get(db)
        parts = [fault] if fault else []
        for pool in pools.all_of(db, by_pool):
            states = [engine.state for engine in live if engine.pool == pool.name]
            counts = [f"{states.count(state)} {state.value}" for state in EngineState if state in states]
            trouble = f" (degraded: {pool.fault})" if pool.fault else ""
            parts.append(f"{pool.name}: {', '.join(counts) or 'no engines'}{trouble}")
    if stop is not None and stop.announced:
        parts.append(f"nobody leases, it stops in {max(0.0, stop.stops_at - now) / 60:.0f} min")
    return "; ".join(parts)
