"""From the daemon's problem documents (RFC 9457) to our errors, keeping the daemon's sentence."""

from __future__ import annotations

import re

import requests
from pydantic import ValidationError

from client_sdk._errors import (
    CornermanError,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    PoolExhausted,
    QuotaExceeded,
    Refused,
    Unavailable,
)
from client_sdk.models import Problem

_BY_SLUG: dict[str, type[Refused]] = {"pool-exhausted": PoolExhausted, "quota-exceeded": QuotaExceeded}
_BY_STATUS: dict[int, type[Refused]] = {
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    408: Unavailable,
    429: Unavailable,
}


def to_error(response: requests.Response) -> CornermanError:
    """The error that a refusing ``response`` means."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return Unavailable(
            f"The host answered HTTP {response.status_code} without saying why; look into its log.",
            status=response.status_code,
        )
    slug = re.split(r"[/:#]", problem.type)[-1]
    kind = _BY_SLUG.get(slug) or _BY_STATUS.get(response.status_code)
    if kind is None:
        kind = Unavailable if response.status_code >= 500 else Refused
    return kind(
        _with_places(problem),
        status=response.status_code,
        slug=slug,
        request_id=problem.request_id,
        retry_after_s=_seconds(response.headers.get("Retry-After")),
    )


def _with_places(problem: Problem) -> str:
    """The daemon's sentence, and where in the body it means when the sentence itself does not say."""
    places = [".".join(str(part) for part in error.get("loc", ())) for error in problem.errors or ()]
    missing = [place for place in places if place and place.split(".")[-1] not in problem.detail]
    return f"{problem.detail} (in: {', '.join(missing[:5])})" if missing else problem.detail


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
