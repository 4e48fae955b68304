"""The event log, as JSON and as a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from werkzeug.test import TestResponse

from client_sdk import models
from orchestrator.api import event_calls
from orchestrator.store import events
from tests.support.api import Desk, House, parse_sse

STREAM = {"Accept": "text/event-stream"}


def _tell(house: House, kind: str, *, holder: str | None = None) -> None:
    with house.database.write() as db:
        events.record(db, kind, "something happened", now=house.clock.now(), pool="main", holder=holder)


def _free(house: House) -> int:
    return house.app.services.lanes.streams._value


class Listener:
    """An open event stream."""

    def __init__(self, desk: Desk, query: str = "", **headers: str) -> None:
        self.response: TestResponse = desk.send(
            "GET", f"/v1/events{query}", headers={**STREAM, **headers}, buffered=False
        )
        assert self.response.status_code == 200
        assert self.response.mimetype == "text/event-stream"
        self._chunks: Iterator[bytes] = iter(self.response.response)  # type: ignore[arg-type]
        self.greeting = next(self._chunks).decode()

    def next(self) -> list[tuple[int, str]]:
        """(id, kind) of the events that come next."""
        return [(number, data["kind"]) for number, data in parse_sse(next(self._chunks).decode())]

    def raw(self) -> str:
        """What comes next."""
        return next(self._chunks).decode()

    def close(self) -> None:
        """Go away."""
        self.response.close()


def test_the_log_goes_on_where_one_left_off(house: House, admin: Desk) -> None:
    """Events come oldest first; next is what to pass as after to go on, also when nothing has happened."""
    for kind in ("a.one", "a.two", "a.three"):
        _tell(house, kind)
    page = admin.call("GET", "/v1/events?limit=2", 200, models.EventList)
    assert ([event.kind for event in page.events], page.next) == (["a.one", "a.two"], 2)
    page = admin.call("GET", f"/v1/events?after={page.next}", 200, models.EventList)
    assert ([event.kind for event in page.events], page.next) == (["a.three"], 3)
    page = admin.call("GET", f"/v1/events?after={page.next}", 200, models.EventList)
    assert (page.events, page.next) == ([], 3)


@pytest.mark.parametrize("query", ["?after=-1", "?after=x", "?limit=0", "?limit=1001", "?since=1"])
def test_a_wrong_query_is_refused(admin: Desk, query: str) -> None:
    """Out of bounds, of a wrong kind, or unknown: 422."""
    admin.refused("GET", f"/v1/events{query}", 422, "invalid")


def test_a_holder_sees_the_events_of_its_own_leases_only(house: House, ann: Desk, bob: Desk, reader: Desk) -> None:
    """Lease and read scope see what happened to their principal's leases, and nothing of the rest."""
    house.add_engines(2)
    lease = ann.lease()
    bob.lease()
    _tell(house, "pool.degraded")
    for desk in (ann, reader):
        assert [(event.kind, event.lease_id) for event in desk.events()] == [("lease.granted", lease.id)]


def test_a_stream_tells_what_happens(house: House, admin: Desk) -> None:
    """With Accept: text/event-stream the past comes first, then each event as it happens, each with its number as id."""
    _tell(house, "a.one")
    listener = Listener(admin)
    assert listener.greeting.startswith("retry:")
    assert listener.next() == [(1, "a.one")]
    timer = threading.Timer(0.1, _tell, (house, "a.two"))
    timer.start()
    assert listener.next() == [(2, "a.two")]
    timer.join()
    listener.close()


def test_a_stream_goes_on_after_the_last_event_that_arrived(house: House, admin: Desk) -> None:
    """Last-Event-ID, which browsers send by themselves, continues a broken stream, whatever after says."""
    for kind in ("a.one", "a.two", "a.three"):
        _tell(house, kind)
    listener = Listener(admin, "?after=0", **{"Last-Event-ID": "2"})
    assert listener.next() == [(3, "a.three")]
    listener.close()
    headers = {**STREAM, "Last-Event-ID": "two"}
    admin.refused("GET", "/v1/events", 422, "invalid", headers=headers)


def test_a_stream_is_the_holders_own(house: House, ann: Desk) -> None:
    """A stream of lease scope carries the events of the caller's leases only."""
    _tell(house, "a.other", holder="bob")
    _tell(house, "a.mine", holder="ann")
    listener = Listener(ann)
    assert listener.next() == [(2, "a.mine")]
    listener.close()


def test_a_quiet_stream_gives_signs_of_life(admin: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment now and then keeps a stream on which nothing happens alive through proxies."""
    assert event_calls.PING_S == 15.0
    monkeypatch.setattr(event_calls, "PING_S", 0.05)
    listener = Listener(admin)
    assert listener.raw() == ": ping\n\n"
    listener.close()


def test_a_stream_ends_with_the_server(house: House, admin: Desk) -> None:
    """Stopping the server ends its streams at once."""
    listener = Listener(admin)
    timer = threading.Timer(0.1, house.app.stop)
    timer.start()
    with pytest.raises(StopIteration):
        listener.raw()
    timer.join()
    listener.close()


def test_a_stream_ends_when_its_token_is_revoked(house: House, ann: Desk, admin: Desk) -> None:
    """Revoking a token ends its streams at once."""
    listener = Listener(ann)
    timer = threading.Timer(0.1, lambda: admin.command("DELETE", f"/v1/tokens/{ann.token_id}"))
    timer.start()
    with pytest.raises(StopIteration):
        listener.raw()
    timer.join()
    listener.close()


def test_a_stream_that_is_left_makes_room(house: House, admin: Desk) -> None:
    """A listener that goes away gives its place back."""
    before = _free(house)
    listener = Listener(admin)
    assert _free(house) == before - 1
    listener.close()
    assert _free(house) == before


def test_streams_and_long_polls_have_a_share_of_the_threads(house: House, admin: Desk, ann: Desk) -> None:
    """Beyond server.streams a stream or long poll is 503 with Retry-After, and every other call goes on."""
    lease = ann.lease(wait=True, status=202)
    listeners = [Listener(admin) for _ in range(house.config.server.streams)]
    admin.refused("GET", "/v1/events", 503, "unavailable", headers=STREAM)
    ann.refused("GET", f"/v1/leases/{lease.id}?wait_s=1", 503, "unavailable")
    ann.show(lease.id)
    admin.events()
    ann.call("POST", f"/v1/leases/{lease.id}/renew", 200, models.Lease)
    listeners.pop().close()
    ann.show(lease.id, "?wait_s=0.05")
    for listener in listeners:
        listener.close()


def test_asking_for_the_head_of_a_stream_opens_none(house: House, admin: Desk) -> None:
    """HEAD takes no place."""
    before = _free(house)
    assert admin.send("HEAD", "/v1/events", headers=STREAM).status_code == 200
    assert _free(house) == before
