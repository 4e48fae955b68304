"""Engines as child processes of the daemon: practice engines, where there is no Docker. They end with the daemon.

Each one's standard input is a pipe that only the daemon holds, and the engine ends when it closes; so even a daemon
killed by SIGKILL leaves none behind.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import EngineSpec, HostEvent, Seen, Stats
from orchestrator.runtimes.cgroups import CpuMeter
from orchestrator.runtimes.loglines import LogRing
from orchestrator.runtimes.process_launch import (
    check_port,
    command,
    environment,
    exit_code,
    kill_group,
    launch_fault,
    port_taken,
)

REMOVE_S = 10.0


@dataclass
class _Engine:
    """One engine: what was asked for, and its process once it was started."""

    spec: EngineSpec
    handle: str
    log: LogRing = field(default_factory=LogRing)
    folder: Path | None = None  # its own home and /tmp
    process: subprocess.Popen[bytes] | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    claims_port: bool = False  # from before its start until its end
    removed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)  # one start or removal at a time

    @property
    def alive(self) -> bool:
        return self.process is not None and not self.ended.is_set()


class ProcessRuntime:
    """The engine host is this machine; what it has is what this object started."""

    name = "process"

    def __init__(self, instance: str, folder: Path | None = None) -> None:
        self._instance = instance
        self._folder = folder  # where engines get their private homes; the system's place for such things by default
        self._engines: dict[str, _Engine] = {}  # by handle
        self._followers: builtins.list[queue.SimpleQueue[HostEvent | None]] = []
        self._cpu = CpuMeter()
        self._lock = threading.Lock()
        self._closed = False

    def check(self) -> None:
        """This machine always answers."""

    def resolve_image(self, image: str, *, pull: bool = True, fresh: bool = False) -> str:
        """Processes have no images: whatever is named is it."""
        return image

    def create(self, spec: EngineSpec) -> str:
        """Note the engine down without starting it; one of that name is returned if it is the same engine."""
        with self._lock:
            if self._closed:
                raise RuntimeFault(FaultKind.UNREACHABLE, "The daemon is stopping: start it again to make engines.")
            for engine in self._engines.values():
                if engine.spec.name == spec.name:
                    return _same(engine, spec)
            handle = uuid.uuid4().hex  # not the pid: there is none yet, and the kernel gives them out again
            self._engines[handle] = _Engine(spec, handle)
            return handle

    def start(self, handle: str) -> None:
        """Start its process; PORT_TAKEN when anybody listens on its port."""
        engine = self._get(handle)
        with engine.lock:
            if engine.removed:
                raise _gone()
            if engine.process is not None:
                return
            self._claim_port(engine)
            try:
                check_port(engine.spec.host, engine.spec.port)
                self._launch(engine)
            except BaseException as error:
                self._undo_launch(engine)
                if isinstance(error, OSError):
                    raise launch_fault(engine.spec, error) from error
                raise
        self._tell(HostEvent(engine.spec.engine_id, "start"))

    def remove(self, handle: str) -> None:
        """Kill its whole process group and forget it; absent is success."""
        with self._lock:
            engine = self._engines.get(handle)
        if engine is None:
            return
        with engine.lock:
            engine.removed = True
            self._kill(engine)
            if engine.process is not None and not engine.ended.wait(REMOVE_S):
                raise RuntimeFault(
                    FaultKind.TIMEOUT,
                    f"Process {engine.process.pid} does not end after SIGKILL: see what it waits for with 'ps -l'.",
                )
            self._drop_folder(engine)
        with self._lock:
            known = self._engines.pop(handle, None)
        self._cpu.forget(handle)
        if known is not None:
            self._tell(HostEvent(engine.spec.engine_id, "destroy"))

    def find(self, name: str) -> Seen | None:
        """The engine of that name, or None."""
        return next((seen for seen in self.list() if seen.name == name), None)

    def list(self) -> builtins.list[Seen]:
        """All engines, those that ended too, until they are removed."""
        with self._lock:
            engines = builtins.list(self._engines.values())
        return [_seen(engine) for engine in engines]

    def logs(self, handle: str, tail: int) -> builtins.list[str]:
        """Its last ``tail`` log lines, oldest first; [] when it is gone."""
        with self._lock:
            engine = self._engines.get(handle)
        return engine.log.lines(tail) if engine is not None else []

    def stats(self, handle: str) -> Stats:
        """CPU and resident memory of its process and the children of that."""
        with self._lock:
            engine = self._engines.get(handle)
        if engine is None or engine.process is None or not engine.alive:
            return Stats(None, None)
        cpu_s, memory = 0.0, 0
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(engine.process.pid)
            for process in (leader, *leader.children(recursive=True)):
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    cpu_s += times.user + times.system
                    memory += process.memory_info().rss
        if memory == 0:
            return Stats(None, None)
        return Stats(self._cpu.percent(handle, cpu_s, at=time.monotonic()), memory)

    def events(self) -> Iterator[HostEvent]:
        """What happens to engines from now on, until the runtime is closed."""
        follower: queue.SimpleQueue[HostEvent | None] = queue.SimpleQueue()
        with self._lock:
            if self._closed:
                return iter(())
            self._followers.append(follower)
        return self._follow(follower)

    def taken_ports(self) -> set[int]:
        """Ports that engines have asked for."""
        with self._lock:
            return {engine.spec.port for engine in self._engines.values()}

    def close(self) -> None:
        """End all engines, and the streams of events."""
        with self._lock:
            self._closed = True
            engines, followers = builtins.list(self._engines.values()), self._followers[:]
        for engine in engines:  # all at once, then wait for each
            self._kill(engine)
        for engine in engines:
            with contextlib.suppress(RuntimeFault):
                self.remove(engine.handle)
        for follower in followers:
            follower.put(None)

    def _get(self, handle: str) -> _Engine:
        with self._lock:
            engine = self._engines.get(handle)
        if engine is None:
            raise _gone()
        return engine

    def _claim_port(self, engine: _Engine) -> None:
        port = engine.spec.port
        with self._lock:
            others = [other for other in self._engines.values() if other is not engine and other.spec.port == port]
            if any(other.claims_port for other in others):
                raise port_taken(port)  # it may not listen yet
            engine.claims_port = True

    def _launch(self, engine: _Engine) -> None:
        folder = Path(tempfile.mkdtemp(prefix="cornerman-engine-", dir=self._folder))
        engine.folder = folder
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        process = subprocess.Popen(
            command(engine.spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(engine.spec, folder),
            start_new_session=True,
        )
        engine.process = process
        for work in (self._read_log, self._wait_for_end):
            threading.Thread(target=work, args=(engine, process), name=f"{engine.spec.name}-watch", daemon=True).start()

    def _read_log(self, engine: _Engine, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed under us: the engine was removed
            while data := os.read(process.stdout.fileno(), 65536):
                engine.log.write(data)
        with contextlib.suppress(OSError):
            process.stdout.close()

    def _wait_for_end(self, engine: _Engine, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        kill_group(process.pid)  # what the engine itself had started
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        engine.claims_port = False
        engine.ended.set()
        self._tell(HostEvent(engine.spec.engine_id, "die", exit_code(code)))

    def _kill(self, engine: _Engine) -> None:
        if engine.process is not None and not engine.ended.is_set():
            kill_group(engine.process.pid)

    def _undo_launch(self, engine: _Engine) -> None:
        engine.claims_port = False
        if engine.process is not None:  # it runs, and nobody watches it
            kill_group(engine.process.pid)
            engine.process.wait()
            engine.ended.set()
        self._drop_folder(engine)

    def _drop_folder(self, engine: _Engine) -> None:
        if engine.folder is not None:
            shutil.rmtree(engine.folder, ignore_errors=True)
            engine.folder = None

    def _tell(self, event: HostEvent) -> None:
        with self._lock:
            followers = self._followers[:]
        for follower in followers:
            follower.put(event)

    def _follow(self, follower: queue.SimpleQueue[HostEvent | None]) -> Iterator[HostEvent]:
        try:
            while (event := follower.get()) is not None:
                yield event
        finally:
            with self._lock:
                if follower in self._followers:
                    self._followers.remove(follower)


def _same(engine: _Engine, spec: EngineSpec) -> str:
    if engine.spec.engine_id != spec.engine_id:
        raise RuntimeFault(FaultKind.BAD_SPEC, f"Another engine has the name {spec.name!r}: remove it first.")
    return engine.handle


def _seen(engine: _Engine) -> Seen:
    process = engine.process
    code = process.returncode if process is not None and engine.ended.is_set() else None
    return Seen(
        engine_id=engine.spec.engine_id,
        name=engine.spec.name,
        handle=engine.handle,
        running=engine.alive,
        exit_code=exit_code(code) if code is not None else None,
        started=process is not None,
        port=engine.spec.port,
    )


def _gone() -> RuntimeFault:
    return RuntimeFault(FaultKind.NOT_FOUND, "The engine was removed: another one is needed.")
