"""The engine hosts that the contract tests run against, each with its own way to make an engine misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import socket
import sys
import tarfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import docker

from orchestrator.config import DockerHostConfig, DockerOptions, ProcessOptions
from orchestrator.interfaces import EngineSpec, Probe, Runtime
from orchestrator.probes import GrpcProbe
from orchestrator.runtimes.docker import DockerRuntime
from orchestrator.runtimes.fake import FakeHost, FakeRuntime
from orchestrator.runtimes.process import ProcessRuntime
from tests.support.ports import free_port
from tests.support.waiting import wait_until

STUB = Path(__file__).with_name("stub_engine.py")


class EngineHost(Protocol):
    """One kind of engine host under test."""

    @property
    def kind(self) -> str: ...
    @property
    def instance(self) -> str: ...
    @property
    def image(self) -> str: ...
    @property
    def options(self) -> object: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def probe(self) -> Probe: ...

    def another(self, instance: str) -> Runtime:
        """A runtime of another instance on the same host; the caller closes it."""

    def end(self, spec: EngineSpec, exit_code: int) -> None:
        """Make a running engine end by itself."""

    def kill(self, spec: EngineSpec) -> None:
        """Kill a running engine from outside, without its runtime."""

    def say(self, spec: EngineSpec, *lines: str) -> None:
        """Make a running engine write lines to its log."""

    def hold_port(self, port: int) -> contextlib.AbstractContextManager[object]:
        """Something that is no engine listens on ``port``."""

    def cleanup(self) -> None:
        """Remove every engine of this test, and end."""


def tell_stub(port: int, command: str, *, timeout_s: float = 20.0) -> str:
    """Send one command to the stub engine behind ``port``; returns its answer, "" when it ended over it."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as peer:
        peer.sendall(command.encode() + b"\n")
        with peer.makefile("rb") as answers, contextlib.suppress(ConnectionResetError):
            answers.read(9)  # its greeting
            return answers.readline().decode().strip()
    return ""


class Specs:
    """Makes specs of different engines."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._numbers = itertools.count(1)

    def __call__(self, *, options: dict[str, Any] | None = None, **changes: Any) -> EngineSpec:
        """A new engine's spec with a free port; ``options`` and ``changes`` replace what is named."""
        number = next(self._numbers)
        base = self._host.options
        if options:
            base = base.model_copy(update=options)  # type: ignore[attr-defined]
        spec = EngineSpec(
            engine_id=f"e{number}",
            name=f"cornerman-{self._host.instance}-e{number}",
            instance=self._host.instance,
            pool="main",
            image=self._host.image,
            host="127.0.0.1",
            port=changes.pop("port", None) or free_port(),
            options=base,
        )
        return replace(spec, **changes)


class StubHost:
    """What process and Docker hosts have in common: stub engines on real ports."""

    kind: str
    instance: str
    runtime: Runtime

    def __init__(self) -> None:
        self.instance = f"t{uuid.uuid4().hex[:8]}"
        self.probe: Probe = GrpcProbe()
        self._others: list[Runtime] = []

    def end(self, spec: EngineSpec, exit_code: int) -> None:
        tell_stub(spec.port, f"EXIT {exit_code}")

    def kill(self, spec: EngineSpec) -> None:
        raise NotImplementedError

    def say(self, spec: EngineSpec, *lines: str) -> None:
        for line in lines:
            assert tell_stub(spec.port, f"SAY {line}") == "done"

    @contextlib.contextmanager
    def hold_port(self, port: int) -> Any:
        with socket.create_server(("127.0.0.1", port)) as listener:
            yield listener

    def cleanup(self) -> None:
        for runtime in (self.runtime, *self._others):
            for seen in runtime.list():
                runtime.remove(seen.handle)
            runtime.close()


class ProcessHost(StubHost):
    """Child processes."""

    kind = "process"
    image = "stub"

    def __init__(self) -> None:
        super().__init__()
        self.options: object = ProcessOptions(command=(sys.executable, str(STUB)))
        self.runtime = ProcessRuntime(self.instance)

    def another(self, instance: str) -> Runtime:
        runtime = ProcessRuntime(instance)
        self._others.append(runtime)
        return runtime

    def kill(self, spec: EngineSpec) -> None:
        tell_stub(spec.port, "RUN os.kill(os.getpid(), 9)")


class DockerHost(StubHost):
    """Containers of a real Docker Engine."""

    kind = "docker"

    def __init__(self, url: str, image: str) -> None:
        super().__init__()
        self.url, self.image = url, image
        self.options: object = DockerOptions(memory_mb=64, tmpfs_mb=16)
        self.runtime = DockerRuntime(DockerHostConfig(url=url), self.instance)
        self.client = docker.DockerClient(base_url=url, version="auto", timeout=60)

    def another(self, instance: str) -> Runtime:
        runtime = DockerRuntime(DockerHostConfig(url=self.url), instance)
        self._others.append(runtime)
        return runtime

    def kill(self, spec: EngineSpec) -> None:
        self.client.containers.get(spec.name).kill()

    def inspect(self, spec: EngineSpec) -> dict[str, Any]:
        """All that Docker says of an engine."""
        return dict(self.client.api.inspect_container(spec.name))

    def cleanup(self) -> None:
        super().cleanup()
        self.client.close()


class MemoryHost:
    """The fake."""

    kind = "fake"
    image = "stub"
    options: object = None

    def __init__(self) -> None:
        self.instance = f"t{uuid.uuid4().hex[:8]}"
        self.host = FakeHost()
        self.runtime = FakeRuntime(self.instance, self.host)
        self.probe: Probe = self.host.probe
        self._others: list[Runtime] = []

    def another(self, instance: str) -> Runtime:
        runtime = FakeRuntime(instance, self.host)
        self._others.append(runtime)
        return runtime

    def end(self, spec: EngineSpec, exit_code: int) -> None:
        self.host.kill(spec.name, exit_code=exit_code)

    def kill(self, spec: EngineSpec) -> None:
        self.host.kill(spec.name)

    def say(self, spec: EngineSpec, *lines: str) -> None:
        self.host.write_log(spec.name, *lines)

    @contextlib.contextmanager
    def hold_port(self, port: int) -> Any:
        self.host.hold_port(port)
        yield
        self.host.free_port(port)

    def cleanup(self) -> None:
        for runtime in (self.runtime, *self._others):
            runtime.close()


def python_base(url: str) -> str | None:
    """An image with a bare Python that is on the host already, or None."""
    client = docker.DockerClient(base_url=url, version="auto", timeout=60)
    try:
        tags = {tag for image in client.images.list() for tag in image.tags}
    finally:
        client.close()
    return next((name for name in ("cornerman-base:bookworm", "python:3.11-slim") if name in tags), None)


def build_stub_image(url: str, base: str) -> str:
    """The name of an image whose program is the stub engine, made on ``base`` unless it is there already."""
    source = STUB.read_bytes()
    dockerfile = f'FROM {base}\nCOPY stub_engine.py /stub_engine.py\nENTRYPOINT ["python3", "/stub_engine.py"]\n'
    tag = "cornerman-test/stub:" + hashlib.sha256(source + dockerfile.encode()).hexdigest()[:12]
    client = docker.DockerClient(base_url=url, version="auto", timeout=120)
    try:
        if any(tag in image.tags for image in client.images.list()):
            return tag
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as archive:
            for name, data in (("Dockerfile", dockerfile.encode()), ("stub_engine.py", source)):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o644
                archive.addfile(entry, io.BytesIO(data))
        context.seek(0)
        client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True, forcerm=True)
    finally:
        client.close()
    return tag


def launch(host: EngineHost, spec: EngineSpec) -> str:
    """Create and start an engine and wait until it answers; returns its handle."""
    handle = host.runtime.create(spec)
    host.runtime.start(handle)
    wait_ready(host, spec)
    return handle


def wait_ready(host: EngineHost, spec: EngineSpec) -> None:
    """Wait until an engine answers the probe."""
    wait_until(lambda: host.probe("127.0.0.1", spec.port, timeout_s=5), 20, what=f"an answer of {spec.name}")


def wait_ended(host: EngineHost, spec: EngineSpec) -> None:
    """Wait until the host shows an engine as ended."""

    def ended() -> bool:
        seen = host.runtime.find(spec.name)
        return seen is not None and not seen.running

    wait_until(ended, 20, what=f"the end of {spec.name}")
