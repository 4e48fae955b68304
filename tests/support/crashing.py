"""A process that can die at any call to its store or its engine host, before the call, in the middle of it, or after."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import FaultKind, RuntimeFault, Unavailable
from orchestrator.interfaces import EngineSpec, Seen
from orchestrator.runtimes.fake import FakeHost, FakeRuntime
from orchestrator.store.database import Database


class Killed(BaseException):
    """SIGKILL: no clean-up of the daemon's may depend on it being caught."""


class Fuse:
    """Counts the calls, and kills the process at the one it was set for; unset, it counts only."""

    def __init__(self) -> None:
        self.calls = 0
        self.disk_is_full = False
        self._left: int | None = None

    def set(self, calls: int) -> None:
        """The call after ``calls`` others is the last."""
        self._left = calls

    def unset(self) -> None:
        """No more killing."""
        self._left = None

    def burn(self) -> None:
        """One more point at which the process may die."""
        self.calls += 1
        if self._left is None:
            return
        if self._left == 0:
            self._left = None
            raise Killed
        self._left -= 1


class CrashingDatabase(Database):
    """May die before a transaction, before its commit, and after it."""

    def __init__(self, path: Path, fuse: Fuse) -> None:
        super().__init__(path)
        self.fuse = fuse

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, with three places to die in, and a disk that may be full at its end."""
        self.fuse.burn()
        with super().write() as db:
            yield db
            self.fuse.burn()
            if self.fuse.disk_is_full:
                raise Unavailable("The state cannot be written: free some space.")
        self.fuse.burn()


class CrashingRuntime(FakeRuntime):
    """May die before each call and after it; may also do its work and lose the answer, or only claim to be out of reach."""

    def __init__(self, instance: str, host: FakeHost, fuse: Fuse) -> None:
        super().__init__(instance, host)
        self.fuse = fuse
        self.lost: dict[str, int] = {}
        self.late: list[EngineSpec] = []
        self.creates_late = self.lies_about_removals = 0

    def create(self, spec: EngineSpec) -> str:
        with self._call("create"):
            if self.creates_late:
                self.creates_late -= 1
                self.late.append(spec)
                raise RuntimeFault(FaultKind.TIMEOUT, "The engine host took too long to create, and will do it yet.")
            return super().create(spec)

    def catch_up(self) -> None:
        """What was asked for long ago, and given up by those who asked, is done now."""
        for spec in self.late:
            with suppress(RuntimeFault):  # its name or its image may be gone
                self.host.make(spec)
        self.late.clear()

    def start(self, handle: str) -> None:
        with self._call("start"):
            super().start(handle)

    def remove(self, handle: str) -> None:
        with self._call("remove"):
            if self.lies_about_removals:
                self.lies_about_removals -= 1
                return
            super().remove(handle)

    def find(self, name: str) -> Seen | None:
        with self._call("find"):
            return super().find(name)

    def list(self) -> builtins.list[Seen]:
        with self._call("list"):
            return super().list()

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        self.fuse.burn()
        if self.lost.get(name, 0):
            self.lost[name] -= 1
            raise RuntimeFault(FaultKind.TIMEOUT, f"The engine host took too long to {name}, and never did.")
        yield
        self.fuse.burn()
