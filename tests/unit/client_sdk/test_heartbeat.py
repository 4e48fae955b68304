"""The process that keeps a lease alive, and what becomes of the lease when the one that asked for it ends in any way."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk import Cornerman, HeartbeatFault, LeaseLost
from client_sdk._heartbeat_helper import Outbox, Report
from client_sdk._lease import Lease
from client_sdk.models import LeaseState
from tests.support.fake_daemon import TOKEN, FakeDaemon, refusing, serving, times

ROOT = Path(__file__).resolve().parents[3]
TTL_S = 6.0  # shorter than a daemon allows, so that nobody has to wait for minutes
WaitUntil = Callable[..., object]


@pytest.fixture(autouse=True)
def short_ttl(daemon: FakeDaemon) -> None:
    """Leases that live only for seconds without a heartbeat."""
    daemon.ttl_s = TTL_S


class Script:
    """Python code in a process of its own, with a lease in ``lease``; it says its lines through ``say``."""

    PRELUDE = """
        import ctypes, os, signal, sys, threading, time
        from client_sdk import Cornerman
        def say(text):
            os.write(1, (str(text) + "\\n").encode())
        def until_told():
            sys.stdin.readline()
        lease = Cornerman().lease(envs=1)
        say(lease.id)
        say(lease._heartbeat.pid)
    """

    def __init__(self, daemon: FakeDaemon, code: str, *, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(self.PRELUDE) + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "CORNERMAN_URL": daemon.url, "PYTHONPATH": str(ROOT)},
            cwd=cwd,
            text=True,
            start_new_session=True,
        )
        self.lease_id = self.line()
        self.helper = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            pytest.fail(f"the script ended: {self.process.communicate()[1]}")
        return line

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Wait for its end: what it left on standard error."""
        _, err = self.process.communicate(timeout=60)
        return err


@pytest.fixture
def script(daemon: FakeDaemon, tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """``script(code)`` runs code with a lease."""
    running: list[Script] = []

    def start(code: str) -> Script:
        running.append(Script(daemon, code, cwd=tmp_path))
        return running[-1]

    yield start
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate(timeout=20)


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_held_interpreter_lock_does_not_cost_the_lease(daemon: FakeDaemon, script: Callable[[str], Script]) -> None:
    """A kernel that holds its interpreter lock for longer than the ttl keeps its lease."""
    held = script(
        f"""
        ctypes.PyDLL(None).sleep({int(TTL_S * 2)})  # PyDLL keeps the lock
        lease.refresh()
        say("kept")
        until_told()
        """
    )
    assert held.line() == "kept"
    assert daemon.state(held.lease_id) is LeaseState.ACTIVE
    assert len(daemon.renewals) >= 4


def test_stopped_kernel_keeps_its_lease(
    daemon: FakeDaemon, script: Callable[[str], Script], wait_until: WaitUntil
) -> None:
    """A stopped process (Ctrl-Z, a debugger) keeps its lease."""
    stopped = script("until_told(); lease.refresh(); say('kept')")
    os.kill(stopped.process.pid, signal.SIGSTOP)
    before = len(daemon.renewals)
    wait_until(lambda: len(daemon.renewals) >= before + 4, 60)
    os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.tell()
    assert stopped.line() == "kept"


def test_killed_kernel_releases_its_lease(
    daemon: FakeDaemon, script: Callable[[str], Script], wait_until: WaitUntil
) -> None:
    """When the kernel is killed its engines are free at once, not only when the lease would have expired."""
    daemon.ttl_s = 60
    killed = script("until_told()")
    os.kill(killed.process.pid, signal.SIGKILL)
    wait_until(lambda: daemon.state(killed.lease_id) is LeaseState.RELEASED, 30)
    wait_until(lambda: not alive(killed.helper), 30)


def test_killed_kernel_with_living_children_releases_its_lease(
    daemon: FakeDaemon, script: Callable[[str], Script], wait_until: WaitUntil
) -> None:
    """Forked children that outlive the kernel do not keep the lease, although they hold the helper's pipe open."""
    daemon.ttl_s = 60
    killed = script(
        """
        if os.fork() == 0:
            say("child")
            time.sleep(100)
        until_told()
        """
    )
    assert killed.line() == "child"
    os.kill(killed.process.pid, signal.SIGKILL)
    wait_until(lambda: daemon.state(killed.lease_id) is LeaseState.RELEASED, 30)


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(3)",
        "raise SystemExit",
        "1 / 0",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os._exit(1)",
        "threading.Thread(target=time.sleep, args=(0.2,)).start()",
        "import gc; gc.collect(); os.abort()",
    ],
)
def test_interpreter_end_releases(
    daemon: FakeDaemon, script: Callable[[str], Script], wait_until: WaitUntil, end: str
) -> None:
    """However an interpreter ends, its lease is released, and the SDK adds nothing to what it says."""
    daemon.ttl_s = 60
    ended = script(end)
    err = ended.end()
    wait_until(lambda: daemon.state(ended.lease_id) is LeaseState.RELEASED, 30)
    wait_until(lambda: not alive(ended.helper), 30)
    assert "client_sdk" not in err


def test_normal_end_has_released_before_it_is_over(daemon: FakeDaemon, script: Callable[[str], Script]) -> None:
    """After an ordinary end the engines are free already when the next script starts."""
    ended = script("pass")
    assert ended.end() == ""
    assert daemon.state(ended.lease_id) is LeaseState.RELEASED


def test_forked_child_neither_releases_nor_renews(daemon: FakeDaemon, script: Callable[[str], Script]) -> None:
    """A forked child (SubprocVecEnv) ends in any way it likes: the lease stays with its parent."""
    forked = script(
        """
        for how in ("sys.exit()", "os._exit(0)", "lease.release()", "lease.__exit__(None, None, None)", "del lease"):
            child = os.fork()
            if child == 0:
                before = os.environ["DIAMBRA_ENVS"]
                exec(how)
                assert os.environ["DIAMBRA_ENVS"] == before
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0, how
        lease.refresh()
        say("kept")
        until_told()
        """
    )
    assert forked.line() == "kept"
    assert daemon.state(forked.lease_id) is LeaseState.ACTIVE
    assert not daemon.calls("DELETE", ".*")


def test_forked_child_can_look_at_the_lease(daemon: FakeDaemon, script: Callable[[str], Script]) -> None:
    """A forked child may ask how the lease is, over a connection of its own."""
    forked = script(
        """
        child = os.fork()
        if child == 0:
            lease.refresh()
            lease.check()
            repr(lease)
            os._exit(7)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        lease.refresh()
        say("both")
        """
    )
    assert [forked.line(), forked.line()] == ["7", "both"]


def test_interrupt_does_not_reach_the_helper(
    daemon: FakeDaemon, script: Callable[[str], Script], wait_until: WaitUntil
) -> None:
    """Ctrl-C goes to all processes of the terminal, but heartbeats go on when the kernel survives it."""
    interrupted = script(
        """
        try:
            say("ready")
            time.sleep(100)
        except KeyboardInterrupt:
            say("interrupted")
        until_told()
        """
    )
    assert interrupted.line() == "ready"
    os.killpg(interrupted.process.pid, signal.SIGINT)
    assert interrupted.line() == "interrupted"
    before = len(daemon.renewals)
    wait_until(lambda: len(daemon.renewals) >= before + 3, 60)
    assert alive(interrupted.helper)


def test_helper_that_dies_is_replaced(
    daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the heartbeat process is killed (out of memory), another one takes over before the lease expires."""
    with host.lease(envs=1) as lease:
        first = lease._heartbeat.pid
        os.kill(first, signal.SIGKILL)
        before = len(daemon.renewals)
        wait_until(lambda: len(daemon.renewals) >= before + 3, 60)
        assert lease._heartbeat.pid != first
        lease.refresh()
    assert "heartbeat process ended" in capsys.readouterr().err


def test_failing_heartbeats_are_tried_until_they_get_through(
    daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heartbeats that fail in any way are repeated in time; the holder is warned once and keeps the lease."""
    path = ".*/renew"
    with host.lease(envs=1) as lease:
        daemon.faults += [
            times(1, lambda seen: "cut", path=path),
            times(1, lambda seen: "drop", path=path),
            times(1, refusing(500, "internal"), path=path),
            times(1, refusing(503, "unavailable", retry_after_s=1), path=path),
            times(1, refusing(401, "unauthenticated"), path=path),
        ]
        wait_until(lambda: len(daemon.renewals) >= 8, 60)
        lease.refresh()
        lease.check()
    err = capsys.readouterr().err
    assert err.count("gets no heartbeat through") == 1
    assert "lost" not in err


def test_daemon_that_was_away_finds_the_lease_alive(wait_until: WaitUntil) -> None:
    """A daemon that restarts gets heartbeats again, on the same lease."""
    fake = FakeDaemon(ttl_s=TTL_S)
    with serving(fake):
        lease = Cornerman(fake.url).lease(envs=1)
        wait_until(lambda: len(fake.renewals) >= 1, 60)
    before = len(fake.renewals)
    fake.leases[lease.id].until += 60  # as after a restart, when every lease gets more time
    with serving(fake):
        wait_until(lambda: len(fake.renewals) > before, 60)
        lease.check()
        lease.release()
        assert fake.state(lease.id) is LeaseState.RELEASED


def test_token_is_in_no_argument_and_no_environment(daemon: FakeDaemon, script: Callable[[str], Script]) -> None:
    """The heartbeat process gets its token through a pipe that nobody else can read."""
    shown = script("until_told()")
    for name in ("cmdline", "environ"):
        assert TOKEN.encode() not in Path(f"/proc/{shown.helper}/{name}").read_bytes()
    assert TOKEN.encode() not in Path(f"/proc/{shown.process.pid}/cmdline").read_bytes()


def test_modules_lying_around_do_not_disturb_the_helper(
    daemon: FakeDaemon, script: Callable[[str], Script], tmp_path: Path, wait_until: WaitUntil
) -> None:
    """Files in the working directory that are named like modules do not come between a lease and its heartbeats."""
    helper_only = script("os.chdir(os.getcwd()); until_told()")
    for name in ("json", "select", "requests", "typing", "client_sdk"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    os.kill(helper_only.helper, signal.SIGKILL)  # the next one starts among those files
    before = len(daemon.renewals)
    wait_until(lambda: len(daemon.renewals) >= before + 2, 60)


def test_lost_lease_ends_the_helper(daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """After the lease is lost nothing of it is left behind."""
    lease = host.lease(envs=1)
    pid = lease._heartbeat.pid
    daemon.end(lease.id, LeaseState.EXPIRED, "it was idle")
    wait_until(lambda: not alive(pid), 60)
    with pytest.raises(LeaseLost, match="it was idle"):
        wait_until(lambda: lease.check(), 10)
    lease.release()


def test_released_lease_leaves_no_process(host: Cornerman) -> None:
    """A released lease has no heartbeat process any more, not even a zombie."""
    lease: Lease = host.lease(envs=1)
    pid = lease._heartbeat.pid
    lease.release()
    assert not Path(f"/proc/{pid}").exists()


def test_heartbeats_that_cannot_start_cost_no_lease(
    daemon: FakeDaemon, host: Cornerman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no heartbeat process can be started, the lease is given back and the error says so."""
    for executable, what in (("", "sys.executable"), ("/nonexistent/python", "No such file")):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(HeartbeatFault, match=what):
            host.lease(envs=1)
    assert {daemon.state(lease_id) for lease_id in daemon.leases} == {LeaseState.RELEASED}


@pytest.mark.parametrize("release", [True, False])
def test_without_any_working_helper_the_process_renews_itself(
    daemon: FakeDaemon,
    host: Cornerman,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    release: bool,
) -> None:
    """Where heartbeat processes start but cannot work, heartbeats come from the process itself, with a warning."""
    monkeypatch.setattr("client_sdk._heartbeat._BOOT", "raise SystemExit('no module named x')")
    lease = host.lease(envs=1)
    wait_until(lambda: len(daemon.renewals) >= 3, 60)
    lease.refresh()
    err = capsys.readouterr().err
    assert "no module named x" in err
    assert err.count("from this process itself") == 1
    lease_id = lease.id
    if release:
        lease.release()
    else:
        del lease
        gc.collect()
    wait_until(lambda: daemon.state(lease_id) is LeaseState.RELEASED, 30)


def test_signal_handler_may_release(daemon: FakeDaemon, script: Callable[[str], Script]) -> None:
    """A handler that releases the lease and ends the process works at any moment."""
    handled = script(
        """
        def end(*_):
            lease.release()
            sys.exit(9)
        signal.signal(signal.SIGTERM, end)
        say("ready")
        while True:
            lease.refresh()
        """
    )
    assert handled.line() == "ready"
    os.kill(handled.process.pid, signal.SIGTERM)
    assert handled.process.wait(30) == 9
    assert daemon.state(handled.lease_id) is LeaseState.RELEASED


def test_outbox_never_waits_and_keeps_the_latest() -> None:
    """Reports that nobody reads pile up nowhere: what leaves last is the latest, and no line is torn."""
    reader, writer = os.pipe()
    outbox = Outbox(writer)
    for number in range(5000):
        outbox.put(Report(event="failing", text=f"{number} " + "x" * 200))
    lines = b""
    os.set_blocking(reader, False)
    for _ in range(100):
        with contextlib.suppress(BlockingIOError):
            lines += os.read(reader, 1 << 20)
        outbox.flush()
    os.close(writer)
    os.close(reader)
    reports = [Report.model_validate_json(line) for line in lines.splitlines()]
    assert reports[-1].text.startswith("4999 ")
    assert len(reports) < 5000
