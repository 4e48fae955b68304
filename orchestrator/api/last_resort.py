"""What even Flask could not take: a request so strange that it breaks before any handler is there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from client_sdk import models
from client_sdk._version import API_VERSION

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


class LastResort:
    """A WSGI app around another that turns what falls out of it into a problem document."""

    def __init__(self, app: WsgiApp, log: Any) -> None:
        self._app, self._log = app, log

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """As WSGI has it."""
        try:
            return self._app(environ, start_response)
        except Exception as fault:
            request_id = secrets.token_hex(6)
            bad = isinstance(fault, UnicodeError)
            status = "400 Bad Request" if bad else "500 Internal Server Error"
            if not bad:
                self._log.error("request failed", request_id=request_id, exc_info=fault)
            detail = (
                "The path or a header is not valid UTF-8: correct it."
                if bad
                else f"Something broke here: try again, and tell whoever runs this host the request id {request_id}."
            )
            problem = models.Problem(
                type="/docs#bad-request" if bad else "/docs#internal-error",
                title=status[4:],
                status=int(status[:3]),
                detail=detail,
                request_id=request_id,
            )
            headers = [
                ("Content-Type", "application/problem+json"),
                ("Cache-Control", "no-store"),
                (models.VERSION_HEADER, str(API_VERSION)),
            ]
            start_response(status, headers)
            return [problem.model_dump_json(exclude_none=True).encode()]
