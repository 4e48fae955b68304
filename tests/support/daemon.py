"""Running the installed ``cornerman`` as a user does: init, serve, stop; and what it must not leave behind."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import ports, processes
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 30.0
FAMILY_MARK = "TESTS_DAEMON"


def cornerman() -> Path:
    """The installed command: this environment's, else the development environment's (the SDK's own have no daemon)."""
    beside = Path(sys.executable).parent / "cornerman"
    main = ROOT / ".venv" / "bin" / "cornerman"
    return main if main.exists() and ".venv-3" in str(beside) else beside


class Daemon:
    """One installation in a folder of its own, with its daemon running or not."""

    def __init__(self, folder: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.config = folder / "cornerman.toml"
        self.log = folder / "daemon.log"
        self.port = 0
        self.url = ""
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.env.pop("CORNERMAN_URL", None)
        self.env[FAMILY_MARK] = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def admin_url(self) -> str:
        """The administrator's connection string."""
        return (self.folder / "admin.url").read_text().strip()

    @property
    def pid(self) -> int:
        """The process of ``cornerman serve``."""
        assert self._process is not None, "the daemon was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether ``cornerman serve`` runs."""
        return self._process is not None and self._process.poll() is None

    def family(self) -> dict[int, str]:
        """Pid and command line of all its living processes: pool, API and practice engines, which have sessions of their own."""
        return processes.marked_processes(self.env[FAMILY_MARK], name=FAMILY_MARK)

    @property
    def exit_code(self) -> int | None:
        """How ``cornerman serve`` ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def instance(self) -> str:
        """What its containers carry in the label ``cornerman.instance``."""
        with contextlib.closing(sqlite3.connect(self.database)) as database:
            row = database.execute("SELECT value FROM meta WHERE key = 'instance'").fetchone()
        return str(row[0])

    @property
    def database(self) -> Path:
        """Its database file."""
        (found,) = (self.folder / "state").glob("*.db")
        return found

    def run(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run ``cornerman`` with these arguments to its end."""
        command = [str(cornerman()), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=timeout_s)

    def init(self, *options: str, settings: Mapping[str, Any] | None = None) -> str:
        """``cornerman init`` on ports of the test's own, changed by ``settings``; returns the lease-scope string."""
        self.port = self.port or ports.free_port()
        done = self.run("init", "--dir", str(self.folder), "--port", str(self.port), *options)
        assert done.returncode == 0, f"cornerman init failed:\n{done.stderr}"
        self.url = done.stdout.strip()
        room = 40
        first = ports.free_port_range(room)
        self.change({"first_port": first, "last_port": first + room - 1, "server": {"bind": "127.0.0.1"}})
        self.change(settings or {})
        return self.url

    def change(self, settings: Mapping[str, Any]) -> None:
        """Change the configuration file: a nested mapping as the file has it, for the next start."""
        values = _read_toml(self.config)
        _merge(values, settings)
        self.config.write_text("\n".join(_toml_lines(values)) + "\n")

    def start(self, *, ready_timeout_s: float | None = 60.0) -> None:
        """Start ``cornerman serve``, and wait until it can lease; None does not wait."""
        assert not self.running, "the daemon runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [cornerman(), "serve", "--dir", str(self.folder)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if ready_timeout_s is not None:
            self.wait_ready(ready_timeout_s)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until /readyz says that it can lease; AssertionError with the end of its log when it ends or does not."""
        try:
            wait_until(lambda: not self.running or self.ready(), timeout_s, what="/readyz", poll_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; the daemon's log ends:\n{self.log_tail()}") from error
        assert self.running, f"the daemon ended with exit code {self.exit_code}; its log ends:\n{self.log_tail()}"

    def ready(self) -> bool:
        """Whether /readyz answers 200."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/readyz")[0] == 200
        return False

    def get(self, path: str, *, token: str = "", timeout_s: float = 10.0) -> tuple[int, bytes]:
        """Status and body of a plain GET, without looking at the certificate (the SDK's tests do)."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=context)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def log_tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def stop(self, *, number: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ask it to stop, wait, and return its exit code; AssertionError when processes of it are left."""
        process = self._process
        assert process is not None, "the daemon was not started"
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._end()
            raise AssertionError(
                f"the daemon did not stop in {timeout_s:g} s; its log ends:\n{self.log_tail()}"
            ) from None
        try:
            wait_until(lambda: not self.family(), 5, what="the end of the daemon's processes")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.family()}") from None
        finally:
            self._end()
        return code

    def kill(self) -> None:
        """SIGKILL to the one process ``cornerman serve``, as a crash would have it."""
        assert self._process is not None, "the daemon was not started"
        self._process.kill()
        self._process.wait(10)

    def close(self, *, docker_host: str | None = None) -> None:
        """Stop it if it runs, and remove what it has on the engine host: nothing of it outlives its test."""
        try:
            if self.running:
                self.stop()
        finally:
            self._end()
            if docker_host is not None and (self.folder / "state").is_dir():
                remove_engines(docker_host, self.instance)

    def _end(self) -> None:
        if self._process is not None:
            processes.end_group(self._process)
        processes.kill(self.family())
        wait_until(lambda: not self.family(), 10, what="the end of the daemon's processes after SIGKILL")


def engine_containers(docker_host: str, instance: str) -> list[str]:
    """Names of the containers, running or not, that carry the instance's label."""
    from tests.support.docker_engine import connect

    client = connect(docker_host)
    try:
        found = client.api.containers(all=True, filters={"label": f"cornerman.instance={instance}"})
    finally:
        client.close()
    return sorted(container["Names"][0].removeprefix("/") for container in found)


def remove_engines(docker_host: str, instance: str) -> None:
    """Remove every container and network that carries the instance's label."""
    from docker.errors import APIError

    from tests.support.docker_engine import connect

    client = connect(docker_host)
    try:
        label = {"label": f"cornerman.instance={instance}"}
        for container in client.api.containers(all=True, filters=label):
            with contextlib.suppress(APIError):  # gone, or going, already
                client.api.remove_container(container["Id"], force=True)
        for network in client.api.networks(filters=label):
            with contextlib.suppress(APIError):
                client.api.remove_network(network["Id"])
    finally:
        client.close()


def _read_toml(path: Path) -> dict[str, Any]:
    toml = importlib.import_module("tomllib")  # of Python 3.11, which the daemon needs anyway
    values: dict[str, Any] = toml.loads(path.read_text())
    return values


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _toml_lines(values: Mapping[str, Any], path: Sequence[str] = ()) -> list[str]:
    """TOML of nested mappings; a JSON scalar or list of scalars is TOML as well, None leaves a setting out."""
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path else []
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping) and value is not None}
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _toml_lines(value, (*path, key))
    return lines
