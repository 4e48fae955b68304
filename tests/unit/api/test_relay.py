"""What the API tells of the relay: how to reach a lease's lanes, what they carried, and the last frame."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_sdk import models
from orchestrator.model import Scope
from orchestrator.relay_token import ensure_secret, relay_token
from orchestrator.store import inquiries, meters
from tests.support.api import Desk, House


@contextmanager
def _relay(house: House, answer: dict[str, Any]) -> Iterator[None]:
    """Somebody who answers questions for frames, as the relay does."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.01):
            with house.database.read() as db:
                found = inquiries.open_ones(db, kinds=("frame",))
            for inquiry_id, _, _ in found:
                with house.database.write() as db:
                    inquiries.answer(db, inquiry_id, answer)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_the_holder_is_told_how_to_reach_its_lanes(house: House, ann: Desk) -> None:
    """Whoever asked for a lease has its relay's address and token in every answer about it."""
    house.add_engines(1)
    lease = ann.lease()
    secret = ensure_secret(house.config.state_dir)
    expected = models.Relay(url=f"wss://127.0.0.1:8444/v1/leases/{lease.id}", token=relay_token(secret, lease.id))
    renewed = ann.call("POST", f"/v1/leases/{lease.id}/renew", 200, models.Lease)
    assert lease.relay == ann.show(lease.id).relay == renewed.relay == expected


def test_a_waiting_lease_has_its_address_already(ann: Desk) -> None:
    """The token is the lease's from its beginning; the relay opens once it is active."""
    assert ann.lease(wait=True, status=202).relay is not None


def test_nobody_else_is_told(house: House, ann: Desk, bob: Desk, admin: Desk, reader: Desk) -> None:
    """Neither an administrator nor the holder's own token of read scope sees a relay token, and no list has any."""
    house.add_engines(1)
    lease = ann.lease()
    assert lease.relay is not None
    for other in (admin, reader):
        assert other.show(lease.id).relay is None
        assert lease.relay.token not in other.send("GET", "/v1/leases").get_data(as_text=True)
    assert lease.relay.token not in ann.send("GET", "/v1/leases").get_data(as_text=True)
    assert lease.relay.token not in admin.send("GET", "/v1/events").get_data(as_text=True)
    bob.refused("GET", f"/v1/leases/{lease.id}", 404, "not-found")


def test_an_ended_lease_has_no_relay(house: House, ann: Desk) -> None:
    """Nothing is opened by the token of a lease that has ended."""
    house.add_engines(1)
    lease = ann.lease()
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert ann.show(lease.id).relay is None


def test_without_a_relay_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has no relay says so by leaving it out."""
    monkeypatch.setenv("CORNERMAN_RELAY__ENABLED", "false")
    house = House(tmp_path)
    try:
        house.add_engines(1)
        assert house.desk("ann").lease().relay is None
    finally:
        house.close()


def test_the_token_is_not_in_a_leases_repr() -> None:
    """A lease that is printed shows no secret."""
    assert "secret-token" not in repr(models.Relay(url="wss://host:8444/v1/leases/l-1", token="secret-token"))


# ---------------------------------------------------------------- what was carried


def test_an_engine_tells_what_its_lane_carried(house: House, ann: Desk, bob: Desk) -> None:
    """Steps, rate and ratio of a leased engine, for its holder; after a while without news the rate is 0."""
    house.add_engines(1)
    lease = ann.lease()
    (engine,) = ann.call("GET", "/v1/engines", 200, models.EngineList).engines
    assert engine.lane is None
    for _ in range(2):
        house.clock.advance(5)
        with house.database.write() as db:
            meters.add(
                db,
                lease.id,
                0,
                pool="main",
                steps=50,
                raw_bytes=4000,
                wire_bytes=100,
                engine_s=1.0,
                queue_s=0.1,
                now=house.clock.now(),
            )
    (engine,) = ann.call("GET", "/v1/engines", 200, models.EngineList).engines
    assert engine.lane is not None
    assert (engine.lane.steps, engine.lane.ratio) == (100, 40.0)
    assert engine.lane.steps_per_s == pytest.approx(10.0)
    house.clock.advance(60)
    shown = ann.call("GET", f"/v1/engines/{engine.id}", 200, models.Engine)
    assert shown.lane is not None
    assert shown.lane.steps_per_s == 0
    assert bob.call("GET", "/v1/engines", 200, models.EngineList).engines == []
    text = ann.send("GET", "/metrics").get_data(as_text=True)
    assert 'cornerman_relay_steps_total{pool="main"} 100.0' in text
    assert 'cornerman_relay_wire_bytes_total{pool="main"} 200.0' in text


def test_the_announced_end_of_an_idle_lease_is_shown(house: House, ann: Desk) -> None:
    """The holder of a lease that nobody uses sees when it ends."""
    house.add_engines(1)
    lease = ann.lease()
    assert lease.idle_release_at is None
    with house.database.write() as db:
        db.execute("UPDATE leases SET last_call_at = ?", (house.clock.now(),))
    house.app.services.leasing.warn_idle(lease.id, house.clock.now() + 300)
    shown = ann.show(lease.id)
    assert shown.idle_release_at is not None
    assert shown.idle_release_at.timestamp() == house.clock.now() + 300
    assert [event.kind for event in ann.events()][-1] == "lease.idle_soon"


# ---------------------------------------------------------------- frames


def test_the_last_frame_is_a_picture(house: House, ann: Desk) -> None:
    """What the relay shows of an engine is a WebP for its holder, and not kept by anybody on the way."""
    (engine_id,) = house.add_engines(1)
    ann.lease()
    with _relay(house, {"webp": base64.b64encode(b"RIFF....WEBP").decode()}):
        response = ann.send("GET", f"/v1/engines/{engine_id}/frame.webp")
    assert (response.status_code, response.mimetype, response.get_data()) == (200, "image/webp", b"RIFF....WEBP")
    assert response.headers["Cache-Control"] == "no-store"


def test_a_frame_that_is_not_there_has_a_reason(house: House, ann: Desk) -> None:
    """Without a game there is no frame, and the answer says so."""
    (engine_id,) = house.add_engines(1)
    ann.lease()
    with _relay(house, {"why": "its game has not begun yet"}):
        problem = ann.refused("GET", f"/v1/engines/{engine_id}/frame.webp", 404, "not-found")
    assert "its game has not begun yet" in problem.detail


def test_a_relay_that_does_not_answer_is_said(house: House, ann: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no relay runs a frame is 503, and nothing of the question is left."""
    monkeypatch.setattr("orchestrator.api.engine_calls.FRAME_WITHIN_S", 0.1)
    (engine_id,) = house.add_engines(1)
    ann.lease()
    problem = ann.refused("GET", f"/v1/engines/{engine_id}/frame.webp", 503, "unavailable")
    assert "relay did not answer" in problem.detail
    with house.database.read() as db:
        assert inquiries.open_ones(db) == []


def test_frames_are_for_those_who_may_see_the_engine(house: House, ann: Desk, bob: Desk) -> None:
    """Lease scope sees frames of its own leases alone, read scope too."""
    (engine_id,) = house.add_engines(1)
    ann.lease()
    bob.refused("GET", f"/v1/engines/{engine_id}/frame.webp", 404, "not-found")
    with _relay(house, {"webp": ""}):
        assert house.desk("ann", Scope.READ).send("GET", f"/v1/engines/{engine_id}/frame.webp").status_code == 200
