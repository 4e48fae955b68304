"""A stand-in daemon for each test, and a clean environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_sdk import Cornerman
from tests.support.fake_daemon import FakeDaemon, serving


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own settings."""
    for name in ("CORNERMAN_URL", "DIAMBRA_ENVS", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    """A daemon with eight engines."""
    with serving(FakeDaemon()) as fake:
        yield fake


@pytest.fixture
def host(daemon: FakeDaemon) -> Cornerman:
    """The way to ``daemon``."""
    return Cornerman(daemon.url)
