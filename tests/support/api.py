"""The API without a server: an app over a real database, a clock to turn, and desks at which a principal makes calls."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from client_sdk import models
from client_sdk.models import Problem
from orchestrator.api.app import Api, create_app
from orchestrator.auth import make_token
from orchestrator.config import Config, build
from orchestrator.model import Engine, EngineState, Scope
from orchestrator.store import engines, inquiries, meta, pools
from orchestrator.store.database import Database

A = TypeVar("A", bound=BaseModel)
EPOCH = 1_800_000_000.0
PROBLEM = "application/problem+json"


class Clock:
    """A wall clock and a monotonic one that move when told to."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self.elapsed

    def monotonic(self) -> float:
        """Seconds since something."""
        return self.elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.elapsed += seconds


class House:
    """A daemon's API over a database of its own; nobody starts engines unless a test does."""

    def __init__(self, folder: Path, *, server: Mapping[str, Any] | None = None, **pool: Any) -> None:
        main = {"runtime": "fake", "image": "engine:1", "max_engines": 4, "min_ready": 0, **pool}
        values = {
            "state_dir": str(folder / "state"),
            "server": dict(server or {}),
            "pools": {"main": main, "other": {"runtime": "fake", "image": "engine:9"}},
            "default_pool": "main",
        }
        self.config: Config = build(values)
        self.clock = Clock()
        self.database = Database.open(self.config.database)
        with self.database.write() as db:
            for name, settings in self.config.pools.items():
                pools.configure(
                    db,
                    name,
                    min_ready=settings.min_ready,
                    max_engines=settings.max_engines,
                    image=settings.image,
                )
            meta.put(db, "pool_alive_at", repr(self.clock.now()))
            meta.put(db, "host_fault", "")
        self._numbers = itertools.count()
        self.app: Api = self._open()

    def _open(self) -> Api:
        return create_app(self.config, self.database, now=self.clock.now, monotonic=self.clock.monotonic)

    def restart(self) -> None:
        """The API process dies, and another takes its place."""
        self.app.stop()
        self.app = self._open()

    def close(self) -> None:
        """End it."""
        self.app.stop()
        self.database.close()

    def desk(
        self,
        principal: str,
        scope: Scope = Scope.LEASE,
        *,
        max_engines: int | None = None,
        max_pending: int | None = None,
    ) -> Desk:
        """A new token for ``principal``, and calls made with it."""
        with self.database.write() as db:
            issued = make_token(
                db,
                principal=principal,
                scope=scope,
                now=self.clock.now(),
                max_engines=max_engines,
                max_pending=max_pending,
            )
        return Desk(self, issued.value, issued.token.id)

    def rules(self) -> list[Rule]:
        """The addresses of the REST API; the dashboard's have a guard, and tests, of their own."""
        return [rule for rule in self.app.url_map.iter_rules() if not rule.endpoint.startswith("dashboard.")]

    def stranger(self) -> Desk:
        """Calls without a token."""
        return Desk(self, None, "")

    def add_engines(self, count: int, *, pool: str = "main", state: EngineState = EngineState.READY) -> list[str]:
        """Let engines come up."""
        made = []
        with self.database.write() as db:
            for number in itertools.islice(self._numbers, count):
                now = self.clock.now()
                engine = Engine(
                    id=f"e-{number}",
                    pool=pool,
                    runtime="fake",
                    state=state,
                    state_since=now,
                    name=f"cornerman-{number}",
                    image="engine:1",
                    host="127.0.0.1",
                    port=32000 + number,
                    created_at=now,
                    handle=f"container-{number}",
                    ready_at=now if state is EngineState.READY else None,
                )
                engines.insert(db, engine)
                made.append(engine.id)
        return made

    def engine(self, engine_id: str) -> Engine:
        """An engine as the store has it."""
        with self.database.read() as db:
            return engines.get(db, engine_id)

    @contextmanager
    def pool_process(self, answer: Callable[[str, dict[str, Any]], Any]) -> Iterator[None]:
        """Somebody who answers inquiries, as the pool process does, with what ``answer(kind, question)`` returns."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(0.01):
                with self.database.read() as db:
                    found = inquiries.open_ones(db, kinds=("logs", "stats"))
                for inquiry_id, kind, question in found:
                    with self.database.write() as db:
                        inquiries.answer(db, inquiry_id, answer(kind, question))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class Desk:
    """Makes calls with one token, and holds every answer against the contract."""

    def __init__(self, house: House, token: str | None, token_id: str) -> None:
        self._house, self.token, self.token_id = house, token, token_id

    def send(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> TestResponse:
        """One request, whatever comes of it; what holds for every answer is checked."""
        sent = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        response = self._house.app.test_client().open(path, method=method, headers={**sent, **(headers or {})}, **more)
        assert response.headers[models.VERSION_HEADER] == "1"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        if response.status_code >= 400 and response.mimetype != "application/json":
            _check_problem(response, head=method == "HEAD")
        if self.token is not None and not response.is_streamed:
            assert self.token not in response.get_data(as_text=True) + str(response.headers)
        return response

    def call(self, method: str, path: str, status: int, answer: type[A], **more: Any) -> A:
        """One request whose answer must have ``status`` and be an ``answer``, with all of its fields and no other."""
        response = self.send(method, path, **more)
        assert response.status_code == status, response.get_data(as_text=True)
        assert response.mimetype == "application/json"
        _check_fields(response.json, answer)
        return answer.model_validate_json(response.get_data())

    def command(self, method: str, path: str, **more: Any) -> None:
        """One request whose answer must be 204 and empty."""
        response = self.send(method, path, **more)
        assert (response.status_code, response.get_data()) == (204, b""), response.get_data(as_text=True)

    def refused(self, method: str, path: str, status: int, slug: str, **more: Any) -> Problem:
        """One request that must be refused with ``status`` and a problem of that slug."""
        response = self.send(method, path, **more)
        assert response.status_code == status, response.get_data(as_text=True)
        problem = Problem.model_validate_json(response.get_data())
        assert problem.type == f"/docs#{slug}"
        return problem

    # ---- what tests do all the time

    def lease(self, envs: int = 1, *, status: int = 201, key: str | None = None, **body: Any) -> models.Lease:
        """Ask for a lease."""
        headers = {models.IDEMPOTENCY_HEADER: key} if key else None
        return self.call("POST", "/v1/leases", status, models.Lease, json={"envs": envs, **body}, headers=headers)

    def show(self, lease_id: str, query: str = "") -> models.Lease:
        """A lease as it is now."""
        return self.call("GET", f"/v1/leases/{lease_id}{query}", 200, models.Lease)

    def events(self, after: int = 0) -> list[models.Event]:
        """The event log."""
        return self.call("GET", f"/v1/events?after={after}", 200, models.EventList).events


def json_of(response: TestResponse) -> Any:
    """What the JSON of an answer says."""
    return response.json


def _check_problem(response: TestResponse, *, head: bool) -> None:
    assert response.mimetype == PROBLEM, response.get_data(as_text=True)
    if head:
        return
    problem = Problem.model_validate_json(response.get_data())
    assert problem.status == response.status_code
    assert problem.request_id
    assert problem.request_id == response.headers["Request-Id"]
    assert problem.detail.endswith("."), problem.detail
    if problem.status in (409, 429, 503):
        assert int(response.headers["Retry-After"]) >= 1


def _check_fields(value: Any, answer: type[BaseModel]) -> None:
    assert set(value) == set(answer.model_fields)
    for name, field in answer.model_fields.items():
        inner = getattr(field.annotation, "__args__", (field.annotation,))[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            for one in value[name] if isinstance(value[name], list) else [value[name]] if value[name] else []:
                _check_fields(one, inner)


def parse_sse(text: str) -> list[tuple[int, dict[str, Any]]]:
    """(id, data) of each event in a piece of an event stream."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in lines:
            found.append((int(lines["id"]), json.loads(lines["data"])))
    return found
