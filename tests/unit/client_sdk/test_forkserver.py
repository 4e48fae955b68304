"""Workers that ``multiprocessing`` makes with its fork server see the addresses of the newest lease."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from client_sdk import _forkserver
from client_sdk._environ import NAME, Claims

pytestmark = pytest.mark.sdk


def _tell(end: Connection, wait: bool) -> None:
    end.send(os.environ.get(NAME))
    if wait:
        end.recv()
        end.send("went on")


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[Claims]:
    """Claims on a variable that nobody has set, and no server left of them."""
    monkeypatch.delenv(NAME, raising=False)
    _forkserver.forget()
    yield Claims()
    _forkserver.forget()


def _start(*, wait: bool = False) -> tuple[Connection, multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_tell, args=(theirs, wait))
    worker.start()
    theirs.close()
    return ours, worker


def _receive(end: Connection) -> object:
    assert end.poll(30), "no word from the worker"
    return end.recv()


def test_worker_of_a_second_lease_gets_its_addresses(claims: Claims) -> None:
    """A worker started after a second lease reads its addresses, and one of the first lease that still runs goes on."""
    claims.put("first", "127.0.0.1:1")
    first_end, first = _start(wait=True)
    assert _receive(first_end) == "127.0.0.1:1"
    claims.drop("first")
    claims.put("second", "127.0.0.1:2")
    second_end, second = _start()
    assert _receive(second_end) == "127.0.0.1:2"
    first_end.send("go on")
    assert _receive(first_end) == "went on"
    for worker in (first, second):
        worker.join(30)
        assert worker.exitcode == 0


def test_worker_after_the_last_lease_gets_none(claims: Claims) -> None:
    """After the release a new worker finds the variable as it was before the lease."""
    claims.put("lease", "127.0.0.1:1")
    end, worker = _start()
    assert _receive(end) == "127.0.0.1:1"
    worker.join(30)
    claims.drop("lease")
    end, worker = _start()
    assert _receive(end) is None
    worker.join(30)
