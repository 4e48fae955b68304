"""A process that can die at any call to its store or its engine host, before the call, in the middle of it, or after."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import EngineSpec, Seen
from orchestrator.runtimes.fake import FakeHost, FakeRuntime
from orchestrator.store.database import Database


class Killed(BaseException):
    """SIGKILL: no clean-up of the daemon's may depend on it being caught."""


class Fuse:
    """Counts the calls, and kills the process at the one it was set for; unset, it counts only."""

    def __init__(self) -> None:
        self.calls = 0
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

    fuse: Fuse

    def __init__(self, path: Path, fuse: Fuse) -> None:
        super().__init__(path)
        self.fuse = fuse

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, with three places to die in."""
        self.fuse.burn()
        with super().write() as db:
            yield db
            self.fuse.burn()
        self.fuse.burn()


class CrashingRuntime(FakeRuntime):
    """May die before each call and after it; may also do its work and lose the answer, or only claim to be out of reach."""

    def __init__(self, instance: str, host: FakeHost, fuse: Fuse) -> None:
        super().__init__(instance, host)
        self.fuse = fuse
        self.lost: dict[str, int] = {}

    def create(self, spec: EngineSpec) -> str:
        with self._call("create"):
            return super().create(spec)

    def start(self, handle: str) -> None:
        with self._call("start"):
            super().start(handle)

    def remove(self, handle: str) -> None:
        with self._call("remove"):
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
        if self.lost.get(f"-{name}", 0):
            self.lost[f"-{name}"] -= 1
            raise RuntimeFault(FaultKind.TIMEOUT, f"The engine host took too long to {name}, and never did.")
        yield
        self.fuse.burn()
