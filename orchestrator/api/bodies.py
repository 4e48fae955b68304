"""Bodies are JSON objects of at most 64 KiB that arrive in time; anything else is refused before a call sees it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from typing import Any, NoReturn

from flask import Request, g

from client_sdk.models import MAX_BODY_BYTES
from orchestrator.api.lanes import ARRIVING, Lanes
from orchestrator.api.problems import BadRequest, TooSlow, WrongMediaType, too_large
from orchestrator.errors import Unprocessable

ARRIVES_WITHIN_S = 5.0
DIRECT = 4


class ApiRequest(Request):
    """A request whose JSON is what ``Bodies`` made of it."""

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:
        """The parsed body, a dict."""
        return g.get("body")


class Bodies:
    """Reads bodies so that one that never arrives keeps none of the threads that others need.

    Up to ``DIRECT`` at a time are read where they are needed, which is the fast way. Others are read on threads of their
    own, with a deadline; when the refusal is sent, the server closes the connection, and that ends the reading as well.
    """

    def __init__(self, lanes: Lanes, *, arrives_within_s: float = ARRIVES_WITHIN_S) -> None:
        self._lanes, self._arrives_within_s = lanes, arrives_within_s
        self._direct = threading.BoundedSemaphore(DIRECT)
        self._readers = ThreadPoolExecutor(ARRIVING, thread_name_prefix="body")

    def read(self, request: Request) -> dict[str, Any]:
        """The body of ``request`` as a dict; a Refused that says what is wrong with it."""
        if request.mimetype != "application/json":
            raise WrongMediaType("The body must be JSON: send it with 'Content-Type: application/json'.")
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise too_large()
        with self._lanes.body():
            raw = self._arrived(request)
        if len(raw) > MAX_BODY_BYTES:
            raise too_large()
        return parse(raw)

    def _arrived(self, request: Request) -> bytes:
        stream = request.environ["wsgi.input"]
        wanted = MAX_BODY_BYTES + 1 if request.content_length is None else request.content_length
        if not wanted:
            return b""
        if self._direct.acquire(blocking=False):
            try:
                return _read(stream, wanted)
            finally:
                self._direct.release()
        arriving: Future[bytes] = self._readers.submit(_read, stream, wanted)
        try:
            return arriving.result(self._arrives_within_s)
        except NotInTime:
            arriving.cancel()
            raise TooSlow(
                f"The body did not arrive within {self._arrives_within_s:g} s: send the request again."
            ) from None


def _read(stream: Any, wanted: int) -> bytes:
    parts, missing = [], wanted
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


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
