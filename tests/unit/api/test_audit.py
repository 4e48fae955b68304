"""The event log tells who did what, when, and with which token; never the token's value."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from client_sdk import models
from orchestrator import config
from orchestrator.leasing import Leasing
from orchestrator.places import places
from orchestrator.policies import policies
from orchestrator.relay.directory import Directory
from orchestrator.relay.lane import Seat
from orchestrator.setup import Choices, init, renew_admin
from orchestrator.store import events
from orchestrator.store.database import Database
from orchestrator.takeover import take_over
from tests.support.api import Desk, House
from tests.support.dashboard import Browser
from tests.support.relay import looped


def _told(house: House) -> list[tuple[str, str | None, object]]:
    """(kind, who, the id of the token) of all events."""
    with house.database.read() as db:
        found = events.after(db, 0, holder=None, limit=1000)
    return [(event.kind, event.actor, event.data.get("token")) for event in found]


def test_each_deed_has_its_doer(house: House, ann: Desk, admin: Desk) -> None:
    """Leasing, queueing, replacing, releasing, retiring, changing a pool, tokens, principals and logging in: each names who and with what."""
    house.add_engines(3)
    first = ann.lease(1)
    ann.lease(3, wait=True, status=202)
    body = {"generation": 1, "reason": "it hangs"}
    ann.call("POST", f"/v1/leases/{first.id}/envs/0/replace", 200, models.Lease, json=body)
    admin.call("POST", "/v1/engines/e-1/retire?now=true", 202, models.Engine)
    admin.call("PATCH", "/v1/pools/main", 200, models.Pool, json={"min_ready": 1})
    ann.command("DELETE", f"/v1/leases/{first.id}")
    made = admin.call("POST", "/v1/tokens", 201, models.NewToken, json={"principal": "zoe"})
    admin.command("DELETE", f"/v1/tokens/{made.id}")
    admin.command("DELETE", "/v1/principals/zoe")
    Browser(house).log_in(ann.token)
    of_ann, of_root = ("ann", ann.token_id), ("root", admin.token_id)
    assert _told(house) == [
        ("lease.granted", *of_ann),
        ("lease.queued", *of_ann),
        ("lease.engine_lost", *of_ann),
        ("lease.engine_replaced", None, None),
        ("lease.engine_lost", *of_root),
        ("lease.engine_replaced", None, None),
        ("engine.retire_asked", *of_root),
        ("pool.changed", *of_root),
        ("lease.released", *of_ann),
        ("token.made", *of_root),
        ("token.revoked", *of_root),
        ("principal.removed", *of_root),
        ("session.opened", *of_ann),
    ]
    told = json.dumps([event.model_dump(mode="json") for event in admin.events()])
    for value in (ann.token, admin.token, made.token):
        assert str(value) not in told
    assert all(abs(event.at.timestamp() - house.clock.now()) < 1 for event in admin.events())


def test_an_administrator_in_somebody_elses_lease_is_named(house: House, ann: Desk, admin: Desk) -> None:
    """Who replaces or ends another's lease is told to its holder as what they are."""
    house.add_engines(2)
    lease = ann.lease(1)
    body = {"generation": 1, "reason": "it hangs"}
    admin.call("POST", f"/v1/leases/{lease.id}/envs/0/replace", 200, models.Lease, json=body)
    admin.command("DELETE", f"/v1/leases/{lease.id}")
    texts = [event.text for event in ann.events()]
    assert any("administrator root reported it as broken: it hangs" in text for text in texts)
    assert any("administrator root released it" in text for text in texts)


def test_a_principals_end_names_who_ended_its_leases(house: House, ann: Desk, admin: Desk) -> None:
    """When a principal is removed, each of its leases says by whom."""
    house.add_engines(1)
    ann.lease(1)
    admin.command("DELETE", "/v1/principals/ann")
    assert ("lease.released", "root", admin.token_id) in _told(house)


@looped
async def test_a_client_that_gives_an_engine_up_is_named(house: House, ann: Desk) -> None:
    """Over the relay the lease's own token speaks for its holder."""
    house.add_engines(1)
    lease = ann.lease(1)
    leasing = Leasing(house.database, policies(house.config), house.clock.now)
    directory = Directory(house.database, leasing, now=house.clock.now)
    seat = Seat(lease_id=lease.id, rank=0, generation=1, engine_id="e-0", address="127.0.0.1:1")
    await directory.unwanted(seat, "closed by replace()")
    assert ("lease.engine_lost", "ann", None) in _told(house)


def test_what_the_host_does_is_told_too(tmp_path: Path) -> None:
    """Tokens that set-up makes and revokes, and what a changed configuration file sets, are in the log of the host."""
    now = datetime.datetime.now(datetime.timezone.utc)
    where = places(tmp_path)
    init(where, Choices(runtime="process"), now=now)
    settings = config.load(where.folder / "cornerman.toml")
    renew_admin(where, settings, now=now)
    database = Database.open(settings.database)
    try:
        by_pool = policies(settings)
        for text in (None, "max_engines = 3"):
            if text:
                file = where.folder / "cornerman.toml"
                lines = [text if line.startswith("max_engines") else line for line in file.read_text().splitlines()]
                file.write_text("\n".join(lines))
                settings = config.load(file)
            with database.write() as db:
                take_over(
                    db,
                    config=settings,
                    policies=by_pool,
                    runtimes=["process"],
                    leasing=Leasing(database, by_pool, now.timestamp),
                    now=now.timestamp(),
                )
        with database.read() as db:
            found = [(event.kind, event.actor) for event in events.after(db, 0, holder=None, limit=100)]
    finally:
        database.close()
    host = "(this host)"
    assert found == [
        ("token.made", host),
        ("token.made", host),
        ("token.revoked", host),
        ("token.made", host),
        ("pool.configured", None),
    ]
