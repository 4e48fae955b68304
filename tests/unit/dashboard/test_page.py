"""What the page shows to whom, what it may do, and how it follows changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.model import EngineState, Scope
from orchestrator.store import engines, events, meters, pools
from tests.support.api import Desk, House, json_of
from tests.support.dashboard import Browser

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\"'"


def _given(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="given">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def _state(browser: Browser) -> Any:
    return json_of(browser.get("/dashboard/state"))


def test_an_administrator_sees_everything(house: House, browser: Browser, admin: Desk, ann: Desk, bob: Desk) -> None:
    """Pools with counts and what is wanted, everybody's leases with their rate, all engines, and what happened."""
    house.add_engines(4)
    lease = ann.lease(2, note="run 7", labels={"team": "rl"})
    bob.lease(4, wait=True, status=202)
    with house.database.write() as db:
        meters.add(
            db,
            lease.id,
            0,
            pool="main",
            steps=0,
            raw_bytes=0,
            wire_bytes=0,
            engine_s=0,
            queue_s=0,
            now=house.clock.now() - 5,
        )
        meters.add(
            db,
            lease.id,
            0,
            pool="main",
            steps=300,
            raw_bytes=9,
            wire_bytes=3,
            engine_s=1.5,
            queue_s=0.1,
            now=house.clock.now(),
        )
    browser.log_in(admin.token)
    state = _given(browser.page())["state"]
    main = next(pool for pool in state["pools"] if pool["name"] == "main")
    assert (main["counts"]["ready"], main["counts"]["leased"], main["wanted"], main["max_engines"]) == (2, 2, 4, 4)
    held, waits = state["leases"]
    assert (held["holder"], held["envs"], held["rate"], held["note"], held["labels"]) == (
        "ann",
        2,
        60.0,
        "run 7",
        {"team": "rl"},
    )
    assert held["expires"] == house.clock.now() + 120
    assert (waits["holder"], waits["state"], waits["place"]) == ("bob", "pending", 1)
    assert {engine["state"] for engine in state["engines"]} == {"ready", "leased"}
    assert [event["kind"] for event in state["events"]] == ["session.opened", "lease.queued", "lease.granted"]
    house.clock.advance(60)
    assert _state(browser)["leases"][0]["rate"] == 0


@pytest.mark.parametrize("scope", [Scope.LEASE, Scope.READ])
def test_a_holder_sees_its_own_leases_only(house: House, browser: Browser, bob: Desk, scope: Scope) -> None:
    """As over REST: others' leases, engines, pictures and events are not there at all."""
    house.add_engines(3)
    bob.lease(2, note="of bob")
    mine = house.desk("ann").lease(1)
    browser.log_in(house.desk("ann", scope).token)
    state = _state(browser)
    assert [lease["id"] for lease in state["leases"]] == [mine.id]
    assert [engine["id"] for engine in state["engines"]] == ["e-2"]
    assert "bob" not in json.dumps([state["leases"], state["engines"], state["events"]])
    assert browser.get("/dashboard/engines/e-0").status_code == 404
    assert browser.get("/dashboard/engines/e-0/inside").status_code == 404
    assert browser.get("/dashboard/engines/e-2").status_code == 200
    assert browser.order("/dashboard/engines/e-2/retire", {"now": True}).status_code == 403
    assert house.engine("e-2").state is EngineState.LEASED


def test_untrusted_text_stays_text(house: House, browser: Browser, admin: Desk, ann: Desk) -> None:
    """Notes, labels, faults and events may hold anything: in the page they are data, and no markup comes of them."""
    house.add_engines(1)
    ann.lease(note=NASTY, labels={"x": NASTY})
    with house.database.write() as db:
        pools.note_fault(db, "main", fault=NASTY, retry_at=0, again=True, now=0)
        events.record(db, "engine.failed", NASTY, now=house.clock.now(), engine_id="e-0")
    browser.log_in(admin.token)
    text = browser.page()
    assert "<img" not in text.replace('<img src="/dashboard/static/', "")
    assert "alert(1)</script>" not in text
    state = _given(text)["state"]
    assert state["leases"][0]["note"] == state["leases"][0]["labels"]["x"] == NASTY
    assert NASTY in (state["events"][1]["text"], state["events"][0]["text"])


def test_the_page_brings_everything_itself(house: House, browser: Browser, admin: Desk) -> None:
    """No script, style or picture comes from elsewhere or stands in the page; all of it is below 200 KB with 200 engines."""
    house.add_engines(200)
    browser.log_in(admin.token)
    text = browser.page()
    assert not re.search(r"(?:src|href)=[\"'](?!/)", text.replace('href="#main"', ""))
    assert not re.search(r"<script(?![^>]*(?:src=|application/json))|<style|\bstyle=|\son\w+=", text)
    size = len(text.encode())
    linked = set(re.findall(r"/dashboard/static/[0-9a-f]{12}/[\w.-]+", text))
    for path in linked:
        response = browser.get(path)
        assert response.status_code == 200, path
        assert response.headers["Cache-Control"] == "private, max-age=31536000, immutable"
        size += len(response.get_data())
    assert {path.rpartition("/")[2] for path in linked} == set(house.app.dashboard.assets.names)
    assert size < 200_000
    assert browser.get("/dashboard/static/old/app.js").headers["Cache-Control"] == "no-store"
    assert browser.get("/dashboard/static/x/..%2fblueprint.py").status_code == 404
    assert browser.get("/dashboard/static/x/none.js").status_code == 404


def test_one_engine_with_its_past(house: House, browser: Browser, admin: Desk, ann: Desk) -> None:
    """What it is, whom it serves, and what happened to it, newest first."""
    house.add_engines(1)
    house.clock.advance(5)
    ann.lease(note="run 7")
    with house.database.write() as db:
        events.record(db, "engine.ready", "e-0 answers", now=house.clock.now() - 4, engine_id="e-0", pool="main")
        events.record(db, "engine.ready", "other", now=house.clock.now(), engine_id="e-1", pool="main")
    browser.log_in(admin.token)
    found = json_of(browser.get("/dashboard/engines/e-0"))
    assert (found["engine"]["state"], found["holder"], found["note"], found["generation"]) == (
        "leased",
        "ann",
        "run 7",
        1,
    )
    assert [one["kind"] for one in found["history"]] == ["engine.leased", "engine.ready", "engine.starting"]
    assert browser.get("/dashboard/engines/e-9").status_code == 404


def test_usage_and_log_come_from_the_pool_process(house: House, browser: Browser, admin: Desk) -> None:
    """CPU, memory and the end of the log; when nobody answers, that is what it says."""
    house.add_engines(1)
    browser.log_in(admin.token)

    def answer(kind: str, question: dict[str, Any]) -> Any:
        return {"lines": [NASTY]} if kind == "logs" else {"e-0": {"cpu_percent": 12.5, "memory_bytes": 99}}

    with house.pool_process(answer):
        found = json_of(browser.get("/dashboard/engines/e-0/inside"))
    assert found == {"cpu_percent": 12.5, "memory_bytes": 99, "lines": [NASTY]}
    house.clock.advance(60)
    found = json_of(browser.get("/dashboard/engines/e-0/inside"))
    assert found == {"cpu_percent": None, "memory_bytes": None, "lines": None}


def test_an_administrator_retires_and_replaces(house: House, browser: Browser, admin: Desk, ann: Desk) -> None:
    """The buttons do what the REST call does, and the event log says who, and with which token."""
    house.add_engines(3)
    lease = ann.lease(1)
    browser.log_in(admin.token)
    assert browser.order("/dashboard/engines/e-1/retire", {"now": False}).status_code == 202
    assert house.engine("e-1").state is EngineState.RETIRING
    assert browser.order("/dashboard/engines/e-0/retire", {"now": True}).status_code == 202
    assert ann.show(lease.id).envs[0].engine_id == "e-2"
    told = [event for event in admin.events() if event.kind == "engine.retire_asked"]
    assert [(event.engine_id, event.actor, event.data["token"]) for event in told] == [
        ("e-1", "root", admin.token_id),
        ("e-0", "root", admin.token_id),
    ]


def test_an_order_must_come_from_the_page(house: House, browser: Browser, admin: Desk) -> None:
    """Without the page's secret, with that of another session, or on another site's behalf, nothing is done."""
    house.add_engines(1)
    browser.log_in(admin.token)
    other = Browser(house)
    other.log_in(admin.token)
    path = "/dashboard/engines/e-0/retire"
    for headers in ({"X-Cornerman-CSRF": ""}, {"X-Cornerman-CSRF": other.csrf}, {"Sec-Fetch-Site": "cross-site"}):
        assert browser.order(path, {"now": True}, **headers).status_code == 403
    for body in ({}, {"now": 1}, {"now": True, "more": 1}):
        assert browser.order(path, body).status_code == 422
    assert browser.get(path).status_code == 405
    assert house.engine("e-0").state is EngineState.READY


def test_pictures_are_for_who_may_see_the_engine(house: House, browser: Browser, ann: Desk, bob: Desk) -> None:
    """Nothing is asked for that is not leased by the visitor; without a relay there is a sentence instead of pictures."""
    house.add_engines(2)
    ann.lease(1)
    bob.lease(1)
    browser.log_in(ann.token)
    assert json_of(browser.get("/dashboard/pictures?e=e-1:&e=nonsense")) == {"pictures": {}, "wait_s": 3.0}
    found = json_of(browser.get("/dashboard/pictures?e=e-0:&e=e-1:"))
    assert "relay does not answer" in found["why"]


# ---------------------------------------------------------------- live


def _listen(browser: Browser) -> tuple[Any, Any]:
    response = browser.get("/dashboard/stream", buffered=False)
    chunks: Iterator[bytes] = iter(response.response)  # type: ignore[arg-type]
    assert next(chunks).startswith(b"retry:")
    return response, chunks


def _told(chunk: bytes) -> dict[str, Any]:
    found = {}
    for block in chunk.decode().strip().split("\n\n"):
        name, _, data = block.partition("\ndata: ")
        found[name.removeprefix("event: ")] = json.loads(data)
    return found


def test_the_stream_tells_what_changes(house: House, browser: Browser, admin: Desk, ann: Desk) -> None:
    """The state comes at once and again when it has changed; samples of the charts come once each."""
    house.add_engines(1)
    browser.log_in(admin.token)
    house.app.dashboard.history.sample()
    response, chunks = _listen(browser)
    assert response.mimetype == "text/event-stream"
    first = _told(next(chunks))
    assert first["state"]["leases"] == []
    assert len(first["samples"]["samples"]) == 1
    ann.lease()
    second = _told(next(chunks))
    assert [lease["holder"] for lease in second["state"]["leases"]] == ["ann"]
    assert "samples" not in second
    response.close()


def test_the_stream_ends_with_session_or_token(house: House, browser: Browser, admin: Desk, ann: Desk) -> None:
    """Who is no longer let in is told nothing more."""
    browser.log_in(ann.token)
    _, chunks = _listen(browser)
    next(chunks)
    admin.command("DELETE", f"/v1/tokens/{ann.token_id}")
    assert list(chunks) == []
    other = Browser(house)
    other.log_in(admin.token)
    _, chunks = _listen(other)
    next(chunks)
    house.clock.advance(13 * 3600)
    house.app.services.changes.nudge()
    assert list(chunks) == []


def test_streams_have_a_share_of_the_threads(house: House, browser: Browser, admin: Desk) -> None:
    """Pages may hold half of the places for streams, so that who waits for a lease finds one; the next is told to look instead."""
    browser.log_in(admin.token)
    most = house.config.server.streams // 2
    opened = [_listen(browser)[0] for _ in range(most)]
    refused = browser.get("/dashboard/stream")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    assert house.app.services.lanes.streams._value == house.config.server.streams - most
    assert browser.get("/dashboard/state").status_code == 200
    opened[0].close()
    assert browser.send("HEAD", "/dashboard/stream").status_code == 200
    again = _listen(browser)[0]
    for response in (*opened[1:], again):
        response.close()
    assert house.app.services.lanes.streams._value == house.config.server.streams


def test_samples_for_the_charts(house: House, ann: Desk) -> None:
    """Leases, engines by state, steps a second and the time of a step since the sample before."""
    history = house.app.dashboard.history
    house.add_engines(3)
    lease = ann.lease(2)
    history.sample()
    house.clock.advance(10)
    with house.database.write() as db:
        meters.add(
            db,
            lease.id,
            0,
            pool="main",
            steps=1,
            raw_bytes=0,
            wire_bytes=0,
            engine_s=0,
            queue_s=0,
            now=house.clock.now() - 5,
        )
        meters.add(
            db,
            lease.id,
            0,
            pool="main",
            steps=99,
            raw_bytes=0,
            wire_bytes=0,
            engine_s=0.9,
            queue_s=0.1,
            now=house.clock.now(),
        )
        engines.drain(db, "e-2", "x")
    history.sample()
    first, second = history.after(0)
    at = house.clock.now()
    assert first == (at - 10, 1, 0, 1, 2, 0, 0, 0, 0.0, None)
    assert second == (at, 1, 0, 1, 2, 0, 0, 0, 19.8, 10.0)
    assert history.after(at - 10) == [second]
