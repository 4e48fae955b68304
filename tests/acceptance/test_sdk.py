"""The SDK against a real daemon with practice engines, played by DIAMBRA's own client: what a notebook's user does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk import (
    Cornerman,
    LeaseLost,
    NotAuthenticated,
    NotFound,
    PoolExhausted,
    Refused,
    UntrustedHost,
    WaitTimeout,
)
from client_sdk.models import EngineState, EnvState
from tests.support import processes
from tests.support.real_daemon import CORNERMAN, RealDaemon, set_up

# The stock client leaves the file of its games open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
MOST = 4  # engines of the pool
SHORTEST_TTL_S = 10.0
WaitUntil = Callable[..., object]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon with practice engines as child processes, for all tests of this module."""
    pool = ("--runtime", "process", "--expose", "direct", "--min-ready", "2", "--max-engines", str(MOST))
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        processes.kill(daemon.family())


@pytest.fixture
def host(running: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cornerman]:
    """The way to the daemon, by CORNERMAN_URL; at the end no lease may be left."""
    monkeypatch.setenv("CORNERMAN_URL", running.url)
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    monkeypatch.setattr("cv2.destroyAllWindows", lambda: None)  # DIAMBRA's close() needs it, a headless OpenCV has none
    host = Cornerman(quiet=True)
    yield host
    for lease in host.leases():
        host.release(lease.id)


def _open_leases(host: Cornerman) -> list[str]:
    return [lease.id for lease in host.leases() if lease.state.value in ("pending", "active")]


def _play(rank: int, steps: int = 3) -> None:
    """A few steps of a fight in the environment ``rank``, with the stock client."""
    import diambra.arena

    settings = diambra.arena.EnvironmentSettings()
    settings.splash_screen = False
    settings.frame_shape = (64, 64, 1)
    env = diambra.arena.make("doapp", settings, rank=rank)
    try:
        observation, _ = env.reset(seed=7)
        for _ in range(steps):
            observation, *_ = env.step(env.action_space.sample())
        assert observation["frame"].shape == (64, 64, 1)
    finally:
        env.close()


class Script:
    """Python code of a user in a process of its own."""

    def __init__(self, daemon: RealDaemon, code: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code)],
            env={**os.environ, "CORNERMAN_URL": daemon.url},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def script(running: RealDaemon, host: Cornerman, tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """``script(code)`` runs code with CORNERMAN_URL set."""
    begun: list[Script] = []

    def start(code: str) -> Script:
        begun.append(Script(running, code, tmp_path))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.communicate(timeout=20)


def test_six_lines_of_a_notebook(host: Cornerman) -> None:
    """A lease makes DIAMBRA_ENVS name its engines, and the stock client plays on each rank; then they are free again."""
    with Cornerman().lease(envs=2) as lease:
        assert os.environ["DIAMBRA_ENVS"].split() == lease.addresses
        assert len(set(lease.addresses)) == 2
        for rank in range(2):
            _play(rank)
    assert "DIAMBRA_ENVS" not in os.environ
    assert _open_leases(host) == []


def test_next_lease_gets_other_engines(host: Cornerman) -> None:
    """An engine serves one lease only."""
    with host.lease(envs=2) as one:
        first = {env.engine_id for env in one.envs}
    with host.lease(envs=2) as two:
        assert first.isdisjoint({env.engine_id for env in two.envs})


def test_queue_without_waiting_and_with(host: Cornerman) -> None:
    """When all engines are leased: no-wait is refused, a timeout leaves the queue, and a waiting lease gets them next."""
    first = host.lease(envs=MOST)
    with pytest.raises(PoolExhausted) as caught:
        host.lease(envs=1, wait=False)
    assert caught.value.retry_after_s
    with pytest.raises(WaitTimeout):
        host.lease(envs=1, timeout_s=0.5)
    assert _open_leases(host) == [first.id]
    timer = threading.Timer(1.0, first.release)
    timer.start()
    with host.lease(envs=2, timeout_s=90) as second:
        assert len(second.addresses) == 2
    timer.join()


def test_more_than_the_pool_can_hold_is_refused(host: Cornerman) -> None:
    """What can never come is refused with the daemon's sentence."""
    with pytest.raises(Refused) as caught:
        host.lease(envs=MOST + 1)
    assert caught.value.status == 422
    assert str(MOST) in str(caught.value)
    with pytest.raises(NotFound):
        host.lease(envs=1, pool="no-such-pool")


def test_wrong_token_and_wrong_ca(running: RealDaemon, host: Cornerman) -> None:
    """A wrong token is not let in, and a host that cannot prove itself is not given one."""
    token = running.url.split("//")[1].split("@")[0]
    with pytest.raises(NotAuthenticated):
        Cornerman(running.url.replace(token, "x" * 43)).leases()
    before, _, sha256 = running.url.rpartition(":")
    with pytest.raises(UntrustedHost):
        Cornerman(f"{before}:{sha256[::-1]}").leases()


@contextlib.contextmanager
def _tunnel(to_port: int, *, address: str) -> Iterator[int]:
    """A port on ``address`` whose connections go to ``to_port`` of 127.0.0.1."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as open_ones:
            while True:
                near = open_ones.enter_context(listener.accept()[0])
                far = open_ones.enter_context(socket.create_connection(("127.0.0.1", to_port)))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server((address, 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_host_proves_itself_through_a_tunnel(running: RealDaemon, host: Cornerman) -> None:
    """What is verified is the host's own name, so the same string works under an address no certificate names."""
    with _tunnel(running.port, address="127.8.8.8") as port:
        through = running.url.replace(f"127.0.0.1:{running.port}", f"127.8.8.8:{port}")
        far = Cornerman(through, quiet=True)
        with far.lease(envs=1) as lease:
            assert [found.id for found in host.leases() if found.state.value == "active"] == [lease.id]


def test_certificate_passes_the_strictest_check(running: RealDaemon, host: Cornerman) -> None:
    """The host's certificate passes RFC 5280's strict rules, which Python 3.13 applies by default."""
    host.leases()
    strict = ssl.create_default_context(cadata=host._api.session.ca_pem)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", running.port), timeout=10) as plain,
        strict.wrap_socket(plain, server_hostname="cornerman.internal") as secure,
    ):
        assert secure.version() in ("TLSv1.2", "TLSv1.3")


def test_held_interpreter_lock_does_not_cost_the_lease(script: Callable[[str], Script]) -> None:
    """A kernel that holds its interpreter lock for longer than the ttl keeps its lease."""
    held = script(
        f"""
        import ctypes
        from client_sdk import Cornerman
        with Cornerman().lease(envs=1, ttl_s={SHORTEST_TTL_S}) as lease:
            ctypes.PyDLL(None).sleep({int(SHORTEST_TTL_S * 1.5)})  # PyDLL keeps the lock
            lease.refresh()
            print("kept")
        """
    )
    assert held.line() == "kept"
    assert held.process.wait(30) == 0


def test_killed_notebook_frees_its_engines(
    host: Cornerman, script: Callable[[str], Script], wait_until: WaitUntil
) -> None:
    """When the kernel is killed, its engines are given back within seconds, although the ttl is minutes."""
    killed = script(
        """
        import time
        from client_sdk import Cornerman
        lease = Cornerman().lease(envs=1, ttl_s=600)
        print(lease.id)
        time.sleep(600)
        """
    )
    lease_id = killed.line()
    assert _open_leases(host) == [lease_id]
    killed.process.kill()
    wait_until(lambda: _open_leases(host) == [], 30)


def test_forked_workers_play_and_the_lease_stays_the_parents(host: Cornerman, script: Callable[[str], Script]) -> None:
    """Worker processes made by fork play on their ranks; their ends do not touch the lease."""
    parent = script(
        """
        import multiprocessing
        from client_sdk import Cornerman

        def work(rank):
            import diambra.arena
            settings = diambra.arena.EnvironmentSettings()
            settings.splash_screen = False
            settings.frame_shape = (64, 64, 1)
            env = diambra.arena.make("doapp", settings, rank=rank)
            env.reset(seed=7)
            env.step(env.action_space.sample())

        with Cornerman().lease(envs=2) as lease:
            context = multiprocessing.get_context("fork")
            workers = [context.Process(target=work, args=(rank,)) for rank in range(2)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
            lease.refresh()
            print([worker.exitcode for worker in workers])
        """
    )
    lines = []
    while line := parent.line():
        lines.append(line)
    assert lines[-1] == "[0, 0]"
    assert parent.process.wait(30) == 0
    assert _open_leases(host) == []


def test_dead_engine_is_replaced_within_the_lease(running: RealDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """An engine that dies is replaced under its rank: after a refresh the stock client plays there again."""
    with host.lease(envs=2) as lease:
        before = lease.envs
        port = int((before[1].address or "").rpartition(":")[2])
        os.kill(_listener(port), signal.SIGKILL)

        def healed() -> bool:
            lease.refresh()
            return lease.envs[1].generation > 1 and lease.envs[1].state is EnvState.READY

        wait_until(healed, 60, poll_s=0.2)
        assert lease.envs[0] == before[0]
        assert os.environ["DIAMBRA_ENVS"].split()[1] == lease.addresses[1] != before[1].address
        _play(1)


def _listener(port: int) -> int:
    """The process that listens on a port of 127.0.0.1."""
    import psutil

    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        if listens and connection.pid:
            return int(connection.pid)
    raise AssertionError(f"nobody listens on port {port}")


def test_broken_engine_is_replaced_on_demand(host: Cornerman) -> None:
    """replace() gives a rank a fresh engine and leaves the others alone."""
    with host.lease(envs=2) as lease:
        before = lease.envs
        lease.replace(0, "its picture is frozen")
        assert lease.envs[1] == before[1]
        assert lease.envs[0].engine_id != before[0].engine_id
        assert lease.envs[0].generation == 2
        _play(0)
        broken = [engine for engine in host.engines() if engine.id == before[0].engine_id]
        assert all(engine.state is not EngineState.LEASED for engine in broken)


def test_lease_ended_by_an_administrator_is_lost(running: RealDaemon, host: Cornerman) -> None:
    """Who loses a lease to somebody else's decision is told why."""
    lease = host.lease(envs=1)
    Cornerman(running.admin_url).release(lease.id)
    with pytest.raises(LeaseLost, match="administrator"):
        lease.refresh()
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()


def test_lease_outlives_the_daemon(running: RealDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """The daemon is killed and started again: the lease is the same, heartbeats go on, and its slots are filled again."""
    with host.lease(envs=1, ttl_s=20) as lease:
        running.kill()
        time.sleep(1)
        running.start()
        expiry = lease.expires_at
        assert expiry is not None
        wait_until(lambda: (lease.expires_at or expiry) > expiry, 60, what="a heartbeat")

        def filled() -> bool:
            lease.refresh()
            return all(env.state is EnvState.READY for env in lease.envs)

        wait_until(filled, 60, poll_s=0.2)
        assert _open_leases(host) == [lease.id]
        _play(0)


def test_cornerman_run_plays_a_script(running: RealDaemon, host: Cornerman, tmp_path: Path) -> None:
    """`cornerman run -n 2 -- python train.py` runs a stock script on two engines and passes its exit code on."""
    train = tmp_path / "train.py"
    train.write_text(
        textwrap.dedent(
            """
            import os, sys
            import diambra.arena
            for rank in range(len(os.environ["DIAMBRA_ENVS"].split())):
                settings = diambra.arena.EnvironmentSettings()
                settings.splash_screen = False
                env = diambra.arena.make("doapp", settings, rank=rank)
                env.reset(seed=1)
                env.step(env.action_space.sample())
            sys.exit(17)
            """
        )
    )
    done = subprocess.run(
        [CORNERMAN, "run", "-n", "2", "--", sys.executable, train],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 17, done.stderr
    assert _open_leases(host) == []


def test_cornerman_lease_ps_release(running: RealDaemon, host: Cornerman) -> None:
    """`cornerman lease` holds engines, `ps` shows them, and `release` ends it, which the holder is told."""
    holder = subprocess.Popen(
        [CORNERMAN, "lease", "-n", "2", "--ttl", str(SHORTEST_TTL_S)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("export DIAMBRA_ENVS='127.0.0.1:")
        (lease_id,) = _open_leases(host)
        shown = subprocess.run([CORNERMAN, "ps"], capture_output=True, text=True, check=True, timeout=60).stdout
        assert shown.count(lease_id) == 3
        subprocess.run([CORNERMAN, "release", lease_id], check=True, timeout=60, capture_output=True)
        _, err = holder.communicate(timeout=60)
        assert holder.returncode == 1
        assert "its holder released it" in err
    finally:
        if holder.poll() is None:
            holder.terminate()
            holder.communicate(timeout=30)


def test_the_daemons_own_command_is_the_same(running: RealDaemon) -> None:
    """One command line serves both ends: what leases here is what runs the daemon on a host."""
    shown = subprocess.run([CORNERMAN, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    for name in ("init", "serve", "run", "lease", "ps", "release"):
        assert f"  {name} " in shown
