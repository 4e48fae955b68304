"""What is special about engines that are child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config import ProcessOptions
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.runtimes.process import ProcessRuntime
from tests.support import processes
from tests.support.engine_hosts import STUB, ProcessHost, Specs, launch, tell_stub, wait_ended
from tests.support.ports import free_port
from tests.support.waiting import wait_until

DAEMON = """
    import sys, time
    from orchestrator.config import ProcessOptions
    from orchestrator.interfaces import EngineSpec
    from orchestrator.probes import GrpcProbe
    from orchestrator.runtimes.process import ProcessRuntime

    stub, port = sys.argv[1], int(sys.argv[2])
    runtime = ProcessRuntime("i")
    options = ProcessOptions(command=(sys.executable, stub))
    runtime.start(runtime.create(EngineSpec("e1", "n", "i", "p", "stub", "127.0.0.1", port, options=options)))
    while not GrpcProbe()("127.0.0.1", port, timeout_s=1):
        time.sleep(0.05)
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def host() -> Iterator[ProcessHost]:
    """A process runtime without engines."""
    made = ProcessHost()
    yield made
    made.cleanup()


@pytest.fixture
def new_spec(host: ProcessHost) -> Specs:
    """``new_spec(...)`` describes one more engine."""
    return Specs(host)


def test_engines_end_with_a_daemon_that_is_killed(host: ProcessHost) -> None:
    """Engines that are child processes end although their daemon was killed by SIGKILL and could not end them."""
    port = free_port()
    daemon = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DAEMON), str(STUB), str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "up\n"
        assert host.probe("127.0.0.1", port, timeout_s=5)
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.communicate(timeout=10)
    wait_until(lambda: not host.probe("127.0.0.1", port, timeout_s=1), 10, what="the end of the engine")


def test_closing_ends_all_engines(host: ProcessHost, new_spec: Specs) -> None:
    """A runtime that is closed leaves no process, and makes no new engine."""
    specs = [new_spec() for _ in range(3)]
    for spec in specs:
        launch(host, spec)
    pids = [int(tell_stub(spec.port, "RUN os.getpid()")) for spec in specs]
    host.runtime.close()
    assert not any(processes.alive(pid) for pid in pids)
    with pytest.raises(RuntimeFault) as caught:
        host.runtime.create(new_spec())
    assert caught.value.kind is FaultKind.UNREACHABLE


def test_what_an_engine_started_ends_with_it(host: ProcessHost, new_spec: Specs) -> None:
    """Processes that an engine started end when it does, by itself or removed."""
    for end in ("exit", "remove"):
        spec = new_spec()
        handle = launch(host, spec)
        child = int(tell_stub(spec.port, "RUN os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')"))
        assert processes.alive(child)
        if end == "exit":
            host.end(spec, 0)
            wait_ended(host, spec)
        host.runtime.remove(handle)
        wait_until(lambda pid=child: not processes.alive(pid), 5)  # type: ignore[misc]


def test_home_and_tmp_are_private(host: ProcessHost, new_spec: Specs) -> None:
    """Report 30: each child process has a home and a temporary folder of its own, gone when it is removed."""
    first, second = new_spec(), new_spec()
    handle = launch(host, first)
    launch(host, second)
    for name in ("HOME", "TMPDIR"):
        mine, other = (eval(tell_stub(spec.port, f"RUN os.environ['{name}']")) for spec in (first, second))
        assert mine != other
        assert Path(mine).is_dir()
    host.runtime.remove(handle)
    assert not Path(mine).exists()


def test_secrets_are_not_passed_on(host: ProcessHost, new_spec: Specs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection string and the service manager's socket are not handed to engines; configured variables are."""
    monkeypatch.setenv("CORNERMAN_URL", "cornerman://secret@host")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    spec = new_spec(options={"env": {"DIAMBRA": "yes"}})
    launch(host, spec)
    names = tell_stub(spec.port, "RUN [n for n in ('CORNERMAN_URL', 'NOTIFY_SOCKET', 'DIAMBRA') if n in os.environ]")
    assert names == "['DIAMBRA']"


def test_a_program_that_does_not_exist(host: ProcessHost, new_spec: Specs) -> None:
    """A command that cannot be run is BAD_SPEC and names the setting; nothing is left behind."""
    handle = host.runtime.create(new_spec(options={"command": ("/no/such/program",)}))
    with pytest.raises(RuntimeFault, match=r"process\.command") as caught:
        host.runtime.start(handle)
    assert caught.value.kind is FaultKind.BAD_SPEC
    (seen,) = host.runtime.list()
    assert not seen.started


def test_an_endless_log_takes_no_memory(host: ProcessHost, new_spec: Specs) -> None:
    """Report 28: an engine that writes without end is read without end, and only the end is kept."""
    spec = new_spec()
    handle = launch(host, spec)
    assert tell_stub(spec.port, "FLOOD 3000", timeout_s=60) == "done"
    wait_until(lambda: host.runtime.logs(handle, 1)[0].startswith("00002999"), 10)
    assert len(host.runtime.logs(handle, 10_000)) < 400


def test_a_start_that_races_a_removal_leaves_nothing(host: ProcessHost, new_spec: Specs) -> None:
    """Whichever of a start and a removal at the same moment comes first, no process is left afterwards."""
    for _ in range(10):
        handle = host.runtime.create(new_spec())

        def start(handle: str = handle) -> None:
            with contextlib.suppress(RuntimeFault):
                host.runtime.start(handle)

        thread = threading.Thread(target=start)
        thread.start()
        host.runtime.remove(handle)
        thread.join(10)
    assert host.runtime.list() == []
    mark = os.environ[processes.MARK]
    wait_until(lambda: not any(str(STUB) in line for line in processes.marked_processes(mark).values()), 5)


def test_the_practice_engine_is_the_default(host: ProcessHost, new_spec: Specs) -> None:
    """Without a configured command the practice engine is started, answers on its port, and is named in its log."""
    spec = new_spec(options={"command": ()})
    assert isinstance(spec.options, ProcessOptions)
    assert isinstance(host.runtime, ProcessRuntime)
    handle = host.runtime.create(spec)
    host.runtime.start(handle)
    wait_until(lambda: host.probe("127.0.0.1", spec.port, timeout_s=1), 60, what="an answer of the practice engine")
    assert any("Server listening" in line for line in host.runtime.logs(handle, 20))
