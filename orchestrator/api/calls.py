"""How a call is declared: once, for the server that guards it and for the OpenAPI document that describes it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from flask import Response
from flask_openapi.openapi import OpenAPI
from pydantic import BaseModel, ConfigDict

from orchestrator.api.problems import MIMETYPE
from orchestrator.model import Scope

View = TypeVar("View", bound=Callable[..., Response])
SECURITY = "token"
_EVERY_CALL = (429, 500, 503)
_WORDS = {
    400: "Not understood",
    401: "No token, or an unknown one",
    403: "The token's scope or quota does not reach that far",
    404: "No such thing, or not yours to see",
    409: "Contradicts how things are now",
    410: "The lease has ended",
    413: "Body above 64 KiB",
    415: "Body is not JSON",
    422: "Body, query or header are not as described here",
    429: "More requests than allowed",
    500: "A fault of the daemon's",
    503: "Not just now",
}


class _Cached(BaseModel):
    """A model whose schema is made once: flask-openapi asks for it at every request."""

    @classmethod
    def model_json_schema(cls, **how: Any) -> dict[str, Any]:  # type: ignore[override]
        """As pydantic's, by keywords only; the same dictionary every time."""
        return _schema(cls, tuple(sorted(how.items())))


@functools.cache
def _schema(model: type[_Cached], how: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return super(_Cached, model).model_json_schema(**dict(how))


class Query(_Cached):
    """Query parameters: text made into what it should be, and nothing unknown."""

    model_config = ConfigDict(extra="forbid")


class Header(_Cached):
    """Headers of meaning to a call; there are always others."""

    model_config = ConfigDict(extra="ignore")


class Path(_Cached):
    """What stands in the path."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the guard must know of a call; ``scope`` None needs no token."""

    scope: Scope | None
    vital: bool
    has_query: bool
    has_body: bool


class Calls:
    """Registers calls with the app, and remembers what the guard needs."""

    def __init__(self, app: OpenAPI) -> None:
        self._app = app
        self.known: dict[str, Call] = {}

    def add(
        self,
        method: str,
        rule: str,
        *,
        tag: str,
        answers: Mapping[int, Any],
        refuses: tuple[int, ...] = (),
        scope: Scope | None = None,
        vital: bool = False,
        parameters: Sequence[Mapping[str, Any]] = (),
    ) -> Callable[[View], View]:
        """Decorates the function that answers ``method`` at ``rule``; its docstring becomes the summary.

        ``parameters`` are those that it reads itself.
        """

        def decorate(view: View) -> View:
            hints = get_type_hints(view)
            call = Call(scope, vital, has_query="query" in hints, has_body="body" in hints)
            self.known[view.__name__] = call
            register = getattr(self._app, method)
            register(
                rule,
                tags=[{"name": tag}],
                operation_id=view.__name__,
                security=[{SECURITY: []}] if scope else None,
                responses={
                    **{status: _described(what) for status, what in answers.items()},
                    **_refusals(call, refuses),
                },
                openapi_extensions=_more(scope, parameters),
                provide_automatic_options=False,
            )(view)
            return view

        return decorate


def _described(what: Any) -> dict[str, Any]:
    """An answer of a wire model, or none at all; its schema joins the document when that is made, not at every start."""
    if what is None:
        return {"description": "Done"}
    if isinstance(what, dict):
        return what
    schema = {"schema": {"$ref": f"#/components/schemas/{what.__name__}"}}
    return {"description": inspect.getdoc(what), "content": {"application/json": schema}}


def _more(scope: Scope | None, parameters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    more: dict[str, Any] = {"x-scope": scope.value} if scope else {}
    return {**more, "parameters": list(parameters)} if parameters else more


def _refusals(call: Call, refuses: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    """The statuses with which a call can be refused, described."""
    statuses = {*refuses, *_EVERY_CALL, 400, 422}
    if call.scope is not None:
        statuses.add(401)
    if call.scope not in (None, Scope.READ):
        statuses.add(403)
    if call.has_body:
        statuses |= {413, 415}
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {status: {"description": _WORDS[status], "content": {MIMETYPE: schema}} for status in sorted(statuses)}


def answer(model: BaseModel, status: int = 200, *, location: str | None = None) -> Response:
    """``model`` as the JSON of a response."""
    response = Response(model.model_dump_json(), status, mimetype="application/json")
    if location is not None:
        response.headers["Location"] = location
    return response


def binary_answer(description: str, mimetype: str) -> dict[str, Any]:
    """Describes an answer of bytes."""
    return {"description": description, "content": {mimetype: {"schema": {"type": "string", "format": "binary"}}}}


def text_answer(description: str, mimetype: str) -> dict[str, Any]:
    """Describes an answer that is not JSON."""
    return {"description": description, "content": {mimetype: {"schema": {"type": "string"}}}}
