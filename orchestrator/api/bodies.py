"""Bodies are JSON objects of at most 64 KiB; anything else is refused before a call sees it."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from flask import Request, g

from client_sdk.models import MAX_BODY_BYTES
from orchestrator.api.lanes import Lanes
from orchestrator.api.problems import BadRequest, WrongMediaType, too_large
from orchestrator.errors import Unprocessable


class ApiRequest(Request):
    """A request whose JSON is what ``Bodies`` made of it."""

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:
        """The parsed body, a dict."""
        return g.get("body")


class Bodies:
    """Reads bodies so that those that never arrive keep none of the threads that calls without one need.

    A body is read by the thread that answers, however long it takes, and in one go: granian gives up on neither, and
    holds the interpreter's lock when a call ends while another thread of ours still reads. So only so many may be on
    their way, and the server ends connections whose other side is dead (server.py).
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def read(self, request: Request) -> dict[str, Any]:
        """The body of ``request`` as a dict; a Refused that says what is wrong with it."""
        if request.mimetype != "application/json":
            raise WrongMediaType("The body must be JSON: send it with 'Content-Type: application/json'.")
        length = MAX_BODY_BYTES + 1 if request.content_length is None else request.content_length
        if request.content_length is not None and length > MAX_BODY_BYTES:
            raise too_large()
        with self._lanes.body():
            raw = bytes(request.environ["wsgi.input"].read(length)) if length else b""
        if len(raw) > MAX_BODY_BYTES:
            raise too_large()
        return parse(raw)


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object; BadRequest when it is not JSON, Unprocessable when it is something else than an object."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except RecursionError:
        raise BadRequest("The body is nested too deeply: no call needs more than three levels.") from None
    except ValueError as fault:
        why = "it is empty" if not raw.strip() else f"{fault}"[:200]
        raise BadRequest(f"The body is not valid JSON ({why}): send one JSON object in UTF-8.") from None
    if not isinstance(value, dict):
        raise Unprocessable("The body must be one JSON object: send {...}, not a list, a text or a number.")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
