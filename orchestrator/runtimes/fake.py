"""An engine host in memory: fast, without sockets, for tests and for benchmarks of everything around it.

The host outlives the runtime, as Docker outlives the daemon: a second FakeRuntime on the same FakeHost sees what the first
one made. What goes wrong is set on the host: ``unreachable``, ``lose_answers``, ``hold_port``, ``kill``, ``hang``.
"""

from __future__ import annotations

import builtins
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import EngineSpec, HostEvent, Seen, Stats

BOOT_LOG = ("Stored credentials found.", "Authorization granted.", "Server listening on 0.0.0.0:50051")
KILLED = 137


@dataclass
class FakeEngine:
    """One engine of the host, and how it behaves."""

    spec: EngineSpec
    handle: str
    seen: Seen
    log: list[str] = field(default_factory=list)
    answers_at: float = 0.0  # by the host's clock
    hung: bool = False
    cpu_percent: float = 5.0
    memory_bytes: int = 50 * 1024 * 1024


class FakeHost:
    """The engines of all instances, the ports others hold, and the faults to come; safe from many threads."""

    def __init__(self, *, boot_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self.boot_s = boot_s
        self.now = now
        self.unreachable = False
        self.images: set[str] | None = None  # None: any image is there
        self.lock = threading.RLock()
        self.engines: dict[str, FakeEngine] = {}  # by handle
        self._by_name: dict[str, str] = {}
        self._by_port: dict[int, str] = {}  # running engines
        self._held: set[int] = set()
        self._lost: dict[str, int] = {}
        self._followers: list[tuple[str, queue.Queue[HostEvent | None]]] = []
        self._numbers = itertools.count(1)

    def lose_answers(self, call: str, times: int = 1) -> None:
        """The next ``times`` calls of that name do their work, and then their answer is lost."""
        with self.lock:
            self._lost[call] = times

    def hold_port(self, port: int) -> None:
        """Something that is no engine listens on ``port``."""
        with self.lock:
            self._held.add(port)

    def free_port(self, port: int) -> None:
        """End a ``hold_port``."""
        with self.lock:
            self._held.discard(port)

    def kill(self, name: str, *, exit_code: int = KILLED, oom: bool = False, log: tuple[str, ...] = ()) -> None:
        """End the engine of that name, as a crash does."""
        with self.lock:
            engine = self.engines[self._by_name[name]]
            engine.log.extend(log)
            if oom:
                self.tell(engine, HostEvent(engine.spec.engine_id, "oom"))
            self._end(engine, exit_code, oom=oom)

    def hang(self, name: str) -> None:
        """The engine of that name runs on and answers nothing any more."""
        with self.lock:
            self.engines[self._by_name[name]].hung = True

    def write_log(self, name: str, *lines: str) -> None:
        """The engine of that name writes these lines."""
        with self.lock:
            self.engines[self._by_name[name]].log.extend(lines)

    def end_event_streams(self) -> None:
        """All event streams end quietly, as they do when the engine host restarts."""
        with self.lock:
            followers, self._followers = self._followers, []
        for _, follower in followers:
            follower.put(None)

    def probe(self, host: str, port: int, *, timeout_s: float) -> bool:
        """The probe of fake engines: whether one runs behind ``port``, has booted and does not hang."""
        with self.lock:
            handle = self._by_port.get(port)
            engine = self.engines.get(handle) if handle is not None else None
            return engine is not None and engine.seen.running and not engine.hung and self.now() >= engine.answers_at

    # What follows is for FakeRuntime.

    def enter(self) -> None:
        """Begin a call: RuntimeFault(UNREACHABLE) if the host is to be out of reach."""
        if self.unreachable:
            raise RuntimeFault(FaultKind.UNREACHABLE, "The engine host does not answer: start it.")

    def leave(self, call: str) -> None:
        """End a call: RuntimeFault(TIMEOUT) if its answer is to be lost."""
        with self.lock:
            left = self._lost.get(call, 0)
            if left == 0:
                return
            self._lost[call] = left - 1
        raise RuntimeFault(
            FaultKind.TIMEOUT, f"The engine host took too long to {call} an engine: look whether it did."
        )

    def make(self, spec: EngineSpec) -> str:
        """Add an engine, or return the one there."""
        with self.lock:
            known = self._by_name.get(spec.name)
            if known is not None:
                if self.engines[known].spec.labels() != spec.labels():
                    raise RuntimeFault(
                        FaultKind.BAD_SPEC, f"Another engine has the name {spec.name!r}: remove it first."
                    )
                return known
            if self.images is not None and spec.image not in self.images:
                raise _no_image(spec.image)
            handle = f"fake-{next(self._numbers)}"
            seen = Seen(spec.engine_id, spec.name, handle, running=False, started=False, port=spec.port)
            self.engines[handle] = FakeEngine(spec, handle, seen)
            self._by_name[spec.name] = handle
            return handle

    def start(self, handle: str) -> None:
        """Let an engine boot."""
        with self.lock:
            engine = self.engines.get(handle)
            if engine is None:
                raise RuntimeFault(FaultKind.NOT_FOUND, "The engine was removed: another one is needed.")
            if engine.seen.running:
                return
            port = engine.spec.port
            if port in self._held or port in self._by_port:
                raise RuntimeFault(FaultKind.PORT_TAKEN, f"Port {port} is held by something else: take another one.")
            engine.seen = replace(engine.seen, running=True, started=True, exit_code=None, oom_killed=False)
            engine.answers_at = self.now() + self.boot_s
            engine.log.extend(BOOT_LOG)
            self._by_port[port] = handle
            self.tell(engine, HostEvent(engine.spec.engine_id, "start"))

    def remove(self, handle: str) -> None:
        """Kill and forget an engine; absent is fine."""
        with self.lock:
            engine = self.engines.get(handle)
            if engine is None:
                return
            if engine.seen.running:
                self._end(engine, KILLED, oom=False)
            del self.engines[handle], self._by_name[engine.spec.name]
            self.tell(engine, HostEvent(engine.spec.engine_id, "destroy"))

    def has_image(self, image: str) -> None:
        """RuntimeFault(IMAGE_MISSING) unless the image is there."""
        with self.lock:
            if self.images is not None and image not in self.images:
                raise _no_image(image)

    def held_ports(self) -> set[int]:
        """Ports of all engines."""
        with self.lock:
            return {engine.spec.port for engine in self.engines.values()}

    def follow(self, instance: str) -> queue.Queue[HostEvent | None]:
        """A new stream of an instance's events; None ends it."""
        follower: queue.Queue[HostEvent | None] = queue.Queue()
        with self.lock:
            self._followers.append((instance, follower))
        return follower

    def unfollow(self, follower: queue.Queue[HostEvent | None]) -> None:
        """Forget a stream."""
        with self.lock:
            self._followers = [entry for entry in self._followers if entry[1] is not follower]

    def tell(self, engine: FakeEngine, event: HostEvent) -> None:
        """Put an event on every stream of its engine's instance."""
        for instance, follower in self._followers:
            if instance == engine.spec.instance:
                follower.put(event)

    def _end(self, engine: FakeEngine, exit_code: int, *, oom: bool) -> None:
        engine.seen = replace(engine.seen, running=False, exit_code=exit_code, oom_killed=oom)
        if self._by_port.get(engine.spec.port) == engine.handle:
            del self._by_port[engine.spec.port]
        self.tell(engine, HostEvent(engine.spec.engine_id, "die", exit_code))


class FakeRuntime:
    """One instance's view of a FakeHost."""

    name = "fake"

    def __init__(self, instance: str, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost()
        self._instance = instance
        self._streams: set[queue.Queue[HostEvent | None]] = set()

    @property
    def probe(self) -> Callable[..., bool]:
        """The probe that these engines answer."""
        return self.host.probe

    def check(self) -> None:
        """Raise RuntimeFault(UNREACHABLE) if the host is to be out of reach."""
        self.host.enter()

    def resolve_image(self, image: str, *, pull: bool = True, fresh: bool = False) -> str:
        """The image itself, if it is there."""
        self.host.enter()
        self.host.has_image(image)
        return image

    def create(self, spec: EngineSpec) -> str:
        """Make the engine without starting it, or return the one of that name."""
        self.host.enter()
        handle = self.host.make(spec)
        self.host.leave("create")
        return handle

    def start(self, handle: str) -> None:
        """Start it; it answers the probe once the host's ``boot_s`` have passed."""
        self.host.enter()
        self.host.start(handle)
        self.host.leave("start")

    def remove(self, handle: str) -> None:
        """Kill and remove it; absent is success."""
        self.host.enter()
        self.host.remove(handle)
        self.host.leave("remove")

    def find(self, name: str) -> Seen | None:
        """This instance's engine of that name, or None."""
        return next((seen for seen in self.list() if seen.name == name), None)

    def list(self) -> builtins.list[Seen]:
        """All engines of this instance."""
        self.host.enter()
        with self.host.lock:
            return [item.seen for item in self.host.engines.values() if item.spec.instance == self._instance]

    def logs(self, handle: str, tail: int) -> builtins.list[str]:
        """Its last ``tail`` log lines; [] when it is gone."""
        self.host.enter()
        with self.host.lock:
            engine = self.host.engines.get(handle)
            return engine.log[-tail:] if engine is not None and tail > 0 else []

    def stats(self, handle: str) -> Stats:
        """What the fake engine says it uses."""
        self.host.enter()
        with self.host.lock:
            engine = self.host.engines.get(handle)
            if engine is None or not engine.seen.running:
                return Stats(None, None)
            return Stats(engine.cpu_percent, engine.memory_bytes)

    def events(self) -> Iterator[HostEvent]:
        """This instance's events from now on."""
        self.host.enter()
        follower = self.host.follow(self._instance)
        self._streams.add(follower)
        return self._follow(follower)

    def taken_ports(self) -> set[int]:
        """Ports of all engines of the host; what others hold shows only when a start fails, as on a real host."""
        self.host.enter()
        return self.host.held_ports()

    def close(self) -> None:
        """End the event streams; engines stay on the host."""
        for follower in builtins.list(self._streams):
            follower.put(None)

    def _follow(self, follower: queue.Queue[HostEvent | None]) -> Iterator[HostEvent]:
        try:
            while (event := follower.get()) is not None:
                yield event
        finally:
            self.host.unfollow(follower)
            self._streams.discard(follower)


def _no_image(image: str) -> RuntimeFault:
    return RuntimeFault(FaultKind.IMAGE_MISSING, f"The image {image} is not here: pull or build it.")
