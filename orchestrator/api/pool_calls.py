"""Calls about pools."""

from __future__ import annotations

from flask import Response

from client_sdk import models
from orchestrator.api import views
from orchestrator.api.calls import Calls, Path, answer
from orchestrator.api.services import caller, services
from orchestrator.model import Scope
from orchestrator.store import pools


class PoolPath(Path):
    """Which pool."""

    name: models.PoolName


def register(calls: Calls) -> None:
    """Add the calls about pools."""

    @calls.add("get", "/v1/pools", tag="pools", scope=Scope.READ, answers={200: models.PoolList})
    def list_pools() -> Response:
        """The pools with their sizes, what is in them, and what is wrong with them, in words"""
        parts = services()
        with parts.database.read() as db:
            found = [views.pool(db, pool) for pool in pools.all_of(db, parts.policies)]
        return answer(models.PoolList(pools=found))

    @calls.add("patch", "/v1/pools/<name>", tag="pools", scope=Scope.ADMIN, answers={200: models.Pool}, refuses=(404,))
    def change_pool(path: PoolPath, body: models.PoolPatch) -> Response:
        """Change a pool while it runs; what is left out, or null, stays as it is"""
        parts = services()
        parts.administration.change_pool(caller(), path.name, body)
        with parts.database.read() as db:
            return answer(views.pool(db, pools.get(db, path.name, parts.policies)))

    @calls.add(
        "post", "/v1/pools/<name>/upgrade", tag="pools", scope=Scope.ADMIN, answers={202: models.Pool}, refuses=(404,)
    )
    def upgrade_pool(path: PoolPath) -> Response:
        """Fetch the pool's image anew and move to what its name means now, with min_ready engines ready all the time"""
        parts = services()
        parts.administration.upgrade(caller(), path.name)
        with parts.database.read() as db:
            return answer(views.pool(db, pools.get(db, path.name, parts.policies)), 202)
