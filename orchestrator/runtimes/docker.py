"""Engines as containers of a Docker Engine, through the Docker SDK's low-level client.

The state of the host is asked for, never remembered: what is kept here is only what cannot change (ports of a
container) or may be lost (the last look at CPU seconds).
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import requests
from docker import APIClient
from docker.utils import kwargs_from_env

from orchestrator.config import DockerHostConfig
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import LABEL_ENGINE, LABEL_INSTANCE, EngineSpec, HostEvent, Seen, Stats
from orchestrator.runtimes import cgroups, docker_images, docker_view
from orchestrator.runtimes.docker_console import Consoles
from orchestrator.runtimes.docker_events import EventStreams
from orchestrator.runtimes.docker_faults import translated
from orchestrator.runtimes.docker_network import EngineNetwork
from orchestrator.runtimes.docker_spec import create_arguments, options_of
from orchestrator.runtimes.loglines import tidy

DEFAULT_URL = "unix:///var/run/docker.sock"
QUIET_S = 300.0  # a stream that says nothing for so long is given up
NAME_S = 5.0  # how long a name may be taken by a container that cannot be seen

T = TypeVar("T")


class DeadlineClient(APIClient):
    """A Docker client none of whose calls waits for ever, not even those to which the SDK gives no timeout."""

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; a missing timeout becomes QUIET_S between two pieces of the answer."""
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = QUIET_S
        return super().request(method, url, *args, **kwargs)


class DockerRuntime:
    """The engine host is a Docker Engine, which may be down when this is made: the first call connects."""

    name = "docker"

    def __init__(self, host: DockerHostConfig, instance: str) -> None:
        arguments: dict[str, Any] = {**kwargs_from_env()}
        self._arguments = {**arguments, "base_url": host.url or arguments.get("base_url") or DEFAULT_URL}
        self._host = host
        self._instance = instance
        self._client: APIClient | None = None
        self._network = EngineNetwork()
        self._consoles = Consoles()
        self._terminals: set[str] = set()  # engines made here that have one and are not started yet
        self._cpu = cgroups.CpuMeter()
        self._asked: dict[str, frozenset[int]] = {}  # container id -> ports; they cannot change once it is made
        self._events = EventStreams(instance)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where the Docker Engine listens."""
        return str(self._arguments["base_url"])

    def check(self) -> None:
        """Raise RuntimeFault(UNREACHABLE) with what to do unless the Docker Engine answers."""
        try:
            self._call("answer", lambda api: api.ping())
        except RuntimeFault as fault:
            raise RuntimeFault(FaultKind.UNREACHABLE, str(fault)) from fault

    def resolve_image(self, image: str, *, pull: bool = True, fresh: bool = False) -> str:
        """The digest or id of ``image``, pulled if it is absent; RuntimeFault(IMAGE_MISSING) when it cannot be had.

        ``fresh`` pulls one that came from a registry in any case: its name may mean another one there by now.
        """
        if fresh and pull and docker_images.is_fetched(self._connected(), image, url=self.url):
            docker_images.pull(self._connected(), image, url=self.url)
        try:
            return docker_images.pinned(self._connected(), image, url=self.url)
        except RuntimeFault as fault:
            if fault.kind is not FaultKind.IMAGE_MISSING or not pull:
                raise
        docker_images.pull(self._connected(), image, url=self.url)
        return docker_images.pinned(self._connected(), image, url=self.url)

    def create(self, spec: EngineSpec) -> str:
        """Make the container; when its name is taken or the answer was lost, the one there is returned."""
        give_up_at = time.monotonic() + NAME_S
        while True:
            try:
                return self._create(spec)
            except RuntimeFault as fault:
                name_taken = "already in use by container" in str(fault)
                if not name_taken and fault.kind is not FaultKind.TIMEOUT:
                    raise
                there = self._inspect(spec.name)
                if there is not None:
                    return self._same(there, spec)
                if not name_taken or time.monotonic() > give_up_at:
                    raise
            time.sleep(0.1)  # a name is taken a little before its container can be seen, and freed a little after

    def start(self, handle: str) -> None:
        """Start it; starting a started one is success."""
        if handle in self._terminals:
            with suppress(RuntimeFault):  # its start will tell
                self._call("attach to an engine", lambda api: self._consoles.listen(api, handle))
                self._terminals.discard(handle)
        try:
            self._call("start an engine", lambda api: api.start(handle))
        except RuntimeFault as fault:
            self._consoles.forget(handle)
            if fault.kind is FaultKind.BAD_SPEC:
                self._network.forget()
            raise

    def remove(self, handle: str) -> None:
        """Kill and remove it with its volumes; absent, or being removed already, is success."""
        try:
            self._call("remove an engine", lambda api: api.remove_container(handle, v=True, force=True))
        except RuntimeFault as fault:
            if fault.kind is not FaultKind.NOT_FOUND and "already in progress" not in str(fault):
                raise
        self._cpu.forget(handle)
        self._consoles.forget(handle)
        self._terminals.discard(handle)

    def find(self, name: str) -> Seen | None:
        """The engine of that deterministic name, or None; a container of others by that name is none."""
        info = self._inspect(name)
        if info is None or (info["Config"].get("Labels") or {}).get(LABEL_INSTANCE) != self._instance:
            return None
        return docker_view.seen_from_inspect(info)

    def list(self) -> list[Seen]:
        """All engines of this instance; only those that do not run are looked at one by one."""
        items = self._containers({"label": f"{LABEL_INSTANCE}={self._instance}"})
        return [seen for item in items if (seen := self._seen(item)) is not None]

    def logs(self, handle: str, tail: int) -> builtins.list[str]:
        """Its last ``tail`` log lines, oldest first; [] when it is gone."""
        try:
            raw = self._call("read a log", lambda api: api.logs(handle, tail=max(tail, 0)))
        except RuntimeFault as fault:
            if fault.kind is FaultKind.NOT_FOUND or "marked for removal" in str(fault):
                return []
            raise
        return tidy(raw + self._consoles.unfinished(handle), tail)

    def stats(self, handle: str) -> Stats:
        """What it uses now, from the kernel's files if the engine is on this machine, else from Docker (a second)."""
        usage = cgroups.read_usage(handle) or self._asked_usage(handle)
        if usage is None:
            return Stats(None, None)
        return Stats(self._cpu.percent(handle, usage.cpu_s, at=time.monotonic()), usage.memory_bytes)

    def events(self) -> Iterator[HostEvent]:
        """Follow this instance's events, from where the last following ended, until the stream ends or breaks."""
        return self._call("tell its events", self._events.follow)

    def taken_ports(self) -> set[int]:
        """Host ports of all containers, others' too; stopped ones, whose ports a list hides, are inspected once."""
        items = self._containers(None)
        taken: set[int] = set()
        for item in items:
            taken |= docker_view.published(item.get("Ports") or ())
            if not docker_view.alive(item):
                taken |= self._asked_ports(item["Id"])
        with self._lock:
            for gone in self._asked.keys() - {item["Id"] for item in items}:
                del self._asked[gone]
        return taken

    def close(self) -> None:
        """Stop following events and let go of the connections; the engines stay."""
        self._events.close()
        self._consoles.forget_all()
        if self._client is not None:
            self._client.close()

    def _api(self) -> APIClient:
        if self._client is None:
            self._client = DeadlineClient(
                version="auto",
                timeout=self._host.timeout_s,  # type: ignore[arg-type]  # requests takes fractions too
                max_pool_size=self._host.connections,
                **self._arguments,
            )
        return self._client

    def _connected(self) -> APIClient:
        with translated("answer", url=self.url):
            return self._api()

    def _call(self, doing: str, call: Callable[[APIClient], T]) -> T:
        with translated(doing, url=self.url):
            return call(self._api())

    def _create(self, spec: EngineSpec) -> str:
        network = options_of(spec).network or self._call("make the engines' network", self._network.ensure)
        try:
            made = self._call(
                "make an engine", lambda api: api.create_container(**create_arguments(api, spec, network))
            )
        except RuntimeFault as fault:
            if fault.kind is FaultKind.BAD_SPEC:
                self._network.forget()
            raise
        handle = str(made["Id"])
        if options_of(spec).tty:
            self._terminals.add(handle)
        return handle

    def _same(self, there: dict[str, Any], spec: EngineSpec) -> str:
        labels = there["Config"].get("Labels") or {}
        if labels.get(LABEL_ENGINE) != spec.engine_id or labels.get(LABEL_INSTANCE) != self._instance:
            raise RuntimeFault(
                FaultKind.BAD_SPEC,
                f"A container that is not this engine's has its name: remove it with 'docker rm -f {spec.name}'.",
            )
        return str(there["Id"])

    def _inspect(self, name_or_id: str) -> dict[str, Any] | None:
        try:
            return dict(self._call("look at an engine", lambda api: api.inspect_container(name_or_id)))
        except RuntimeFault as fault:
            if fault.kind is FaultKind.NOT_FOUND:
                return None
            raise

    def _containers(self, filters: dict[str, str] | None) -> builtins.list[dict[str, Any]]:
        found = self._call("list its containers", lambda api: api.containers(all=True, filters=filters))
        return builtins.list(found)

    def _seen(self, item: dict[str, Any]) -> Seen | None:
        if docker_view.alive(item):
            return docker_view.seen_from_list(item)
        info = self._inspect(item["Id"])
        return docker_view.seen_from_inspect(info) if info is not None else None

    def _asked_ports(self, container_id: str) -> frozenset[int]:
        with self._lock:
            known = self._asked.get(container_id)
        if known is not None:
            return known
        info = self._inspect(container_id)
        if info is None:
            return frozenset()
        ports = docker_view.asked_ports(info)
        with self._lock:
            self._asked[container_id] = ports
        return ports

    def _asked_usage(self, handle: str) -> cgroups.Usage | None:
        try:
            raw = self._call("measure an engine", lambda api: api.stats(handle, stream=False, one_shot=True))
        except RuntimeFault as fault:
            if fault.kind is FaultKind.NOT_FOUND:
                return None
            raise
        memory, cpu = raw.get("memory_stats", {}), raw.get("cpu_stats", {}).get("cpu_usage", {})
        if "usage" not in memory:  # it does not run
            return None
        inactive = memory.get("stats", {}).get("inactive_file", memory.get("stats", {}).get("total_inactive_file", 0))
        return cgroups.Usage(cpu.get("total_usage", 0) / 1e9, max(0, memory["usage"] - inactive))
