"""`cornerman` on the command line: run, lease, ps, release, and the commands that a host adds."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from client_sdk import cli
from client_sdk.models import LeaseState
from tests.support.fake_daemon import TOKEN, FakeDaemon, refusing
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
CORNERMAN = [sys.executable, "-m", "client_sdk.cli"]
WaitUntil = Callable[..., object]


@pytest.fixture
def environment(daemon: FakeDaemon) -> dict[str, str]:
    """As a user would have it."""
    return {**os.environ, "CORNERMAN_URL": daemon.url, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def cornerman(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``cornerman("ps")`` runs the command to its end."""

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CORNERMAN, *arguments],
            env={**environment, **changes},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def call(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``call("ps")`` runs the command in this process: its exit code, output and errors."""

    def run(*arguments: str, url: str = environment["CORNERMAN_URL"]) -> tuple[int, str, str]:
        monkeypatch.setenv("CORNERMAN_URL", url)
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def begin(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``begin("lease")`` starts the command in a process group of its own."""
    begun: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*CORNERMAN, *arguments],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.terminate()  # and not killed: it is to release its lease while the daemon is there
        process.communicate(timeout=30)


def _states(daemon: FakeDaemon) -> list[LeaseState]:
    return [daemon.state(lease_id) for lease_id in list(daemon.leases)]


def _python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def test_run_sets_diambra_envs_and_passes_the_exit_code_on(
    daemon: FakeDaemon, cornerman: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """`cornerman run -n 3 -- command` runs the command with three engines, and ends as the command ends."""
    done = cornerman("run", "-n", "3", *_python("import os, sys; print(os.environ['DIAMBRA_ENVS']); sys.exit(7)"))
    assert done.stdout.split() == ["127.0.0.1:32001", "127.0.0.1:32002", "127.0.0.1:32003"]
    assert (done.returncode, done.stderr) == (7, "")
    assert _states(daemon) == [LeaseState.RELEASED]


def test_run_passes_the_end_by_a_signal_on(cornerman: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A command that a signal ends gives 128 plus its number, as in a shell."""
    assert cornerman("run", *_python("import os; os.kill(os.getpid(), 9)")).returncode == 137


def test_run_gives_options_to_the_command(cornerman: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Options after the command are the command's own, with and without the two dashes."""
    for dashes in ([], ["--"]):
        done = cornerman("run", *dashes, "printf", "%s %s %s", "-n", "--pool", "-q")
        assert done.stdout == "-n --pool -q"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_run_forwards_signals(
    daemon: FakeDaemon, begin: Callable[..., subprocess.Popen[str]], signum: signal.Signals
) -> None:
    """A signal to `cornerman run` reaches the command, which decides how to end; then the engines are released."""
    code = (
        "import signal, sys; import time; "
        f"signal.signal({int(signum)}, lambda *_: sys.exit(40)); print('up', flush=True); time.sleep(60)"
    )
    run = begin("run", *_python(code))
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    os.kill(run.pid, signum)
    assert run.wait(30) == 40
    assert _states(daemon) == [LeaseState.RELEASED]


def test_interrupt_from_the_terminal_reaches_the_command_once(
    daemon: FakeDaemon, environment: dict[str, str], tmp_path: Path
) -> None:
    """Ctrl-C in a terminal interrupts the command once, lets it clean up, and then releases the engines."""
    code = """
import signal, sys, time
count = 0
def interrupted(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
print("up", flush=True)
while not count:
    time.sleep(0.01)
time.sleep(0.5)
print("count", count, flush=True)
sys.exit(5)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(CORNERMAN[0], [*CORNERMAN, "run", *_python(code)], environment)
    output = b""
    try:
        while b"up" not in output:
            output += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        while not (b"count" in output and output.endswith(b"\n")):
            output += os.read(terminal, 1000)
        assert b"count 1" in output
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    finally:
        os.close(terminal)
    assert _states(daemon) == [LeaseState.RELEASED]


def test_run_killed_releases(
    daemon: FakeDaemon, begin: Callable[..., subprocess.Popen[str]], wait_until: WaitUntil
) -> None:
    """`kill -9` of `cornerman run` frees its engines."""
    run = begin("run", *_python("import sys; print('up', flush=True); sys.stdin.read()"))
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    run.kill()
    wait_until(lambda: _states(daemon) == [LeaseState.RELEASED], 30)


def test_ended_while_queueing_leaves_the_queue(
    daemon: FakeDaemon, begin: Callable[..., subprocess.Popen[str]], wait_until: WaitUntil
) -> None:
    """A signal while `cornerman run` waits for engines ends it at once, and its place in the queue is given up."""
    holder = begin("lease", "-n", "8")
    wait_until(lambda: _states(daemon) == [LeaseState.ACTIVE], 30)
    for signum in (signal.SIGTERM, signal.SIGINT):
        waiting = begin("run", "true")
        assert waiting.stderr is not None
        assert "place 1 in the queue" in waiting.stderr.readline()
        os.kill(waiting.pid, signum)
        assert waiting.wait(30) == 128 + signum
        assert _states(daemon)[-1] is LeaseState.RELEASED
    os.kill(holder.pid, signal.SIGTERM)
    assert holder.wait(30) == 0


def test_unknown_command_costs_no_lease(
    daemon: FakeDaemon, cornerman: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A mistyped command is refused before anything is leased for it."""
    done = cornerman("run", "no-such-command")
    assert (done.returncode, done.stderr) == (
        1,
        "Error: There is no command 'no-such-command' here; check its name and PATH.\n",
    )
    assert not daemon.seen


def test_lease_holds_until_interrupted(daemon: FakeDaemon, begin: Callable[..., subprocess.Popen[str]]) -> None:
    """`cornerman lease` prints a line for the shell and holds the engines until Ctrl-C."""
    lease = begin("lease", "-n", "2", "--label", "run=7", "--note", "by hand")
    assert lease.stdout is not None
    assert lease.stdout.readline() == "export DIAMBRA_ENVS='127.0.0.1:32001 127.0.0.1:32002'\n"
    held = next(iter(daemon.leases.values()))
    assert (held.model.labels, held.model.note) == ({"run": "7"}, "by hand")
    os.killpg(lease.pid, signal.SIGINT)
    assert lease.wait(30) == 0
    assert _states(daemon) == [LeaseState.RELEASED]


def test_lease_as_json(daemon: FakeDaemon, begin: Callable[..., subprocess.Popen[str]]) -> None:
    """`cornerman lease --json` is for other programs, and tells no secret."""
    lease = begin("lease", "--json")
    assert lease.stdout is not None
    shown = json.loads(lease.stdout.readline())
    assert shown["id"] in daemon.leases
    assert shown["diambra_envs"] == shown["envs"][0]["address"] == "127.0.0.1:32001"
    assert "relay" not in shown
    lease.terminate()
    assert lease.wait(30) == 0


def test_lost_lease_ends_the_holding(
    daemon: FakeDaemon, begin: Callable[..., subprocess.Popen[str]], wait_until: WaitUntil
) -> None:
    """`cornerman lease` ends with the reason when its lease is lost."""
    daemon.ttl_s = 6
    lease = begin("lease", "-q")
    wait_until(lambda: _states(daemon) == [LeaseState.ACTIVE], 30)
    daemon.end(next(iter(daemon.leases)), LeaseState.FAILED, "the ROM is missing")
    _, err = lease.communicate(timeout=60)
    assert lease.returncode == 1
    assert "the ROM is missing" in err
    assert "Traceback" not in err


def test_ps_and_release(
    daemon: FakeDaemon,
    call: Callable[..., tuple[int, str, str]],
    begin: Callable[..., subprocess.Popen[str]],
    wait_until: WaitUntil,
) -> None:
    """`cornerman ps` shows leases and their engines, and `cornerman release ID` ends one."""
    assert call("ps") == (0, "No leases.\n", "")
    begin("lease", "-n", "2", "--note", "two\x1b[31m lines\n")
    wait_until(lambda: _states(daemon) == [LeaseState.ACTIVE], 30)
    lease_id = next(iter(daemon.leases))
    _, shown, _ = call("ps")
    assert shown.count(lease_id) == 3
    assert "127.0.0.1:32002" in shown
    assert "\x1b" not in shown
    as_json = json.loads(call("ps", "--json")[1])
    assert [engine["lease_id"] for engine in as_json["engines"]] == [lease_id] * 2
    assert call("release", lease_id) == (0, f"Released {lease_id}.\n", "")
    assert call("ps") == (0, "No leases.\n", "")
    assert lease_id in call("ps", "--all")[1]


def test_wrong_calls_are_explained(daemon: FakeDaemon, call: Callable[..., tuple[int, str, str]]) -> None:
    """Every failure is one sentence on standard error: exit code 2 for a wrong call, 1 for anything else."""
    closed = f"cornerman+http://{TOKEN}@127.0.0.1:{free_port()}"
    for arguments, url, code, what in (
        (["run"], daemon.url, 2, "COMMAND"),
        (["lease", "-n", "0"], daemon.url, 2, "0 is not in the range"),
        (["lease", "--label", "x"], daemon.url, 2, "KEY=VALUE"),
        (["nonsense"], daemon.url, 2, "No such command"),
        (["release"], daemon.url, 2, "ID"),
        (["release", "nothing"], daemon.url, 1, "There is no lease nothing."),
        (["lease", "--ttl", "1"], daemon.url, 1, "ttl_s"),
        (["lease", "-n", "9"], daemon.url, 1, "8 engines at most"),
        (["ps"], "", 1, "There is no connection string"),
        (["ps"], f"http://{TOKEN}@x", 1, "The connection string is wrong"),
        (["ps"], closed, 1, "was not reached"),
    ):
        ended, out, err = call(*arguments, url=url)
        assert (ended, out) == (code, ""), arguments
        assert what in err
        assert TOKEN not in err
        assert code == 2 or (err.startswith("Error: ") and err.count("\n") == 1)


def test_any_other_fault_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even a fault of ours shows no traceback, but says how to get one."""

    def broken() -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(cli, "Cornerman", broken)
    with pytest.raises(SystemExit) as caught:
        cli.main(["ps"])
    assert caught.value.code == 1
    assert capsys.readouterr().err == "Error: RuntimeError: unforeseen (set CORNERMAN_DEBUG=1 to see where).\n"
    monkeypatch.setenv("CORNERMAN_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.main(["ps"])


class FakeEntry:
    """An entry point that offers ``offer``, or fails to load."""

    def __init__(self, offer: object) -> None:
        self._offer = offer

    def load(self) -> object:
        if isinstance(self._offer, Exception):
            raise self._offer
        return self._offer


def _offering(monkeypatch: pytest.MonkeyPatch, *offers: object) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: [FakeEntry(offer) for offer in offers])


@pytest.mark.parametrize("listed", [True, False])
def test_host_commands_are_added(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listed: bool
) -> None:
    """Another part of the distribution adds its commands, one or a list of them."""

    @click.command()
    @click.pass_context
    def serve(ctx: click.Context) -> None:
        click.echo("serving")
        ctx.exit(3)

    _offering(monkeypatch, [serve] if listed else serve)
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve"])
    assert (caught.value.code, capsys.readouterr().out) == (3, "serving\n")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert "serve" in shown
    assert "release" in shown


@pytest.mark.parametrize(
    ("missing", "cure"), [("diambra.arena", "--no-deps diambra-arena"), ("gymnasium", "[diambra]")]
)
def test_tune_without_what_plays_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str, cure: str
) -> None:
    """``cornerman tune`` needs DIAMBRA's client; without it, it says how to get that and not the daemon."""

    def ask(**wishes: object) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(cli, "_ask", ask)
    with pytest.raises(SystemExit) as caught:
        cli.main(["tune"])
    assert caught.value.code == 1
    assert cure in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.HOST_COMMANDS)
@pytest.mark.parametrize("missing", ["flask", "orchestrator", None])
def test_host_commands_without_the_extra_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, missing: str | None
) -> None:
    """Without the daemon's dependencies its commands say how to get them, and leasing works all the same."""
    offers = [] if missing is None else [ModuleNotFoundError(f"No module named {missing!r}", name=missing)]
    _offering(monkeypatch, *offers)
    with pytest.raises(SystemExit) as caught:
        cli.main([command])
    assert caught.value.code == 1
    assert "pip install 'cornerman[orchestrator]'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "release" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        cli.main(["nonsense"])
    assert caught.value.code == 2


def test_daemons_errors_are_sentences(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a host's command raises on purpose is shown as it is."""

    class CornermanError(Exception):
        """As the daemon has one of its own."""

    class ConfigError(CornermanError):
        """One of those."""

    @click.command()
    def serve() -> None:
        raise ConfigError("There is no file x; make one with `cornerman init`.")

    _offering(monkeypatch, [serve])
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve"])
    assert caught.value.code == 1
    assert capsys.readouterr().err == "Error: There is no file x; make one with `cornerman init`.\n"


def test_leasing_loads_nothing_of_the_daemon(environment: dict[str, str]) -> None:
    """`cornerman run` imports neither the daemon nor Flask, Docker, numpy or DIAMBRA."""
    code = """
import sys
from client_sdk.cli import main
try:
    main(["run", "true"])
except SystemExit as end:
    assert end.code == 0
    heavy = {"orchestrator", "practice_engine", "flask", "docker", "numpy", "grpc", "diambra", "cryptography"}
    print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_refusal_is_shown_as_the_daemon_says_it(
    daemon: FakeDaemon, cornerman: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A refusal on the command line is the daemon's own sentence."""
    daemon.faults.append(refusing(403, "quota-exceeded", "You hold 4 of 4 engines; release some first."))
    assert cornerman("lease").stderr == "Error: You hold 4 of 4 engines; release some first.\n"


def test_closed_output_is_no_traceback(environment: dict[str, str]) -> None:
    """`cornerman ps | head -0` ends without complaint."""
    done = subprocess.run(
        f"{sys.executable} -m client_sdk.cli ps | true",
        shell=True,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
