"""The host's own CA and certificate."""

from __future__ import annotations

import datetime
import hashlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from client_sdk import _trust
from orchestrator import tls
from orchestrator.errors import ConfigError

NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


def _ensure(folder: Path, *, host: str = "host.example", now: datetime.datetime = NOW, renew: bool = False) -> bool:
    return tls.ensure(folder, public_host=host, now=now, renew=renew)


def _greet(folder: Path, name: str, *, trusting: Path | None = None) -> None:
    """One TLS handshake with a server that has the files in ``folder``, as a client that expects ``name``."""
    files = tls.files(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    client = ssl.create_default_context(cafile=str(trusting or files.ca))
    client.verify_flags |= getattr(ssl, "VERIFY_X509_STRICT", 0)
    ours, theirs = socket.socketpair()

    def answer() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as channel:
                channel.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as channel:
            channel.send(b"x")
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize(
    "name", ["cornerman.internal", "localhost", "127.0.0.1", "::1", "host.example", "192.0.2.7", "2001:db8::1"]
)
def test_the_certificate_is_good_for_every_name_of_the_host(tmp_path: Path, name: str) -> None:
    """A strict client that trusts the host's CA alone accepts the certificate for each of the host's names."""
    _ensure(tmp_path, host=name if "." in name or ":" in name else "host.example")
    _greet(tmp_path, name)


def test_the_certificate_is_for_no_other_name(tmp_path: Path) -> None:
    """A certificate for one host is refused for another."""
    _ensure(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        _greet(tmp_path, "other.example")


def test_another_ca_is_not_trusted(tmp_path: Path) -> None:
    """Who trusts one host's CA does not trust another host."""
    _ensure(tmp_path / "one")
    _ensure(tmp_path / "two")
    with pytest.raises(ssl.SSLCertVerificationError):
        _greet(tmp_path / "one", tls.INTERNAL_NAME, trusting=tls.files(tmp_path / "two").ca)


def test_daemon_and_sdk_mean_the_same_name() -> None:
    """The name that clients verify is the one that certificates carry."""
    assert tls.INTERNAL_NAME == _trust.INTERNAL_NAME


def test_nothing_is_made_twice(tmp_path: Path) -> None:
    """A good certificate stays as it is."""
    assert _ensure(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert not _ensure(tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()} == before


def test_the_certificate_is_renewed_in_its_last_30_days_by_the_same_ca(tmp_path: Path) -> None:
    """Renewal in time leaves the CA, and so every connection string, as it was."""
    _ensure(tmp_path)
    files = tls.files(tmp_path)
    ca, first = tls.fingerprint(files.ca), tls.valid_until(files.certificate)
    assert first - NOW <= 825 * DAY
    assert not _ensure(tmp_path, now=first - 31 * DAY)
    assert _ensure(tmp_path, now=first - 29 * DAY)
    assert tls.valid_until(files.certificate) > first + 700 * DAY
    assert tls.fingerprint(files.ca) == ca


def test_the_fingerprint_is_the_sha256_of_the_der(tmp_path: Path) -> None:
    """What the connection string holds is what clients compute from the CA they fetch."""
    _ensure(tmp_path)
    pem = tls.files(tmp_path).ca.read_text()
    assert tls.fingerprint(tls.files(tmp_path).ca) == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_a_host_that_got_another_name_gets_another_certificate(tmp_path: Path) -> None:
    """A changed public_host is in the certificate after the next start."""
    _ensure(tmp_path)
    assert _ensure(tmp_path, host="new.example")
    _greet(tmp_path, "new.example")


def test_a_renewal_that_was_asked_for_happens(tmp_path: Path) -> None:
    """``renew`` makes a new certificate whatever the old one is like, and even when its files are broken."""
    _ensure(tmp_path)
    tls.files(tmp_path).key.write_text("rubbish")
    tls.files(tmp_path).certificate.write_text("rubbish")
    assert _ensure(tmp_path, renew=True)
    _greet(tmp_path, "localhost")


def test_a_broken_ca_is_never_replaced(tmp_path: Path) -> None:
    """A CA that cannot be read is said in one sentence, because a new one would make every connection string useless."""
    _ensure(tmp_path)
    tls.files(tmp_path).ca.write_text("rubbish")
    with pytest.raises(ConfigError, match=r"ca\.pem cannot be used .* restore it from a backup"):
        _ensure(tmp_path)
    assert tls.files(tmp_path).ca.read_text() == "rubbish"


def test_a_ca_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    """A key that does not belong to the CA signs nothing."""
    _ensure(tmp_path / "one")
    _ensure(tmp_path / "two")
    tls.files(tmp_path / "one").ca_key.write_bytes(tls.files(tmp_path / "two").ca_key.read_bytes())
    with pytest.raises(ConfigError, match="do not belong together"):
        _ensure(tmp_path / "one", renew=True)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Nobody but the daemon's user may read a key."""
    _ensure(tmp_path)
    files = tls.files(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in (files.ca_key, files.key)} == {0o600}
    assert files.ca.parent.stat().st_mode & 0o777 == 0o700
