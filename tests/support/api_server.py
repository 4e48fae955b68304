"""The API process as the daemon starts it, over real TLS, with engines that a test puts into the store."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator import tls
from orchestrator.auth import issue_token
from orchestrator.config import Config, load
from orchestrator.model import Engine, EngineState, Scope
from orchestrator.store import engines, meta, pools
from orchestrator.store.database import Database
from tests.support.ports import free_port
from tests.support.processes import end_group
from tests.support.waiting import wait_until

NAME = "cornerman.internal"


class ApiServer:
    """One API process in a folder of its own; ``admin`` and ``lease`` are tokens of these scopes."""

    def __init__(self, folder: Path, *, engine_count: int = 0, server: dict[str, Any] | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.config_file = folder / "cornerman.toml"
        settings = {"bind": "127.0.0.1", "port": self.port, **(server or {})}
        lines = [f"state_dir = {json.dumps(str(folder / 'state'))}", "[server]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        lines += ["[pools.main]", 'runtime = "fake"', 'image = "engine:1"', "max_engines = 500"]
        lines += ['recycle = "reuse"', "max_uses = 1000000"]
        self.config_file.write_text("\n".join(lines))
        self.config: Config = load(self.config_file)
        tls.ensure(self.config.state_dir, public_host="127.0.0.1", now=datetime.datetime.now(datetime.timezone.utc))
        self.database = Database.open(self.config.database)
        self._fill(engine_count)
        self.context = ssl.create_default_context(cafile=str(tls.files(self.config.state_dir).ca))
        self.log = folder / "api.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._alive = threading.Event()

    def _fill(self, engine_count: int) -> None:
        now = time.time()
        with self.database.write() as db:
            pools.configure(db, "main", min_ready=0, max_engines=500, image="engine:1")
            self.admin = issue_token(db, principal="root", scope=Scope.ADMIN, now=now)
            self.lease = issue_token(db, principal="ann", scope=Scope.LEASE, now=now)
            meta.put(db, "host_fault", "")
            for number in range(engine_count):
                engine = Engine(
                    id=f"e-{number}",
                    pool="main",
                    runtime="fake",
                    state=EngineState.READY,
                    state_since=now,
                    name=f"cornerman-{number}",
                    image="engine:1",
                    host="127.0.0.1",
                    port=32000 + number,
                    created_at=now,
                    ready_at=now,
                )
                engines.insert(db, engine)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the process, and do not wait for it."""
        if self._process is not None and self._process.stdin:
            self._process.stdin.close()
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "orchestrator.api.server", "--config", str(self.config_file)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env={**os.environ}
            )
        return self._process

    def start(self) -> None:
        """Start the process and wait until it answers; something plays the pool process's signs of life."""
        self.spawn()
        threading.Thread(target=self._live, daemon=True).start()
        wait_until(self._answers, 30, what=f"an answer on port {self.port} (log: {self.log.read_text()})")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError), contextlib.closing(self.connect()) as connection:
            return Client(connection, None).call("GET", "/readyz")[0] == 200
        return False

    def _live(self) -> None:
        while not self._alive.wait(0):
            with contextlib.suppress(Exception), self.database.write() as db:
                meta.put(db, "pool_alive_at", repr(time.time()))
            self._alive.wait(2)

    def connect(self, *, timeout_s: float = 30.0, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """A new connection, its certificate held against the CA."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s, source_address=(source, 0))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context.wrap_socket(raw, server_hostname=NAME)

    @contextlib.contextmanager
    def client(self, token: str | None = None, *, timeout_s: float = 30.0) -> Iterator[Client]:
        """A client on a connection of its own, of lease scope unless told otherwise."""
        with contextlib.closing(self.connect(timeout_s=timeout_s)) as connection:
            yield Client(connection, self.lease if token is None else token)

    def stop(self) -> None:
        """End whatever is there."""
        self._alive.set()
        if self._process is not None:
            if self._process.stdin:
                self._process.stdin.close()
            end_group(self._process)
        self.database.close()


class Client:
    """Calls over one keep-alive connection, one after the other."""

    def __init__(self, connection: ssl.SSLSocket, token: str | None) -> None:
        self.connection, self._token = connection, token

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        """Send a request without waiting for its answer."""
        lines = [f"{method} {path} HTTP/1.1", "Host: cornerman.internal"]
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        data = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)

    def receive(self, method: str = "GET") -> tuple[int, http.client.HTTPMessage, bytes]:
        """The answer to what was sent last."""
        response = http.client.HTTPResponse(self.connection, method=method)
        response.begin()
        return response.status, response.headers, response.read()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """One call: (status, what its JSON says, or None)."""
        self.send(method, path, body, **headers)
        status, _, data = self.receive(method)
        return status, json.loads(data) if data else None


def renew_for(server: ApiServer, *, seconds: float, leases: int) -> float:
    """Several holders renew their leases one after the other; the slowest heartbeat's time."""
    worst = [0.0] * leases

    def hold(number: int) -> None:
        with server.client() as client:
            status, lease = client.call("POST", "/v1/leases", {"envs": 1, "wait": False, "note": str(number)})
            assert status in (201, 409), lease
            if status == 409:  # behind the one that waits for 400
                status, lease = client.call("POST", "/v1/leases", {"envs": 1, "wait": True})
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                began = time.monotonic()
                assert client.call("POST", f"/v1/leases/{lease['id']}/renew")[0] == 200
                worst[number] = max(worst[number], time.monotonic() - began)
                time.sleep(0.1)

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(leases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(worst)
    return max(worst)
