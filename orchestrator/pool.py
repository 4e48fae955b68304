"""The pool loop: observe, plan, execute, record. The only part that lets anything be done to engines."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import structlog

from orchestrator import commands, planning, ports
from orchestrator.clock import ClockWatch
from orchestrator.config import Config
from orchestrator.engine_work import EngineWork
from orchestrator.errors import CornermanError, RuntimeFault, Unavailable
from orchestrator.interfaces import Now, Probe, Runtime
from orchestrator.jobs import Jobs
from orchestrator.leasing import Leasing
from orchestrator.model import Engine, EngineState, LeaseState, Policy, Retired
from orchestrator.observer import Observer
from orchestrator.questions import KINDS, Questions
from orchestrator.records import Records
from orchestrator.starts import Starts
from orchestrator.store import engines, events, inquiries, leases, meta, pools
from orchestrator.store.database import Changes, Database
from orchestrator.takeover import record_step, take_over

log = structlog.get_logger(__name__)

ALIVE_EVERY_S = 2.0
TIDY_EVERY_S = 60.0
KEEP_GONE_S = 3600.0
MIN_GAP_S, MAX_GAP_S = 0.02, 0.2
GAP_PER_TICK = 9.0
"""So many times as long as a tick took the loop rests, when changes would wake it at once."""


class PoolService:
    """Keeps every pool as its settings and its leases want it."""

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
        executor: Callable[[int, str], Executor] = ThreadPoolExecutor,
    ) -> None:
        self._database, self._config, self._policies = database, config, policies
        self._runtimes, self._leasing, self._instance = runtimes, leasing, instance
        self._now, self._monotonic, self._is_free = now, monotonic, is_free
        self._clock = ClockWatch(now, monotonic)
        self._changes: Changes | None = None
        self._removers = max(2, config.workers // 2)
        self._jobs = Jobs(
            workers=config.workers,
            removers=self._removers,
            done=self._wake,
            monotonic=monotonic,
            executor=executor,
        )
        self._observers = {
            name: Observer(
                runtime=runtime,
                database=database,
                every_s=config.observe_interval_s,
                busy=self._jobs.busy,
                wake=self._wake,
            )
            for name, runtime in runtimes.items()
        }
        self._records = Records(database, policies, leasing, now)
        self._starts = Starts(
            database=database,
            config=config,
            policies=policies,
            runtimes=runtimes,
            probe=probe,
            records=self._records,
            instance=instance,
            now=now,
            monotonic=monotonic,
            pause=pause,
            is_free=is_free,
        )
        self._work = EngineWork(
            database=database, policies=policies, runtimes=runtimes, probe=probe, records=self._records, now=now
        )
        self._questions = Questions(database, runtimes)
        self._alive_at = self._tidied_at = -1e9
        self._host_fault = ""
        self._unreachable: frozenset[str] = frozenset()
        self._known, self._stamp = planning.Snapshot(pools=()), (-1, -1, -1)  # what was read last, and when

    # ------------------------------------------------------------ the loop

    def prepare(self) -> None:
        """Take over what a former life left: settings, leases (each with a whole TTL to come back), and what is really there.

        ConfigError when engines are left on a host that no pool uses any more: nobody else could remove them.
        """
        now = self._now()
        with self._database.write() as db:
            take_over(
                db,
                config=self._config,
                policies=self._policies,
                runtimes=self._runtimes.keys(),
                leasing=self._leasing,
                now=now,
            )
        self.look()

    def look(self) -> None:
        """List what is on the engine hosts now, and compare it with the store; the next tick draws the conclusions."""
        for observer in self._observers.values():
            observer.look()

    def run(self, stop: threading.Event, beat: Callable[[], None]) -> None:
        """Observe and tick until ``stop``: at every change of the store, when work is done, and at least every ``tick_s``; ``beat`` after each tick."""
        self._changes = Changes(self._database)
        fault = ""
        for observer in self._observers.values():
            observer.start()
        try:
            while not stop.is_set():
                seen, began = self._changes.number, time.thread_time()
                try:
                    self.tick()
                    fault = ""
                except CornermanError as error:
                    if str(error) != fault:  # a full disk would be told of at every tick
                        log.warning("tick failed", fault=str(error))
                    fault = str(error)
                except Exception:  # the loop's edge: one bad tick must not end the daemon
                    log.exception("tick failed")
                beat()
                if self._changes.wait(seen, self._config.tick_s) > seen:
                    # A burst of changes is one change, and many changes do not make the loop take up a whole core.
                    rest = GAP_PER_TICK * (time.thread_time() - began)
                    stop.wait(min(max(rest, MIN_GAP_S), MAX_GAP_S))
        finally:
            self._changes.close()
            self._changes = None

    def close(self) -> None:
        """Stop observing and working; Docker's engines go on, those of the process runtime end."""
        for observer in self._observers.values():
            observer.close()
        self._starts.stop()
        self._jobs.close(timeout_s=3.0)
        for runtime in self._runtimes.values():
            runtime.close()
        for observer in self._observers.values():
            observer.join(timeout_s=1.0)

    def _wake(self) -> None:
        changes = self._changes
        if changes is not None:
            changes.nudge()

    def tick(self) -> None:
        """One round: see what has changed, decide, and let it be done."""
        now, step = self._clock.read()
        if step is not None:
            with self._database.write() as db:
                record_step(db, step, now)
        self._note_hosts(now)
        self._sign_of_life(now)
        for observer in self._observers.values():
            for finding in observer.findings():
                self._try(finding)
        for command in planning.plan(self._snapshot(), now):
            self._try(command)
        self._answer_questions()
        self._tidy(now)

    def _snapshot(self) -> planning.Snapshot:
        busy, stamp = self._jobs.busy(), self._database.stamp()
        if stamp != self._stamp:
            with self._database.read() as db:
                self._known = planning.Snapshot(
                    pools=tuple(pools.all_of(db, self._policies)),
                    engines=tuple(engines.live(db)),
                    leases=tuple(leases.live(db)),
                    empty_slots=tuple(leases.empty_slots(db)),
                    max_removing=self._removers,
                )
            self._stamp = stamp
        return replace(self._known, busy=busy, unreachable=self._unreachable)

    def _try(self, command: commands.Command) -> None:
        """One command that cannot be carried out must not keep the others from it."""
        try:
            self._execute(command)
        except Unavailable:
            raise  # the store cannot be written: the others could not either
        except Exception:  # a loop's edge
            log.exception("a command failed", command=repr(command))

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.StartEngine(pool):
                self._intend(pool)
            case commands.LaunchEngine(engine_id):
                self._jobs.submit(engine_id, "launch", lambda: self._starts.launch(engine_id))
            case commands.ProbeEngines(pool, engine_ids):
                self._jobs.submit(f"probe:{pool}", "probe", lambda: self._work.probe(pool, engine_ids))
            case commands.FailEngine(engine_id, reason):
                self._jobs.submit(f"bury:{engine_id}", "bury", lambda: self._work.bury(engine_id, reason))
            case commands.GiveUpStart(engine_id, reason):
                self._records.give_up_start(engine_id, reason)
            case commands.RemoveEngine(engine_id):
                self._jobs.submit(engine_id, "remove", lambda: self._work.remove(engine_id))
            case commands.RemoveStray(runtime, handle, name):
                self._jobs.submit(f"stray:{handle}", "remove", lambda: self._remove_stray(runtime, handle, name))
            case commands.ResolveImage(pool):
                self._jobs.submit(f"pool:{pool}", "resolve", lambda: self._starts.resolve(pool))
            case commands.CallWell(pool):
                self._records.call_well(pool)
            case commands.RetireEngine(engine_id, reason):
                self._retire(engine_id, reason)
            case commands.GrantLease(lease_id):
                self._leasing.grant(lease_id)
            case commands.FillSlot(lease_id, rank):
                self._leasing.fill_slot(lease_id, rank)
            case commands.ExpireLease(lease_id, because):
                self._leasing.finish(lease_id, LeaseState.EXPIRED, because, if_expired=True)
            case commands.WarnIdle(lease_id, ends_at):
                self._leasing.warn_idle(lease_id, ends_at)
            case commands.FailLease(lease_id, because):
                self._leasing.finish(lease_id, LeaseState.FAILED, because)

    # ------------------------------------------------------------ what is done at once

    def _intend(self, pool_name: str) -> None:
        """Commit row, port and name before the engine host is asked for anything."""
        policy, now = self._policies[pool_name], self._now()
        engine_id = f"e-{secrets.token_hex(5)}"
        observer = self._observers[policy.runtime]
        try:
            with self._database.write() as db:
                pool = pools.get(db, pool_name, self._policies)
                port = ports.choose(
                    db,
                    first=self._config.first_port,
                    last=self._config.last_port,
                    host=policy.host,
                    taken=observer.taken_ports,
                    now=now,
                    is_free=self._is_free,
                )
                engine = Engine(
                    id=engine_id,
                    pool=pool_name,
                    runtime=policy.runtime,
                    state=EngineState.STARTING,
                    state_since=now,
                    name=f"cornerman-{self._instance}-{engine_id}",
                    image=pool.pinned or pool.image,
                    host=policy.host,
                    port=port,
                    created_at=now,
                )
                engines.insert(db, engine)
                events.add(db, "engine.starting", pool=pool_name)
        except RuntimeFault as fault:
            self._records.blame(pool_name, str(fault))
            return
        self._jobs.submit(engine_id, "launch", lambda: self._starts.launch(engine_id))

    def _retire(self, engine_id: str, reason: str) -> None:
        now = self._now()
        with self._database.write() as db:
            engine = engines.get(db, engine_id)
            if engine.state in (EngineState.STARTING, EngineState.READY):  # READY ones may have been leased meanwhile
                engines.happen(db, engine, Retired(reason), now)
                text = f"{engine_id} goes: {reason}"
                events.record(db, "engine.retired", text, now=now, pool=engine.pool, engine_id=engine_id)

    def _remove_stray(self, runtime: str, handle: str, name: str) -> float | None:
        try:
            self._runtimes[runtime].remove(handle)
        except RuntimeFault as fault:
            log.warning("a stray cannot be removed", name=name, fault=str(fault))
            return 10.0
        with self._database.write() as db:
            text = f"{name} carried this installation's label and nobody knew it: removed"
            events.record(db, "engine.stray_removed", text, now=self._now())
        return None

    # ------------------------------------------------------------ around it

    def _note_hosts(self, now: float) -> None:
        """A host that answers again: what should have started there meanwhile gets its time from now on."""
        unreachable = frozenset(name for name, observer in self._observers.items() if observer.unreachable)
        if back := self._unreachable - unreachable:
            with self._database.write() as db:
                engines.restart_clocks(db, now, runtimes=back)
        self._unreachable = unreachable

    def _sign_of_life(self, now: float) -> None:
        fault = "; ".join(observer.fault for observer in self._observers.values() if observer.fault)
        changed = fault != self._host_fault
        if not changed and self._monotonic() - self._alive_at < ALIVE_EVERY_S:
            return
        with self._database.write() as db:
            meta.put(db, "pool_alive_at", repr(now))
            meta.put(db, "host_fault", fault)
            if changed:
                kind, text = ("host.unreachable", fault) if fault else ("host.back", "the engine host answers again")
                events.record(db, kind, text, now=now)
        self._host_fault, self._alive_at = fault, self._monotonic()

    def _answer_questions(self) -> None:
        with self._database.read() as db:
            waiting = inquiries.open_ones(db, kinds=KINDS)
        for inquiry_id, kind, question in waiting:
            answer = partial(self._questions.answer, inquiry_id, kind, question)
            self._jobs.submit(f"inquiry:{inquiry_id}", "answer", answer)

    def _tidy(self, now: float) -> None:
        if self._monotonic() - self._tidied_at < TIDY_EVERY_S:
            return
        self._tidied_at = self._monotonic()
        with self._database.write() as db:
            inquiries.drop_old(db, now - TIDY_EVERY_S)
            engines.forget_gone(db, now - KEEP_GONE_S)
            leases.forget_ended(db, now - self._config.keep_ended_leases_s)
            events.forget(db, now - self._config.keep_events_s)
