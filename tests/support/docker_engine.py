"""The Docker Engine that tests use, and engines of a test's own that it may kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import docker
import requests

from tests.support.processes import alive
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_HOST = "unix:///var/run/docker.sock"
PRACTICE_IMAGE = "cornerman/practice-engine:latest"


def connect(host: str, *, timeout_s: int = 60) -> docker.DockerClient:
    """A client of the engine at ``host``."""
    return docker.DockerClient(base_url=host, version="auto", timeout=timeout_s)


def find_host() -> str | None:
    """The address of the engine in use: DOCKER_HOST, else the default socket; None when it does not answer."""
    host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    return host if _answers(host) else None


def _answers(host: str) -> bool:
    try:
        client = connect(host, timeout_s=20)
    except (docker.errors.DockerException, requests.RequestException):
        return False
    client.close()
    return True


def engines_of(host: str, instance: str) -> list[str]:
    """Names of the containers, running or not, that carry an installation's label."""
    client = connect(host)
    try:
        found = client.api.containers(all=True, filters={"label": f"cornerman.instance={instance}"})
    finally:
        client.close()
    return sorted(container["Names"][0].removeprefix("/") for container in found)


def remove_engines(host: str, instance: str) -> None:
    """Remove every container that carries an installation's label; they outlive their daemon on purpose."""
    client = connect(host)
    try:
        for container in client.api.containers(all=True, filters={"label": f"cornerman.instance={instance}"}):
            with contextlib.suppress(docker.errors.APIError):  # gone, or going, already
                client.api.remove_container(container["Id"], force=True)
    finally:
        client.close()


@dataclass(frozen=True)
class PrivateEngine:
    """A Docker Engine of a test's own, which may be killed; beside another one it sets no firewall rules."""

    folder: Path
    images_from: str

    @property
    def host(self) -> str:
        """Its DOCKER_HOST."""
        return f"unix://{self.folder / 'docker.sock'}"

    @property
    def pid(self) -> int:
        """The process of its dockerd."""
        return int((self.folder / "docker.pid").read_text())

    def start(self) -> None:
        """Start it, or start it again after ``kill`` or ``terminate``, with the containers it had."""
        self._run("start")

    def terminate(self) -> None:
        """End dockerd as a host that shuts down does (SIGTERM), keeping containers and networks for the next start."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End dockerd as a crash does (SIGKILL): its containers live on."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Make it hang: it accepts connections and answers nothing until ``resume``."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop it in good order: its containers and networks go, its images stay."""
        self._run("stop")

    def wipe(self) -> None:
        """Stop it, and remove it with all its containers and images."""
        if (self.folder / "docker.pid").exists() and alive(self.pid):
            self.resume()
        self._run("wipe")

    def copy_image(self, name: str) -> None:
        """Copy an image over from the engine it was made beside."""
        source, target = connect(self.images_from), connect(self.host, timeout_s=120)
        try:
            loaded = target.images.load(source.images.get(name).save(named=True))  # type: ignore[arg-type]
            assert loaded, f"image {name} could not be copied"
        finally:
            source.close()
            target.close()

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        os.kill(pid, number)
        wait_until(lambda: not alive(pid), 40, what=f"the end of dockerd (process {pid})")

    def _run(self, command: str) -> None:
        script = ROOT / "scripts" / "private-dockerd"
        done = subprocess.run(
            [script, command, "--dir", self.folder], capture_output=True, text=True, check=False, timeout=150
        )
        assert done.returncode == 0, f"private-dockerd {command} failed:\n{done.stderr}"
