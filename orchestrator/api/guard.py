"""What every request passes before its call: version, room, token, rate, scope, query, body."""

from __future__ import annotations

import secrets

from flask import Response, g, request

from client_sdk._version import API_VERSION
from client_sdk.models import VERSION_HEADER
from orchestrator.api.bodies import Bodies
from orchestrator.api.calls import Call
from orchestrator.api.problems import BadRequest, VersionMismatch
from orchestrator.api.services import Services
from orchestrator.auth import require
from orchestrator.errors import Unprocessable

_HEADERS = {
    VERSION_HEADER: str(API_VERSION),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Guard:
    """Lets a request through, or refuses it."""

    def __init__(self, services: Services, calls: dict[str, Call], bodies: Bodies) -> None:
        self._services, self._calls, self._bodies = services, calls, bodies

    def before(self) -> None:
        """Runs before each request; a Refused raised here is its answer."""
        g.request_id = secrets.token_hex(6)
        check_version(request.headers.get(VERSION_HEADER))
        call = self._calls.get(request.endpoint or "")
        if call is None:  # no such path, or not that method: Flask says so next
            return
        if not call.has_body:  # else not before the body is there
            g.place = self._services.lanes.enter(vital=call.vital)
        if call.scope is not None:
            g.caller, g.token_hash = self._services.tokens.caller(request.headers.get("Authorization"))
            # A flood of other calls must not cost its sender the lease.
            self._services.rate.take(f"{g.caller.token_id} vital" if call.vital else g.caller.token_id)
            require(g.caller, call.scope)
        if request.query_string and not call.has_query and request.args:
            raise Unprocessable(f"This call takes no query parameters, and got {_some(request.args)}: leave them out.")
        if call.has_body:
            g.body = self._bodies.read(request)
            g.place = self._services.lanes.enter(vital=call.vital)

    def after(self, response: Response) -> Response:
        """Runs after each request, refused or not."""
        response.headers.extend(_HEADERS)
        response.headers["Request-Id"] = g.get("request_id", "")
        response.headers.setdefault("Cache-Control", "no-store")
        if response.status_code == 413:
            response.headers["Connection"] = "close"
        return response

    def end(self, _error: BaseException | None) -> None:
        """Runs when the request is done with; an event stream has taken its place with it."""
        held = g.pop("place", None)
        if held is not None:
            held.leave()


def check_version(spoken: str | None) -> None:
    """Raise VersionMismatch when the client speaks another major version of the API; absent is fine."""
    if spoken is None:
        return
    major = spoken.strip().partition(".")[0]
    if not (major.isascii() and major.isdigit() and len(major) <= 6):
        raise BadRequest(f"{VERSION_HEADER} must be a version like {API_VERSION}, or be left out.")
    if int(major) != API_VERSION:
        side = "the client" if int(major) < API_VERSION else "the daemon on this host"
        raise VersionMismatch(
            f"The client speaks version {int(major)} of the API and this host version {API_VERSION}: upgrade {side}."
        )


def _some(names: object) -> str:
    listed = [str(name)[:40] for name in names]  # type: ignore[attr-defined]
    return ", ".join(listed[:3])
