"""The tokens that open lanes: made of the host's secret, never stored."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.relay_token import KEY_NAME, SECRET_BYTES, ensure_secret, relay_token


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """The first who needs it makes it; then it stays, and nobody else can read it."""
    secret = ensure_secret(tmp_path)
    assert len(secret) == SECRET_BYTES
    assert ensure_secret(tmp_path) == secret
    assert (tmp_path / KEY_NAME).stat().st_mode & 0o777 == 0o600


def test_two_processes_that_need_it_at_once_agree(tmp_path: Path) -> None:
    """Daemon, API and relay start together: all of them work with the same secret."""
    found: list[bytes] = []
    start = threading.Barrier(8)

    def need() -> None:
        start.wait()
        found.append(ensure_secret(tmp_path))

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_broken_secret_is_one_sentence(tmp_path: Path) -> None:
    """A file that is not a key is said with what to do."""
    (tmp_path / KEY_NAME).write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"is not a key that Cornerman made: delete it"):
        ensure_secret(tmp_path)


def test_a_token_opens_one_lease_of_one_host() -> None:
    """The same lease has the same token always; another lease, or another host's secret, has another."""
    one = relay_token(b"a" * 32, "l-1")
    assert one == relay_token(b"a" * 32, "l-1")
    assert len({one, relay_token(b"a" * 32, "l-2"), relay_token(b"b" * 32, "l-1")}) == 3
    assert len(one) == 43
    assert not set(one) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
