"""Bringing engines up: images, ports, creating, starting, and waiting until they answer. Blocking; runs on the threads of ``jobs``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from orchestrator import diagnosis, ports
from orchestrator.config import Config
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import EngineSpec, Now, Probe, Runtime
from orchestrator.model import FETCH, Engine, EngineState, Policy, ProbePassed
from orchestrator.probes import reached
from orchestrator.records import Records, explain
from orchestrator.store import engines, events, pools
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

HOST_RETRY_S = 2.0
IMAGE_RETRY_S = 1.0
PORT_TRIES = 8
_LOOK_EVERY_S = 0.5
_PROBE_FOR_S = (
    2.0  # a probe waits that long at most, because between two of them it is looked what became of the engine
)
_PAUSE_S = 0.05


class Starts:
    """Carries out what was intended about an engine that is to come up, and writes down what came of it."""

    def __init__(
        self,
        *,
        database: Database,
        config: Config,
        policies: Mapping[str, Policy],
        runtimes: Mapping[str, Runtime],
        probe: Probe,
        records: Records,
        instance: str,
        now: Now = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
        is_free: Callable[[str, int], bool] = ports.can_bind,
    ) -> None:
        self._database, self._config, self._policies, self._runtimes = database, config, policies, runtimes
        self._probe, self._records, self._instance = probe, records, instance
        self._now, self._monotonic, self._is_free = now, monotonic, is_free
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait

    def stop(self) -> None:
        """Wait for no engine any more: the next life goes on where this one stops."""
        self._stopping.set()

    def resolve(self, pool_name: str) -> float | None:
        """Pin the pool's image, or write down why that cannot be."""
        with self._database.read() as db:
            pool = pools.get(db, pool_name, self._policies)
        runtime = self._runtimes[pool.policy.runtime]
        try:
            pinned = runtime.resolve_image(pool.image, pull=self._may_pull(pool_name), fresh=pool.repin == FETCH)
        except RuntimeFault as fault:
            if fault.kind is FaultKind.UNREACHABLE:  # it is not the image's fault, and the host's is told elsewhere
                return HOST_RETRY_S
            if pool.pinned is None:
                self._records.blame(pool_name, str(fault))
            else:
                self._records.image_failed(pool, str(fault))
            return None
        now = self._now()
        with self._database.write() as db:
            if pools.pin(db, pool_name, image=pool.image, pinned=pinned, done=pool.repin):
                events.record(db, "pool.image", f"{pool.image} is {pinned}", now=now, pool=pool_name)
                self._records.note_well(db, pool_name, now)
        return None

    def launch(self, engine_id: str) -> float | None:
        """Bring an intended engine up, or go on where a former life stopped: every step is found done, or done now."""
        engine = self._records.read(engine_id)
        if engine is None or engine.state is not EngineState.STARTING:
            return None
        runtime = self._runtimes[engine.runtime]
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
            if self._probe(
                reached(engine.host), engine.port, timeout_s=min(policy.probe_timeout_s, _PROBE_FOR_S, left)
            ):
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
        current = self._records.read(engine.id)
        if current is None or current.state is not EngineState.STARTING:
            raise _GivenUpError
        seen = runtime.find(engine.name)
        if seen is None:
            raise RuntimeFault(
                FaultKind.NOT_FOUND, "It vanished while it started: something other than Cornerman removed it."
            )
        if not seen.running:
            raise RuntimeFault(FaultKind.OTHER, explain(seen, runtime))
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
            self._records.note_well(db, engine.pool, now)

    def _launch_failed(self, engine_id: str, runtime: Runtime, fault: RuntimeFault) -> float | None:
        if isinstance(fault, _GivenUpError):
            return None
        if fault.kind in (FaultKind.UNREACHABLE, FaultKind.TIMEOUT):
            log.warning("start is tried again", engine=engine_id, fault=str(fault))
            return HOST_RETRY_S  # the outcome is unknown: the same engine is looked up by its name, until its deadline
        engine = self._records.read(engine_id)
        if engine is None or engine.state is not EngineState.STARTING:
            return None
        if fault.kind is FaultKind.IMAGE_MISSING and self._fetch_again(engine, runtime):
            return IMAGE_RETRY_S
        self._records.give_up_start(engine_id, str(fault))
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
        if pool.repin:
            return  # what is pinned is of the image before, and stays until the new one is there
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


class _GivenUpError(RuntimeFault):
    """Somebody decided meanwhile that this engine is to go."""

    def __init__(self) -> None:
        super().__init__(FaultKind.OTHER, "The engine was given up while it started.")
