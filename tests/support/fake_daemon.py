"""A stand-in for the daemon: the wire models over plain HTTP, with faults to order. It leases, queues and expires."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlsplit

from client_sdk import models
from client_sdk.models import ENDED_LEASE_STATES, EnvState, LeaseState

TOKEN = "fake-token-3f9a"


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None
    at: float


@dataclass
class Refusal(Exception):
    """A problem document to answer with."""

    status: int
    slug: str
    detail: str
    retry_after_s: float | None = None


@dataclass
class Held:
    """A lease on the books of the fake; ``until`` is monotonic."""

    model: models.Lease
    until: float
    key: str | None


# A fault looks at a request and may refuse it, wait, or return "drop" (do it, but lose the answer) or "cut" (do nothing).
Fault = Callable[[Seen], str | None]


@dataclass
class FakeDaemon:
    """Books of the fake, and its address: ``url`` is a connection string for it."""

    capacity: int = 8
    ttl_s: float | None = None  # overrides what is asked for, so that tests need not wait
    version: str | None = "1"
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    leases: dict[str, Held] = field(default_factory=dict)
    ca_pem: str = ""
    relay: models.Relay | None = None  # where leases are told to find their lanes
    pool_fault: str | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _engines: int = 0

    @property
    def url(self) -> str:
        return f"cornerman+http://{TOKEN}@127.0.0.1:{self.port}"

    def calls(self, method: str, pattern: str) -> list[Seen]:
        """The requests so far whose method and path match."""
        return [seen for seen in list(self.seen) if seen.method == method and re.fullmatch(pattern, seen.path)]

    @property
    def renewals(self) -> list[Seen]:
        return self.calls("POST", r"/v1/leases/[^/]+/renew")

    def pools(self) -> models.PoolList:
        """Its one pool, with what is wrong with it."""
        return models.PoolList(
            pools=[
                models.Pool(
                    name="default",
                    runtime="process",
                    image="practice",
                    allowed_images=["practice"],
                    expose="local",
                    min_ready=0,
                    max_engines=self.capacity,
                    paused=False,
                    degraded=self.pool_fault is not None,
                    fault=self.pool_fault,
                    fault_at=None,
                    counts={},
                    wanted=0,
                    pending_leases=0,
                    active_leases=0,
                )
            ]
        )

    def state(self, lease_id: str) -> LeaseState:
        """The state of a lease now, expiry included."""
        with self._changed:
            self._expire()
            return self.leases[lease_id].model.state

    def end(self, lease_id: str, state: LeaseState, because: str) -> None:
        """End a lease from the daemon's side."""
        with self._changed:
            self._end(self.leases[lease_id], state, because)

    def fail_engine(self, lease_id: str, rank: int) -> None:
        """Give a slot a fresh engine, as after a crash."""
        with self._changed:
            self._replace(self.leases[lease_id], rank)

    def announce(self, lease_id: str, ends_at: datetime | None) -> None:
        """Say that a lease ends because nobody plays, or that somebody does."""
        with self._changed:
            self._update(self.leases[lease_id], idle_release_at=ends_at)

    # ------------------------------------------------------------ the API

    def create(self, request: models.LeaseRequest, key: str | None) -> tuple[int, models.Lease]:
        with self._changed:
            self._expire()
            for held in self.leases.values():
                if key is not None and held.key == key:
                    return 201, held.model
            if request.envs > self.capacity:
                raise Refusal(422, "unprocessable", f"The pool holds {self.capacity} engines at most; ask for fewer.")
            ttl_s = request.ttl_s if self.ttl_s is None else self.ttl_s
            now = datetime.now(timezone.utc)
            model = models.Lease(
                id=f"l-{uuid.uuid4().hex[:8]}",
                state=LeaseState.PENDING,
                pool=request.pool or "default",
                holder="tester",
                labels=request.labels,
                note=request.note,
                envs_wanted=request.envs,
                created_at=now,
                expires_at=now + timedelta(seconds=ttl_s),
                ttl_s=ttl_s,
                queue_position=1,
                ended_because=None,
                version=1,
                relay=self.relay,
                envs=[],
            )
            if not request.wait and self._free() < request.envs:
                raise Refusal(409, "pool-exhausted", "All engines are leased; try again or wait.", 3.0)
            held = Held(model, time.monotonic() + ttl_s, key)
            self.leases[model.id] = held
            self._grant()
            return (201 if held.model.state is LeaseState.ACTIVE else 202), held.model

    def show(self, lease_id: str, wait_s: float, after_version: int) -> models.Lease:
        deadline = time.monotonic() + wait_s
        with self._changed:
            while True:
                self._expire()
                model = self._held(lease_id).model
                if model.version > after_version or time.monotonic() >= deadline:
                    return model
                self._changed.wait(0.05)

    def renew(self, lease_id: str) -> models.Lease:
        with self._changed:
            self._expire()
            held = self._held(lease_id)
            if held.model.state in ENDED_LEASE_STATES:
                raise Refusal(410, "lease-ended", f"The lease has ended: {held.model.ended_because}.")
            held.until = time.monotonic() + held.model.ttl_s
            self._update(held, bump=False, expires_at=datetime.now(timezone.utc) + timedelta(seconds=held.model.ttl_s))
            return held.model

    def replace(self, lease_id: str, rank: int, request: models.ReplaceRequest) -> models.Lease:
        with self._changed:
            held = self._held(lease_id)
            if held.model.envs[rank].generation == request.generation:
                self._replace(held, rank)
            return held.model

    def release(self, lease_id: str) -> None:
        with self._changed:
            self._end(self._held(lease_id), LeaseState.RELEASED, "released by its holder")

    # ------------------------------------------------------------ books

    def _held(self, lease_id: str) -> Held:
        if lease_id not in self.leases:
            raise Refusal(404, "not-found", f"There is no lease {lease_id}.")
        return self.leases[lease_id]

    def _free(self) -> int:
        return self.capacity - sum(len(held.model.envs) for held in self.leases.values())

    def _env(self, rank: int, generation: int) -> models.Env:
        self._engines += 1
        number = self._engines
        return models.Env(
            rank=rank,
            engine_id=f"e-{number}",
            generation=generation,
            state=EnvState.READY,
            address=f"127.0.0.1:{32000 + number}",
        )

    def _update(self, held: Held, *, bump: bool = True, **changes: Any) -> None:
        version = held.model.version + (1 if bump else 0)
        held.model = held.model.model_copy(update={**changes, "version": version})
        self._changed.notify_all()

    def _grant(self) -> None:
        place = 0
        for held in self.leases.values():
            if held.model.state is not LeaseState.PENDING:
                continue
            wanted = held.model.envs_wanted
            if place == 0 and self._free() >= wanted:
                envs = [self._env(rank, 1) for rank in range(wanted)]
                self._update(held, state=LeaseState.ACTIVE, queue_position=None, envs=envs)
            else:
                place += 1
                if held.model.queue_position != place:
                    self._update(held, queue_position=place)

    def _replace(self, held: Held, rank: int) -> None:
        envs = list(held.model.envs)
        envs[rank] = self._env(rank, envs[rank].generation + 1)
        self._update(held, envs=envs)

    def _end(self, held: Held, state: LeaseState, because: str) -> None:
        if held.model.state not in ENDED_LEASE_STATES:
            self._update(held, state=state, ended_because=because, queue_position=None, envs=[])
            self._grant()

    def _expire(self) -> None:
        for held in list(self.leases.values()):
            if time.monotonic() > held.until:
                self._end(held, LeaseState.EXPIRED, "it was not renewed in time")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: FakeDaemon

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_GET

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else None
        url = urlsplit(self.path)
        seen = Seen(self.command, url.path, dict(self.headers), body, time.monotonic())
        self.daemon.seen.append(seen)
        try:
            wish = None
            for fault in list(self.daemon.faults):
                wish = wish or fault(seen)
            if wish == "cut":
                self.close_connection = True
                return
            status, answer = self._route(seen, {name: values[0] for name, values in parse_qs(url.query).items()})
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if wish == "drop":
            self.close_connection = True
            return
        self._answer(status, answer, "application/json", {})

    def _route(self, seen: Seen, query: dict[str, str]) -> tuple[int, bytes]:
        if seen.path == "/ca.pem":
            return 200, self.daemon.ca_pem.encode()
        if seen.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refusal(401, "unauthenticated", "The token is not known; get a new connection string on the host.")
        daemon, parts = self.daemon, seen.path.strip("/").split("/")[1:]
        match seen.method, parts:
            case "POST", ["leases"]:
                request = models.LeaseRequest.model_validate(seen.body)
                status, lease = daemon.create(request, seen.headers.get(models.IDEMPOTENCY_HEADER))
                return status, lease.model_dump_json().encode()
            case "GET", ["leases"]:
                leases = models.LeaseList(leases=[held.model for held in daemon.leases.values()])
                return 200, leases.model_dump_json().encode()
            case "GET", ["leases", lease_id]:
                wait_s, after = float(query.get("wait_s", 0)), int(query.get("after_version", 0))
                return 200, daemon.show(lease_id, wait_s, after).model_dump_json().encode()
            case "DELETE", ["leases", lease_id]:
                daemon.release(lease_id)
                return 204, b""
            case "POST", ["leases", lease_id, "renew"]:
                return 200, daemon.renew(lease_id).model_dump_json().encode()
            case "POST", ["leases", lease_id, "envs", rank, "replace"]:
                wish = models.ReplaceRequest.model_validate(seen.body)
                return 200, daemon.replace(lease_id, int(rank), wish).model_dump_json().encode()
            case "GET", ["pools"]:
                return 200, daemon.pools().model_dump_json().encode()
            case "GET", ["engines"]:
                return 200, self._engines().model_dump_json().encode()
        raise Refusal(404, "not-found", f"There is nothing at {seen.path}.")

    def _engines(self) -> models.EngineList:
        now = datetime.now(timezone.utc)
        return models.EngineList(
            engines=[
                models.Engine(
                    id=env.engine_id or "",
                    pool=held.model.pool,
                    state=models.EngineState.LEASED,
                    since=now,
                    reason=None,
                    lease_id=held.model.id,
                    rank=env.rank,
                    host="127.0.0.1",
                    port=int((env.address or ":0").rpartition(":")[2]),
                    container=None,
                    image="practice",
                    uses=1,
                    created_at=now,
                )
                for held in self.daemon.leases.values()
                for env in held.model.envs
            ]
        )

    def _refuse(self, refusal: Refusal) -> None:
        problem = models.Problem(
            type=f"/problems/{refusal.slug}",
            title=refusal.slug,
            status=refusal.status,
            detail=refusal.detail,
            request_id="r-1",
        )
        headers = {} if refusal.retry_after_s is None else {"Retry-After": f"{refusal.retry_after_s:.0f}"}
        self._answer(refusal.status, problem.model_dump_json().encode(), "application/problem+json", headers)

    def _answer(self, status: int, content: bytes, kind: str, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            if self.daemon.version is not None:
                self.send_header(models.VERSION_HEADER, self.daemon.version)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # the caller has gone


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that breaks off is no fault of the fake."""


@contextmanager
def serving(daemon: FakeDaemon, *, tls: SSLContext | None = None) -> Iterator[FakeDaemon]:
    """Serve ``daemon`` on 127.0.0.1, on its port or a free one, until the end of the block."""
    handler = type("Handler", (_Handler,), {"daemon": daemon})
    server = _Server(("127.0.0.1", daemon.port), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    daemon.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield daemon
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def times(count: int, fault: Fault, *, method: str = ".*", path: str = ".*") -> Fault:
    """``fault`` for the first ``count`` requests whose method and path match."""
    left = [count]

    def limited(seen: Seen) -> str | None:
        if left[0] <= 0 or not re.fullmatch(method, seen.method) or not re.fullmatch(path, seen.path):
            return None
        left[0] -= 1
        return fault(seen)

    return limited


def refusing(status: int, slug: str, detail: str = "Not now; try again.", retry_after_s: float | None = None) -> Fault:
    """A fault that answers with a problem document."""

    def refuse(seen: Seen) -> str | None:
        raise Refusal(status, slug, detail, retry_after_s)

    return refuse
