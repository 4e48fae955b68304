"""Report 39, and what it does not tell: notebooks that reach their host through an HTTP proxy alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from client_sdk import ConnectionFault, Cornerman, Lease
from client_sdk.lanes import Lanes
from tests.support import processes
from tests.support.http_proxy import HttpProxy
from tests.support.play import Game, over_grpc
from tests.support.real_daemon import RealDaemon, set_up
from tests.support.waiting import wait_until

# The stock client leaves the file of its games open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
HOST = "cornerman.invalid"  # no resolver knows it: who gets there came through the proxy
VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon that only the proxy can find."""
    pool = ("--runtime", "process", "--min-ready", "2", "--max-engines", "2")
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        processes.kill(daemon.family())


@pytest.fixture
def host(running: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> Cornerman:
    """The way to the daemon, by its name."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    monkeypatch.setenv("CORNERMAN_URL", running.url.replace("127.0.0.1", HOST))
    return Cornerman(quiet=True)


def _begun(lease: Lease) -> list[Game]:
    games = [Game(over_grpc(address)) for address in lease.addresses]
    for game in games:
        game.make()
        game.reset()
        game.step()
    return games


@pytest.mark.parametrize(("variable", "login"), [("https_proxy", None), ("ALL_PROXY", "user:pass")])
def test_through_a_proxy(
    running: RealDaemon, host: Cornerman, variable: str, login: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """API, tunnel and lanes in process take the environment's proxy, with its login if it has one; a proxy that breaks is a pause."""
    with HttpProxy(login=login) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        relay = f"{HOST}:{running.config.relay.port}"
        with host.lease(envs=2) as lease:
            games = _begun(lease)
            assert all(address.startswith("unix:") for address in lease.addresses)
            assert proxy.tunnels.count(relay) == 1
            proxy.break_tunnels()
            for game in games:
                had = game.run
                game.step()
                assert game.run == had + 1
            wait_until(lambda: proxy.tunnels.count(relay) == 2, 10, what="a second tunnel through the proxy")
            with Lanes.of(lease) as lanes:
                assert lanes.ranks == [0, 1]
                game = Game(lambda method, request: lanes.call(0, method, request).data)
                game.make()
                game.reset()
                had = game.run
                game.step()
                assert game.run == had + 1
                assert proxy.tunnels.count(relay) == 3
            assert proxy.tunnels.count(relay) == 4, "the tunnel has its lanes again"
        assert proxy.refused == []


def test_a_proxy_that_lets_only_the_api_through(
    running: RealDaemon, host: Cornerman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that refuses the relay's port is named within seconds, with what it said, and the engines are given back."""
    with HttpProxy(ports={running.config.server.port}) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        began = time.monotonic()
        with pytest.raises(ConnectionFault, match=r"The proxy did not connect to the relay at .*403") as caught:
            host.lease(envs=2)
        assert time.monotonic() - began < 20
        assert str(caught.value).count("\n") == 0
        assert f"{HOST}:{running.config.relay.port}" in proxy.refused
        wait_until(lambda: all(lease.ended_because for lease in host.leases()), 10, what="the engines given back")


def test_a_proxy_that_is_not_there(host: Cornerman, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that nobody answers at is one sentence within seconds."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(ConnectionFault, match="proxy"):
        host.lease(envs=1)
    assert time.monotonic() - began < 20


def test_the_password_of_a_proxy_is_told_nobody(
    host: Cornerman, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A proxy that refuses a login says so, and the password stands in no message."""
    with HttpProxy(login="user:right") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("right", "geheim"))
        with pytest.raises(ConnectionFault) as caught:
            host.lease(envs=1)
    told = str(caught.value) + "".join(capfd.readouterr())
    assert "407" in told
    assert "geheim" not in told
