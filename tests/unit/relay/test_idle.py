"""A lease that nobody uses ends, announced before; one that the relay never saw is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import ExpireLease, WarnIdle
from orchestrator.model import LeaseState
from orchestrator.planning import IDLE_NOTICE_S, Snapshot, plan
from orchestrator.relay.directory import Directory
from tests.support.core import ALICE, START, Core, a_lease, a_pool


def _plan(now: float, *, limit: float | None = 1800.0, **lease: Any) -> list[object]:
    pool = a_pool(idle_release_s=limit, min_ready=0)
    found = a_lease(1, expires_at=START + 1e6, **lease)
    snapshot = Snapshot(pools=(pool,), leases=(found,))
    return [one for one in plan(snapshot, now) if isinstance(one, (WarnIdle, ExpireLease))]


def test_the_end_is_announced_before() -> None:
    """Five minutes before a lease is idle for too long its holder is told, and when that time is over it ends."""
    warn_at = START + 1800 - IDLE_NOTICE_S
    assert _plan(warn_at - 1, last_call_at=START) == []
    assert _plan(warn_at, last_call_at=START) == [WarnIdle("l1", START + 1800)]
    told = {"last_call_at": START, "idle_release_at": START + 1800}
    assert _plan(START + 1799, **told) == []
    (ended,) = _plan(START + 1800, **told)
    assert isinstance(ended, ExpireLease)
    assert ended.because == "none of its engines was used for 1800 s"


def test_the_notice_is_a_whole_one_however_late() -> None:
    """A daemon that was away, or a clock that jumped, does not end a lease that was never warned."""
    assert _plan(START + 1e5, last_call_at=START) == [WarnIdle("l1", START + 1e5 + IDLE_NOTICE_S)]


@pytest.mark.parametrize(
    "lease",
    [
        {"last_call_at": None},
        {"last_call_at": START, "limit": None},
        {"last_call_at": None, "state": LeaseState.PENDING},
    ],
)
def test_who_is_left_alone(lease: dict[str, object]) -> None:
    """A lease that never used the relay (direct mode), one of a pool without a limit, and one that waits still."""
    limit = lease.pop("limit", 1800.0)
    assert isinstance(limit, (float, type(None)))
    assert _plan(START + 1e5, limit=limit, **lease) == []


# ---------------------------------------------------------------- with store and pool


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    """A pool whose leases may be idle for ten minutes."""
    core = Core(tmp_path, main={"min_ready": 1, "idle_release_s": 600.0})
    core.settle()
    yield core
    core.close()


def _pass(core: Core, seconds: float, lease_id: str) -> None:
    """Let time pass; the holder's heartbeats go on."""
    for _ in range(int(seconds // 10)):
        core.clock.pass_s(10)
        if not core.lease(lease_id).lease.ended:
            core.leasing.renew(ALICE, lease_id)
        core.tick()


def _relay(core: Core) -> Directory:
    return Directory(core.database, core.leasing, now=core.clock.now)


def test_an_idle_lease_ends_as_announced(core: Core) -> None:
    """The holder sees the time of the end, a new version and an event; then the lease expires with the reason."""
    lease = core.acquire(1).lease
    asyncio.run(_relay(core).connected(lease.id))
    _pass(core, 290, lease.id)
    assert core.lease(lease.id).lease.idle_release_at is None
    _pass(core, 20, lease.id)
    told = core.lease(lease.id).lease
    assert told.idle_release_at is not None
    assert told.version > lease.version
    assert core.events("lease.idle_soon") == ["none of its engines was used for 300 s: it ends in 300 s unless one is"]
    _pass(core, 300, lease.id)
    ended = core.lease(lease.id).lease
    assert (ended.state, ended.ended_because) == (LeaseState.EXPIRED, "none of its engines was used for 600 s")


def test_a_call_takes_the_announcement_back(core: Core) -> None:
    """A lease that is used again goes on, and its holder sees that too."""
    lease, relay = core.acquire(1).lease, _relay(core)
    asyncio.run(relay.connected(lease.id))
    _pass(core, 320, lease.id)
    told = core.lease(lease.id).lease
    asyncio.run(relay.record({}, {lease.id}))
    again = core.lease(lease.id).lease
    assert (again.idle_release_at, again.version) == (None, told.version + 1)
    assert len(core.events("lease.used_again")) == 1
    _pass(core, 290, lease.id)
    assert core.lease(lease.id).lease.state is LeaseState.ACTIVE


def test_a_lease_in_use_is_never_idle(core: Core) -> None:
    """Calls now and then keep a lease for as long as it is renewed."""
    lease, relay = core.acquire(1).lease, _relay(core)
    asyncio.run(relay.connected(lease.id))
    for _ in range(10):
        _pass(core, 200, lease.id)
        asyncio.run(relay.record({}, {lease.id}))
    assert core.lease(lease.id).lease.idle_release_at is None


def test_a_direct_lease_is_not_ended_for_calls_that_nobody_sees(core: Core) -> None:
    """Without a connection to the relay a lease lives as long as it is renewed."""
    lease = core.acquire(1).lease
    _pass(core, 2000, lease.id)
    assert core.lease(lease.id).lease.state is LeaseState.ACTIVE


@pytest.mark.parametrize("step", [86400.0, -86400.0])
def test_a_clock_step_makes_nobody_idle(core: Core, step: float) -> None:
    """Setting the clock changes nothing about how long a lease has been idle."""
    lease = core.acquire(1).lease
    asyncio.run(_relay(core).connected(lease.id))
    _pass(core, 100, lease.id)
    core.clock.step(step)
    core.tick()
    assert core.lease(lease.id).lease.idle_release_at is None
    _pass(core, 180, lease.id)
    assert core.lease(lease.id).lease.idle_release_at is None
    _pass(core, 50, lease.id)
    assert core.lease(lease.id).lease.idle_release_at is not None


def test_a_restart_gives_the_whole_time_again(core: Core) -> None:
    """While the daemon was away nobody could be seen to call: what was announced is taken back."""
    lease = core.acquire(1).lease
    asyncio.run(_relay(core).connected(lease.id))
    _pass(core, 320, lease.id)
    told = core.lease(lease.id).lease
    assert told.idle_release_at is not None
    core.clock.pass_s(7200)
    core.restart()
    core.tick()
    after = core.lease(lease.id).lease
    assert (after.state, after.idle_release_at) == (LeaseState.ACTIVE, None)
    assert after.version > told.version
    _pass(core, 290, lease.id)
    assert core.lease(lease.id).lease.idle_release_at is None
