"""Engine hosts that misbehave, each named by what it does; all are FakeRuntimes and never touch the machine."""

from __future__ import annotations

import threading
import time

from orchestrator.interfaces import EngineSpec
from orchestrator.runtimes.fake import FakeHost, FakeRuntime


class SlowRuntime(FakeRuntime):
    """Takes ``delay_s`` for each create, start and removal, and notes how many of each ran at once at most."""

    def __init__(self, instance: str, host: FakeHost | None = None, *, delay_s: float = 0.05) -> None:
        super().__init__(instance, host)
        self.delay_s = delay_s
        self.most_at_once: dict[str, int] = {}
        self._now_in: dict[str, int] = {}
        self._counting = threading.Lock()

    def create(self, spec: EngineSpec) -> str:
        with _Inside(self, "create"):
            return super().create(spec)

    def start(self, handle: str) -> None:
        with _Inside(self, "start"):
            super().start(handle)

    def remove(self, handle: str) -> None:
        with _Inside(self, "remove"):
            super().remove(handle)

    def _enter(self, call: str) -> None:
        with self._counting:
            self._now_in[call] = self._now_in.get(call, 0) + 1
            self.most_at_once[call] = max(self.most_at_once.get(call, 0), self._now_in[call])

    def _leave(self, call: str) -> None:
        with self._counting:
            self._now_in[call] -= 1


class _Inside:
    """Counts who is inside a call, and makes it slow."""

    def __init__(self, runtime: SlowRuntime, call: str) -> None:
        self._runtime, self._call = runtime, call

    def __enter__(self) -> None:
        self._runtime._enter(self._call)
        time.sleep(self._runtime.delay_s)

    def __exit__(self, *_: object) -> None:
        self._runtime._leave(self._call)


class NeverReadyRuntime(FakeRuntime):
    """Its engines start and never answer."""

    def start(self, handle: str) -> None:
        super().start(handle)
        with self.host.lock:
            self.host.engines[handle].hung = True


class CrashingRuntime(FakeRuntime):
    """Its engines end right after their start, with ``exit_code`` and these last lines; set ``healthy`` to cure it."""

    exit_code = 1
    last_lines: tuple[str, ...] = ("terminate called",)

    def __init__(self, instance: str, host: FakeHost | None = None) -> None:
        super().__init__(instance, host)
        self.healthy = False

    def start(self, handle: str) -> None:
        super().start(handle)
        if not self.healthy:
            with self.host.lock:
                name = self.host.engines[handle].spec.name
            self.host.kill(name, exit_code=self.exit_code, log=self.last_lines)


class LeakyRuntime(FakeRuntime):
    """Says that it removed an engine, the first ``times`` times, and did not."""

    def __init__(self, instance: str, host: FakeHost | None = None, *, times: int = 1) -> None:
        super().__init__(instance, host)
        self.left = times

    def remove(self, handle: str) -> None:
        if self.left > 0:
            self.left -= 1
            return
        super().remove(handle)
