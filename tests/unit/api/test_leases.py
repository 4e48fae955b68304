"""Calls about leases."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from client_sdk import models
from client_sdk.models import EnvState, LeaseState
from orchestrator.model import EngineState
from tests.support.api import Desk, House, json_of
from tests.support.waiting import wait_until


def test_engines_that_are_ready_are_leased_at_once(house: House, ann: Desk) -> None:
    """Asking for engines that are ready answers 201 with an active lease, its place, and an address for each rank."""
    house.add_engines(2)
    response = ann.send("POST", "/v1/leases", json={"envs": 2, "labels": {"run": "a"}, "note": "first"})
    lease = models.Lease.model_validate_json(response.get_data())
    assert response.status_code == 201
    assert response.headers["Location"] == f"/v1/leases/{lease.id}"
    assert (lease.state, lease.pool, lease.holder) == (LeaseState.ACTIVE, "main", "ann")
    assert (lease.labels, lease.note, lease.ttl_s) == ({"run": "a"}, "first", 120.0)
    assert [(env.rank, env.generation, env.state, env.address) for env in lease.envs] == [
        (0, 1, EnvState.READY, "127.0.0.1:32000"),
        (1, 1, EnvState.READY, "127.0.0.1:32001"),
    ]
    assert (lease.expires_at.timestamp() if lease.expires_at else 0) == house.clock.now() + 120


def test_engines_of_a_direct_pool_are_shown_at_the_public_host(tmp_path: Path) -> None:
    """With expose = "direct" the addresses of a lease are what a client elsewhere can reach."""
    house = House(tmp_path, server={"public_host": "games.example"}, expose="direct")
    house.add_engines(1)
    assert house.desk("ann").lease().envs[0].address == "games.example:32000"
    house.close()


def test_whoever_waits_gets_a_pending_lease_and_its_place_in_the_queue(ann: Desk, bob: Desk) -> None:
    """With wait=true and no engine ready the answer is 202 and says how many are before, the next one being 1."""
    first, second = ann.lease(1, wait=True, status=202), bob.lease(1, wait=True, status=202)
    assert (first.state, first.queue_position, first.envs) == (LeaseState.PENDING, 1, [])
    assert second.queue_position == 2


def test_whoever_does_not_wait_is_told_when_to_try_again(house: House, ann: Desk) -> None:
    """Without wait the answer to a pool without engines is 409 pool-exhausted with Retry-After, and nothing is kept."""
    house.add_engines(1)
    response = ann.send("POST", "/v1/leases", json={"envs": 2})
    assert response.status_code == 409
    assert json_of(response)["type"] == "/docs#pool-exhausted"
    assert int(response.headers["Retry-After"]) == 5
    assert ann.call("GET", "/v1/leases", 200, models.LeaseList).leases == []


def test_more_than_the_pool_can_ever_hold_is_refused(ann: Desk) -> None:
    """Asking for more engines than the pool's max_engines is 422, with or without waiting."""
    for wait in (False, True):
        problem = ann.refused("POST", "/v1/leases", 422, "unprocessable", json={"envs": 5, "wait": wait})
        assert "at most 4" in problem.detail


def test_a_lease_names_its_pool_or_gets_the_default_one(house: House, ann: Desk) -> None:
    """The pool is the one named, else the configuration's default; one that does not exist is 404."""
    house.add_engines(1)
    house.add_engines(1, pool="other")
    assert ann.lease().pool == "main"
    assert ann.lease(pool="other").pool == "other"
    ann.refused("POST", "/v1/leases", 404, "not-found", json={"envs": 1, "pool": "none"})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"envs": 0},
        {"envs": 10_001},
        {"envs": "1"},
        {"envs": 1.5},
        {"envs": True},
        {"envs": 1, "ttl_s": 9.9},
        {"envs": 1, "ttl_s": 3600.1},
        {"envs": 1, "wait": 1},
        {"envs": 1, "unknown": 1},
        {"envs": 1, "pool": "Not A Name"},
        {"envs": 1, "note": "x" * 1001},
        {"envs": 1, "labels": {"a": 1}},
        {"envs": 1, "labels": {"": "x"}},
        {"envs": 1, "labels": {"a": "x" * 256}},
        {"envs": 1, "labels": {f"l{n}": "" for n in range(65)}},
    ],
    ids=lambda body: str(body)[:40],
)
def test_a_wrong_request_is_refused_with_its_place(ann: Desk, body: dict[str, object]) -> None:
    """A body that is not as described is 422, names the field, coerces nothing and ignores nothing."""
    problem = ann.refused("POST", "/v1/leases", 422, "invalid", json=body)
    assert problem.errors
    assert all(error["loc"] for error in problem.errors)


def test_64_labels_are_taken(house: House, ann: Desk) -> None:
    """A lease may carry 64 labels."""
    house.add_engines(1)
    labels = {f"l{n}": "x" * 255 for n in range(64)}
    assert ann.lease(labels=labels).labels == labels


# ---------------------------------------------------------------- idempotency


def test_report_8_the_same_key_gives_the_same_lease_after_a_lost_answer(house: House, ann: Desk) -> None:
    """Report 8: a caller whose answer was lost asks again with its key and has the same lease; un-renewed, it expires."""
    house.add_engines(2)
    granted = ann.lease(key="k")
    again = ann.lease(key="k", status=200)
    assert again == granted
    house.restart()
    assert ann.lease(key="k", status=200) == granted
    assert len(ann.call("GET", "/v1/leases", 200, models.LeaseList).leases) == 1

    house.clock.advance(121)
    assert house.app.services.leasing.finish(granted.id, LeaseState.EXPIRED, "not renewed in time", if_expired=True)
    engine = granted.envs[0].engine_id
    assert engine is not None
    assert house.engine(engine).state is EngineState.RETIRING
    assert ann.lease(key="k", status=200).state is LeaseState.EXPIRED


def test_a_key_stands_for_a_pending_lease_too(ann: Desk) -> None:
    """The same key gives the lease that waits, as it is now: 202 while it waits."""
    waiting = ann.lease(wait=True, status=202, key="k")
    assert ann.lease(wait=True, status=202, key="k").id == waiting.id


def test_a_key_used_for_another_body_is_refused(house: House, ann: Desk) -> None:
    """The same key with another body is 422; the same body written otherwise is the same."""
    house.add_engines(2)
    lease = ann.lease(key="k", labels={"a": "1", "b": "2"})
    ann.refused("POST", "/v1/leases", 422, "unprocessable", json={"envs": 2}, headers={"Idempotency-Key": "k"})
    same = b'{"labels":{"b":"2","a":"1"},  "ttl_s": 120.0, "envs": 1}'
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    assert ann.call("POST", "/v1/leases", 200, models.Lease, data=same, headers=headers).id == lease.id


def test_a_key_is_its_holders_own_and_lives_a_day(house: House, ann: Desk, bob: Desk) -> None:
    """Two holders may use the same key, and after 24 h it stands for nothing any more."""
    house.add_engines(3)
    lease = ann.lease(key="k")
    assert bob.lease(key="k").id != lease.id
    house.clock.advance(86_401)
    assert ann.lease(key="k").id != lease.id


@pytest.mark.parametrize("key", ["", "x" * 129, "tab\there", "\u00e9"])
def test_a_key_is_printable_ascii(ann: Desk, key: str) -> None:
    """An idempotency key that is empty, too long or not printable ASCII is 422."""
    ann.refused("POST", "/v1/leases", 422, "unprocessable", json={"envs": 1}, headers={"Idempotency-Key": key})


# ---------------------------------------------------------------- looking and waiting


def test_looking_has_no_side_effects(house: House, ann: Desk) -> None:
    """Looking at a lease neither renews it nor changes its version."""
    house.add_engines(1)
    lease = ann.lease()
    house.clock.advance(60)
    assert ann.show(lease.id) == lease


def test_waiting_ends_as_soon_as_the_version_rises(house: House, ann: Desk) -> None:
    """With wait_s the answer comes when the version is above after_version, long before the time is over."""
    lease = ann.lease(wait=True, status=202)
    answers: list[models.Lease] = []
    began = time.monotonic()
    query = f"?wait_s=30&after_version={lease.version}"
    waiter = threading.Thread(target=lambda: answers.append(ann.show(lease.id, query)))
    waiter.start()
    house.add_engines(1)
    assert house.app.services.leasing.grant(lease.id)
    waiter.join(10)
    assert [answer.state for answer in answers] == [LeaseState.ACTIVE]
    assert answers[0].version > lease.version
    assert time.monotonic() - began < 10


def test_waiting_without_a_version_waits_for_the_next_change(house: House, ann: Desk) -> None:
    """wait_s alone waits for a change from now on, and when none comes shows the lease as it is."""
    lease = ann.lease(wait=True, status=202)
    began = time.monotonic()
    assert ann.show(lease.id, "?wait_s=0.3") == lease
    assert time.monotonic() - began >= 0.3


def test_waiting_ends_at_once_when_there_is_nothing_to_wait_for(house: House, ann: Desk) -> None:
    """A version that is above already, and a lease that has ended, are shown at once."""
    house.add_engines(1)
    lease = ann.lease()
    began = time.monotonic()
    assert ann.show(lease.id, "?wait_s=30&after_version=0") == lease
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert ann.show(lease.id, "?wait_s=30&after_version=999").state is LeaseState.RELEASED
    assert time.monotonic() - began < 10


def test_waiting_ends_when_the_server_stops(house: House, ann: Desk) -> None:
    """A long poll does not hold up the end of the server."""
    lease = ann.lease(wait=True, status=202)
    answers: list[models.Lease] = []
    waiter = threading.Thread(target=lambda: answers.append(ann.show(lease.id, "?wait_s=30")))
    waiter.start()
    wait_until(lambda: house.app.services.lanes.streams._value < house.config.server.streams, 5)
    house.app.stop()
    waiter.join(5)
    assert answers == [lease]


def test_a_revoked_token_stops_waiting(house: House, ann: Desk, admin: Desk) -> None:
    """A long poll ends with 401 when its token is revoked."""
    lease = ann.lease(wait=True, status=202)
    statuses: list[int] = []
    path = f"/v1/leases/{lease.id}?wait_s=30"
    waiter = threading.Thread(target=lambda: statuses.append(ann.send("GET", path).status_code))
    waiter.start()
    wait_until(lambda: house.app.services.lanes.streams._value < house.config.server.streams, 5)
    admin.command("DELETE", f"/v1/tokens/{ann.token_id}")
    waiter.join(5)
    assert statuses == [401]


@pytest.mark.parametrize(
    "query", ["?wait_s=30.1", "?wait_s=-1", "?wait_s=nan", "?wait_s=x", "?after_version=-1", "?w=1"]
)
def test_a_wrong_query_is_refused(ann: Desk, query: str) -> None:
    """Query parameters out of bounds, of a wrong kind or unknown are 422."""
    ann.refused("GET", f"/v1/leases/l-1{query}", 422, "invalid")


# ---------------------------------------------------------------- renewing


def test_a_heartbeat_gives_a_new_expiry_and_the_engines_as_they_are(house: House, ann: Desk) -> None:
    """Renewing gives one more ttl_s from now; it shows a replaced engine's new generation and address."""
    house.add_engines(2)
    lease = ann.lease(ttl_s=60)
    house.clock.advance(30)
    ann.call(
        "POST", f"/v1/leases/{lease.id}/envs/0/replace", 200, models.Lease, json={"generation": 1, "reason": "hung"}
    )
    renewed = ann.call("POST", f"/v1/leases/{lease.id}/renew", 200, models.Lease)
    assert (renewed.expires_at.timestamp() if renewed.expires_at else 0) == house.clock.now() + 60
    assert (renewed.envs[0].generation, renewed.envs[0].address) == (2, "127.0.0.1:32001")


def test_a_heartbeat_of_an_ended_lease_is_told_why(house: House, ann: Desk) -> None:
    """Renewing a lease that has ended is 410 lease-ended, with how and why it ended."""
    house.add_engines(1)
    lease = ann.lease()
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    problem = ann.refused("POST", f"/v1/leases/{lease.id}/renew", 410, "lease-ended")
    assert "released: its holder released it" in problem.detail


def test_report_9_a_pending_lease_must_be_renewed(house: House, ann: Desk) -> None:
    """Report 9: a caller that waits and only looks, or goes away, leaves the queue after its ttl_s; a heartbeat keeps it in."""
    gone, kept = ann.lease(wait=True, status=202), ann.lease(wait=True, status=202)
    house.clock.advance(100)
    ann.show(gone.id)
    ann.call("POST", f"/v1/leases/{kept.id}/renew", 200, models.Lease)
    house.clock.advance(30)
    leasing = house.app.services.leasing
    assert leasing.finish(gone.id, LeaseState.EXPIRED, "nobody renewed it", if_expired=True)
    assert not leasing.finish(kept.id, LeaseState.EXPIRED, "nobody renewed it", if_expired=True)
    house.add_engines(1)
    assert not leasing.grant(gone.id)
    assert leasing.grant(kept.id)
    ann.refused("POST", f"/v1/leases/{gone.id}/renew", 410, "lease-ended")


def test_report_17_renewal_races_expiry(house: House, ann: Desk) -> None:
    """Report 17: when a heartbeat and the end of a lease meet, exactly one wins, and the loser is told."""
    house.add_engines(4)
    outcomes = set()
    for _ in range(4):
        lease = ann.lease(ttl_s=10)
        house.clock.advance(10)
        start, statuses, ended = threading.Barrier(2), [0], [False]

        def beat(lease_id: str = lease.id, start: threading.Barrier = start, statuses: list[int] = statuses) -> None:
            start.wait()
            statuses[0] = ann.send("POST", f"/v1/leases/{lease_id}/renew").status_code

        def expire(lease_id: str = lease.id, start: threading.Barrier = start, ended: list[bool] = ended) -> None:
            start.wait()
            ended[0] = house.app.services.leasing.finish(lease_id, LeaseState.EXPIRED, "not renewed", if_expired=True)

        racers = [threading.Thread(target=beat), threading.Thread(target=expire)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(10)
        outcomes.add((statuses[0], ended[0]))
        assert ann.show(lease.id).state is (LeaseState.EXPIRED if ended[0] else LeaseState.ACTIVE)
    assert outcomes <= {(200, False), (410, True)}


# ---------------------------------------------------------------- replacing


def _replace(desk: Desk, lease: models.Lease, status: int, *, rank: int = 0, generation: int = 1) -> models.Lease:
    path = f"/v1/leases/{lease.id}/envs/{rank}/replace"
    return desk.call("POST", path, status, models.Lease, json={"generation": generation, "reason": "no answer"})


def test_a_broken_engine_is_replaced_at_once_when_there_is_a_spare(house: House, ann: Desk) -> None:
    """Reporting an engine as broken answers 200 with the next generation in its slot; the broken one is being removed."""
    house.add_engines(2)
    lease = ann.lease()
    after = _replace(ann, lease, 200)
    assert (after.envs[0].engine_id, after.envs[0].generation) == ("e-1", 2)
    assert after.version > lease.version
    broken = house.engine("e-0")
    assert (broken.state, broken.reason) == (EngineState.FAILED, "its holder reported it as broken: no answer")


def test_a_broken_engine_without_a_spare_leaves_its_slot_waiting(house: House, ann: Desk) -> None:
    """Without a spare the answer is 202, and the slot says that its engine is on its way."""
    house.add_engines(1)
    lease = ann.lease()
    env = _replace(ann, lease, 202).envs[0]
    assert (env.state, env.engine_id, env.address, env.generation) == (EnvState.REPLACING, None, None, 1)


def test_naming_an_old_generation_changes_nothing(house: House, ann: Desk) -> None:
    """A report that comes twice, or late, does not retire the engine that replaced the broken one."""
    house.add_engines(3)
    lease = ann.lease()
    after = _replace(ann, lease, 200)
    assert _replace(ann, lease, 200).envs == after.envs


def test_replacing_what_is_not_there_is_refused(house: House, ann: Desk, bob: Desk) -> None:
    """A generation yet to come and a pending lease are 409, a rank or lease that is not there 404, an ended lease 410."""
    house.add_engines(1)
    lease = ann.lease()
    body = {"generation": 2, "reason": "x"}
    ann.refused("POST", f"/v1/leases/{lease.id}/envs/0/replace", 409, "conflict", json=body)
    ann.refused("POST", f"/v1/leases/{lease.id}/envs/1/replace", 404, "not-found", json=body)
    ann.refused("POST", f"/v1/leases/{lease.id}/envs/-1/replace", 404, "no-such-path", json=body)
    bob.refused("POST", f"/v1/leases/{lease.id}/envs/0/replace", 404, "not-found", json=body)
    ann.refused("POST", f"/v1/leases/{lease.id}/envs/0/replace", 422, "invalid", json={"generation": 1})
    waiting = ann.lease(wait=True, status=202)
    ann.refused("POST", f"/v1/leases/{waiting.id}/envs/0/replace", 409, "conflict", json=body)
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    ann.refused("POST", f"/v1/leases/{lease.id}/envs/0/replace", 410, "lease-ended", json=body)


# ---------------------------------------------------------------- releasing


def test_releasing_gives_the_engines_back_and_can_be_repeated(house: House, ann: Desk) -> None:
    """Releasing answers 204 however often it is sent, and lets go of the engines."""
    house.add_engines(1)
    lease = ann.lease()
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    after = ann.show(lease.id)
    assert (after.state, after.ended_because, after.envs) == (LeaseState.RELEASED, "its holder released it", [])
    assert house.engine("e-0").state is EngineState.RETIRING


def test_a_pending_lease_can_be_released(ann: Desk) -> None:
    """Releasing a lease that waits takes it out of the queue."""
    lease = ann.lease(wait=True, status=202)
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert ann.show(lease.id).state is LeaseState.RELEASED


def test_an_administrator_may_end_anybodys_lease(house: House, ann: Desk, admin: Desk) -> None:
    """An administrator ends another's lease, and its holder is told who did."""
    house.add_engines(1)
    lease = ann.lease()
    admin.command("DELETE", f"/v1/leases/{lease.id}")
    problem = ann.refused("POST", f"/v1/leases/{lease.id}/renew", 410, "lease-ended")
    assert "administrator root released it" in problem.detail


# ---------------------------------------------------------------- whose, and how many


def test_another_holders_lease_is_not_there(house: House, ann: Desk, bob: Desk) -> None:
    """To everybody else a lease is 404, in the same words as one that never was."""
    house.add_engines(1)
    lease = ann.lease()
    for method, path in [("GET", ""), ("POST", "/renew"), ("DELETE", ""), ("GET", "?wait_s=5&after_version=0")]:
        theirs = bob.refused(method, f"/v1/leases/{lease.id}{path}", 404, "not-found")
        nobodys = bob.refused(method, f"/v1/leases/l-nothing{path}", 404, "not-found")
        assert theirs.detail == nobodys.detail.replace("l-nothing", lease.id)
    assert bob.call("GET", "/v1/leases", 200, models.LeaseList).leases == []
    assert ann.show(lease.id).state is LeaseState.ACTIVE


def test_leases_are_listed_newest_first_and_filtered(house: House, ann: Desk, bob: Desk, admin: Desk) -> None:
    """A holder lists its own leases, an administrator everybody's, each filtered by state and by all labels given."""
    house.add_engines(3)
    one = ann.lease(labels={"run": "a", "user.name": "x=y"})
    two = ann.lease(labels={"run": "b"})
    three = bob.lease(labels={"run": "a"})
    ann.command("DELETE", f"/v1/leases/{two.id}")

    def listed(desk: Desk, query: str = "") -> list[str]:
        return [lease.id for lease in desk.call("GET", f"/v1/leases{query}", 200, models.LeaseList).leases]

    assert listed(ann) == [two.id, one.id]
    assert listed(admin) == [three.id, two.id, one.id]
    assert listed(ann, "?state=active") == [one.id]
    assert listed(admin, "?state=active&state=released") == [three.id, two.id, one.id]
    assert listed(admin, "?label=run=a") == [three.id, one.id]
    assert listed(admin, "?label=run=a&label=user.name=x=y") == [one.id]
    assert listed(admin, "?label=run=a&limit=1") == [three.id]
    assert listed(admin, "?label=run=c") == []


@pytest.mark.parametrize("query", ["?state=gone", "?label=run", "?label==x", "?limit=0", "?limit=1001", "?holder=ann"])
def test_a_wrong_filter_is_refused(ann: Desk, query: str) -> None:
    """A filter that means nothing is 422, not ignored."""
    ann.refused("GET", f"/v1/leases{query}", 422, "invalid")


def test_a_principal_may_hold_as_many_engines_as_its_quota(house: House) -> None:
    """Engines held or waited for, by all tokens of a principal, stay within max_engines; beyond is 403 with what is left."""
    house.add_engines(4)
    first = house.desk("cid", max_engines=3)
    second = house.desk("cid")
    first.lease(2)
    problem = second.refused("POST", "/v1/leases", 403, "quota-exceeded", json={"envs": 2})
    assert "at most 1" in problem.detail
    second.lease(1)
    second.refused("POST", "/v1/leases", 403, "quota-exceeded", json={"envs": 1, "wait": True})


def test_a_principal_may_have_as_many_pending_leases_as_its_quota(house: House) -> None:
    """More leases waiting than max_pending are 403; one that is granted at once does not count."""
    desk = house.desk("cid", max_pending=1)
    desk.lease(1, wait=True, status=202)
    desk.refused("POST", "/v1/leases", 403, "quota-exceeded", json={"envs": 1, "wait": True})
    house.add_engines(1, pool="other")
    desk.lease(1, wait=True, pool="other")
