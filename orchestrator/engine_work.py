"""What is done to one engine: launch, probe, bury, remove. Blocking; runs on the threads of ``jobs``."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from orchestrator import diagnosis, ports
from orchestrator.config import Config
from orchestrator.errors import FaultKind, NotFound, RuntimeFault
from orchestrator.interfaces import EngineSpec, Now, Probe, Runtime, Seen
from orchestrator.leasing import Leasing
from orchestrator.model import Engine, EngineState, Policy, ProbePassed, Removed
from orchestrator.store import engines, events, pools
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

MAX_BACKOFF_S = 60.0
HOST_RETRY_S = 2.0
IMAGE_RETRY_S = 1.0
REMOVE_RETRY_S, MAX_REMOVE_RETRY_S = 5.0, 300.0
PROBES_AT_ONCE = 8
SHORT_LIFE_S, SHORT_LIVES = 30.0, 3
"""So many idle engines in a row that live no longer than this, and the pool is degraded."""
PORT_TRIES = 8
_LOOK_EVERY_S = 0.5
_PAUSE_S = 0.05
_LIVE = (EngineState.STARTING, EngineState.READY, EngineState.LEASED)


class EngineWork:
    """Carries out what was decided about an engine, and writes down what came of it."""

    def __init__(
        self,
        *,
        database: Database,
        config: Config,
        policies: Mapping[str, Policy],
        runtimes: Mapping[str, Runtime],
        probe: Probe,
        leasing: Leasing,
        instance: str,
        now: Now = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
        is_free: Callable[[str, int], bool] = ports.can_bind,
    ) -> None:
        self._database, self._config, self._policies, self._runtimes = database, config, policies, runtimes
        self._probe, self._leasing, self._instance = probe, leasing, instance
        self._now, self._monotonic, self._is_free = now, monotonic, is_free
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._short_lives: dict[str, int] = {}  # pool -> how many engines in a row died soon after they were ready
        self._stuck: dict[str, int] = {}  # engine id -> how many removals in a row have failed

    def stop(self) -> None:
        """Wait for no engine any more: the next life goes on where this one stops."""
        self._stopping.set()

    # ------------------------------------------------------------ images

    def resolve(self, pool_name: str) -> float | None:
        """Pin the pool's image, or write down why that cannot be."""
        with self._database.read() as db:
            pool = pools.get(db, pool_name, self._policies)
        runtime = self._runtimes[pool.policy.runtime]
        try:
            pinned = runtime.resolve_image(pool.image, pull=self._may_pull(pool_name))
        except RuntimeFault as fault:
            if fault.kind is FaultKind.UNREACHABLE:  # it is not the image's fault, and the host's is told elsewhere
                return HOST_RETRY_S
            self.blame(pool_name, str(fault))
            return None
        now = self._now()
        with self._database.write() as db:
            if pools.pin(db, pool_name, image=pool.image, pinned=pinned):
                events.record(db, "pool.image", f"{pool.image} is {pinned}", now=now, pool=pool_name)
                self._note_well(db, pool_name, now)
        return None

    def call_well(self, pool_name: str) -> None:
        """Whatever was wrong with a pool, it lacks nothing now."""
        now = self._now()
        with self._database.write() as db:
            self._note_well(db, pool_name, now)

    def _note_well(self, db: sqlite3.Connection, pool_name: str, now: float) -> None:
        if pools.note_success(db, pool_name):
            events.record(db, "pool.recovered", f"pool {pool_name} is well again", now=now, pool=pool_name)

    # ------------------------------------------------------------ starting

    def launch(self, engine_id: str) -> float | None:
        """Bring an intended engine up, or go on where a former life stopped: every step is found done, or done now."""
        engine = self._read(engine_id)
        if engine is None or engine.state is not EngineState.STARTING:
            return None
        runtime = self._runtime(engine)
        began = self._monotonic()
        try:
            engine = self._create_and_start(engine, runtime)
            if engine is None:
                return None
            self._await_ready(engine, runtime, began)
        except RuntimeFault as fault:
            return self._launch_failed(engine_id, runtime, fault)
        return None

    def _create_and_start(self, engine: Engine, runtime: Runtime) -> Engine | None:
        for _ in range(PORT_TRIES):
            handle = runtime.create(self._spec(engine))
            with self._database.write() as db:
                engine = engines.get(db, engine.id)
                if engine.state is not EngineState.STARTING:
                    return None  # given up meanwhile; its removal finds the container by name
                engines.note_created(db, engine.id, handle)
            try:
                runtime.start(handle)
            except RuntimeFault as fault:
                if fault.kind is not FaultKind.PORT_TAKEN:
                    raise
                runtime.remove(handle)
                engine = self._other_port(engine, runtime)
                continue
            with self._database.write() as db:
                engines.note_started(db, engine.id, self._now())
                return engines.get(db, engine.id)
        raise RuntimeFault(
            FaultKind.PORT_TAKEN, f"{PORT_TRIES} ports in a row were held by something else: 'ss -ltnp' shows by what."
        )

    def _other_port(self, engine: Engine, runtime: Runtime) -> Engine:
        now = self._now()
        taken = runtime.taken_ports()
        with self._database.write() as db:
            engines.quarantine_port(db, engine.port, now + ports.QUARANTINE_S)
            port = ports.choose(
                db,
                first=self._config.first_port,
                last=self._config.last_port,
                host=engine.host,
                taken=taken,
                now=now,
                is_free=self._is_free,
            )
            engines.move_port(db, engine.id, port, now)
            text = f"port {engine.port} is held by something Cornerman did not start; {engine.id} takes {port}"
            events.record(
                db, "port.quarantined", text, now=now, pool=engine.pool, engine_id=engine.id, data={"port": engine.port}
            )
            return engines.get(db, engine.id)

    def _await_ready(self, engine: Engine, runtime: Runtime, began: float) -> None:
        policy = self._policies[engine.pool]
        deadline = self._monotonic() + policy.start_timeout_s
        look_at = self._monotonic() + _LOOK_EVERY_S
        while (left := deadline - self._monotonic()) > 0:
            if self._probe(_reach(engine.host), engine.port, timeout_s=min(policy.probe_timeout_s, left)):
                self._note_ready(engine.id, self._monotonic() - began)
                return
            if self._monotonic() >= look_at:
                self._look(engine, runtime)
                look_at = self._monotonic() + _LOOK_EVERY_S
            self._pause(_PAUSE_S)
            if self._stopping.is_set():
                raise _GivenUpError
        reason = diagnosis.explain(runtime.logs(engine.handle or "", 20), None, oom=False, killed_by_us=False)
        raise RuntimeFault(
            FaultKind.OTHER, f"It did not answer within {policy.start_timeout_s:g} s of its start: {reason}"
        )

    def _look(self, engine: Engine, runtime: Runtime) -> None:
        """Find out early that it will never come up: it has ended, asks for credentials, or was given up."""
        current = self._read(engine.id)
        if current is None or current.state is not EngineState.STARTING:
            raise _GivenUpError
        seen = runtime.find(engine.name)
        if seen is None:
            raise RuntimeFault(
                FaultKind.NOT_FOUND, "It vanished while it started: something other than Cornerman removed it."
            )
        if not seen.running:
            raise RuntimeFault(FaultKind.OTHER, self._explain(seen, runtime))
        lines = runtime.logs(seen.handle, 20)
        if diagnosis.asks_for_credentials(lines):
            raise RuntimeFault(FaultKind.OTHER, diagnosis.explain(lines, None, oom=False, killed_by_us=False))

    def _note_ready(self, engine_id: str, took_s: float) -> None:
        now = self._now()
        with self._database.write() as db:
            engine = engines.get(db, engine_id)
            if engine.state is not EngineState.STARTING:
                return
            engines.happen(db, engine, ProbePassed(), now)
            events.record(
                db,
                "engine.ready",
                f"{engine.id} answers on port {engine.port} after {took_s:.1f} s",
                now=now,
                pool=engine.pool,
                engine_id=engine.id,
                data={"seconds": round(took_s, 3)},
            )
            events.add(db, "engine_start_seconds", took_s, pool=engine.pool)
            self._note_well(db, engine.pool, now)

    def _launch_failed(self, engine_id: str, runtime: Runtime, fault: RuntimeFault) -> float | None:
        if isinstance(fault, _GivenUpError):
            return None
        if fault.kind in (FaultKind.UNREACHABLE, FaultKind.TIMEOUT):
            log.warning("start is tried again", engine=engine_id, fault=str(fault))
            return HOST_RETRY_S  # the outcome is unknown: the same engine is looked up by its name, until its deadline
        engine = self._read(engine_id)
        if engine is None or engine.state is not EngineState.STARTING:
            return None
        if fault.kind is FaultKind.IMAGE_MISSING and self._fetch_again(engine, runtime):
            return IMAGE_RETRY_S
        self.give_up_start(engine_id, str(fault))
        self._pin_again(engine.pool, runtime)
        return None

    def _fetch_again(self, engine: Engine, runtime: Runtime) -> bool:
        """The pinned image was removed from the host: True when the very same one could be had again."""
        try:
            return runtime.resolve_image(engine.image, pull=self._may_pull(engine.pool)) == engine.image
        except RuntimeFault:
            return False

    def _may_pull(self, pool_name: str) -> bool:
        return self._config.pools[pool_name].docker.pull

    def _pin_again(self, pool_name: str, runtime: Runtime) -> None:
        """After a failed start: if the pool's image is another one by now, the next start takes that one."""
        with self._database.read() as db:
            pool = pools.get(db, pool_name, self._policies)
        try:
            pinned: str | None = runtime.resolve_image(pool.image, pull=False)
        except RuntimeFault as fault:
            if fault.kind is not FaultKind.IMAGE_MISSING:
                return
            pinned = None  # the pool gets it, or says why it cannot be had
        if pinned != pool.pinned:
            now = self._now()
            with self._database.write() as db:
                if pools.pin(db, pool_name, image=pool.image, pinned=pinned) and pinned is not None:
                    events.record(db, "pool.image", f"{pool.image} is {pinned}", now=now, pool=pool_name)

    def blame(self, pool_name: str, fault: str, *, tries: int = 0) -> None:
        """A pool cannot start engines: back off, longer each time, and say why. What fails together counts once."""
        now = self._now()
        with self._database.write() as db:
            pool = pools.get(db, pool_name, self._policies)
            backs_off = now < pool.retry_at
            retry_at = (
                pool.retry_at if backs_off else now + min(MAX_BACKOFF_S, 2.0 ** min(max(pool.fail_streak, tries), 10))
            )
            if pools.note_fault(db, pool_name, fault=fault, retry_at=retry_at, again=not backs_off, now=now):
                events.record(
                    db, "pool.degraded", f"pool {pool_name} cannot start engines: {fault}", now=now, pool=pool_name
                )

    # ------------------------------------------------------------ watching

    def probe(self, pool_name: str, engine_ids: Sequence[str]) -> float | None:
        """Ask ready engines whether they answer; several failures over time make one a broken one."""
        policy = self._policies[pool_name]
        with self._database.read() as db:
            asked = [engine for engine in engines.ready(db, pool_name, -1) if engine.id in set(engine_ids)]
        if not asked:
            return None

        def answers(engine: Engine) -> bool:
            return self._probe(_reach(engine.host), engine.port, timeout_s=policy.probe_timeout_s)

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
                    self._lose(db, engine, f"it did not answer {engine.probe_failures} probes in a row", now)
        return None

    def bury(self, engine_id: str, reason: str) -> float | None:
        """An engine that was up is said to have died: see for ourselves, find out why, empty its slot. Unknown is not dead."""
        engine = self._read(engine_id)
        if engine is None or engine.state not in (EngineState.READY, EngineState.LEASED):
            return None
        runtime = self._runtime(engine)
        try:
            seen = runtime.find(engine.name)
            if seen is not None and seen.running:
                return None
            if seen is not None:
                reason = self._explain(seen, runtime)
        except RuntimeFault as fault:
            log.warning("nothing is known of an engine", engine=engine_id, fault=str(fault))
            return HOST_RETRY_S
        engine = self._fail(engine_id, reason)
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
            self.blame(engine.pool, f"its engines die soon after they are ready: {reason}", tries=deaths - SHORT_LIVES)

    def give_up_start(self, engine_id: str, reason: str) -> None:
        """Its start is stuck beyond every deadline."""
        engine = self._fail(engine_id, reason)
        if engine is not None:
            self.blame(engine.pool, reason)

    def _fail(self, engine_id: str, reason: str) -> Engine | None:
        """Write down that a live engine is lost; None when it was on its way out already."""
        now = self._now()
        with self._database.write() as db:
            engine = engines.get(db, engine_id)
            if engine.state not in _LIVE:
                return None
            self._lose(db, engine, reason, now)
        return engine

    def _lose(self, db: sqlite3.Connection, engine: Engine, reason: str, now: float) -> None:
        self._leasing.lose(db, engine, reason, now)
        events.record(db, "engine.failed", f"{engine.id}: {reason}", now=now, pool=engine.pool, engine_id=engine.id)

    # ------------------------------------------------------------ removing

    def remove(self, engine_id: str) -> float | None:
        """Remove what is left of an engine; only then its port and its place in the pool are free."""
        engine = self._read(engine_id)
        if engine is None or engine.state not in (EngineState.RETIRING, EngineState.FAILED):
            return None
        runtime = self._runtime(engine)
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

    # ------------------------------------------------------------ inside

    def _read(self, engine_id: str) -> Engine | None:
        with self._database.read() as db:
            try:
                return engines.get(db, engine_id)
            except NotFound:
                return None

    def _runtime(self, engine: Engine) -> Runtime:
        return self._runtimes[engine.runtime]

    def _spec(self, engine: Engine) -> EngineSpec:
        pool = self._config.pools[engine.pool]
        return EngineSpec(
            engine_id=engine.id,
            name=engine.name,
            instance=self._instance,
            pool=engine.pool,
            image=engine.image,
            host=engine.host,
            port=engine.port,
            options=pool.docker if pool.runtime == "docker" else pool.process,
        )

    def _explain(self, seen: Seen, runtime: Runtime) -> str:
        lines = runtime.logs(seen.handle, 20)
        return diagnosis.explain(lines, seen.exit_code, oom=seen.oom_killed, killed_by_us=False)


class _GivenUpError(RuntimeFault):
    """Somebody decided meanwhile that this engine is to go."""

    def __init__(self) -> None:
        super().__init__(FaultKind.OTHER, "The engine was given up while it started.")


def _reach(host: str) -> str:
    """The address by which this machine itself reaches what listens on ``host``."""
    return "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - the wildcard is listened on, not connected to
