"""Calls about engines."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk import models
from client_sdk.models import EnvState
from orchestrator.model import EngineState
from orchestrator.store import engines, meta
from tests.support.api import Desk, House


def _listed(desk: Desk, query: str = "") -> list[str]:
    return [engine.id for engine in desk.call("GET", f"/v1/engines{query}", 200, models.EngineList).engines]


def test_an_administrator_sees_all_engines(house: House, admin: Desk) -> None:
    """An administrator lists all engines, with state, since when, why, port and container, and can filter them."""
    house.add_engines(1)
    house.add_engines(1, pool="other", state=EngineState.STARTING)
    assert _listed(admin) == ["e-0", "e-1"]
    assert _listed(admin, "?pool=other") == ["e-1"]
    assert _listed(admin, "?state=ready&state=leased") == ["e-0"]
    engine = admin.call("GET", "/v1/engines/e-0", 200, models.Engine)
    assert (engine.state, engine.port, engine.container, engine.image) == (
        EngineState.READY,
        32000,
        "container-0",
        "engine:1",
    )
    assert engine.since.timestamp() == house.clock.now()
    admin.refused("GET", "/v1/engines?state=odd", 422, "invalid")
    admin.refused("GET", "/v1/engines?pools=main", 422, "invalid")


def test_a_holder_sees_the_engines_of_its_own_leases_only(house: House, ann: Desk, bob: Desk, reader: Desk) -> None:
    """To others an engine is 404, and so is its log; with the end of the lease it is out of sight."""
    house.add_engines(2)
    lease = ann.lease()
    assert _listed(ann) == _listed(reader) == ["e-0"]
    engine = ann.call("GET", "/v1/engines/e-0", 200, models.Engine)
    assert (engine.lease_id, engine.rank, engine.uses) == (lease.id, 0, 1)
    for who, engine_id in [(bob, "e-0"), (ann, "e-1"), (ann, "e-99")]:
        assert who is ann or _listed(who) == []
        who.refused("GET", f"/v1/engines/{engine_id}", 404, "not-found")
        who.refused("GET", f"/v1/engines/{engine_id}/logs", 404, "not-found")
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert _listed(ann) == []
    ann.refused("GET", "/v1/engines/e-0", 404, "not-found")


def test_engines_show_what_they_use(house: House, admin: Desk) -> None:
    """CPU and memory come from the pool process; an engine of which it knows nothing has none."""
    house.add_engines(2)

    def answer(kind: str, question: dict[str, Any]) -> Any:
        assert (kind, set(question["engine_ids"]) <= {"e-0", "e-1"}) == ("stats", True)
        return {"e-0": {"cpu_percent": 12.5, "memory_bytes": 1 << 20}}

    with house.pool_process(answer):
        found = admin.call("GET", "/v1/engines", 200, models.EngineList).engines
        one = admin.call("GET", "/v1/engines/e-0", 200, models.Engine)
    assert [(engine.cpu_percent, engine.memory_bytes) for engine in found] == [(12.5, 1 << 20), (None, None)]
    assert one.cpu_percent == 12.5


def test_without_the_pool_process_engines_are_shown_without_usage(house: House, admin: Desk) -> None:
    """A pool process that is dead, or does not answer in time, costs an engine's figures and nothing else."""
    house.add_engines(1)
    house.clock.advance(11)
    assert admin.call("GET", "/v1/engines", 200, models.EngineList).engines[0].cpu_percent is None
    with house.database.write() as db:
        meta.put(db, "pool_alive_at", repr(house.clock.now()))
    assert admin.call("GET", "/v1/engines/e-0", 200, models.Engine).memory_bytes is None


def test_an_engines_log_is_shown(house: House, ann: Desk) -> None:
    """The last lines of the log of an engine that the caller holds come from the pool process, 200 unless said otherwise."""
    house.add_engines(1)
    ann.lease()

    def answer(kind: str, question: dict[str, Any]) -> Any:
        return {"lines": [kind, question["engine_id"], str(question["tail"])]}

    with house.pool_process(answer):
        log = ann.call("GET", "/v1/engines/e-0/logs", 200, models.EngineLogs)
        short = ann.call("GET", "/v1/engines/e-0/logs?tail=3", 200, models.EngineLogs)
    assert (log.engine_id, log.lines) == ("e-0", ["logs", "e-0", "200"])
    assert short.lines[-1] == "3"
    for tail in ("0", "5001", "x"):
        ann.refused("GET", f"/v1/engines/e-0/logs?tail={tail}", 422, "invalid")


def test_a_log_that_cannot_be_had_is_refused_in_time(
    house: House, admin: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer from the pool process a log is 503 with Retry-After, and the question is not left behind."""
    monkeypatch.setattr("orchestrator.api.engine_calls.LOGS_WITHIN_S", 0.2)
    house.add_engines(1)
    admin.refused("GET", "/v1/engines/e-0/logs", 503, "unavailable")
    with house.database.read() as db:
        assert db.execute("SELECT count(*) FROM inquiries").fetchone()[0] == 0
    house.clock.advance(11)
    admin.refused("GET", "/v1/engines/e-0/logs", 503, "unavailable")


# ---------------------------------------------------------------- retiring


def _retire(desk: Desk, engine_id: str, query: str = "") -> models.Engine:
    return desk.call("POST", f"/v1/engines/{engine_id}/retire{query}", 202, models.Engine)


def test_a_ready_engine_is_retired_at_once(house: House, admin: Desk) -> None:
    """Retiring an engine that nobody holds starts its removal, says who did it, and can be repeated."""
    house.add_engines(1)
    engine = _retire(admin, "e-0")
    assert (engine.state, engine.reason) == (EngineState.RETIRING, "administrator root retired it")
    assert _retire(admin, "e-0") == engine
    told = admin.events()
    assert [(event.kind, event.engine_id, event.actor) for event in told] == [("engine.retire_asked", "e-0", "root")]


def test_a_leased_engine_ends_with_its_lease(house: House, ann: Desk, admin: Desk) -> None:
    """Retiring a leased engine leaves it to its holder until the lease ends."""
    house.add_engines(1)
    lease = ann.lease()
    assert _retire(admin, "e-0").state is EngineState.LEASED
    assert house.engine("e-0").draining
    assert ann.show(lease.id).envs == lease.envs
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert house.engine("e-0").state is EngineState.RETIRING


def test_a_leased_engine_is_replaced_at_once_on_request(house: House, ann: Desk, admin: Desk) -> None:
    """Retiring a leased engine with now=true puts a spare into its slot under the next generation; its holder is told."""
    house.add_engines(2)
    lease = ann.lease()
    assert _retire(admin, "e-0", "?now=true").state is EngineState.FAILED
    env = ann.show(lease.id, f"?wait_s=5&after_version={lease.version}").envs[0]
    assert (env.engine_id, env.generation, env.state) == ("e-1", 2, EnvState.READY)
    assert "lease.engine_lost" in [event.kind for event in ann.events()]


def test_a_starting_engine_can_be_retired(house: House, admin: Desk) -> None:
    """Report 16: an engine stuck in starting can be got rid of."""
    house.add_engines(1, state=EngineState.STARTING)
    assert _retire(admin, "e-0").state is EngineState.RETIRING


def test_retiring_what_is_not_there_is_refused(house: House, admin: Desk) -> None:
    """An engine that never was is 404, and an unknown query 422."""
    admin.refused("POST", "/v1/engines/e-9/retire", 404, "not-found")
    house.add_engines(1)
    admin.refused("POST", "/v1/engines/e-0/retire?soon=true", 422, "invalid")
    admin.refused("POST", "/v1/engines/e-0/retire?now=perhaps", 422, "invalid")
    with house.database.read() as db:
        assert engines.get(db, "e-0").state is EngineState.READY
