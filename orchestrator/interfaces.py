"""The seams of the daemon: what an engine host, a probe and a clock must be able to do."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

LABEL_INSTANCE = "cornerman.instance"
LABEL_POOL = "cornerman.pool"
LABEL_ENGINE = "cornerman.engine"

Now = Callable[[], float]
"""Wall clock, seconds since the epoch, UTC."""


@dataclass(frozen=True)
class EngineSpec:
    """All a runtime needs to make one engine; identity first, then how it is run."""

    engine_id: str
    name: str  # deterministic: a create whose answer was lost is found by it
    instance: str
    pool: str
    image: str  # pinned: what ``resolve_image`` returned
    host: str  # host address the engine's port is published on
    port: int  # host port
    args: tuple[str, ...] = ()  # instead of the options' arguments, when given
    env: Mapping[str, str] = field(default_factory=dict)
    options: object = None  # the pool's runtime settings (config.DockerOptions or config.ProcessOptions)

    def labels(self) -> dict[str, str]:
        """Identity, and nothing that changes."""
        return {LABEL_INSTANCE: self.instance, LABEL_POOL: self.pool, LABEL_ENGINE: self.engine_id}


@dataclass(frozen=True)
class Seen:
    """One engine as the engine host shows it now."""

    engine_id: str
    name: str
    handle: str  # container id, or pid
    running: bool
    exit_code: int | None = None  # None while running or never started
    oom_killed: bool = False
    started: bool = True  # False: made but never started
    port: int | None = None


@dataclass(frozen=True)
class Stats:
    """What an engine uses now: CPU in percent of one core since the last look, memory in bytes."""

    cpu_percent: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class HostEvent:
    """A hint from the engine host that something happened to an engine; never the only source of truth."""

    engine_id: str
    kind: str  # "die", "oom", "start", "destroy"
    exit_code: int | None = None


class Runtime(Protocol):
    """An engine host. Every call has a deadline of its own, is safe from many threads, and raises only RuntimeFault."""

    name: str

    def check(self) -> None:
        """Raise RuntimeFault(UNREACHABLE) with what to do unless the engine host answers."""

    def resolve_image(self, image: str, *, pull: bool = True, fresh: bool = False) -> str:
        """The immutable name of an image (digest or id), pulled if absent; else RuntimeFault(IMAGE_MISSING).

        ``fresh`` pulls it in any case, unless it was made on this host.
        """

    def create(self, spec: EngineSpec) -> str:
        """Make the engine without starting it and return its handle; if it is there already, return that one's."""

    def start(self, handle: str) -> None:
        """Start it, also if it is started; RuntimeFault(PORT_TAKEN) when its port is held by something else."""

    def remove(self, handle: str) -> None:
        """Kill and remove it; absent, or being removed already, is success."""

    def find(self, name: str) -> Seen | None:
        """The engine of that deterministic name, or None."""

    def list(self) -> list[Seen]:
        """All engines of this instance, running or not; one that vanishes meanwhile is left out."""

    def logs(self, handle: str, tail: int) -> builtins.list[str]:
        """Its last ``tail`` log lines, oldest first; [] when it is gone."""

    def stats(self, handle: str) -> Stats:
        """What it uses now."""

    def events(self) -> Iterator[HostEvent]:
        """Follow this instance's events until the stream ends; then the caller lists anew and follows again."""

    def taken_ports(self) -> set[int]:
        """Host ports that any engine or other container, running or stopped, has asked for."""

    def close(self) -> None:
        """End the runtime; a ``process`` runtime's engines end with it, Docker's do not."""


class Probe(Protocol):
    """Asks one engine whether it answers."""

    def __call__(self, host: str, port: int, *, timeout_s: float) -> bool:
        """True when a gRPC channel to it gets ready within ``timeout_s``; False at once when nobody is there."""
