"""What is done to engines that are up, and to those that are to go. Blocking; runs on the threads of ``jobs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import Now, Probe, Runtime
from orchestrator.model import Engine, EngineState, Policy, Removed
from orchestrator.probes import reached
from orchestrator.records import Records, explain
from orchestrator.store import engines, events
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

HOST_RETRY_S = 2.0
REMOVE_RETRY_S, MAX_REMOVE_RETRY_S = 5.0, 300.0
PROBES_AT_ONCE = 8
SHORT_LIFE_S, SHORT_LIVES = 30.0, 3
"""So many idle engines in a row that live no longer than this, and the pool is degraded."""


class EngineWork:
    """Carries out what was decided about an engine, and writes down what came of it."""

    def __init__(
        self,
        *,
        database: Database,
        policies: Mapping[str, Policy],
        runtimes: Mapping[str, Runtime],
        probe: Probe,
        records: Records,
        now: Now,
    ) -> None:
        self._database, self._policies, self._runtimes = database, policies, runtimes
        self._probe, self._records, self._now = probe, records, now
        self._short_lives: dict[str, int] = {}  # pool -> how many engines in a row died soon after they were ready
        self._stuck: dict[str, int] = {}  # engine id -> how many removals in a row have failed

    def probe(self, pool_name: str, engine_ids: Sequence[str]) -> float | None:
        """Ask ready engines whether they answer; several failures over time make one a broken one."""
        policy = self._policies[pool_name]
        with self._database.read() as db:
            asked = [engine for engine in engines.ready(db, pool_name, -1) if engine.id in set(engine_ids)]
        if not asked:
            return None

        def answers(engine: Engine) -> bool:
            return self._probe(reached(engine.host), engine.port, timeout_s=policy.probe_timeout_s)

        with ThreadPoolExecutor(min(PROBES_AT_ONCE, len(asked)), thread_name_prefix="probe") as threads:
            answered = dict(zip([engine.id for engine in asked], threads.map(answers, asked), strict=True))
        now = self._now()
        failed = [engine_id for engine_id, passed in answered.items() if not passed]
        with self._database.write() as db:
            engines.note_probes(db, [one for one in answered if answered[one]], failed, now=now)
            for engine_id in failed:
                engine = engines.get(db, engine_id)
                # never one that was leased meanwhile
                if engine.state is EngineState.READY and engine.probe_failures >= policy.probe_failures:
                    self._records.lose(db, engine, f"it did not answer {engine.probe_failures} probes in a row", now)
        return None

    def bury(self, engine_id: str, reason: str) -> float | None:
        """An engine that was up is said to have died: see for ourselves, find out why, empty its slot. Unknown is not dead."""
        engine = self._records.read(engine_id)
        if engine is None or engine.state not in (EngineState.READY, EngineState.LEASED):
            return None
        runtime = self._runtimes[engine.runtime]
        try:
            seen = runtime.find(engine.name)
            if seen is not None and seen.running:
                return None
            if seen is not None:
                reason = explain(seen, runtime)
        except RuntimeFault as fault:
            log.warning("nothing is known of an engine", engine=engine_id, fault=str(fault))
            return HOST_RETRY_S
        engine = self._records.fail(engine_id, reason)
        if engine is not None and engine.state is EngineState.READY:
            self._note_idle_death(engine, reason)
        return None

    def _note_idle_death(self, engine: Engine, reason: str) -> None:
        """An image whose engines come up and die at once again and again is no better than one that does not start."""
        now = self._now()
        lived_s = now - (engine.ready_at or now)
        deaths = self._short_lives.get(engine.pool, 0) + 1 if lived_s < SHORT_LIFE_S else 0
        self._short_lives[engine.pool] = deaths
        if deaths >= SHORT_LIVES:
            self._records.blame(
                engine.pool, f"its engines die soon after they are ready: {reason}", tries=deaths - SHORT_LIVES
            )

    def remove(self, engine_id: str) -> float | None:
        """Remove what is left of an engine; only then its port and its place in the pool are free."""
        engine = self._records.read(engine_id)
        if engine is None or engine.state not in (EngineState.RETIRING, EngineState.FAILED):
            return None
        runtime = self._runtimes[engine.runtime]
        try:
            handle = engine.handle
            if handle is None:
                seen = runtime.find(engine.name)
                handle = seen.handle if seen else None
            if handle is not None:
                runtime.remove(handle)
        except RuntimeFault as fault:
            return self._not_removed(engine, fault)
        self._stuck.pop(engine_id, None)
        now = self._now()
        with self._database.write() as db:
            engine = engines.get(db, engine_id)
            engines.happen(db, engine, Removed(), now)
            events.record(
                db,
                "engine.gone",
                f"{engine.id} is gone: {engine.reason}",
                now=now,
                pool=engine.pool,
                engine_id=engine.id,
            )
        return None

    def _not_removed(self, engine: Engine, fault: RuntimeFault) -> float:
        """For how long to leave it: longer each time, so that wedged ones do not take up all threads that remove."""
        if fault.kind is FaultKind.UNREACHABLE:
            return HOST_RETRY_S
        tries = self._stuck.get(engine.id, 0)
        self._stuck[engine.id] = tries + 1
        if tries == 0:
            now = self._now()
            with self._database.write() as db:
                text = f"{engine.id} cannot be removed, it is tried again: {fault}"
                events.record(db, "engine.stuck", text, now=now, pool=engine.pool, engine_id=engine.id)
        return min(MAX_REMOVE_RETRY_S, REMOVE_RETRY_S * 2.0 ** min(tries, 10))
