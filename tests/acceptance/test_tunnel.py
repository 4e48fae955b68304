"""The tunnel against a real daemon: stock scripts play over one encrypted line, through cuts, deaths and restarts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import psutil
import pytest

from client_sdk import Cornerman, Lease, LeaseLost, models
from client_sdk._tunnel_end import Tunnel
from client_sdk.wire import Method
from tests.support import processes
from tests.support.link import Link
from tests.support.play import Game, over_grpc
from tests.support.ports import own_address
from tests.support.real_daemon import CORNERMAN, RealDaemon, set_up
from tests.support.waiting import wait_until

# The stock client leaves the file of its games open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
MOST = 6
PLAY = """
import logging, os
import diambra.arena

def play(rank, steps=20):
    settings = diambra.arena.EnvironmentSettings()
    settings.splash_screen = False
    settings.frame_shape = (64, 64, 1)
    env = diambra.arena.make("doapp", settings, rank=rank, log_level=logging.WARNING)
    env.reset(seed=7)
    for _ in range(steps):
        observation, *_ = env.step(env.action_space.sample())
    assert observation["frame"].shape == (64, 64, 1)
    env.unwrapped.arena_engine.close()
    return rank
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon whose engines no other machine could reach, for all tests of this module."""
    pool = ("--runtime", "process", "--min-ready", "3", "--max-engines", str(MOST))
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        processes.kill(daemon.family())


@pytest.fixture
def host(running: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cornerman]:
    """The way to the daemon; at the end no lease and no folder of sockets may be left."""
    monkeypatch.setenv("CORNERMAN_URL", running.url)
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    host = Cornerman(quiet=True)
    yield host
    for lease in host.leases():
        host.release(lease.id)


@pytest.fixture
def link(running: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A line that can be cut, between this machine and the relay."""
    link = Link(("127.0.0.1", running.config.relay.port))
    straight = Tunnel.open

    def over_link(self: Tunnel, relay: models.Relay) -> list[str]:
        port = urlsplit(relay.url).port
        return straight(self, relay.model_copy(update={"url": relay.url.replace(f":{port}/", f":{link.port}/")}))

    monkeypatch.setattr(Tunnel, "open", over_link)
    yield link
    link.close()


def script(code: str, *, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a user's code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def games(lease: Lease) -> list[Game]:
    """A game begun on each engine of the lease."""
    begun = [Game(over_grpc(address)) for address in lease.addresses]
    for game in begun:
        game.make()
        game.reset()
    return begun


def _steps(game: Game, count: int) -> None:
    for _ in range(count):
        game.step()


def engine_pid(daemon: RealDaemon, lease: Lease, rank: int) -> int:
    """The process of the engine that sits in a slot."""
    return daemon.engine_pid(lease.envs[rank].address)


# ---------------------------------------------------------------- an unmodified script


def test_stock_script_through_the_tunnel(host: Cornerman) -> None:
    """Report 39: the stock client plays through the tunnel, also with proxy variables set that lead nowhere."""
    nowhere = "http://127.0.0.1:9"
    code = f"""
    {textwrap.indent(PLAY, "    ").strip()}

    from client_sdk import Cornerman
    with Cornerman().lease(envs=2, via="tunnel") as lease:
        assert all(address.startswith("unix:/") for address in os.environ["DIAMBRA_ENVS"].split())
        for rank in range(2):
            play(rank)
    assert "DIAMBRA_ENVS" not in os.environ
    print("played")
    """
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), nowhere)
    done = script(code, environ=proxies)
    assert done.stdout == "played\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_a_pool(host: Cornerman, tmp_path: Path, method: str) -> None:
    """Workers that are forked, or started afresh, each play on their rank, as those of a SubprocVecEnv do."""
    (tmp_path / "player.py").write_text(PLAY)
    code = f"""
    import multiprocessing, sys
    sys.path.insert(0, {str(tmp_path)!r})
    from player import play
    from client_sdk import Cornerman
    if __name__ == "__main__":
        with Cornerman().lease(envs=3, via="tunnel") as lease:
            with multiprocessing.get_context({method!r}).Pool(3) as workers:
                assert workers.map(play, range(3), chunksize=1) == [0, 1, 2]
            lease.refresh()
            assert lease.state.value == "active"
        print("played")
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    done = script(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')")
    assert done.stdout == "played\n", done.stderr


def test_private_sockets(host: Cornerman) -> None:
    """The sockets lie in a folder that only their user can enter, and that goes with the lease."""
    with host.lease(envs=2, via="tunnel") as lease:
        sockets = [Path(address.removeprefix("unix:")) for address in lease.addresses]
        folder = sockets[0].parent
        assert [path.name for path in sockets] == ["0.sock", "1.sock"]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(len(str(path)) < 104 for path in sockets)
        assert os.environ["DIAMBRA_ENVS"] == lease.diambra_envs == " ".join(lease.addresses)
    assert not folder.exists()


def test_ports_on_request(host: Cornerman) -> None:
    """On request the tunnel listens on ports of 127.0.0.1, for a client that cannot use sockets."""
    with host.lease(envs=2, via="tunnel", local="ports") as lease:
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in lease.addresses)
        for game in games(lease):
            game.step()
            assert game.run == 1


def test_direct_on_one_machine(host: Cornerman) -> None:
    """When client and host are one machine, the engines' own addresses are the default."""
    with host.lease(envs=1) as lease:
        assert lease.addresses == [env.address for env in lease.envs]
        assert lease.addresses[0].startswith("127.0.0.1:")


def test_command_through_the_tunnel(host: Cornerman) -> None:
    """`cornerman run --via tunnel` sets DIAMBRA_ENVS to the tunnel's addresses."""
    done = subprocess.run(
        [CORNERMAN, "run", "-q", "-n", "2", "--via", "tunnel", "--", "printenv", "DIAMBRA_ENVS"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert re.fullmatch(r"unix:/\S+/0\.sock unix:/\S+/1\.sock\n", done.stdout), done.stderr


# ---------------------------------------------------------------- when something dies


def test_engine_dies(running: RealDaemon, host: Cornerman) -> None:
    """Report 31: a step whose engine dies names rank, engine and reason; the same address serves the fresh engine at the next make."""
    with host.lease(envs=2, via="tunnel") as lease:
        first, second = games(lease)
        first.step()
        dead, addresses = lease.envs[0].engine_id, lease.addresses
        os.kill(engine_pid(running, lease, 0), signal.SIGKILL)
        with pytest.raises(grpc.RpcError) as failed:
            _steps(first, 1000)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"rank 0 ({dead})" in failed.value.details() or "being replaced" in failed.value.details()
        first.close()  # of a game that is gone: no error
        first.make()
        first.reset()
        first.step()
        assert first.run == 1
        second.step()
        assert second.run == 1
        lease.refresh()
        assert (lease.addresses, lease.envs[0].generation) == (addresses, 2)
        assert lease.envs[0].engine_id != dead


def test_replaced_on_request(host: Cornerman) -> None:
    """After lease.replace() a step of the old game is refused, and the next make() is on the fresh engine."""
    with host.lease(envs=1, via="tunnel") as lease:
        (game,) = games(lease)
        lease.replace(0, "step() was strange")
        with pytest.raises(grpc.RpcError) as failed:
            _steps(game, 100)
        assert failed.value.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
        assert "make()" in failed.value.details()
        with pytest.raises(grpc.RpcError) as failed:
            game.step()
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        game.make()
        game.reset()
        game.step()
        assert game.run == 1


def test_engine_hangs(running: RealDaemon, host: Cornerman) -> None:
    """Report 30: an engine that hangs fails its step within the deadline plus 2 s, and is replaced."""
    with host.lease(envs=1, via="tunnel", deadlines_s={"step": 2.0}) as lease:
        (game,) = games(lease)
        pid = engine_pid(running, lease, 0)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as failed:
            game.step()
        took = time.monotonic() - began
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not answer step within 2 s" in failed.value.details()
        game.make()
        assert 2.0 <= took < 4.0
        assert time.monotonic() - began < 20


def test_relay_killed(running: RealDaemon, host: Cornerman) -> None:
    """When the relay is killed, idle games go on where they were once it is back."""
    with host.lease(envs=2, via="tunnel") as lease:
        begun = games(lease)
        for game in begun:
            game.step()
        (pid,) = running.relay_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: running.relay_pids() - {pid}, 30)
        for game in begun:
            game.step()
            assert (game.steps, game.run) == (2, 2)


def test_tunnel_killed(host: Cornerman, capfd: pytest.CaptureFixture[str]) -> None:
    """If the tunnel's process is killed, another listens under the same addresses, and the games go on."""
    with host.lease(envs=2, via="tunnel") as lease:
        begun = games(lease)
        addresses, pid = lease.addresses, lease._heartbeat.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: lease._heartbeat.pid != pid, 20)
        for game in begun:
            _stubborn(game)
            assert (game.steps, game.run) == (1, 1)
        assert lease.addresses == addresses
    assert "ended unexpectedly" in capfd.readouterr().err


def _stubborn(game: Game) -> None:
    """A step, tried until the other process listens."""

    def stepped() -> bool:
        with contextlib.suppress(grpc.RpcError):
            game.step()
            return True
        return False

    wait_until(stepped, 30, poll_s=0.1)


def test_kernel_killed(host: Cornerman) -> None:
    """When the process that holds the lease is killed, the tunnel releases it, ends, and leaves no folder."""
    code = """
    import sys, time
    from client_sdk import Cornerman
    lease = Cornerman().lease(envs=2, via="tunnel")
    print(lease.id, lease._heartbeat.pid, lease.addresses[0].removeprefix("unix:"), flush=True)
    time.sleep(100)
    """
    kernel = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    lease_id, pid, path = kernel.stdout.readline().split()
    assert Path(path).exists()
    kernel.kill()
    kernel.communicate()
    wait_until(lambda: not processes.alive(int(pid)), 15)
    assert not Path(path).parent.exists()
    (lease,) = [lease for lease in host.leases() if lease.id == lease_id]
    assert lease.state is models.LeaseState.RELEASED


def test_lease_ends(host: Cornerman, running: RealDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    """When an administrator ends the lease, every call is told so at once, and check() raises."""
    with contextlib.suppress(LeaseLost), host.lease(envs=1, via="tunnel") as lease:
        (game,) = games(lease)
        with running.admin() as (_, api):
            api.release(lease.id)
        wait_until(lambda: lease._lost, 10)
        with pytest.raises(grpc.RpcError, match=rf"Lease {lease.id} has ended"):
            game.step()
        with pytest.raises(LeaseLost):
            lease.check()
    assert "has ended" in capfd.readouterr().err


# ---------------------------------------------------------------- when the line breaks


def _play_through(link: Link, begun: list[Game], interrupt: Callable[[], None], *, steps: int) -> None:
    """All games step at once, each on a thread; in the middle of it comes the interruption."""
    faults: list[BaseException] = []
    halfway = threading.Barrier(len(begun) + 1)

    def play(game: Game) -> None:
        try:
            for number in range(steps):
                if number == steps // 2:
                    halfway.wait(90)
                game.step()
                assert game.run == game.steps, "a step was lost, or run twice"
        except BaseException as fault:
            faults.append(fault)
            halfway.abort()

    threads = [threading.Thread(target=play, args=(game,)) for game in begun]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # then the reason is among the faults
        halfway.wait(90)
        interrupt()
    for thread in threads:
        thread.join(100)
    assert faults == []
    assert [game.run for game in begun] == [steps] * len(begun)


@pytest.mark.parametrize("drop", [False, True], ids=["held", "dead"])
def test_line_cut_for_two_seconds(host: Cornerman, link: Link, drop: bool) -> None:
    """A cut of 2 s while all environments step is a pause: nothing fails, no step is lost or run twice."""

    def cut() -> None:
        link.cut(drop=drop)
        time.sleep(2.0)
        link.mend()

    with host.lease(envs=3, via="tunnel") as lease:
        _play_through(link, games(lease), cut, steps=300)


def test_line_reset_again_and_again(host: Cornerman, link: Link) -> None:
    """A line that breaks every now and then, in the middle of calls, costs no step."""

    def reset() -> None:
        for _ in range(8):
            link.reset()
            time.sleep(0.3)

    with host.lease(envs=3, via="tunnel") as lease:
        _play_through(link, games(lease), reset, steps=600)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("drop", [False, True], ids=["held", "dead"])
def test_line_cut_for_twenty_seconds(
    new_daemon: Callable[..., RealDaemon], monkeypatch: pytest.MonkeyPatch, drop: bool
) -> None:
    """A cut of 20 s in the middle of 12 running environments: training goes on by itself, no step lost or run twice."""
    daemon = new_daemon(
        *("--runtime", "process", "--min-ready", "12", "--max-engines", "12"),
        environ={"CORNERMAN_PRACTICE_FPS": "unlimited"},  # not canned ones, whose counter stands still
    )
    daemon.start()
    link = Link(("127.0.0.1", daemon.config.relay.port))
    straight = Tunnel.open

    def over_link(self: Tunnel, relay: models.Relay) -> list[str]:
        port = urlsplit(relay.url).port
        return straight(self, relay.model_copy(update={"url": relay.url.replace(f":{port}/", f":{link.port}/")}))

    def cut() -> None:
        link.cut(drop=drop)
        time.sleep(20.0)
        link.mend()

    monkeypatch.setattr(Tunnel, "open", over_link)
    try:
        with Cornerman(daemon.url, quiet=True).lease(envs=12, via="tunnel") as lease:
            _play_through(link, games(lease), cut, steps=300)
            lease.check()
    finally:
        link.close()


def test_full_frames_are_bit_exact(host: Cornerman) -> None:
    """What comes through the tunnel is what the engine sends: the same game played directly has the same bytes."""
    with host.lease(envs=1, via="tunnel") as through, host.lease(envs=1, via="direct") as direct:
        replies = []
        for lease in (through, direct):
            game = Game(over_grpc(lease.addresses[0]), frame_shape=(0, 0, 0))
            game.make()
            game.reset()
            replies.append([game.step() for _ in range(20)])
        assert len(replies[0][0]) > 700_000
        assert replies[0] == replies[1]


def test_tunnel_has_an_interpreter_of_its_own(host: Cornerman) -> None:
    """The tunnel is a process beside its kernel, which carries steps while the kernel's interpreter is held up."""
    with host.lease(envs=1, via="tunnel") as lease:
        tunnel = psutil.Process(lease._heartbeat.pid)
        assert tunnel.ppid() == os.getpid()
        assert not any("cornerman://" in part for part in tunnel.cmdline())
        relay = lease.model.relay
        assert relay is not None
        assert relay.token not in " ".join(tunnel.cmdline()) + str(tunnel.environ())


def test_a_host_that_has_another_address_by_now(
    new_daemon: Callable[..., RealDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was set up at another address, as one on EC2 before its stop, is played on at the address it has now."""
    away, settings = "198.51.100.20", {"bind": '"0.0.0.0"'}
    daemon = new_daemon("--runtime", "process", "--public-host", away, settings=settings)
    daemon.start()
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    with Cornerman(daemon.url.replace(away, own_address()), quiet=True).lease(via="tunnel") as lease:
        game = Game(over_grpc(lease.addresses[0]))
        game.make()
        game.reset()
        game.step()


def test_commands_on_the_host_need_no_public_address(new_daemon: Callable[..., RealDaemon]) -> None:
    """Whoever runs the host reaches it from itself, though its public address lets in others alone, and hands that one out."""
    daemon = new_daemon("--runtime", "process", "--public-host", "198.51.100.20")
    daemon.start()
    made = daemon.run("token", "create", "ann", "--dir", str(daemon.folder))
    assert re.fullmatch(rf"cornerman://\S+@198\.51\.100\.20:{daemon.port}\?ca=sha256:\w+\n", made.stdout), made.stderr


def test_calls_that_the_client_gives_up(host: Cornerman) -> None:
    """A call whose client stopped waiting leaves its lane usable."""
    with host.lease(envs=1, via="tunnel") as lease:
        (game,) = games(lease)
        channel = grpc.insecure_channel(lease.addresses[0])
        step = channel.unary_unary(Method.STEP.path)
        for _ in range(5):
            step.future(Game.step_request()).cancel()
        channel.close()
        game.step()
        assert 1 <= game.run <= 6
