"""Fixtures of the dashboard's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model import Scope
from tests.support.api import Desk, House
from tests.support.dashboard import Browser


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A daemon's API with the pools "main" (4 engines at most) and "other", and no engine yet."""
    house = House(tmp_path)
    yield house
    house.close()


@pytest.fixture
def ann(house: House) -> Desk:
    """Ann, who may lease."""
    return house.desk("ann")


@pytest.fixture
def bob(house: House) -> Desk:
    """Bob, who may lease."""
    return house.desk("bob")


@pytest.fixture
def admin(house: House) -> Desk:
    """The administrator."""
    return house.desk("root", Scope.ADMIN)


@pytest.fixture
def browser(house: House) -> Browser:
    """A browser that has been nowhere yet."""
    return Browser(house)
