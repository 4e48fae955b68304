"""Fixtures of the tests against a real Docker Engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine_hosts import DockerHost, Specs, build_stub_image, python_base


@pytest.fixture(scope="session")
def stub_image(docker_host: str, request: pytest.FixtureRequest) -> str:
    """An image of the stub engine."""
    return build_stub_image(docker_host, python_base(docker_host) or request.getfixturevalue("practice_image"))


@pytest.fixture
def host(docker_host: str, stub_image: str) -> Iterator[DockerHost]:
    """The Docker Engine, with none of our containers on it."""
    made = DockerHost(docker_host, stub_image)
    yield made
    made.cleanup()


@pytest.fixture
def new_spec(host: DockerHost) -> Specs:
    """``new_spec(...)`` describes one more engine."""
    return Specs(host)
