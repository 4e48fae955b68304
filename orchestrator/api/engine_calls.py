"""Calls about engines."""

from __future__ import annotations

import base64
import sqlite3
from typing import Any

from flask import Response
from pydantic import Field

from client_sdk import models
from orchestrator.api import views
from orchestrator.api.calls import Calls, Path, Query, answer, binary_answer
from orchestrator.api.services import caller, services
from orchestrator.api.waiting import FRAME_WITHIN_S, LOGS_WITHIN_S, STATS_WITHIN_S, Inquiries
from orchestrator.errors import NotFound, Unavailable
from orchestrator.model import Caller, Engine, EngineState, Scope
from orchestrator.store import engines, leases, meters


class EnginePath(Path):
    """Which engine."""

    engine_id: str = Field(min_length=1, max_length=200)


class EnginesQuery(Query):
    """Which engines."""

    pool: models.PoolName | None = None
    state: list[models.EngineState] = Field(default_factory=list, max_length=len(models.EngineState))


class LogsQuery(Query):
    """How many lines."""

    tail: int = Field(default=200, ge=1, le=5000)


class RetireQuery(Query):
    """When a leased engine goes."""

    now: bool = Field(default=False, description="true: replace it in its lease at once")


def _view(engine: Engine, stats: dict[str, Any] | None, carried: models.LaneStats | None = None) -> models.Engine:
    return views.engine(engine, stats, services().policies, carried)


def register(calls: Calls) -> None:
    """Add the calls about engines."""
    inquiries = Inquiries()

    @calls.add("get", "/v1/engines", tag="engines", scope=Scope.READ, answers={200: models.EngineList})
    def list_engines(query: EnginesQuery) -> Response:
        """All engines for an administrator, else those of the caller's leases"""
        with services().database.read() as db:
            found = [engine for engine in engines.live(db) if _may_see(db, caller(), engine)]
        if query.pool is not None:
            found = [engine for engine in found if engine.pool == query.pool]
        if query.state:
            found = [engine for engine in found if engine.state in query.state]
        stats, lanes = usage(found), carried(found)
        return answer(
            models.EngineList(engines=[_view(engine, stats.get(engine.id), lanes.get(engine.id)) for engine in found])
        )

    @calls.add(
        "get", "/v1/engines/<engine_id>", tag="engines", scope=Scope.READ, answers={200: models.Engine}, refuses=(404,)
    )
    def show_engine(path: EnginePath) -> Response:
        """An engine with its state, since when, why, port, container, CPU and memory"""
        engine = visible(path.engine_id)
        return answer(_view(engine, usage([engine]).get(engine.id), carried([engine]).get(engine.id)))

    @calls.add(
        "get",
        "/v1/engines/<engine_id>/logs",
        tag="engines",
        scope=Scope.READ,
        answers={200: models.EngineLogs},
        refuses=(404,),
    )
    def engine_logs(path: EnginePath, query: LogsQuery) -> Response:
        """The last lines of an engine's log, oldest first"""
        engine = visible(path.engine_id)
        question = {"engine_id": engine.id, "tail": query.tail}
        answered = inquiries.ask(services(), "logs", question, LOGS_WITHIN_S)
        if answered is None:
            raise Unavailable(
                f"The log of {engine.id} could not be read in time: try again, and look at /readyz if it stays.",
                retry_after_s=5,
            )
        return answer(models.EngineLogs(engine_id=engine.id, lines=answered["lines"]))

    @calls.add(
        "get",
        "/v1/engines/<engine_id>/frame.webp",
        tag="engines",
        scope=Scope.READ,
        answers={200: binary_answer("The picture", "image/webp")},
        refuses=(404,),
    )
    def engine_frame(path: EnginePath) -> Response:
        """The last frame that came from an engine through the relay"""
        engine = visible(path.engine_id)
        question = {"engine_id": engine.id}
        answered = inquiries.ask(services(), "frame", question, FRAME_WITHIN_S, of_pool=False)
        if answered is None:
            raise Unavailable(
                "The relay did not answer: try again, and look whether it runs if that stays.", retry_after_s=5
            )
        if "webp" not in answered:
            raise NotFound(f"There is no frame of {engine.id} to show: {answered['why']}.")
        response = Response(base64.b64decode(answered["webp"]), mimetype="image/webp")
        response.headers["Cache-Control"] = "no-store"
        return response

    @calls.add(
        "post",
        "/v1/engines/<engine_id>/retire",
        tag="engines",
        scope=Scope.ADMIN,
        answers={202: models.Engine},
        refuses=(404,),
    )
    def retire_engine(path: EnginePath, query: RetireQuery) -> Response:
        """Get rid of an engine: a leased one ends with its lease, or is replaced at once with now=true"""
        engine = services().administration.retire(caller(), path.engine_id, at_once=query.now)
        return answer(_view(engine, None), 202, location=f"/v1/engines/{engine.id}")

    def visible(engine_id: str) -> Engine:
        with services().database.read() as db:
            engine = engines.get(db, engine_id)
            if not _may_see(db, caller(), engine):
                raise NotFound(f"There is no engine {engine_id!r}: 'cornerman ps' lists those there are.")
        return engine

    def carried(found: list[Engine]) -> dict[str, models.LaneStats]:
        """What the relay has carried, by the ids of leased engines."""
        places = {(engine.lease_id, engine.rank): engine.id for engine in found if engine.lease_id is not None}
        if not places:
            return {}
        with services().database.read() as db:
            metered = meters.of_leases(db, {engine.lease_id for engine in found if engine.lease_id is not None})
        now = services().now()
        return {
            places[meter.lease_id, meter.rank]: views.lane(meter, now)
            for meter in metered
            if (meter.lease_id, meter.rank) in places
        }

    def usage(found: list[Engine]) -> dict[str, Any]:
        """CPU and memory by engine id, as far as the pool process says in time."""
        running = [engine.id for engine in found if engine.handle and engine.state is not EngineState.GONE]
        if not running:
            return {}
        return inquiries.ask(services(), "stats", {"engine_ids": running}, STATS_WITHIN_S) or {}


def _may_see(db: sqlite3.Connection, who: Caller, engine: Engine) -> bool:
    """An administrator sees all engines, anybody else those of its own leases."""
    if who.is_admin:
        return True
    return engine.lease_id is not None and leases.get(db, engine.lease_id).holder == who.principal
