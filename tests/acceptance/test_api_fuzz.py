"""The API against its own OpenAPI document: whatever is sent, it answers as described, and never with a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from orchestrator.model import Scope
from tests.support.api import House

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An API with a few engines, whose clock stands still and whose requests are not counted."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    house = House(folder, server={"requests_per_s": 1e9}, max_engines=50)
    house.add_engines(20)
    yield house
    house.close()


@pytest.fixture(scope="module")
def described(house: House) -> Any:
    """The API as its document describes it."""
    return schemathesis.openapi.from_wsgi("/openapi.json", house.app)


@pytest.mark.parametrize("tag", ["leases", "engines", "pools", "events", "tokens", "system"])
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_answer_is_as_described(house: House, described: Any, tag: str, mode: GenerationMode) -> None:
    """Requests made from the document, right and wrong ones, get statuses, types and bodies that the document allows."""
    token = house.desk("fuzz", Scope.ADMIN).token
    found = [result.ok() for result in described.include(tag=tag).get_all_operations()]
    assert found
    for operation in found:
        if mode is GenerationMode.NEGATIVE and not (operation.body or list(operation.iter_parameters())):
            continue  # there is nothing in it that could be wrong
        _try(operation.as_strategy(generation_mode=mode), str(token))


def _try(strategy: st.SearchStrategy[Case[Any]], token: str) -> None:
    @given(case=strategy)
    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Case[Any]) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS)

    send()
