"""Fixtures and rules for all tests: see CONTRIBUTING.md, "Tests"."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import ports, processes
from tests.support.left_out import in_ci, leave_out
from tests.support.waiting import wait_until as _wait_until

if TYPE_CHECKING:
    import docker

    from tests.support.daemon import Daemon
    from tests.support.docker_engine import PrivateEngine

ROOT = Path(__file__).resolve().parent.parent
SDK_TESTS = ROOT / "tests" / "unit" / "client_sdk"


def pytest_configure(config: pytest.Config) -> None:
    """Mark this run's processes, so that the guard below knows whose they are."""
    os.environ[processes.MARK] = uuid.uuid4().hex
    # Engines of tests listen on loopback, but DIAMBRA's client would ask a proxy for them.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use Docker, and those of the SDK."""
    for item in items:
        if item.path.is_relative_to(SDK_TESTS):
            item.add_marker("sdk")
        if {"docker_host", "private_engine"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("docker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failed one."""
    report = yield
    if in_ci() and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, but in CI nothing may be left out: {report.longrepr}"
    return report


@pytest.fixture(autouse=True, scope="module")
def silent_process_guard() -> Iterator[None]:
    """Fail a module of tests that leaves a process behind, and end that process."""
    mark = os.environ[processes.MARK]
    before = processes.marked_processes(mark)
    yield

    def left() -> dict[int, str]:
        return {pid: line for pid, line in processes.marked_processes(mark).items() if pid not in before}

    try:
        _wait_until(lambda: not left(), 5)
    except AssertionError:
        remaining = left()
        processes.kill(remaining)
        listing = "\n".join(f"  {pid}: {line}" for pid, line in remaining.items())
        pytest.fail(f"these tests left processes behind (killed now):\n{listing}", pytrace=False)


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """``wait_until(predicate, timeout_s)``: see tests.support.waiting."""
    return _wait_until


@pytest.fixture
def free_port() -> int:
    """One free port of 127.0.0.1; for several, use tests.support.ports.free_port()."""
    return ports.free_port()


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A new private folder with a short path, in which Unix sockets fit too."""
    folder = Path(tempfile.mkdtemp(prefix="cm-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def new_daemon(request: pytest.FixtureRequest) -> Iterator[Callable[..., Daemon]]:
    """``new_daemon()`` gives one more installation in a folder of its own; all are stopped and removed after the test."""
    from tests.support.daemon import Daemon

    host = request.getfixturevalue("docker_host") if "docker_host" in request.fixturenames else None
    with ExitStack() as undo:

        def make(**options: Any) -> Daemon:
            folder = Path(tempfile.mkdtemp(prefix="cm-"))
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            daemon = Daemon(folder, **options)
            undo.callback(daemon.close, docker_host=host)
            return daemon

        yield make


@pytest.fixture(scope="session")
def docker_host() -> str:
    """DOCKER_HOST of the Docker Engine in use; left out without one, a failure in CI."""
    from tests.support.docker_engine import find_host

    host = find_host()
    if host is None:
        leave_out(os.environ.get("TESTS_NO_DOCKER") or "no Docker Engine answers (set DOCKER_HOST, or run make test)")
    return host


@pytest.fixture(scope="session")
def docker_client(docker_host: str) -> Iterator[docker.DockerClient]:
    """A client of that engine."""
    from tests.support.docker_engine import connect

    client = connect(docker_host)
    yield client
    client.close()


@pytest.fixture(scope="session")
def practice_image(docker_host: str) -> str:
    """The name of the practice engine's image, built first unless it is up to date."""
    from tests.support.docker_engine import PRACTICE_IMAGE

    script = ROOT / "deploy" / "build-practice-image.sh"
    subprocess.run([script], check=True, timeout=900, env={**os.environ, "DOCKER_HOST": docker_host})
    return PRACTICE_IMAGE


@pytest.fixture
def private_engine(docker_host: str) -> Iterator[PrivateEngine]:
    """A second Docker Engine, running, that the test may stop and kill; needs root."""
    from tests.support.docker_engine import PrivateEngine

    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        leave_out("an engine of the test's own needs root and dockerd")
    folder = Path(tempfile.mkdtemp(prefix="cm-engine-"))
    engine = PrivateEngine(folder=folder, images_from=docker_host)
    try:
        engine.start()
        yield engine
    finally:
        engine.wipe()
        shutil.rmtree(folder, ignore_errors=True)
