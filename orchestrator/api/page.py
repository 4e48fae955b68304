"""The OpenAPI document as a page to read: no script, so that a strict content policy can hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import render_template
from markupsafe import Markup

from orchestrator.api.document import Document
from orchestrator.errors import Refused


def render(document: Document) -> str:
    """The page."""
    return render_template(
        "docs.html",
        document=document.value,
        problems=sorted(_problems(Refused)),
        reference=_reference,
        kind_of=_kind_of,
    )


def _problems(of: type[Refused]) -> Iterator[tuple[str, int, str]]:
    """(slug, status, meaning) of everything that a request can be refused for."""
    for kind in of.__subclasses__():
        yield kind.slug, kind.status, (kind.__doc__ or "").strip()
        yield from _problems(kind)


def _reference(schema: dict[str, Any]) -> Markup | str:
    """A link to the schema's description."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return Markup('<a href="#schema-{0}">{0}</a>').format(name) if name else str(schema.get("type", ""))


def _kind_of(schema: dict[str, Any]) -> Markup | str:
    """What a field holds, in a few words."""
    if "$ref" in schema:
        return _reference(schema)
    if "anyOf" in schema:
        return Markup(" or ").join(_kind_of(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return Markup("list of {}").format(_kind_of(schema.get("items", {})))
    return str(schema.get("format") or schema.get("type", "anything"))
