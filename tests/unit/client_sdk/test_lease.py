"""What a lease does for its holder, in the process that asked for it."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from datetime import datetime, timezone

import pytest

from client_sdk import (
    ConnectionFault,
    Cornerman,
    LeaseLost,
    PoolExhausted,
    Refused,
    WaitTimeout,
    WrongArgument,
)
from client_sdk.models import LeaseState
from tests.support.fake_daemon import TOKEN, FakeDaemon, refusing, times

WaitUntil = Callable[..., object]


def test_lease_sets_diambra_envs_and_gives_it_back(
    daemon: FakeDaemon, host: Cornerman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the block DIAMBRA_ENVS names the engines by rank; after it the engines are free and the former value is back."""
    monkeypatch.setenv("DIAMBRA_ENVS", "mine:1")
    with host.lease(envs=3, labels={"run": "7"}, note="hello") as lease:
        assert os.environ["DIAMBRA_ENVS"] == lease.diambra_envs == " ".join(lease.addresses)
        assert [env.rank for env in lease.envs] == [0, 1, 2]
        assert (lease.state, lease.pool) == (LeaseState.ACTIVE, "default")
        assert daemon.leases[lease.id].model.labels == {"run": "7"}
    assert os.environ["DIAMBRA_ENVS"] == "mine:1"
    assert daemon.state(lease.id) is LeaseState.RELEASED
    assert lease.state is LeaseState.RELEASED


def test_plain_calls_do_the_same(daemon: FakeDaemon, host: Cornerman) -> None:
    """A lease works without a block, and releasing twice is fine."""
    lease = host.lease(envs=1)
    assert "DIAMBRA_ENVS" in os.environ
    lease.release()
    lease.release()
    assert "DIAMBRA_ENVS" not in os.environ
    assert len(daemon.calls("DELETE", ".*")) == 1


def test_exception_releases_and_comes_through(daemon: FakeDaemon, host: Cornerman) -> None:
    """An exception in the block releases the lease and is not replaced by another one."""
    with pytest.raises(ZeroDivisionError), host.lease(envs=1) as lease:
        1 / 0  # noqa: B018
    assert daemon.state(lease.id) is LeaseState.RELEASED


def test_two_leases_share_the_variable(host: Cornerman) -> None:
    """The latest lease is what DIAMBRA_ENVS names, in whatever order leases are released."""
    one, two = host.lease(envs=1), host.lease(envs=2)
    assert os.environ["DIAMBRA_ENVS"] == two.diambra_envs
    one.release()
    assert os.environ["DIAMBRA_ENVS"] == two.diambra_envs
    two.release()
    assert "DIAMBRA_ENVS" not in os.environ


def test_variable_set_by_hand_is_left_alone(host: Cornerman) -> None:
    """Who sets DIAMBRA_ENVS inside the block keeps it."""
    try:
        with host.lease(envs=1):
            os.environ["DIAMBRA_ENVS"] = "by:hand"
        assert os.environ["DIAMBRA_ENVS"] == "by:hand"
    finally:
        del os.environ["DIAMBRA_ENVS"]


def test_forgotten_lease_is_released(daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """A lease that nobody holds any more is given back."""
    lease_id = host.lease(envs=1).id
    gc.collect()
    wait_until(lambda: daemon.state(lease_id) is LeaseState.RELEASED, 20)
    assert "DIAMBRA_ENVS" not in os.environ


def test_no_wait_raises_pool_exhausted(daemon: FakeDaemon, host: Cornerman) -> None:
    """Who does not want to wait is told at once, and when to ask again."""
    with host.lease(envs=8):
        with pytest.raises(PoolExhausted) as caught:
            host.lease(envs=1, wait=False)
        assert caught.value.retry_after_s == 3


def test_more_than_the_pool_holds_is_refused(host: Cornerman) -> None:
    """What can never come is refused, not queued."""
    with pytest.raises(Refused, match="8 engines at most"):
        host.lease(envs=9)


def test_waiting_gets_the_engines_when_they_are_free(
    daemon: FakeDaemon, host: Cornerman, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who waits gets engines as soon as others release them, and sees the place in the queue meanwhile."""
    first = host.lease(envs=8)
    timer = threading.Timer(0.5, first.release)
    timer.start()
    with host.lease(envs=4) as second:
        assert second.state is LeaseState.ACTIVE
        assert os.environ["DIAMBRA_ENVS"] == second.diambra_envs
    timer.join()
    assert "Waiting for 4 engines: place 1 in the queue; this process itself holds 8 (release() of " in (
        capsys.readouterr().err
    )


def test_who_waits_is_told_why_no_engine_comes(
    daemon: FakeDaemon, host: Cornerman, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who waits for a pool that cannot start engines reads the reason, once."""
    daemon.pool_fault = "the image is not here: pull it"
    with host.lease(envs=8), pytest.raises(WaitTimeout):
        host.lease(envs=1, timeout_s=0.3)
    told = capsys.readouterr().err
    assert told.count("cannot start engines just now: the image is not here: pull it") == 1


def test_quiet_shows_nothing(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """No progress is shown to who wants none."""
    host = Cornerman(daemon.url, quiet=True)
    with host.lease(envs=8), pytest.raises(WaitTimeout):
        host.lease(envs=1, timeout_s=0.2)
    assert capsys.readouterr().err == ""


def test_pending_lease_is_kept_alive_while_waiting(daemon: FakeDaemon, host: Cornerman) -> None:
    """Whoever waits longer than the lease's life in the queue keeps the place."""
    first = host.lease(envs=8)
    daemon.ttl_s = 6.0
    timer = threading.Timer(8.0, first.release)
    timer.start()
    with host.lease(envs=4, timeout_s=60) as second:
        assert second.state is LeaseState.ACTIVE
        assert len(daemon.leases) == 2
    timer.join()


def test_timeout_gives_up_the_place(daemon: FakeDaemon, host: Cornerman) -> None:
    """Report 9: who stops waiting leaves the queue, and is handed nothing later."""
    with host.lease(envs=8):
        with pytest.raises(WaitTimeout, match=r"within 0\.3 s"):
            host.lease(envs=1, timeout_s=0.3)
        with pytest.raises(TimeoutError):
            host.lease(envs=1, timeout_s=0)
        assert [held.model.state.value for held in daemon.leases.values()] == ["active", "released", "released"]


def test_interrupt_while_waiting_gives_up_the_place(
    daemon: FakeDaemon, host: Cornerman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while waiting leaves the queue."""

    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    with host.lease(envs=8):
        monkeypatch.setattr("client_sdk._progress.Progress.show", interrupted)
        with pytest.raises(KeyboardInterrupt):
            host.lease(envs=1)
        assert [held.model.state.value for held in daemon.leases.values()] == ["active", "released"]


def test_place_lost_in_the_queue_says_so(daemon: FakeDaemon, host: Cornerman) -> None:
    """A pending lease that the daemon ends raises LeaseLost with the reason."""
    with host.lease(envs=8):
        timer = threading.Timer(0.3, lambda: daemon.end(list(daemon.leases)[1], LeaseState.FAILED, "the pool is gone"))
        timer.start()
        with pytest.raises(LeaseLost, match="the pool is gone"):
            host.lease(envs=1)
        timer.join()


def test_full_waiting_room_is_survived(daemon: FakeDaemon, host: Cornerman) -> None:
    """When the daemon takes no more long polls, the SDK asks again a little later instead of failing."""
    daemon.faults.append(
        times(2, refusing(503, "unavailable", retry_after_s=0.1), method="GET", path="/v1/leases/[^/]+")
    )
    first = host.lease(envs=8)
    timer = threading.Timer(0.5, first.release)
    timer.start()
    host.lease(envs=1, timeout_s=60).release()
    timer.join()


def test_ended_answer_is_asked_again_under_a_new_key(
    daemon: FakeDaemon, host: Cornerman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replayed answer that has ended already is not handed out."""
    create, ended = daemon.create, [True]

    def once_ended(request: object, key: str | None) -> object:
        status, lease = create(request, key)  # type: ignore[arg-type]
        if ended:
            ended.clear()
            daemon.end(lease.id, LeaseState.EXPIRED, "it was not renewed in time")
            return 200, daemon.leases[lease.id].model
        return status, lease

    monkeypatch.setattr(daemon, "create", once_ended)
    with host.lease(envs=1) as lease:
        assert lease.state is LeaseState.ACTIVE
    first, second = daemon.calls("POST", "/v1/leases")
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_replaced_engine_changes_the_variable(daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """When the daemon gives a slot a fresh engine, its address arrives by itself under the same rank."""
    daemon.ttl_s = 6.0
    with host.lease(envs=2) as lease:
        before = lease.addresses
        daemon.fail_engine(lease.id, 1)
        wait_until(lambda: lease.addresses[1] != before[1], 20)
        assert os.environ["DIAMBRA_ENVS"] == lease.diambra_envs
        assert lease.addresses[0] == before[0]
        assert lease.envs[1].generation == 2


def test_replace_waits_for_the_fresh_engine(daemon: FakeDaemon, host: Cornerman) -> None:
    """Calling an engine broken gives a fresh one under the same rank, and a repeated answer does not take two."""
    with host.lease(envs=2) as lease:
        before = lease.addresses
        daemon.faults.append(times(1, lambda seen: "drop", method="POST", path=".*/replace"))
        lease.replace(1, "its picture is frozen")
        assert lease.addresses[0] == before[0]
        assert lease.addresses[1] != before[1]
        assert lease.envs[1].generation == 2
        with pytest.raises(WrongArgument, match="no rank 2"):
            lease.replace(2, "x")


def test_lost_lease_says_why(
    daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lease that ended without us is called lost by check(), refresh() and the end of the block, and warned of once."""
    daemon.ttl_s = 6.0

    def lost() -> bool:
        try:
            lease.check()
        except LeaseLost:
            return True
        return False

    with pytest.raises(LeaseLost, match="an admin ended it"), host.lease(envs=1) as lease:  # noqa: PT012
        lease.check()
        daemon.end(lease.id, LeaseState.RELEASED, "an admin ended it")
        wait_until(lost, 20)
        assert "DIAMBRA_ENVS" not in os.environ
        with pytest.raises(LeaseLost) as caught:
            lease.refresh()
        assert caught.value.lease_id == lease.id
    assert capsys.readouterr().err.count("is lost") == 1


def test_announced_end_is_passed_on(
    daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the daemon announces that it will end an unused lease, its holder is told once, and sees it in the table."""
    daemon.ttl_s = 6.0
    with host.lease(envs=1) as lease:
        daemon.announce(lease.id, datetime(2030, 1, 1, 12, 34, 56, tzinfo=timezone.utc))
        before = len(daemon.renewals)
        wait_until(lambda: len(daemon.renewals) >= before + 2, 60)
        wait_until(lambda: "12:34:56" in lease._repr_html_(), 20)
    assert capsys.readouterr().err.count("ends at 12:34:56 UTC") == 1


def test_refresh_finds_out_at_once(daemon: FakeDaemon, host: Cornerman) -> None:
    """refresh() asks the daemon itself."""
    lease = host.lease(envs=1)
    lease.refresh()
    daemon.end(lease.id, LeaseState.EXPIRED, "it was idle")
    with pytest.raises(LeaseLost, match="it was idle"):
        lease.refresh()
    lease.release()


def test_failed_release_is_carried_on(
    daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the host does not answer at release, the block still ends well and the heartbeat process goes on trying."""
    with host.lease(envs=1) as lease:
        daemon.faults.append(times(5, lambda seen: "cut", method="DELETE"))
    assert "goes on trying" in capsys.readouterr().err
    wait_until(lambda: daemon.state(lease.id) is LeaseState.RELEASED, 30)
    assert len(daemon.calls("DELETE", ".*")) == 6


def test_release_says_when_it_failed(daemon: FakeDaemon, host: Cornerman, wait_until: WaitUntil) -> None:
    """A plain release() raises, and is carried on all the same."""
    lease = host.lease(envs=1)
    daemon.faults.append(times(5, lambda seen: "cut", method="DELETE"))
    with pytest.raises(ConnectionFault):
        lease.release()
    lease.release()
    wait_until(lambda: daemon.state(lease.id) is LeaseState.RELEASED, 30)


@pytest.mark.parametrize(
    ("wishes", "what"),
    [
        ({"envs": 0}, "envs"),
        ({"envs": "four"}, "envs"),
        ({"envs": 2.5}, "envs"),
        ({"ttl_s": 1}, "ttl_s"),
        ({"ttl_s": float("nan")}, "ttl_s"),
        ({"pool": "Not A Pool"}, "pool"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"note": "x" * 2000}, "note"),
        ({"via": "pigeon"}, "via"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    daemon: FakeDaemon, host: Cornerman, wishes: dict[str, object], what: str
) -> None:
    """What cannot be meant is said before anything is asked for."""
    with pytest.raises(WrongArgument) as caught:
        host.lease(**wishes)  # type: ignore[arg-type]
    assert str(caught.value).startswith(what)
    assert len(str(caught.value)) < 200
    assert not daemon.seen


def test_lease_shows_itself_in_a_notebook(daemon: FakeDaemon, host: Cornerman) -> None:
    """A notebook shows a table of the engines in which nothing of others is taken for HTML."""
    with host.lease(envs=2, note="<script>alert(1)</script>") as lease:
        table = lease._repr_html_()
        assert "<script>" not in table
        assert "&lt;script&gt;" in table
        for env in lease.envs:
            assert env.engine_id is not None
            assert env.engine_id in table
            assert env.address is not None
            assert env.address in table
        assert lease.addresses[1] in repr(lease)
        assert TOKEN not in table + repr(lease)


def test_lease_cannot_be_pickled(host: Cornerman) -> None:
    """A lease sent to another process by accident says what to send instead."""
    with host.lease(envs=1) as lease, pytest.raises(TypeError, match="addresses"):
        pickle.dumps(lease)


def test_listing(host: Cornerman) -> None:
    """Leases and engines can be listed, and a lease released by its id."""
    lease = host.lease(envs=2)
    assert [found.id for found in host.leases()] == [lease.id]
    assert [engine.lease_id for engine in host.engines()] == [lease.id] * 2
    host.release(lease.id)
    with pytest.raises(LeaseLost):
        lease.refresh()
    lease.release()
