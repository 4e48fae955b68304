"""Leasing through the tunnel, with stand-ins for daemon and relay: what is said when it cannot be opened, and what is left."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import SecretStr

from client_sdk import (
    ConnectionFault,
    Cornerman,
    CornermanError,
    LeaseLost,
    UntrustedHost,
    WrongArgument,
    _opening,
    models,
)
from client_sdk._heartbeat_helper import Report
from client_sdk._lease import _check_reachable
from client_sdk._opening import Opening, private_folder
from client_sdk._relay import reachable, route_to
from client_sdk._tunnel import Mailbox
from client_sdk._url import Target
from client_sdk.models import LeaseState
from client_sdk.wire import Bye, Kind, Method, text_frame
from tests.support import certificates
from tests.support.fake_daemon import TOKEN as API_TOKEN
from tests.support.fake_daemon import FakeDaemon, serving
from tests.support.fake_relay import LEASE, TOKEN, FakeRelay, RelayThread, relaying

WITHIN_S = 20.0
WaitUntil = Callable[..., object]


def at(port: int, *, scheme: str = "ws", token: str = TOKEN) -> models.Relay:
    """What a lease is told of a relay on this machine."""
    return models.Relay(url=f"{scheme}://127.0.0.1:{port}/v1/leases/{LEASE}", token=token)


@pytest.fixture
def relay(daemon: FakeDaemon) -> Iterator[RelayThread]:
    """A relay for the leases of ``daemon``."""
    with relaying(FakeRelay()) as thread:
        daemon.relay = at(thread.relay.port)
        yield thread


@pytest.fixture(autouse=True)
def sockets_here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folders of sockets are made: a place of this test's own, empty again at its end."""
    import tempfile

    base = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield base
    left = list(base.iterdir())
    base.rmdir()
    assert left == []


def refused(daemon: FakeDaemon, kind: type[CornermanError], *, url: str = "") -> str:
    """What a lease through the tunnel says when it fails, within seconds, and having been released."""
    began = time.monotonic()
    with pytest.raises(kind) as failed:
        Cornerman(url or daemon.url, quiet=True).lease(envs=2, via="tunnel")
    assert time.monotonic() - began < WITHIN_S
    assert [held.model.state for held in daemon.leases.values()] == [LeaseState.RELEASED]
    text = str(failed.value)
    assert TOKEN not in text
    assert API_TOKEN not in text
    return text


# ---------------------------------------------------------------- when all is well


def test_calls_travel_to_the_relay(daemon: FakeDaemon, relay: RelayThread, host: Cornerman) -> None:
    """DIAMBRA_ENVS names a socket for each engine, and what is called there runs on that engine."""
    with host.lease(envs=2, via="tunnel") as lease:
        assert os.environ["DIAMBRA_ENVS"].split() == lease.addresses
        for rank, address in enumerate(lease.addresses):
            with grpc.insecure_channel(address) as channel:
                step = channel.unary_unary(Method.STEP.path)
                assert [step(b"", timeout=10), step(b"", timeout=10)] == [b"step 1", b"step 2"]
                assert relay.relay.lanes[rank].steps == 2
                with pytest.raises(grpc.RpcError) as unknown:
                    channel.unary_unary("/interface.EnvServer/Other")(b"", timeout=10)
                assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "DIAMBRA_ENVS" not in os.environ


def test_heartbeats_go_on(relay: RelayThread, daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """The tunnel's process also keeps the lease alive."""
    daemon.ttl_s = 6.0
    with host.lease(envs=1, via="tunnel") as lease:
        wait_until(lambda: len(daemon.renewals) >= 3, 2 * WITHIN_S)
        assert daemon.state(lease.id) is LeaseState.ACTIVE


def test_killed_tunnel_comes_back(
    relay: RelayThread, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tunnel that dies is started again under the same addresses, ports too."""
    with host.lease(envs=2, via="tunnel", local="ports") as lease:
        before, pid = lease.addresses, lease._heartbeat.pid
        os.kill(pid, 9)
        wait_until(lambda: relay.relay.connections == 2, WITHIN_S)
        with grpc.insecure_channel(before[1]) as channel:
            grpc.channel_ready_future(channel).result(WITHIN_S)
            assert channel.unary_unary(Method.STEP.path)(b"", timeout=10) == b"step 1"
        assert lease.addresses == before
    assert "starting another" in capsys.readouterr().err


def test_taken_over(
    relay: RelayThread, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """When another client takes the lease over, the holder is told once, and so is every call."""
    with host.lease(envs=1, via="tunnel") as lease:
        relay.do(relay.relay.bye(Bye.TAKEN_OVER, "Another client connected with this lease."))
        with grpc.insecure_channel(lease.addresses[0]) as channel, pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary(Method.STEP.path)(b"", timeout=10)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "Another client connected" in failed.value.details()
        errors = ""

        def told() -> bool:
            nonlocal errors
            errors += capsys.readouterr().err
            return "no way to its engines" in errors

        wait_until(told, WITHIN_S)


def test_end_of_the_lease_comes_over_the_line(relay: RelayThread, host: Cornerman, wait_until: WaitUntil) -> None:
    """The relay's word that the lease has ended counts at once, without waiting for a heartbeat."""
    with contextlib.suppress(LeaseLost), host.lease(envs=1, via="tunnel") as lease:
        relay.do(relay.relay.send(text_frame(Kind.BYE, "Lease l-1 has ended: expired.", code=Bye.LEASE_ENDED)))
        wait_until(lambda: lease._lost, WITHIN_S)
        with pytest.raises(LeaseLost, match="has ended: expired"):
            lease.check()


# ---------------------------------------------------------------- when it cannot be opened


def test_blocked_port(daemon: FakeDaemon, free_port: int) -> None:
    """When the API works and the relay's port is closed, the port to open is named, and the lease is given back."""
    daemon.relay = at(free_port)
    assert f"TCP port {free_port} open" in refused(daemon, ConnectionFault)


def test_wrong_relay_token(daemon: FakeDaemon, relay: RelayThread) -> None:
    """A wrong token gets the relay's own sentence."""
    daemon.relay = at(relay.relay.port, token="wrong")
    assert "not that of this lease" in refused(daemon, ConnectionFault)


def test_relay_that_knows_the_lease_has_ended(daemon: FakeDaemon, relay: RelayThread) -> None:
    """An ended lease gets the relay's own sentence."""
    relay.relay.refusal = (410, "text/plain", "Lease l-1 has ended (expired): ask for a new one.\n")
    assert "Lease l-1 has ended (expired)" in refused(daemon, CornermanError)


def test_half_open_host(daemon: FakeDaemon) -> None:
    """A host that accepts and never answers is recognised."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        daemon.relay = at(listener.getsockname()[1])
        assert "accepts a connection but does not answer" in refused(daemon, ConnectionFault)


def test_no_relay(daemon: FakeDaemon) -> None:
    """A host without a relay is said to have none, with what to do."""
    assert "runs no relay" in refused(daemon, ConnectionFault)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[FakeDaemon, str, Any]]:
    """A daemon with TLS under a CA of its own, its connection string, and the server's TLS context."""
    context, pem, sha256 = certificates.make(tmp_path, name="cornerman.internal")
    with serving(FakeDaemon(ca_pem=pem), tls=context) as daemon:
        yield daemon, f"cornerman://{API_TOKEN}@127.0.0.1:{daemon.port}?ca=sha256:{sha256}", context


def test_relay_with_the_hosts_certificate(secure: tuple[FakeDaemon, str, Any]) -> None:
    """The CA in the connection string vouches for the relay as well."""
    daemon, url, context = secure
    with relaying(FakeRelay(tls=context)) as thread:
        daemon.relay = at(thread.relay.port, scheme="wss")
        with Cornerman(url, quiet=True).lease(envs=2, via="tunnel") as lease:
            assert len(lease.addresses) == 2


def test_wrong_certificate(secure: tuple[FakeDaemon, str, Any], tmp_path: Path) -> None:
    """A relay under another CA is not trusted, and never sees the token."""
    daemon, url, _ = secure
    (tmp_path / "other").mkdir()
    other, _, _ = certificates.make(tmp_path / "other", name="cornerman.internal")
    with relaying(FakeRelay(tls=other)) as thread:
        daemon.relay = at(thread.relay.port, scheme="wss")
        assert "cannot prove to be the host" in refused(daemon, UntrustedHost, url=url)
        assert thread.relay.connections == 0


def test_plain_http_peer(secure: tuple[FakeDaemon, str, Any]) -> None:
    """A peer on the relay's port that does not speak TLS is recognised."""
    daemon, url, _ = secure
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        daemon.relay = at(server.server_address[1], scheme="wss")
        assert "does not speak TLS" in refused(daemon, ConnectionFault, url=url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_api_instead_of_the_relay(secure: tuple[FakeDaemon, str, Any]) -> None:
    """A port at which something else speaks HTTPS is said not to be the relay."""
    daemon, url, _ = secure
    daemon.relay = at(daemon.port, scheme="wss")
    assert "is not Cornerman's relay" in refused(daemon, ConnectionFault, url=url)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"via": "pigeon"}, "via='pigeon'"),
        ({"local": "pipes"}, "local='pipes'"),
        ({"deadlines_s": {"steps": 3.0}}, "'steps': 3.0"),
        ({"deadlines_s": {"step": 0.0}}, "'step': 0.0"),
    ],
)
def test_wishes_that_cannot_be_meant(daemon: FakeDaemon, host: Cornerman, wish: dict[str, Any], says: str) -> None:
    """A wrong argument is named before anything is leased."""
    with pytest.raises(WrongArgument) as failed:
        host.lease(envs=1, **wish)
    assert says in str(failed.value)
    assert daemon.leases == {}


def test_direct_from_another_machine(daemon: FakeDaemon, host: Cornerman) -> None:
    """A direct lease of engines that listen to their own host alone is refused in one sentence, on any other machine."""
    with host.lease(envs=1, via="direct") as lease:
        _check_reachable(lease.model, Target("127.0.0.1", 8443, SecretStr("t")))
        with pytest.raises(WrongArgument, match='leave out via="direct", or set expose = "direct"'):
            _check_reachable(lease.model, Target("ec2.example.org", 8443, SecretStr("t")))


# ---------------------------------------------------------------- its parts


@pytest.mark.parametrize(
    ("told", "host", "reached"),
    [
        ("wss://ec2.example.org:8444/v1/leases/l", "ec2.example.org", "wss://ec2.example.org:8444/v1/leases/l"),
        ("wss://198.51.100.20:8444/v1/leases/l", "203.0.113.9", "wss://203.0.113.9:8444/v1/leases/l"),
        ("wss://127.0.0.1:8444/v1/leases/l", "10.0.0.5", "wss://10.0.0.5:8444/v1/leases/l"),
        ("wss://127.0.0.1:8444/v1/leases/l", "fd00::7", "wss://[fd00::7]:8444/v1/leases/l"),
        ("wss://ec2.example.org:8444/v1/leases/l", "localhost", "wss://localhost:8444/v1/leases/l"),
    ],
)
def test_where_the_relay_is(told: str, host: str, reached: str) -> None:
    """Report 40: the relay is at the API's address, whatever the host takes for its own: 127.0.0.1, or one that it had before a stop."""
    assert reachable(told, Target(host, 8443, SecretStr("t"))) == reached


def test_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line takes the same proxy as the API's calls, and none to this machine."""
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    relay = models.Relay(url="wss://ec2.example.org:8444/v1/leases/l", token="t")
    target = Target("ec2.example.org", 8443, SecretStr("t"))
    assert route_to(relay, target, ca_pem=None, ttl_s=60).proxy == "http://proxy.example.org:3128"
    monkeypatch.setenv("no_proxy", "ec2.example.org")
    assert route_to(relay, target, ca_pem=None, ttl_s=60).proxy is None
    monkeypatch.delenv("no_proxy")
    here = Target("127.0.0.1", 8443, SecretStr("t"))
    assert route_to(relay, here, ca_pem=None, ttl_s=60).proxy is None


def test_folder_of_sockets(monkeypatch: pytest.MonkeyPatch, sockets_here: Path) -> None:
    """It is private, and in a place whose path is short enough and where nobody else could put another in its stead."""
    folder = private_folder()
    assert folder.parent == sockets_here
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    for unfit in (str(sockets_here / ("x" * 90)), str(sockets_here / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unfit)
        elsewhere = private_folder()
        assert elsewhere.parent != Path(unfit)
        elsewhere.rmdir()
    monkeypatch.setattr(_opening, "_is_safe", lambda base: False)
    with pytest.raises(CornermanError, match=r'set XDG_RUNTIME_DIR or TMPDIR .* local="ports"'):
        private_folder()


def test_open_folder_is_not_safe(sockets_here: Path) -> None:
    """A folder that anybody may write to, and remove from, is not used."""
    loose = sockets_here / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    assert not _opening._is_safe(str(loose))
    loose.chmod(0o1777)
    assert _opening._is_safe(str(loose))
    loose.rmdir()


def test_secrets_of_an_opening() -> None:
    """The relay's token is in the line that goes through the pipe, and in no text that anybody reads."""
    opening = Opening(url="wss://h:8444/", token=SecretStr("secret-7"), folder=None)
    assert "secret-7" in opening.model_dump_json()
    assert "secret-7" not in repr(opening)


def test_mailbox_keeps_each_kind_of_news() -> None:
    """While nobody reads, only the latest report of each kind is kept; where the engines are is not lost to a heartbeat."""
    reading, writing = os.pipe()
    try:
        mailbox = Mailbox(writing)
        filler = Report(event="failing", text="x" * 4000)
        for _ in range(40):
            mailbox.put(filler)
        mailbox.put(Report(event="opened", addresses=["unix:/a"]))
        mailbox.put(Report(event="failing", text="last"))
        os.set_blocking(reading, False)
        got = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                got += os.read(reading, 65536)
                mailbox.put(Report(event="failing", text="last"))
                if got.endswith(b"\n") and b'"opened"' in got:
                    break
        events = [Report.model_validate_json(line).event for line in got.splitlines()]
        assert "opened" in events
        assert len(events) < 40
    finally:
        os.close(reading)
        os.close(writing)
