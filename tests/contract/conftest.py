"""Each contract test runs against every engine host there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine_hosts import (
    DockerHost,
    EngineHost,
    MemoryHost,
    ProcessHost,
    Specs,
    build_stub_image,
    python_base,
)


@pytest.fixture(params=["fake", "process", pytest.param("docker", marks=pytest.mark.docker)])
def host(request: pytest.FixtureRequest) -> Iterator[EngineHost]:
    """An engine host with nothing on it that is ours."""
    made: EngineHost
    if request.param == "docker":
        made = DockerHost(request.getfixturevalue("docker_host"), request.getfixturevalue("stub_image"))
    else:
        made = MemoryHost() if request.param == "fake" else ProcessHost()
    yield made
    made.cleanup()


@pytest.fixture(scope="session")
def stub_image(docker_host: str, request: pytest.FixtureRequest) -> str:
    """An image of the stub engine."""
    return build_stub_image(docker_host, python_base(docker_host) or request.getfixturevalue("practice_image"))


@pytest.fixture
def new_spec(host: EngineHost) -> Specs:
    """``new_spec(...)`` describes one more engine."""
    return Specs(host)
