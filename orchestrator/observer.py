"""Looks at one engine host: follows its events as hints, and lists everything now and then to know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from orchestrator import planning
from orchestrator.commands import FailEngine, RemoveStray
from orchestrator.errors import CornermanError, FaultKind, RuntimeFault
from orchestrator.interfaces import Runtime
from orchestrator.store import engines
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

FOLLOW_AGAIN_S = 1.0
LOOK_AGAIN_S = 2.0
"""So long after a look that failed the next one comes."""


class Observer:
    """Watches one runtime. When the host does not answer nothing is concluded, but that it does not answer."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        database: Database,
        every_s: float,
        busy: Callable[[], dict[str, str]],
        wake: Callable[[], None],
    ) -> None:
        self._runtime, self._database = runtime, database
        self._every_s, self._busy, self._wake = every_s, busy, wake
        self._findings: list[FailEngine | RemoveStray] = []
        self._lock = threading.Lock()
        self._stop, self._look_now = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.fault: str | None = None
        self.unreachable = False  # with a fault that is not this, parts of the host answer
        self.taken_ports: set[int] = set()

    def start(self) -> None:
        """Go on looking, and follow the host's events, on threads of its own."""
        for name, work in (("observe", self._keep_looking), ("follow", self._follow)):
            thread = threading.Thread(target=work, name=f"{name}-{self._runtime.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def findings(self) -> list[FailEngine | RemoveStray]:
        """What was found since the last call."""
        with self._lock:
            found, self._findings = self._findings, []
        return found

    def look(self) -> None:
        """One full listing, compared with the store."""
        try:
            with self._database.read() as db:
                before = engines.live(db, runtime=self._runtime.name)
            seen = self._runtime.list()
            taken = self._runtime.taken_ports()
            with self._database.read() as db:
                known = engines.live_ids(db)
            found = planning.reconcile(
                runtime=self._runtime.name, before=before, seen=seen, known=known, busy=self._busy()
            )
        except RuntimeFault as fault:
            if self.fault is None:
                log.warning("engine host does not answer", runtime=self._runtime.name, fault=str(fault))
            self.fault, self.unreachable = str(fault), fault.kind is FaultKind.UNREACHABLE
            self._wake()
            return
        was_out, self.taken_ports = self.fault is not None, taken
        self.fault, self.unreachable = None, False
        if was_out:
            self._wake()
        self._add(found)

    def _add(self, found: Sequence[FailEngine | RemoveStray]) -> None:
        if found:
            with self._lock:
                self._findings.extend(found)
            self._wake()

    def _keep_looking(self) -> None:
        while not self._stop.is_set():
            self._look_now.wait(timeout=self._every_s if self.fault is None else min(self._every_s, LOOK_AGAIN_S))
            if self._stop.is_set():
                return
            self._look_now.clear()
            try:
                self.look()
            except CornermanError as error:
                log.warning("could not look", runtime=self._runtime.name, fault=str(error))
            except Exception:  # a loop's edge: it must go on looking
                log.exception("could not look", runtime=self._runtime.name)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                for event in self._runtime.events():
                    if event.kind in ("die", "oom", "destroy"):
                        self._add([FailEngine(event.engine_id, "it ended by itself")])
                    if self._stop.is_set():
                        return
            except RuntimeFault as fault:
                log.debug("events are not to be had", runtime=self._runtime.name, fault=str(fault))
            except Exception:  # a loop's edge: it must go on following
                log.exception("could not follow events", runtime=self._runtime.name)
            self._look_now.set()  # the stream ends quietly, and what happened meanwhile is not replayed
            self._stop.wait(FOLLOW_AGAIN_S)

    def close(self) -> None:
        """Stop looking; the runtime's own close ends its event stream."""
        self._stop.set()
        self._look_now.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, at most so long."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
