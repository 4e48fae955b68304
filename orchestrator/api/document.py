"""The OpenAPI document: made from the code when it is first asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from flask_openapi.models import OPENAPI3_REF_TEMPLATE
from flask_openapi.openapi import OpenAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from client_sdk import models

OPENAPI_VERSION = "3.1.0"


class Document:
    """The document of one app, with the schemas as pydantic has them (flask-openapi's own lose some keywords)."""

    def __init__(self, app: OpenAPI) -> None:
        self._app = app

    @cached_property
    def value(self) -> dict[str, Any]:
        """The document."""
        self._app.openapi_version = OPENAPI_VERSION
        document: dict[str, Any] = json.loads(json.dumps(self._app.api_doc))
        schemas = models_json_schema(list(_models()), ref_template=OPENAPI3_REF_TEMPLATE)[1]["$defs"]
        document["components"]["schemas"] |= schemas
        for item in document["paths"].values():
            for operation in item.values():
                _clean(operation)
        return document

    @cached_property
    def json(self) -> bytes:
        """The document as it is sent."""
        return json.dumps(self.value, separators=(",", ":")).encode()


def _models() -> Iterator[tuple[type[BaseModel], JsonSchemaMode]]:
    bases = (models.Request, models.Answer)
    for found in vars(models).values():
        if isinstance(found, type) and issubclass(found, bases) and found not in bases:
            yield found, "validation" if issubclass(found, models.Request) else "serialization"


def _clean(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query" and parameter["schema"].get("type") == "array":
            parameter["style"], parameter["explode"] = "form", True
