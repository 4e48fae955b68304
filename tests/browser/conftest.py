"""One browser for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium; left out where there is none, a failure in CI."""
    with launched() as browser:
        yield browser
