"""What is written down about engines and pools by whoever works on them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import structlog

from orchestrator import diagnosis
from orchestrator.errors import NotFound
from orchestrator.interfaces import Now, Runtime, Seen
from orchestrator.leasing import Leasing
from orchestrator.model import Engine, EngineState, Policy, Pool
from orchestrator.store import engines, events, pools
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

MAX_BACKOFF_S = 60.0
_LIVE = (EngineState.STARTING, EngineState.READY, EngineState.LEASED)


class Records:
    """Engines lost, pools that fail and recover: each is one transaction with its event."""

    def __init__(self, database: Database, policies: Mapping[str, Policy], leasing: Leasing, now: Now) -> None:
        self._database, self._policies, self._leasing, self._now = database, policies, leasing, now

    def read(self, engine_id: str) -> Engine | None:
        """The engine as it is now, or None when it was forgotten."""
        with self._database.read() as db:
            try:
                return engines.get(db, engine_id)
            except NotFound:
                return None

    def fail(self, engine_id: str, reason: str) -> Engine | None:
        """Write down that a live engine is lost; None when it was on its way out already."""
        now = self._now()
        with self._database.write() as db:
            engine = engines.get(db, engine_id)
            if engine.state not in _LIVE:
                return None
            self.lose(db, engine, reason, now)
        return engine

    def lose(self, db: sqlite3.Connection, engine: Engine, reason: str, now: float) -> None:
        """As ``fail``, in the caller's transaction."""
        self._leasing.lose(db, engine, reason, now)
        events.record(db, "engine.failed", f"{engine.id}: {reason}", now=now, pool=engine.pool, engine_id=engine.id)

    def give_up_start(self, engine_id: str, reason: str) -> None:
        """Its start is stuck beyond every deadline."""
        engine = self.fail(engine_id, reason)
        if engine is not None:
            self.blame(engine.pool, reason)

    def blame(self, pool_name: str, fault: str, *, tries: int = 0) -> None:
        """A pool cannot start engines: back off, longer each time, and say why. What fails together counts once."""
        now = self._now()
        with self._database.write() as db:
            pool = pools.get(db, pool_name, self._policies)
            backs_off = now < pool.retry_at
            retry_at = (
                pool.retry_at if backs_off else now + min(MAX_BACKOFF_S, 2.0 ** min(max(pool.fail_streak, tries), 10))
            )
            degraded = pools.note_fault(db, pool_name, fault=fault, retry_at=retry_at, again=not backs_off, now=now)
            if degraded:
                text = f"pool {pool_name} cannot start engines: {fault}"
                events.record(db, "pool.degraded", text, now=now, pool=pool_name)
        if degraded:
            log.warning("a pool cannot start engines", pool=pool_name, fault=fault)

    def image_failed(self, pool: Pool, fault: str) -> None:
        """A pool's new image cannot be had: it goes on with the one it has, says why, and tries again."""
        now = self._now()
        with self._database.write() as db:
            again = now + MAX_BACKOFF_S
            if pools.note_repin_fault(db, pool.name, image=pool.image, fault=fault, retry_at=again):
                text = f"pool {pool.name} goes on with {pool.pinned}, because {pool.image} cannot be had: {fault}"
                events.record(db, "pool.image_failed", text, now=now, pool=pool.name)

    def call_well(self, pool_name: str) -> None:
        """Whatever was wrong with a pool, it lacks nothing now."""
        now = self._now()
        with self._database.write() as db:
            self.note_well(db, pool_name, now)

    def note_well(self, db: sqlite3.Connection, pool_name: str, now: float) -> None:
        """As ``call_well``, in the caller's transaction."""
        if pools.note_success(db, pool_name):
            events.record(db, "pool.recovered", f"pool {pool_name} is well again", now=now, pool=pool_name)
            log.info("a pool is well again", pool=pool_name)


def explain(seen: Seen, runtime: Runtime) -> str:
    """Why an engine ended, from its exit code and its last log lines."""
    lines = runtime.logs(seen.handle, 20)
    return diagnosis.explain(lines, seen.exit_code, oom=seen.oom_killed, killed_by_us=False)
