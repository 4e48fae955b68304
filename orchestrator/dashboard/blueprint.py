"""The dashboard's addresses: the page, its live stream, pictures, engines, and logging in and out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import structlog
from flask import Blueprint, Flask, Response, g, render_template, request

from orchestrator.api.bodies import Bodies
from orchestrator.api.services import Services
from orchestrator.api.waiting import Inquiries
from orchestrator.auth import digest, require
from orchestrator.dashboard import engine, pictures, state
from orchestrator.dashboard.assets import PUBLIC, Assets
from orchestrator.dashboard.gate import CSRF_FIELD, CSRF_HEADER, Gate, token_in
from orchestrator.dashboard.history import History, as_event
from orchestrator.dashboard.sessions import Sessions
from orchestrator.dashboard.stream import LiveStream
from orchestrator.errors import Forbidden, TooMany, Unavailable, Unprocessable
from orchestrator.model import Caller, Scope
from orchestrator.store import events

log = structlog.get_logger("cornerman.dashboard")

NAME = "dashboard"
MOST_PICTURES = 64
_LONGEST_MARK = 40
_PLAIN: dict[str, Any] = {"provide_automatic_options": False}


class Dashboard:
    """What belongs to the page, built once."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.gate = Gate(services, Sessions(services.relay_secret, services.now))
        self.history = History(services)
        self.assets = Assets()
        self.inquiries = Inquiries()
        self.bodies = Bodies(services.lanes)
        # Long polls of those who wait for a lease are streams too, and must not find all places taken by pages.
        self.watchers = threading.BoundedSemaphore(max(1, services.config.server.streams // 2))

    def start(self) -> None:
        """Begin to sample for the charts."""
        self.history.start()

    def stop(self) -> None:
        """The services have been stopped: end what was begun."""
        self.history.join()


def install(app: Flask, services: Services) -> Dashboard:
    """Add the dashboard to ``app``."""
    dashboard = Dashboard(services)
    blueprint = Blueprint(NAME, __name__, template_folder="templates")
    blueprint.before_request(dashboard.gate.enter)
    blueprint.after_request(dashboard.gate.leave)
    for add in (_pages, _live, _engines):
        add(blueprint, dashboard)
    app.register_blueprint(blueprint)
    return dashboard


def _json(value: Any, status: int = 200) -> Response:
    return Response(state.dumps(value), status, mimetype="application/json")


def _pages(blueprint: Blueprint, dashboard: Dashboard) -> None:
    gate, services, assets = dashboard.gate, dashboard.services, dashboard.assets

    def login_page(status: int = 200, fault: str = "") -> Response:
        session = g.session if g.session is not None and g.session.token_sha256 is None else gate.sessions.begin(None)
        page = render_template("login.html", csrf=session.csrf, fault=fault, version=assets.version)
        return gate.hand_out(Response(page, status, mimetype="text/html"), session)

    def tell(caller: Caller, kind: str, text: str) -> None:
        try:
            with services.database.write() as db:
                gate.ended.keep(db)
                events.record(db, kind, text, now=services.now(), actor=caller.principal, token_id=caller.token_id)
        except Unavailable as error:  # a full disk must not keep anybody from looking
            log.warning(text, token_id=caller.token_id, fault=str(error))

    @blueprint.get("/", **_PLAIN)
    def front() -> Response:
        """The page, or the login page for who is not logged in"""
        if g.caller is None:
            return login_page(fault="Your session has ended: log in again." if g.ended else "")
        me = state.who(g.caller)
        page = render_template(
            "page.html",
            version=assets.version,
            csrf=g.session.csrf,
            csrf_field=CSRF_FIELD,
            me=me,
            given={
                "now": services.now(),
                "me": me,
                "state": state.build(services, g.caller),
                "history": as_event(dashboard.history.after(0)),
            },
        )
        return Response(page, mimetype="text/html")

    @blueprint.post("/login", **_PLAIN)
    def login() -> Response:
        """Begin a session with a token"""
        try:
            gate.take_login()
            fields = gate.form()
        except (TooMany, Unavailable) as error:
            text = "Many log-ins were tried from your address just now: wait some seconds, then try again."
            return login_page(error.status, text)
        try:
            gate.check_origin(fields.get(CSRF_FIELD))
        except Forbidden:
            return login_page(403, "This form was too old, or came from elsewhere: try once more.")
        sha256 = digest(token_in(fields.get("token", "")))
        caller = services.tokens.find(sha256)
        if caller is None:
            return login_page(401, "This token is not known: it was revoked or mistyped. Ask whoever runs this host.")
        tell(caller, "session.opened", f"{caller.principal} logged in to the dashboard")
        return gate.hand_out(_see_other(), gate.sessions.begin(sha256))

    @blueprint.post("/logout", **_PLAIN)
    def logout() -> Response:
        """End the session, in this browser and wherever its cookie was copied to"""
        caller = g.caller
        if caller is not None:
            gate.check_origin(gate.form().get(CSRF_FIELD))
            gate.ended.add(g.session)
            tell(caller, "session.closed", f"{caller.principal} logged out of the dashboard")
        return gate.take_back(_see_other())

    @blueprint.get("/dashboard/static/<version>/<name>", **_PLAIN)
    def asset(version: str, name: str) -> Response:
        """A file of the page"""
        if name not in PUBLIC:
            gate.admit()
        return assets.answer(name, version)


def _see_other() -> Response:
    return Response("", 303, headers={"Location": "/"}, mimetype="text/html")


def _live(blueprint: Blueprint, dashboard: Dashboard) -> None:
    gate, services = dashboard.gate, dashboard.services

    @blueprint.get("/dashboard/state", **_PLAIN)
    def now() -> Response:
        """How things are, for a page whose stream found no room"""
        gate.admit()
        return _json(state.build(services, g.caller))

    @blueprint.get("/dashboard/stream", **_PLAIN)
    def live() -> Response:
        """How things are, again whenever they change"""
        gate.admit()
        if request.method != "GET":
            return Response(mimetype="text/event-stream")
        if not dashboard.watchers.acquire(blocking=False):
            raise Unavailable("Many pages are open, so this one looks every few seconds instead.", retry_after_s=10)
        try:
            g.place.become_stream()
            stream = LiveStream(
                services,
                g.caller,
                g.session,
                is_over=gate.is_over,
                history=dashboard.history,
                place=g.pop("place"),
                watchers=dashboard.watchers,
            )
        except BaseException:
            dashboard.watchers.release()
            raise
        response = Response(stream, mimetype="text/event-stream")
        response.headers["X-Accel-Buffering"] = "no"
        return response

    @blueprint.get("/dashboard/pictures", **_PLAIN)
    def show() -> Response:
        """Pictures of leased engines that have changed: ?e=ID:MARK, once for each; large, or full, as large as they are"""
        gate.admit()
        asked = dict(_asked(one) for one in request.args.getlist("e")[:MOST_PICTURES])
        with services.database.read() as db:
            seen = engine.seen_by(db, g.caller, list(asked))
        wanted = {engine_id: mark for engine_id, mark in asked.items() if engine_id in seen}
        width = None if "full" in request.args else pictures.width(len(wanted), large="large" in request.args)
        return Response(pictures.ask(services.config.state_dir, wanted, width=width), mimetype="application/json")


def _asked(text: str) -> tuple[str, str]:
    engine_id, _, mark = text.partition(":")
    return engine_id[:100], mark[:_LONGEST_MARK]


def _engines(blueprint: Blueprint, dashboard: Dashboard) -> None:
    gate, services = dashboard.gate, dashboard.services

    def serve(rule: str, work: Callable[[str], dict[str, Any]], name: str) -> None:
        def view(engine_id: str) -> Response:
            gate.admit()
            return _json(work(engine_id))

        blueprint.add_url_rule(f"/dashboard/engines/<engine_id>{rule}", name, view, methods=["GET"], **_PLAIN)

    serve("", lambda engine_id: engine.describe(services, g.caller, engine_id), "describe")
    serve("/inside", lambda engine_id: engine.inside(services, dashboard.inquiries, g.caller, engine_id), "inside")

    @blueprint.post("/dashboard/engines/<engine_id>/retire", **_PLAIN)
    def retire(engine_id: str) -> Response:
        """Get rid of an engine: a leased one when its lease ends, or at once and with another in its place"""
        gate.admit()
        gate.check_origin(request.headers.get(CSRF_HEADER))
        require(g.caller, Scope.ADMIN)
        body = dashboard.bodies.read(request)
        if set(body) != {"now"} or not isinstance(body["now"], bool):
            raise Unprocessable('The body must be {"now": true} or {"now": false}: load the page again.')
        services.administration.retire(g.caller, engine_id, at_once=body["now"])
        return _json({"ok": True}, 202)
