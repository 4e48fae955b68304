"""A daemon that stops its host when nobody uses it; the command only leaves a mark here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_sdk.models import EventList, HostStatus, LeaseRequest, PoolPatch
from tests.support.real_daemon import RealDaemon
from tests.support.waiting import wait_until

AFTER_S = 10
LOOKS_S = 6  # how often the daemon looks, and a little


@pytest.fixture
def host(new_daemon: Callable[..., RealDaemon]) -> RealDaemon:
    """A host that is up, and stops after a few seconds without leases."""
    practice = ("--runtime", "process", "--max-engines", "2", "--min-ready", "0")
    daemon = new_daemon(*practice, "--idle-after", f"{AFTER_S}s")
    path = daemon.folder / "cornerman.toml"
    command = f'command = "touch {_mark(daemon)}"'
    path.write_text(path.read_text().replace('#command = "touch /run', f'{command}\n#command = "touch /run', 1))
    daemon.start()
    return daemon


def _mark(daemon: RealDaemon) -> Path:
    return daemon.folder / "stopped"


def _status(daemon: RealDaemon) -> HostStatus:
    with daemon.session() as session:
        return session.call("GET", "/v1/status", answer=HostStatus)


def test_a_host_that_nobody_uses_stops_and_says_so_before(host: RealDaemon) -> None:
    """While a lease waits the host stays up, far beyond the time; when it has ended the stop is shown, announced and comes."""
    with host.admin() as (admin, api):
        admin.change_pool("default", PoolPatch(paused=True))
        lease = api.create(LeaseRequest(envs=1, wait=True), key="waits")
        beyond = time.monotonic() + AFTER_S + LOOKS_S
        wait_until(lambda: time.monotonic() > beyond, 60, poll_s=0.5)
        seen = _status(host)
        assert (seen.idle_after_s, seen.idle_stop, seen.pending_leases) == (AFTER_S, None, 1)
        assert not _mark(host).exists()
        api.release(lease.id)
    stop = wait_until(lambda: _status(host).idle_stop, 20)
    assert stop is not None
    assert AFTER_S - 1 < (stop.stops_at - stop.since).total_seconds() < AFTER_S + LOOKS_S
    shown = host.run("status", "--dir", str(host.folder)).stdout
    assert "this host stops in 0 min, unless somebody leases before." in shown
    assert json.loads(host.run("status", "--json", "--dir", str(host.folder)).stdout)["host"]["idle_stop"]
    wait_until(_mark(host).exists, 40, what="the command that stops the host")
    with host.session() as session:
        told = session.call("GET", "/v1/events", answer=EventList).events
    kinds = [event.kind for event in told if event.kind.startswith("host.idle")]
    assert kinds[-2:] == ["host.idle_announced", "host.idle_stopping"]
