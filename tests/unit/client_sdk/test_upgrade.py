"""What ``cornerman upgrade-image`` says while a pool moves to another image, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk import models
from client_sdk._errors import CornermanError
from client_sdk._upgrade_cli import watch


def _pool(**changes: Any) -> models.Pool:
    values: dict[str, Any] = {
        "name": "main",
        "runtime": "docker",
        "image": "engine:latest",
        "pinned": "engine@sha256:1",
        "allowed_images": [],
        "expose": "local",
        "min_ready": 1,
        "max_engines": 4,
        "paused": False,
        "degraded": False,
        "fault": None,
        "fault_at": None,
        "counts": {},
        "wanted": 1,
        "pending_leases": 0,
        "active_leases": 0,
    }
    return models.Pool(**{**values, **changes})


def _watched(*pools: models.Pool, timeout_s: float = 60) -> list[str]:
    """What is said while the pool is seen like this, one look after the other."""
    said: list[str] = []
    looks = iter(pools)
    watch(lambda: next(looks), said.append, timeout_s=timeout_s, sleep=lambda _: None)
    return said


def test_each_stage_is_said_once() -> None:
    """Fetching, how many idle engines are left, and the end; leased ones are not waited for."""
    new = "engine@sha256:2"
    said = _watched(
        _pool(upgrading=True),
        _pool(upgrading=True),
        _pool(pinned=new, outdated=2, outdated_leased=1),
        _pool(pinned=new, outdated=1, outdated_leased=1, fault="out of memory: raise memory_mb"),
        _pool(pinned=new, outdated_leased=1),
    )
    assert said == [
        "Fetching engine:latest; engines are started from engine@sha256:1 meanwhile.",
        "2 idle engines are still of another image than engine@sha256:2. 1 leased ones go with their leases.",
        "1 idle engines are still of another image than engine@sha256:2. 1 leased ones go with their leases. "
        "Starts fail: out of memory: raise memory_mb",
        "All idle engines of pool main are engine@sha256:2. 1 leased ones go with their leases.",
    ]


def test_an_image_that_cannot_be_had_ends_it() -> None:
    """The sentence says why, and what the pool goes on with."""
    with pytest.raises(CornermanError, match=r"is not here.*goes on with engine@sha256:1, and tries again by itself"):
        _watched(
            _pool(upgrading=True), _pool(upgrading=True, image_fault="The image engine:latest is not here: pull it.")
        )


def test_it_does_not_wait_for_ever() -> None:
    """After the time it ends, and says that the pool goes on."""
    with pytest.raises(CornermanError, match="not done after 0 s"):
        _watched(_pool(upgrading=True), timeout_s=0)
