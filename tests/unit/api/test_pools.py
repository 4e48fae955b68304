"""Calls about pools."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_sdk import models
from orchestrator.model import EngineState, Scope
from orchestrator.store import pools
from tests.support.api import Desk, House


def _pool(desk: Desk, name: str = "main") -> models.Pool:
    found = desk.call("GET", "/v1/pools", 200, models.PoolList).pools
    return next(pool for pool in found if pool.name == name)


def test_pools_show_sizes_and_counts(house: House, ann: Desk) -> None:
    """A pool shows its settings, how many engines are in each state, and how many it wants."""
    house.add_engines(2)
    house.add_engines(1, state=EngineState.STARTING)
    ann.lease()
    ann.lease(2, wait=True, status=202)
    pool = _pool(ann)
    assert (pool.min_ready, pool.max_engines, pool.paused, pool.image) == (0, 4, False, "engine:1")
    assert (pool.runtime, pool.expose, pool.allowed_images) == ("fake", "local", ["engine:1"])
    assert (pool.active_leases, pool.pending_leases, pool.wanted) == (1, 1, 3)
    assert pool.counts == {
        EngineState.STARTING: 1,
        EngineState.READY: 1,
        EngineState.LEASED: 1,
        EngineState.RETIRING: 0,
        EngineState.FAILED: 0,
    }
    assert (pool.degraded, pool.fault, pool.fault_at) == (False, None, None)


def test_a_degraded_pool_says_why(house: House, ann: Desk) -> None:
    """What is wrong with a pool is shown in words, with when it was seen, and goes into the refusal of a lease."""
    with house.database.write() as db:
        fault = "the image is missing: pull it."
        pools.note_fault(db, "main", again=True, fault=fault, retry_at=house.clock.now() + 60, now=house.clock.now())
    pool = _pool(ann)
    assert (pool.degraded, pool.fault) == (True, "the image is missing: pull it.")
    assert pool.fault_at is not None
    assert pool.fault_at.timestamp() == house.clock.now()
    assert fault in ann.refused("POST", "/v1/leases", 409, "pool-exhausted", json={"envs": 1}).detail


def test_an_administrator_changes_a_pool_while_it_runs(house: House, admin: Desk) -> None:
    """Each setting can be changed alone, what is left out or null stays, and an event says who changed what."""
    pool = admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"max_engines": 9})
    assert (pool.min_ready, pool.max_engines, pool.paused) == (0, 9, False)
    pool = admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"min_ready": 3, "paused": None})
    assert (pool.min_ready, pool.max_engines, pool.paused) == (3, 9, False)
    assert admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={}) == pool
    told = admin.events()
    assert [(event.kind, event.actor, event.data) for event in told] == [
        ("pool.changed", "root", {"max_engines": 9, "token": admin.token_id}),
        ("pool.changed", "root", {"min_ready": 3, "token": admin.token_id}),
    ]


def test_a_paused_pool_gives_no_leases(house: House, ann: Desk, admin: Desk) -> None:
    """While a pool is paused, asking is 409 with when to try again, and waiting is possible."""
    house.add_engines(1)
    admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"paused": True})
    assert "paused" in ann.refused("POST", "/v1/leases", 409, "pool-exhausted", json={"envs": 1}).detail
    ann.lease(wait=True, status=202)
    admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"paused": False})


def test_only_an_allowed_image_can_be_chosen(tmp_path: Path) -> None:
    """Over REST an administrator may choose only among allowed_images, to which the configured image always belongs."""
    house = House(tmp_path, allowed_images=["engine:2"])
    admin = house.desk("root", Scope.ADMIN)
    problem = admin.refused("PATCH", "/v1/pools/main", 422, "unprocessable", json={"image": "evil:1"})
    assert "engine:1, engine:2" in problem.detail
    assert admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"image": "engine:2"}).image == "engine:2"
    assert admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"image": "engine:1"}).image == "engine:1"
    house.close()


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        ({"min_ready": 5}, "unprocessable"),
        ({"max_engines": 1000}, "unprocessable"),
        ({"max_engines": 0}, "invalid"),
        ({"min_ready": -1}, "invalid"),
        ({"min_ready": "1"}, "invalid"),
        ({"paused": 1}, "invalid"),
        ({"image": ""}, "invalid"),
        ({"runtime": "docker"}, "invalid"),
        ({"mounts": ["/"]}, "invalid"),
    ],
    ids=str,
)
def test_a_contradictory_change_changes_nothing(admin: Desk, body: dict[str, object], slug: str) -> None:
    """Settings that contradict each other, do not fit the ports, or are none of an administrator's are 422."""
    before = _pool(admin)
    admin.refused("PATCH", "/v1/pools/main", 422, slug, json=body)
    assert _pool(admin) == before
    assert admin.events() == []


def test_a_pool_that_is_not_there_cannot_be_changed(admin: Desk) -> None:
    """A pool that is not configured is 404."""
    admin.refused("PATCH", "/v1/pools/none", 404, "not-found", json={"paused": True})


def test_an_upgrade_is_asked_for_and_shown(house: House, admin: Desk, ann: Desk) -> None:
    """Asking for the newest image is admin's alone, is in the event log, and the pool shows that it is under way."""
    with house.database.write() as db:
        pools.pin(db, "main", image="engine:1", pinned="engine@sha256:1")
    house.add_engines(2)
    before = admin.call("GET", "/v1/pools", 200, models.PoolList).pools[0]
    assert (before.pinned, before.upgrading, before.outdated) == ("engine@sha256:1", False, 2)  # these are of engine:1
    ann.refused("POST", "/v1/pools/main/upgrade", 403, "forbidden")
    admin.refused("POST", "/v1/pools/none/upgrade", 404, "not-found")
    told = admin.call("POST", "/v1/pools/main/upgrade", 202, models.Pool)
    assert (told.upgrading, told.pinned, told.image_fault) == (True, "engine@sha256:1", None)
    assert admin.events()[-1].kind == "pool.upgrade_asked"
    ann.lease()
    after = admin.call("GET", "/v1/pools", 200, models.PoolList).pools[0]
    assert (after.outdated, after.outdated_leased) == (1, 1)
