"""A real daemon of a test's own: the installed command, in a folder of its own, that may be killed and started again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from client_sdk._admin_api import AdminApi
from client_sdk._api import Api
from client_sdk._http import Session
from client_sdk._url import parse
from orchestrator import config
from orchestrator.config import Config
from tests.support.ports import free_port, free_port_range
from tests.support.processes import FAMILY_MARK, marked_processes
from tests.support.waiting import wait_until

CORNERMAN = Path(sys.executable).with_name("cornerman")
UP_S, DOWN_S = 60.0, 30.0


@dataclass
class RealDaemon:
    """``init`` was run in ``folder``; ``url`` is the lease-scope string it printed."""

    folder: Path
    port: int
    url: str
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """All that its daemons wrote."""
        path = self.folder / "serve.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def admin_url(self) -> str:
        """The administrator's connection string."""
        return (self.folder / "admin.url").read_text().strip()

    @property
    def config(self) -> Config:
        """What the daemon reads."""
        return config.load(self.folder / "cornerman.toml")

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """One ``cornerman`` command beside it."""
        return cornerman(*arguments, environ={**self.environ, **(environ or {})})

    def start(self, *options: str, wait: bool = True) -> None:
        """Start its daemon with these ``options``; with ``wait`` it has said READY to its supervisor when this returns."""
        address = self.folder / "notify"
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.bind(str(address))
            supervisor.settimeout(0.1)
            with (self.folder / "serve.log").open("ab") as log:
                self.process = subprocess.Popen(
                    [CORNERMAN, "serve", "--dir", self.folder, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**_clean(), **self.environ, "NOTIFY_SOCKET": str(address)},
                    start_new_session=True,
                )
            if wait:
                wait_until(lambda: self._ready(supervisor), UP_S, what=f"READY of the daemon, which wrote:\n{self.log}")

    def _ready(self, supervisor: socket.socket) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log}"
        with contextlib.suppress(TimeoutError):
            return supervisor.recv(4096) == b"READY=1"
        return False

    def kill(self) -> None:
        """SIGKILL to the daemon's own process; what it had started has to cope."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(DOWN_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it in good order; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DOWN_S)

    def close(self) -> None:
        """End whatever of it is left."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(DOWN_S)
        if self.process.poll() is None:
            self.kill()

    @contextlib.contextmanager
    def session(self, url: str | None = None) -> Iterator[Session]:
        """A session with its API, the administrator's by default."""
        session = Session(parse(self.admin_url if url is None else url))
        try:
            yield session
        finally:
            session.close()

    @contextlib.contextmanager
    def admin(self) -> Iterator[tuple[AdminApi, Api]]:
        """Its API as the administrator has it."""
        with self.session() as session:
            yield AdminApi(session), Api(session)

    @property
    def instance(self) -> str:
        """What its containers carry in the label ``cornerman.instance``."""
        with contextlib.closing(sqlite3.connect(self.config.database)) as database:
            row = database.execute("SELECT value FROM meta WHERE key = 'instance'").fetchone()
        return str(row[0])

    def family(self) -> dict[int, str]:
        """Pid and command line of all its living processes: pool, API and practice engines, in sessions of their own."""
        return marked_processes(self.environ[FAMILY_MARK], name=FAMILY_MARK)

    def engine_pid(self, address: str | None) -> int:
        """The process of the practice engine that listens at ``address``."""
        port = (address or "").rpartition(":")[2]
        (pid,) = [pid for pid, line in self.family().items() if re.search(rf"practice_engine\b.*\b{port}\b", line)]
        return pid

    def api_pids(self) -> set[int]:
        """The living processes of its API."""
        return {pid for pid, line in self.family().items() if "orchestrator.api.server" in line}

    def relay_pids(self) -> set[int]:
        """The living processes of its relay."""
        return {pid for pid, line in self.family().items() if "orchestrator.relay" in line}


def set_up(
    folder: Path,
    *arguments: str,
    ports: int = 40,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> RealDaemon:
    """Run ``cornerman init`` with ``arguments`` and free ports; ``settings`` replace lines of the file by their name."""
    port, relay, first = free_port(), free_port(), free_port_range(ports)
    where = ("--dir", str(folder), "--port", str(port), "--relay-port", str(relay))
    done = cornerman("init", *where, *arguments, environ=environ)
    assert done.returncode == 0, done.stderr
    path = folder / "cornerman.toml"
    text = path.read_text()
    wanted = {"bind": '"127.0.0.1"', "first_port": str(first), "last_port": str(first + ports - 1), **(settings or {})}
    for name, value in wanted.items():
        text, count = re.subn(rf"^#?{name} = .*$", f"{name} = {value}", text, count=1, flags=re.MULTILINE)
        assert count == 1, f"there is no setting {name} in the file"
    path.write_text(text)
    own = {FAMILY_MARK: uuid.uuid4().hex, **(environ or {})}
    return RealDaemon(folder, port, done.stdout.strip(), own)


def cornerman(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installed command to its end."""
    return subprocess.run(
        [CORNERMAN, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**_clean(), **(environ or {})},
        check=False,
    )


def _clean() -> dict[str, str]:
    """This environment without settings meant for another daemon; the mark of this run stays."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "CORNERMAN_TEST_RUN" or not name.startswith(("CORNERMAN_", "NOTIFY_", "WATCHDOG_"))
    }
