"""Talking to a host: trust, retries, refusals."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from client_sdk import (
    ConnectionFault,
    Cornerman,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    PoolExhausted,
    QuotaExceeded,
    Refused,
    Unavailable,
    UntrustedHost,
    VersionMismatch,
)
from client_sdk._http import Session
from client_sdk._url import Target
from tests.support import certificates
from tests.support.fake_daemon import TOKEN, FakeDaemon, Seen, refusing, serving, times
from tests.support.ports import free_port


@pytest.fixture
def tls_daemon(tmp_path: Path) -> Iterator[tuple[FakeDaemon, str]]:
    """A daemon behind TLS as `cornerman init` sets it up, and the SHA-256 of its CA."""
    context, pem, sha256 = certificates.make(tmp_path, name="cornerman.internal")
    with serving(FakeDaemon(ca_pem=pem), tls=context) as daemon:
        yield daemon, sha256


def _url(daemon: FakeDaemon, sha256: str | None, *, host: str = "127.0.0.1") -> str:
    return f"cornerman://{TOKEN}@{host}:{daemon.port}" + (f"?ca=sha256:{sha256}" if sha256 else "")


def test_ca_of_the_connection_string_is_trusted(tls_daemon: tuple[FakeDaemon, str]) -> None:
    """A host proves itself by the CA in the connection string, whatever its address, and the token goes nowhere else."""
    daemon, sha256 = tls_daemon
    for address in ("127.0.0.1", "localhost"):
        assert Cornerman(_url(daemon, sha256, host=address)).leases() == []
    assert all("Authorization" not in seen.headers for seen in daemon.calls("GET", "/ca.pem"))


def test_lease_lives_over_tls(tls_daemon: tuple[FakeDaemon, str]) -> None:
    """Heartbeats use the same trust, without fetching the CA again."""
    daemon, sha256 = tls_daemon
    daemon.ttl_s = 6.0
    with Cornerman(_url(daemon, sha256)).lease(envs=1) as lease:
        deadline = time.monotonic() + 20
        while len(daemon.renewals) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        lease.refresh()
    assert len(daemon.renewals) >= 2
    assert len(daemon.calls("GET", "/ca.pem")) == 1


def test_another_ca_is_refused(tls_daemon: tuple[FakeDaemon, str]) -> None:
    """A host whose CA has another hash never gets the token."""
    daemon, _ = tls_daemon
    with pytest.raises(UntrustedHost, match="connection string"):
        Cornerman(_url(daemon, "00" * 32)).leases()
    assert not daemon.calls("GET", "/v1/.*")


def test_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    """Handing out the right CA does not help whoever has no certificate under it."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    _, pem, sha256 = certificates.make(mine, name="cornerman.internal")
    context, _, _ = certificates.make(other, name="cornerman.internal")
    with serving(FakeDaemon(ca_pem=pem), tls=context) as daemon:
        with pytest.raises(UntrustedHost, match="prove"):
            Cornerman(_url(daemon, sha256)).leases()
        assert not daemon.calls("GET", "/v1/.*")


def test_certificate_with_another_name_is_refused(tmp_path: Path) -> None:
    """The certificate must be made out to the host's own name, not to anything that the CA has signed."""
    context, pem, sha256 = certificates.make(tmp_path, name="localhost")
    with (
        serving(FakeDaemon(ca_pem=pem), tls=context) as daemon,
        pytest.raises(UntrustedHost, match="prove"),
    ):
        Cornerman(_url(daemon, sha256, host="localhost")).leases()


def test_without_ca_the_system_decides(
    tls_daemon: tuple[FakeDaemon, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a hash an unknown CA is refused, even when REQUESTS_CA_BUNDLE names it."""
    daemon, _ = tls_daemon
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(daemon.ca_pem)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    with pytest.raises(UntrustedHost):
        Cornerman(_url(daemon, None)).leases()


def test_publicly_signed_certificate_is_checked_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a hash the system's roots and the host's name decide."""
    context, pem, _ = certificates.make(tmp_path, name="localhost")
    roots = tmp_path / "roots.pem"
    roots.write_text(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))  # the system's roots, for OpenSSL
    with serving(FakeDaemon(), tls=context) as daemon:
        assert Cornerman(_url(daemon, None, host="localhost")).leases() == []
        with pytest.raises(UntrustedHost):
            Cornerman(_url(daemon, None, host="127.0.0.1")).leases()


def test_environment_cannot_replace_the_pinned_ca(
    tls_daemon: tuple[FakeDaemon, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE and SSL_CERT_FILE have no say when the connection string names the CA."""
    daemon, sha256 = tls_daemon
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing.pem"))
    assert Cornerman(_url(daemon, sha256)).leases() == []


def test_only_the_pinned_ca_is_trusted(tls_daemon: tuple[FakeDaemon, str]) -> None:
    """The public roots that requests brings along do not vouch for a host with a CA of its own."""
    daemon, sha256 = tls_daemon
    host = Cornerman(_url(daemon, sha256))
    host.leases()
    adapter = host._api.session._patient.get_adapter("https://x")
    context = adapter._tls["ssl_context"]  # type: ignore[attr-defined]
    assert isinstance(context, ssl.SSLContext)
    assert len(context.get_ca_certs()) == 1


def test_proxy_is_not_asked_for_this_machine(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment does not come between the SDK and a host on this machine."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert Cornerman(daemon.url).leases() == []


def test_proxy_is_used_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment is asked for a distant host, unless no_proxy names it."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(10)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        session = Cornerman(f"cornerman://{TOKEN}@host.invalid:8443")._api.session
        assert session._session(repeat=False).proxies["https"].startswith("http://127.0.0.1")
        monkeypatch.setenv("no_proxy", "host.invalid")
        direct = Cornerman(f"cornerman://{TOKEN}@host.invalid:8443")._api.session
        assert not direct._session(repeat=False).proxies


def test_busy_host_is_asked_again(daemon: FakeDaemon, host: Cornerman) -> None:
    """503 with Retry-After is waited for and tried again."""
    daemon.faults.append(times(2, refusing(503, "unavailable", retry_after_s=1)))
    started = time.monotonic()
    assert host.leases() == []
    assert 1.9 < time.monotonic() - started < 20


def test_lost_answer_of_a_creation_makes_one_lease(daemon: FakeDaemon, host: Cornerman) -> None:
    """Report 8: when the answer to a request for a lease is lost, asking again gives the same lease, not another."""
    daemon.faults.append(times(2, lambda seen: "drop", method="POST", path="/v1/leases"))
    with host.lease(envs=2) as lease:
        assert list(daemon.leases) == [lease.id]
    asked = daemon.calls("POST", "/v1/leases")
    assert len(asked) == 3
    assert len({seen.headers["Idempotency-Key"] for seen in asked}) == 1


def test_two_leases_use_two_keys(daemon: FakeDaemon, host: Cornerman) -> None:
    """Each request for a lease is one of its own."""
    with host.lease(envs=1) as one, host.lease(envs=1) as two:
        assert one.id != two.id


def test_unreachable_host_says_so() -> None:
    """A closed port gives one sentence that names the host and not the library's objects."""
    port = free_port()
    with pytest.raises(ConnectionFault) as caught:
        Cornerman(f"cornerman+http://{TOKEN}@127.0.0.1:{port}").leases()
    assert f"127.0.0.1:{port} was not reached (Connection refused)" in str(caught.value)
    assert "object at" not in str(caught.value)
    causes: list[BaseException | None] = [caught.value]
    while causes[-1] is not None:
        assert getattr(causes[-1], "request", None) is None, "a cause carries the request, and so the token"
        causes.append(causes[-1].__cause__)


def test_silent_host_does_not_hold_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that accepts and never answers ends in ConnectionFault after the deadline."""
    monkeypatch.setattr("client_sdk._http._retries", lambda: 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = Cornerman(f"cornerman+http://{TOKEN}@127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConnectionFault, match="timed out"):
            host._api.session.command("DELETE", "/v1/leases/x", read_timeout_s=0.3, patient=False)


@pytest.mark.parametrize(
    ("status", "slug", "kind"),
    [
        (401, "unauthenticated", NotAuthenticated),
        (403, "forbidden", NotAllowed),
        (403, "quota-exceeded", QuotaExceeded),
        (404, "not-found", NotFound),
        (409, "pool-exhausted", PoolExhausted),
        (422, "unprocessable", Refused),
        (500, "internal", Unavailable),
    ],
)
def test_refusals_keep_the_daemons_sentence(
    daemon: FakeDaemon, host: Cornerman, status: int, slug: str, kind: type[Refused]
) -> None:
    """Every refusal has a class of its own and says what the daemon said."""
    daemon.faults.append(refusing(status, slug, "This is why; do that.", 7))
    with pytest.raises(kind) as caught:
        host.leases()
    assert str(caught.value) == "This is why; do that."
    assert (caught.value.status, caught.value.slug, caught.value.retry_after_s) == (status, slug, 7)
    assert type(caught.value) is kind


def test_wrong_token_says_so(daemon: FakeDaemon) -> None:
    """A wrong token is not shown in the error about it."""
    with pytest.raises(NotAuthenticated) as caught:
        Cornerman(daemon.url.replace(TOKEN, "another-token")).leases()
    assert "another-token" not in repr(caught.value)


@pytest.mark.parametrize(
    ("spoken", "cure"), [("2", "pip install -U cornerman"), ("0", "upgrade Cornerman on 127.0.0.1")]
)
def test_version_mismatch_says_which_side_to_upgrade(
    daemon: FakeDaemon, host: Cornerman, spoken: str, cure: str
) -> None:
    """A daemon of another version gets one sentence that says what to upgrade."""
    daemon.version = spoken
    with pytest.raises(VersionMismatch) as caught:
        host.leases()
    assert cure in str(caught.value)


def test_some_other_server_is_recognised(daemon: FakeDaemon, host: Cornerman) -> None:
    """What is not a Cornerman daemon is called so."""
    daemon.version = None
    with pytest.raises(ConnectionFault, match="not a Cornerman daemon"):
        host.leases()


def test_every_call_says_its_version(daemon: FakeDaemon, host: Cornerman) -> None:
    """The daemon learns which version of the API we speak."""
    host.leases()
    assert daemon.seen[-1].headers["Cornerman-Version"] == "1"


def test_redirect_is_not_followed(daemon: FakeDaemon, host: Cornerman) -> None:
    """The token is never carried to where somebody else points."""

    def redirect(seen: Seen) -> str | None:
        return None

    daemon.faults.append(refusing(307, "elsewhere", "Look elsewhere."))
    daemon.faults.append(redirect)
    with pytest.raises(Refused):
        host.leases()


@contextlib.contextmanager
def _answering(replies: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A port that reads the first bytes of each connection, sends the next reply and closes; what it read is kept."""
    read: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        read.append(peer.recv(65536))
                        peer.sendall(replies[min(len(read), len(replies)) - 1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], read
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _session(port: int) -> Session:
    return Session(Target("127.0.0.1", port, SecretStr(TOKEN)))


@pytest.mark.parametrize("patient", [True, False])
def test_daemon_that_dies_in_the_handshake(patient: bool) -> None:
    """A connection that ends while TLS begins is no proof against the host: it is tried again like any that broke."""
    with (
        _answering([b""]) as (port, read),
        pytest.raises(ConnectionFault, match=r"was not reached .*is the daemon running"),
    ):
        _session(port).command("DELETE", "/v1/leases/l-1", patient=patient)
    assert len(read) == (5 if patient else 1)


def test_port_without_tls() -> None:
    """A port that answers in another protocol is said not to speak TLS; it is not asked for a better certificate."""
    with (
        _answering([b"SSH-2.0-OpenSSH_9.2\r\n"]) as (port, read),
        pytest.raises(ConnectionFault, match="does not speak TLS"),
    ):
        _session(port).command("DELETE", "/v1/leases/l-1")
    assert len(read) == 1
