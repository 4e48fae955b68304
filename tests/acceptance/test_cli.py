"""The installed command on a host: init, serve, and the commands that look after it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk import _url
from client_sdk.models import EngineState, LeaseRequest
from orchestrator.daemon import Exit
from tests.support.processes import alive
from tests.support.real_daemon import CORNERMAN, RealDaemon, cornerman, set_up
from tests.support.waiting import wait_until

PRACTICE = ("--runtime", "process", "--max-engines", "4", "--min-ready", "1")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A host of practice engines whose daemon runs for all tests of this module that only talk to it."""
    daemon = set_up(tmp_path_factory.mktemp("h"), *PRACTICE)
    daemon.start()
    yield daemon
    daemon.close()


@pytest.fixture
def own(state_dir: Path) -> Iterator[RealDaemon]:
    """A host of practice engines of a test's own, set up and not started."""
    daemon = set_up(state_dir, *PRACTICE)
    yield daemon
    daemon.close()


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _refusal(daemon: RealDaemon) -> tuple[int, str]:
    """How ``serve`` ends when it cannot run, and its one sentence."""
    done = daemon.run("serve", "--dir", str(daemon.folder))
    said = [record["event"] for record in _events(done.stderr) if record["level"] == "error"]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, said[0]


# ---------------------------------------------------------------- init


def test_init_prints_the_connection_string_alone(state_dir: Path) -> None:
    """``export CORNERMAN_URL=$(cornerman init)`` works: the string is all of standard output, and of lease scope."""
    done = cornerman("init", "--dir", str(state_dir / "h"), *PRACTICE)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert _url.parse(done.stdout).port == 8443


def test_no_secret_but_the_string_is_printed(state_dir: Path) -> None:
    """The administrator's string stays in its file, and nothing secret is among the words."""
    done = cornerman("init", "--dir", str(state_dir / "h"), *PRACTICE)
    admin = (state_dir / "h/admin.url").read_text().strip()
    for url in (admin, done.stdout):
        assert _url.parse(url).token.get_secret_value() not in done.stderr
    assert admin not in done.stdout


def test_init_twice_is_refused(own: RealDaemon) -> None:
    """A second init changes nothing and says what to do instead."""
    done = own.run("init", "--dir", str(own.folder))
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was changed" in done.stderr
    assert "cornerman token create" in done.stderr


def test_help_loads_nothing_of_the_daemon() -> None:
    """``cornerman --help`` is quick: it loads neither Docker, Flask nor the pool."""
    program = (
        "import sys; from client_sdk import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'docker', 'flask', 'structlog', 'cryptography', 'granian', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("init", "serve", "status", "pool", "token", "logs"):
        assert f"\n  {command} " in done.stdout


def test_the_certificate_can_be_renewed_under_a_running_daemon(own: RealDaemon) -> None:
    """After a renewal and a restart the strings that were given out still work."""
    done = own.run("init", "--dir", str(own.folder), "--renew-certificate")
    assert done.returncode == 0, done.stderr
    assert "good until" in done.stderr
    own.start()
    assert own.run("ps", environ={"CORNERMAN_URL": own.url}).returncode == 0


def test_a_lost_admin_string_can_be_made_anew(own: RealDaemon) -> None:
    """``init --renew-admin`` under a running daemon gives a string that works, and ends the old one."""
    own.start()
    old = own.admin_url
    done = own.run("init", "--dir", str(own.folder), "--renew-admin")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert own.run("token", "list", "--dir", str(own.folder)).returncode == 0
    wait_until(lambda: own.run("token", "list", environ={"CORNERMAN_URL": old}).returncode == 1, 10)


# ---------------------------------------------------------------- serve: what keeps it from running


def test_without_a_configuration_it_says_how_to_make_one(tmp_path: Path) -> None:
    """No configuration: one sentence, and the exit code after which trying again is no use."""
    done = cornerman("serve", "--config", str(tmp_path / "none.toml"))
    assert done.returncode == Exit.CONFIG
    assert "make one with 'cornerman init'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_engines = 4", "max_engines = 0", "pools.default.max_engines"),
        ("max_engines = 4", "max_engines = 'many'", "pools.default.max_engines"),
        ("max_engines = 4", "max_engine = 4", "pools.default.max_engine: there is no such setting; check its spelling"),
        ("max_engines = 4", "max_engines = ", "is not valid TOML"),
        ("max_engines = 4", "max_engines = 400", "may hold 400 engines: widen first_port..last_port"),
        ("min_ready = 1", "min_ready = 5", "min_ready (5) is above max_engines (4)"),
        ("#tls = true", "certificate = '/none.pem'", "certificate and key belong together"),
        ("#tls = true", "certificate = '/none.pem'\nkey = '/none.key'", "server.certificate /none.pem does not exist"),
        ('#key = "/etc/ssl/private/host.key"', "[nothing]", "nothing: there is no such setting"),
        ("#roms_path", "roms_path = '/etc/passwd' #", "/etc/passwd is a file: name the folder"),
        ("#credentials_path", "credentials_path = '/none' #", "/none does not exist: log in with 'diambra user login'"),
        ("#credentials_path", "credentials_path = '/etc' #", "/etc is a folder: log in with 'diambra user login'"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(own: RealDaemon, old: str, new: str, words: str) -> None:
    """Every wrong value is named with its place and what to do, and ends the daemon for good."""
    path = own.folder / "cornerman.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    code, sentence = _refusal(own)
    assert code == Exit.CONFIG
    assert words in sentence


def test_a_second_daemon_refuses_to_start(own: RealDaemon) -> None:
    """Two daemons never share a state folder: the second one names the first one's process and ends."""
    own.start()
    assert own.process is not None
    code, sentence = _refusal(own)
    assert code == Exit.ALREADY_RUNNING
    assert f"process {own.process.pid}" in sentence
    assert own.run("status", "--dir", str(own.folder)).returncode == 0


def test_a_taken_port_is_one_sentence(own: RealDaemon) -> None:
    """A port that another program holds is said with what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", own.port))
        other.listen()
        code, sentence = _refusal(own)
    assert code == Exit.PORT_TAKEN
    assert sentence.startswith(f"Port {own.port} on 127.0.0.1 is taken by another program: stop that one")


def test_a_full_disk_is_one_sentence(own: RealDaemon) -> None:
    """A state folder that cannot be written is said with what to do; once there is space the same command works."""
    database = own.folder / "state/cornerman.db"
    database.unlink()
    done = subprocess.run(
        [CORNERMAN, "serve", "--dir", own.folder],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    (said,) = [record["event"] for record in _events(done.stderr) if record["level"] == "error"]
    assert done.returncode == Exit.STATE
    assert "check the owner and the free space" in said
    own.start()


def test_a_state_folder_that_is_a_file_is_one_sentence(own: RealDaemon) -> None:
    """A state_dir that cannot be a folder is said with what to do."""
    path = own.folder / "cornerman.toml"
    path.write_text(path.read_text().replace('/state"', '/admin.url"', 1))
    code, sentence = _refusal(own)
    assert code == Exit.STATE
    assert "check its owner and free space" in sentence


# ---------------------------------------------------------------- serve: running


def test_it_says_where_it_listens(own: RealDaemon) -> None:
    """The log of a start names the address of the API."""
    own.start()
    assert f"listens on https://127.0.0.1:{own.port}" in own.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_quickly_and_with_all_its_processes(own: RealDaemon, number: signal.Signals) -> None:
    """SIGTERM, Ctrl-C and a closed terminal end API, pool and practice engines within seconds, with exit code 0."""
    own.start()
    with own.admin() as (_, api):
        wait_until(lambda: [engine for engine in api.engines() if engine.state is EngineState.READY], 30)
    api_pids = own.api_pids()
    assert api_pids
    began = time.monotonic()
    assert own.stop(number) == Exit.STOPPED
    assert time.monotonic() - began < 8
    assert not any(map(alive, api_pids))
    assert "Traceback" not in own.log


def test_a_signal_during_the_start_ends_it_too(own: RealDaemon) -> None:
    """A daemon that is told to stop before it is up stops."""
    own.start(wait=False)
    wait_until(lambda: own.api_pids(), 30)
    assert own.stop() == Exit.STOPPED
    assert not own.api_pids()


def test_a_dead_api_comes_back_and_no_game_notices(own: RealDaemon) -> None:
    """When the API is killed the pool, its engines and its leases go on, and a new API answers with the old strings."""
    own.start()
    with own.admin() as (_, api):
        lease = api.create(LeaseRequest(envs=1, wait=True), key="k" * 32)
        wait_until(lambda: api.show(lease.id).state.value == "active", 30)
        before = api.show(lease.id).envs
    pids = own.api_pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: own.api_pids() - pids, 30)

    def answers() -> bool:
        return own.run("ps", environ={"CORNERMAN_URL": own.url}).returncode == 0

    wait_until(answers, 30)
    with own.admin() as (_, api):
        assert api.show(lease.id).envs == before
    assert own.process is not None
    assert own.process.poll() is None
    assert "the API ended and is started again" in own.log


class Supervisor:
    """Hears what a daemon tells systemd."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(address))

    def until(self, wanted: str, *, within_s: float = 30.0) -> None:
        """Listen until a message begins with ``wanted``; TimeoutError when none does."""
        deadline = time.monotonic() + within_s
        while True:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            if self._socket.recv(4096).decode().startswith(wanted):
                return

    def falls_silent(self, message: str, *, for_s: float) -> None:
        """Listen until ``message`` was not heard ``for_s``."""
        with contextlib.suppress(TimeoutError):
            while True:
                self.until(message, within_s=for_s)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()


def test_life_signs_come_from_the_pools_loop(own: RealDaemon) -> None:
    """systemd hears READY, a status with the engines' counts, and life signs that stop when the pool's loop hangs."""
    address = own.folder / "supervisor"
    environ = {**os.environ, "NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "2000000"}
    with contextlib.closing(Supervisor(address)) as supervisor:
        own.process = subprocess.Popen(
            [CORNERMAN, "serve", "--dir", own.folder], stderr=subprocess.DEVNULL, env=environ, start_new_session=True
        )
        supervisor.until("READY=1", within_s=60)
        supervisor.until("STATUS=default: ")
        supervisor.until("WATCHDOG=1")
        with contextlib.closing(sqlite3.connect(own.config.database, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # the loop cannot write any more, and waits for up to 10 s
            supervisor.falls_silent("WATCHDOG=1", for_s=3)
            database.execute("ROLLBACK")
        supervisor.until("WATCHDOG=1")
        assert own.stop() == Exit.STOPPED
        supervisor.until("STOPPING=1")


def test_docker_that_does_not_answer_is_one_sentence_and_no_end(state_dir: Path) -> None:
    """Without its Docker Engine the daemon starts, says so, answers, and goes on trying."""
    daemon = set_up(state_dir, "--runtime", "docker", settings={"url": '"unix:///nonexistent/docker.sock"'})
    try:
        daemon.start()
        said = [record for record in _events(daemon.log) if record["level"] == "warning"]
        assert ["does not answer at unix:///nonexistent/docker.sock" in str(record) for record in said] == [True]
        assert "Traceback" not in daemon.log
        shown = daemon.run("status", "--dir", str(daemon.folder))
        assert "default: Docker does not answer at unix:///nonexistent/docker.sock" in shown.stdout
        assert daemon.stop() == Exit.STOPPED
    finally:
        daemon.close()


# ---------------------------------------------------------------- the commands that look after it


def test_status_shows_pools_engines_and_leases(host: RealDaemon) -> None:
    """``status`` finds the host by itself and shows what is there, for people and as JSON."""
    done = host.run("status", "--dir", str(host.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("POOL ")
    assert "default" in done.stdout
    shown = json.loads(host.run("status", "--dir", str(host.folder), "--json").stdout)
    assert [pool["name"] for pool in shown["pools"]] == ["default"]
    assert set(shown) == {"pools", "engines", "leases", "host"}


def test_status_without_a_daemon_says_so(own: RealDaemon) -> None:
    """A host that does not answer is one sentence."""
    done = own.run("status", "--dir", str(own.folder))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: 127.0.0.1:{own.port} ")
    assert len(done.stderr.splitlines()) == 1


def test_a_pool_is_changed_while_it_runs(host: RealDaemon) -> None:
    """``pool set`` changes sizes and pauses; what cannot be is one sentence."""
    place = ("--dir", str(host.folder))
    done = host.run("pool", "set", "default", "--min-ready", "2", "--pause", *place)
    assert done.returncode == 0, done.stderr
    (pool,) = json.loads(host.run("pool", "list", "--json", *place).stdout)
    assert (pool["min_ready"], pool["paused"]) == (2, True)
    assert host.run("pool", "set", "default", "--min-ready", "1", "--resume", *place).returncode == 0
    (pool,) = json.loads(host.run("pool", "list", "--json", *place).stdout)
    assert (pool["min_ready"], pool["paused"]) == (1, False)
    for wrong in (["default", "--min-ready", "5"], ["default", "--image", "evil"], ["other", "--pause"], ["default"]):
        refused = host.run("pool", "set", *wrong, *place)
        assert refused.returncode in (1, 2)
        assert "Traceback" not in refused.stderr


def test_a_token_is_made_used_listed_and_revoked(host: RealDaemon) -> None:
    """A new connection string is shown once, alone on standard output, works, and works no more once revoked."""
    place = ("--dir", str(host.folder))
    made = host.run("token", "create", "alice", "--note", "laptop", "--max-engines", "2", *place)
    assert made.returncode == 0, made.stderr
    url = made.stdout.strip()
    assert host.run("ps", environ={"CORNERMAN_URL": url}).returncode == 0
    listed = json.loads(host.run("token", "list", "--json", *place).stdout)
    (mine,) = [token for token in listed if token["principal"] == "alice"]
    assert (mine["scope"], mine["note"]) == ("lease", "laptop")
    assert _url.parse(url).token.get_secret_value() not in json.dumps(listed)
    assert host.run("token", "revoke", mine["id"], *place).returncode == 0

    def refused() -> bool:
        done = host.run("ps", environ={"CORNERMAN_URL": url})
        return done.returncode == 1 and "not known" in done.stderr

    wait_until(refused, 10)
    assert host.run("token", "remove-principal", "alice", *place).returncode == 0
    assert host.run("token", "remove-principal", "alice", *place).returncode == 1


def test_only_an_administrator_looks_after_a_host(host: RealDaemon) -> None:
    """With a string of lease scope the commands of administrators are refused in one sentence."""
    for command in (["token", "list"], ["pool", "set", "default", "--pause"], ["token", "create", "mallory"]):
        done = host.run(*command, environ={"CORNERMAN_URL": host.url})
        assert done.returncode == 1
        assert "admin scope" in done.stderr
        assert host.url not in done.stderr


def test_on_the_host_itself_the_admins_string_is_found(host: RealDaemon, tmp_path: Path) -> None:
    """Where CORNERMAN_URL names this very host by a lease-scope string, admin commands take the admin's own."""
    place = tmp_path / ".config/cornerman"
    place.mkdir(parents=True)
    (place / "admin.url").write_text(host.admin_url)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config"), "CORNERMAN_URL": host.url}
    assert host.run("token", "list", environ=environ).returncode == 0
    del environ["CORNERMAN_URL"]
    assert host.run("token", "list", environ=environ).returncode == 0


def test_logs_events_and_retiring(host: RealDaemon) -> None:
    """The log of an engine and the events can be read, and an engine can be sent away."""
    place = ("--dir", str(host.folder))
    with host.admin() as (_, api):
        ready = wait_until(lambda: [one for one in api.engines() if one.state is EngineState.READY], 30)
        log = host.run("logs", ready[0].id, *place)
        assert "Server listening on" in log.stdout, log.stderr
        assert host.run("logs", "e-none", *place).returncode == 1
        assert host.run("retire", ready[0].id, *place).returncode == 0
        wait_until(lambda: all(one.id != ready[0].id for one in api.engines()), 30)
    happened = [json.loads(line) for line in host.run("events", "--json", *place).stdout.splitlines()]
    assert any(event["engine_id"] == ready[0].id and event["kind"] == "engine.gone" for event in happened)
    assert host.run("events", *place).stdout.count("\n") >= len(happened)


def test_following_a_log_shows_new_lines_and_ends_with_ctrl_c(host: RealDaemon) -> None:
    """``events --follow`` shows what happens after it began."""
    follower = subprocess.Popen(
        [CORNERMAN, "events", "--follow", "--dir", host.folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        host.run("token", "create", "follower", "--note", "seen", "--dir", str(host.folder))
        assert follower.stdout is not None
        deadline = time.monotonic() + 30
        while "follower" not in (line := follower.stdout.readline()):
            assert line, "it ended"
            assert time.monotonic() < deadline
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=20)
        assert "Traceback" not in errors
    finally:
        follower.kill()
        follower.wait()
