"""Builds the API: its services, the guard in front, and every call."""

from __future__ import annotations

import threading
import time

import structlog
from flask_openapi.models.info import Info
from flask_openapi.openapi import OpenAPI

from client_sdk import models
from client_sdk._version import API_VERSION
from orchestrator.administration import Administration
from orchestrator.api import (
    engine_calls,
    event_calls,
    lease_calls,
    pool_calls,
    problems,
    status_calls,
    system_calls,
    token_calls,
)
from orchestrator.api.bodies import ApiRequest, Bodies
from orchestrator.api.calls import SECURITY, Calls
from orchestrator.api.document import Document
from orchestrator.api.guard import Guard
from orchestrator.api.lanes import Lanes
from orchestrator.api.last_resort import LastResort
from orchestrator.api.services import Services
from orchestrator.auth import Monotonic, RateLimit, Tokens
from orchestrator.config import Config
from orchestrator.dashboard import blueprint
from orchestrator.dashboard.blueprint import Dashboard
from orchestrator.interfaces import Now
from orchestrator.leasing import Leasing
from orchestrator.policies import policies
from orchestrator.relay_token import ensure_secret
from orchestrator.store.database import Changes, Database

_DESCRIPTION = (
    "Lends DIAMBRA game engines, all or nothing, for as long as they are renewed. Errors are problem documents (RFC 9457); "
    "times are RFC 3339 UTC; names of durations end in _s."
)


class Api(OpenAPI):
    """The Flask app, with the parts it works with."""

    request_class = ApiRequest
    services: Services
    calls: Calls
    dashboard: Dashboard

    def stop(self) -> None:
        """Let go of long polls and event streams, so that the server can end at once."""
        self.services.stop()
        self.dashboard.stop()


def create_app(
    config: Config, database: Database, *, now: Now = time.time, monotonic: Monotonic = time.monotonic
) -> Api:
    """The API over ``database``; call ``stop`` when done with it."""
    app = Api(
        "orchestrator.api",
        info=Info(title="Cornerman", version=f"{API_VERSION}", description=_DESCRIPTION),
        security_schemes={SECURITY: {"type": "http", "scheme": "bearer"}},
        validation_error_model=models.Problem,
        validation_error_callback=problems.refuse_invalid,
        doc_ui=False,
        static_folder=None,
    )
    app.url_map.merge_slashes = False  # else a doubled slash is answered by a redirect in HTML
    app.services = _services(config, database, now, monotonic)
    app.extensions["cornerman"] = app.services

    calls, document = Calls(app), Document(app)
    app.calls = calls
    for module in (lease_calls, engine_calls, pool_calls, event_calls, token_calls, status_calls):
        module.register(calls)
    system_calls.register(calls, document)
    app.dashboard = blueprint.install(app, app.services)

    guard = Guard(app.services, calls.known, Bodies(app.services.lanes))
    app.before_request(guard.before)
    app.after_request(guard.after)
    app.teardown_request(guard.end)
    problems.install(app)
    app.wsgi_app = LastResort(app.wsgi_app, structlog.get_logger("cornerman.api"))  # type: ignore[method-assign]
    return app


def _services(config: Config, database: Database, now: Now, monotonic: Monotonic) -> Services:
    known = policies(config)
    leasing = Leasing(database, known, now)
    ports = config.last_port - config.first_port + 1
    return Services(
        config=config,
        database=database,
        policies=known,
        leasing=leasing,
        administration=Administration(database, known, leasing, now, ports=ports),
        tokens=Tokens(database, now, monotonic=monotonic),
        rate=RateLimit(config.server.requests_per_s, monotonic=monotonic),
        changes=Changes(database),
        lanes=Lanes(config.server.threads, config.server.streams),
        relay_secret=ensure_secret(config.state_dir),
        now=now,
        stopping=threading.Event(),
    )
