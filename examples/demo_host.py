"""A Cornerman host for the length of a demo: set up in a temporary folder, and gone without a trace afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import docker
import psutil
import requests

from client_sdk import ConnectionFault, Cornerman

REPOSITORY = Path(__file__).resolve().parents[1]
CORNERMAN = Path(sys.executable).with_name("cornerman")
IMAGE = "cornerman/practice-engine:latest"
NETWORK = "cornerman"
UP_WITHIN_S = 60.0
DOWN_WITHIN_S = 20.0


class DemoFault(Exception):
    """The demo cannot go on; the text is one sentence that says what happened and what to do."""


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt, but never between making a thing and noting its undo."""

    def __init__(self) -> None:
        self._held = self._pending = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._former[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._former.items():
            signal.signal(signum, handler)

    def _handle(self, _signum: int, _frame: FrameType | None) -> None:
        if self._held:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let an interruption wait until the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore interruptions from now on: what was started is being ended."""
        for signum in self._former:
            signal.signal(signum, signal.SIG_IGN)


@dataclass(frozen=True)
class Runtime:
    """What engines run as, and in words why."""

    name: str
    why: str


def choose_runtime(choice: str, interrupts: Interrupts) -> Runtime:
    """Docker when an engine answers and has, or can build, the practice image; else child processes."""
    if choice == "process":
        return Runtime("process", "practice engines as child processes, as asked for")
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    fault = _docker_fault(where)
    if fault is None:
        print(f"A Docker Engine answers at {where}; its practice image is made ready.", flush=True)
        fault = _image_fault(interrupts)
    if fault is None:
        return Runtime("docker", f"practice engines in containers of the Docker Engine at {where}")
    if choice == "docker":
        raise DemoFault(f"Docker cannot be used, because {fault}.")
    return Runtime("process", f"practice engines as child processes, because {fault}")


def _docker_fault(where: str) -> str | None:
    """Why engines cannot run there, or None."""
    place = urlsplit(where)
    if place.scheme not in ("unix", "npipe") and place.hostname not in ("localhost", "127.0.0.1", "::1"):
        return f"the Docker Engine at {where} is on another machine"
    try:
        client = docker.DockerClient(base_url=where, version="auto", timeout=10)
    except (docker.errors.DockerException, requests.RequestException) as error:
        return f"no Docker Engine answers at {where}{_detail(error)}"
    client.close()
    return None


def _detail(error: Exception) -> str:
    text = str(error)
    return next((f" ({known})" for known in ("Permission denied", "No such file or directory") if known in text), "")


def _image_fault(interrupts: Interrupts) -> str | None:
    """Build the practice image, or find that it is up to date; why that failed, or None."""
    with ExitStack() as undo:
        with interrupts.held():
            build = subprocess.Popen(
                [REPOSITORY / "deploy" / "build-practice-image.sh", "--tag", IMAGE],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHON": sys.executable},
                start_new_session=True,
            )
            undo.callback(_end_group, build)
        assert build.stderr is not None
        last = "the practice image could not be built"
        for line in build.stderr:
            print(f"  {line.rstrip()}", flush=True)
            last = line.strip().removeprefix("practice image: ") or last
        return None if build.wait() == 0 else f"the practice image could not be built ({last})"


class Host:
    """A daemon with one pool of practice engines on 127.0.0.1."""

    def __init__(self, runtime: Runtime, *, envs: int, interrupts: Interrupts) -> None:
        self._runtime, self._envs, self._interrupts = runtime, envs, interrupts
        self._undo = ExitStack()
        self._pool = f"demo-{secrets.token_hex(4)}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._port = _free_port()
        self.folder = Path()

    @property
    def address(self) -> str:
        """Where its API listens."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> str:
        """Set it up, start its daemon, wait until it answers; its connection string."""
        with self._interrupts.held():
            self.folder = Path(tempfile.mkdtemp(prefix="cornerman-demo-"))
            self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir()
        url = self._init()
        if self._runtime.name == "docker":
            self._note_docker()
        with self._interrupts.held(), (self.folder / "serve.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [CORNERMAN, "serve", "--dir", self.folder],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
            self._undo.callback(_end_group, self._daemon)
        self._await_answer(url)
        return url

    def check(self, *, within_s: float = 0.0) -> None:
        """DemoFault when the daemon has ended, or ends ``within_s``."""
        assert self._daemon is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._daemon.wait(within_s)
            if code < 0:
                raise DemoFault(f"The daemon was killed by {signal.Signals(-code).name}; try again.")
            for line in self._log().splitlines()[-6:-1]:
                print(f"  {line}", file=sys.stderr)
            raise DemoFault(f"The daemon ended with exit code {code}: {_last_line(self._log())}")

    def close(self) -> None:
        """End the daemon and its engines, and remove every file."""
        self._undo.close()
        # An engine host that is gone cannot be told that its lease is over; its heartbeats must not outlive the demo.
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _init(self) -> str:
        choices: dict[str, object] = {
            "dir": self.folder,
            "port": self._port,
            "pool": self._pool,
            "runtime": self._runtime.name,
        }
        choices |= {"expose": "direct", "min-ready": self._envs, "max-engines": 2 * self._envs}
        if self._runtime.name == "docker":
            choices["image"] = IMAGE
        command = [str(CORNERMAN), "init", *(f"--{name}={value}" for name, value in choices.items())]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment(), check=False)
        if done.returncode != 0:
            raise DemoFault(f"The daemon could not be set up: {_last_line(done.stderr)}")
        return done.stdout.strip()

    def _environment(self) -> dict[str, str]:
        """This one's, without settings meant for another daemon; reachable from this machine only."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("CORNERMAN_", "DIAMBRA_"))}
        return {**ours, "CORNERMAN_SERVER__BIND": "127.0.0.1", "TMPDIR": str(self.folder / "tmp")}

    def _await_answer(self, url: str) -> None:
        assert self._daemon is not None
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            self.check()
            with contextlib.suppress(ConnectionFault):
                if _listens(self._port):  # the SDK would try again and again, at longer and longer intervals
                    Cornerman(url).whoami()
                    return
            if time.monotonic() > deadline:
                raise DemoFault(f"The daemon did not answer within {UP_WITHIN_S:g} s: {_last_line(self._log())}")
            time.sleep(0.1)

    def _log(self) -> str:
        return (self.folder / "serve.log").read_text(errors="replace")

    def _note_docker(self) -> None:
        """Games in Docker go on without the daemon: note how to remove this pool's containers, and the network if new."""
        client = docker.from_env(timeout=60)
        self._undo.callback(client.close)
        if not client.networks.list(names=[f"^{NETWORK}$"]):
            self._undo.callback(_remove_network, client)
        self._undo.callback(_remove_containers, client, self._pool)


def _remove_containers(client: docker.DockerClient, pool: str) -> None:
    found = client.api.containers(all=True, quiet=True, filters={"label": f"cornerman.pool={pool}"})
    for container in found:
        with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
            client.api.remove_container(container["Id"], force=True, v=True)


def _remove_network(client: docker.DockerClient) -> None:
    for network in client.networks.list(names=[f"^{NETWORK}$"]):
        with contextlib.suppress(docker.errors.APIError):  # somebody else uses it by now
            network.remove()


def _end_group(process: subprocess.Popen[Any]) -> None:
    """SIGTERM to a process that leads a session of its own, then SIGKILL to what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DOWN_WITHIN_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(lines[-1])["event"])  # the daemon's log
    return lines[-1].removeprefix("Error: ")
