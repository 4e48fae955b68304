"""Who may hold how many of the server's threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from flask import Request

from client_sdk import models
from orchestrator.api.bodies import Bodies
from orchestrator.api.lanes import ARRIVING, Lanes
from orchestrator.api.problems import BadRequest
from orchestrator.errors import Refused, Unavailable
from tests.support.api import House
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("threads", "streams"), [(32, 12), (4, 1), (4, 2), (512, 500), (8, 6)])
def test_all_lanes_together_leave_threads_for_heartbeats(threads: int, streams: int) -> None:
    """With every stream open and every ordinary call under way there is still a thread for those who keep a lease alive."""
    lanes = Lanes(threads, streams)
    places = [lanes.enter(vital=False) for _ in range(lanes.ordinary._value)]
    assert places
    held = len(places) + streams
    assert held <= threads - 1
    with pytest.raises(Unavailable):
        lanes.enter(vital=False)
    lanes.enter(vital=True).leave()
    for place in places:
        place.leave()
        place.leave()
    lanes.enter(vital=False)


def test_a_stream_gives_its_ordinary_place_back() -> None:
    """A call that goes on as a stream holds a stream's place and no other."""
    lanes = Lanes(8, 2)
    before = lanes.ordinary._value
    place = lanes.enter(vital=False)
    place.become_stream()
    assert (lanes.ordinary._value, lanes.streams._value) == (before, 1)
    place.leave()
    assert lanes.streams._value == 2


def test_heartbeats_go_on_while_every_other_thread_is_held(tmp_path: Path) -> None:
    """While ordinary calls are all held up, renewing and releasing still work, and the others are told to try again."""
    house = House(tmp_path, server={"threads": 8, "streams": 2})
    house.add_engines(1)
    ann = house.desk("ann")
    lease = ann.lease()
    lanes = house.app.services.lanes
    places = [lanes.enter(vital=False) for _ in range(lanes.ordinary._value)]
    ann.refused("GET", "/v1/leases", 503, "unavailable")
    ann.call("POST", f"/v1/leases/{lease.id}/renew", 200, models.Lease)
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert house.stranger().send("GET", "/healthz").status_code == 200
    for place in places:
        place.leave()
    ann.call("GET", "/v1/leases", 200, models.LeaseList)
    house.close()


class NeverArrives:
    """A body of which nothing comes until its connection is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def read(self, _size: int) -> bytes:
        """Blocks."""
        self.closed.wait(30)
        return b""


def _request(stream: object) -> Request:
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "100",
        "wsgi.input": stream,
        "wsgi.url_scheme": "http",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
    }
    return Request(environ)


def test_bodies_that_never_arrive_have_threads_of_their_own() -> None:
    """Calls whose body does not come hold no ordinary place; beyond a number of them others are told to try again."""
    lanes, stuck = Lanes(8, 2), NeverArrives()
    bodies = Bodies(lanes)
    ended: list[type[Exception]] = []

    def read() -> None:
        try:
            bodies.read(_request(stuck))
        except Refused as fault:
            ended.append(type(fault))

    threads = [threading.Thread(target=read) for _ in range(ARRIVING + 3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(ended) == 3, 10)
    assert set(ended) == {Unavailable}
    assert lanes.ordinary._value == Lanes(8, 2).ordinary._value
    stuck.closed.set()
    for thread in threads:
        thread.join(5)
    assert lanes.arriving._value == ARRIVING
    assert ended.count(BadRequest) == ARRIVING
