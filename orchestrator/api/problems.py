"""Every error leaves as ``application/problem+json`` (RFC 9457), whatever raised it."""

from __future__ import annotations

import http
import math
from typing import Any

import structlog
from flask import Flask, Response, g, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from client_sdk import models
from orchestrator.errors import Refused, Unprocessable

MIMETYPE = "application/problem+json"
MOST_ERRORS = 20
_DEFAULT_RETRY_S = {409: 1.0, 429: 1.0, 503: 2.0}
log = structlog.get_logger("cornerman.api")


class BadRequest(Refused):
    """Not a request that could be understood."""

    status, slug, title = 400, "bad-request", "Bad request"


class VersionMismatch(Refused):
    """The client speaks another version of the API."""

    status, slug, title = 400, "version-mismatch", "Version mismatch"


class NoSuchPath(Refused):
    """Nothing is at that path."""

    status, slug, title = 404, "no-such-path", "No such path"


class WrongMethod(Refused):
    """Something is at that path, but not with that method."""

    status, slug, title = 405, "wrong-method", "Wrong method"


class TooLarge(Refused):
    """The body is larger than any request can be."""

    status, slug, title = 413, "too-large", "Too large"


class WrongMediaType(Refused):
    """The body is not JSON."""

    status, slug, title = 415, "wrong-media-type", "Wrong media type"


class OurFault(Refused):
    """Something broke here."""

    status, slug, title = 500, "internal-error", "Internal error"


class Invalid(Unprocessable):
    """Body, query or header are not as the OpenAPI document says."""

    slug, title = "invalid", "Invalid request"

    def __init__(self, fault: ValidationError) -> None:
        self.errors: list[dict[str, Any]] = [
            {"loc": [_short(part) for part in item["loc"]], "msg": _short(item["msg"]), "type": item["type"]}
            for item in fault.errors(include_url=False, include_input=False, include_context=False)[:MOST_ERRORS]
        ]
        told = "; ".join(f"{_place(item['loc'])}: {item['msg']}" for item in self.errors)
        super().__init__(f"The request is not as it should be ({told}): correct it; /docs tells what each call takes.")


def _place(loc: list[int | str]) -> str:
    return ".".join(map(str, loc)) or "the whole"


def _short(part: int | str) -> int | str:
    return part if isinstance(part, int) or len(part) <= 200 else f"{part[:200]}..."


def refuse_invalid(fault: ValidationError) -> Response:
    """What flask-openapi calls when a request does not validate."""
    raise Invalid(fault)


def install(app: Flask) -> None:
    """Let every error of ``app`` leave as a problem."""
    app.register_error_handler(Refused, _from_refused)
    app.register_error_handler(HTTPException, _from_http)
    app.register_error_handler(Exception, _from_fault)


def response(error: Refused) -> Response:
    """The answer that says ``error``."""
    problem = models.Problem(
        type=f"/docs#{error.slug}",
        title=error.title,
        status=error.status,
        detail=str(error),
        request_id=g.get("request_id", ""),
        errors=getattr(error, "errors", None),
    )
    answer = Response(problem.model_dump_json(exclude_none=True), error.status, mimetype=MIMETYPE)
    retry_s = error.retry_after_s if error.retry_after_s is not None else _DEFAULT_RETRY_S.get(error.status)
    if retry_s is not None:
        answer.headers["Retry-After"] = str(max(1, math.ceil(retry_s)))
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="cornerman"'
    return answer


def _from_refused(error: Refused) -> Response:
    return response(error)


def _from_http(error: HTTPException) -> Response:
    status = error.code or 500
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        answer = response(WrongMethod(f"{_path()} does not take {request.method[:20]}: it takes {allowed}."))
        answer.headers["Allow"] = allowed
        return answer
    if status == 404:
        return response(NoSuchPath(f"There is nothing at {_path()}: /docs lists what there is."))
    if status == 413:
        return response(too_large())
    if status >= 500:
        return _from_fault(error)
    other = BadRequest(f"The request cannot be understood ({error.name}): /docs tells what each call takes.")
    other.status, other.title = status, http.HTTPStatus(status).phrase
    return response(other)


def _from_fault(error: Exception) -> Response:
    request_id = g.get("request_id", "")
    log.error("request failed", request_id=request_id, method=request.method, path=request.path, exc_info=error)
    return response(
        OurFault(
            "Something broke here, and it is not your request's fault: try again, and if it stays, tell whoever runs this "
            f"host the request id {request_id}; its log says more."
        )
    )


def too_large() -> TooLarge:
    """The refusal of a body above the limit."""
    return TooLarge(f"The body is larger than {models.MAX_BODY_BYTES // 1024} KiB: send less; no call needs more.")


def _path() -> str:
    return request.path if len(request.path) <= 100 else f"{request.path[:100]}..."
