"""Fixtures and rules for all tests: see CONTRIBUTING.md, "Tests"."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import ports, processes
from tests.support.left_out import in_ci, leave_out
from tests.support.waiting import wait_until as _wait_until

if TYPE_CHECKING:
    import docker

    from tests.support.docker_engine import PrivateEngine
    from tests.support.real_daemon import RealDaemon

ROOT = Path(__file__).resolve().parent.parent
SDK_TESTS = ROOT / "tests" / "unit" / "client_sdk"


def pytest_configure(config: pytest.Config) -> None:
    """Mark this run's processes, so that the guard below knows whose they are."""
    os.environ[processes.MARK] = uuid.uuid4().hex
    # Whoever runs tests in the background may ignore these, and every child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
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

    processes.end_marked(mark, but=before)


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
def new_daemon(request: pytest.FixtureRequest) -> Iterator[Callable[..., RealDaemon]]:
    """``new_daemon("--runtime", "process", ...)`` is ``set_up`` of tests.support.real_daemon in a folder of its own.

    After the test each one is stopped, and its folder and its containers are removed; a process that is left fails the test.
    """
    from tests.support.real_daemon import set_up

    docker_fixtures = {"docker_host", "practice_image"} & set(request.fixturenames)
    host = request.getfixturevalue("docker_host") if docker_fixtures else None

    def end(daemon: RealDaemon, mark: str) -> None:
        with ExitStack() as undo:
            if host is not None:
                undo.callback(_remove_engines, host, daemon)
            undo.callback(processes.end_marked, mark, name=processes.FAMILY_MARK)
            daemon.close()

    with ExitStack() as undo:

        def make(*arguments: str, environ: Mapping[str, str] | None = None, **options: Any) -> RealDaemon:
            folder, mark = Path(tempfile.mkdtemp(prefix="cm-")), uuid.uuid4().hex
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            daemon = set_up(folder, *arguments, environ={**(environ or {}), processes.FAMILY_MARK: mark}, **options)
            undo.callback(end, daemon, mark)
            return daemon

        yield make


def _remove_engines(host: str, daemon: RealDaemon) -> None:
    from tests.support.docker_engine import remove_engines

    remove_engines(host, daemon.instance)


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
