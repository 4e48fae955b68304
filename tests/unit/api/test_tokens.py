"""Calls about tokens and principals, and who may do what."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from client_sdk import models
from client_sdk.models import LeaseState
from orchestrator.api.calls import Call
from orchestrator.auth import make_token
from orchestrator.model import EngineState, Scope
from orchestrator.store import principals
from tests.support.api import Desk, House


def _made(admin: Desk, **body: object) -> models.NewToken:
    return admin.call("POST", "/v1/tokens", 201, models.NewToken, json={"principal": "cid", **body})


def _with(house: House, token: models.NewToken) -> Desk:
    return Desk(house, token.token, token.id)


def test_a_tokens_value_is_shown_once_and_kept_nowhere(house: House, admin: Desk) -> None:
    """Making a token shows its value, of 256 random bits; afterwards only its SHA-256 is known."""
    token = _made(admin, note="laptop")
    assert (token.principal, token.scope, token.note, token.last_used_at) == ("cid", Scope.LEASE, "laptop", None)
    assert len(token.token) >= 256 / 6
    listed = admin.send("GET", "/v1/tokens").get_data(as_text=True)
    assert token.id in listed
    assert token.token not in listed
    digest = hashlib.sha256(token.token.encode()).hexdigest()
    with house.database.read() as db:
        found = principals.find_token(db, digest)
        dump = "\n".join(db.iterdump()) if hasattr(db, "iterdump") else ""
    assert found is not None
    assert token.token not in dump
    assert digest in dump


def test_tokens_of_one_principal_share_its_leases_and_quota(house: House, admin: Desk) -> None:
    """A second token is for the same principal, and quotas that are given replace those it had; to look is not to play."""
    house.add_engines(1)
    one = _with(house, _made(admin, max_engines=2, max_pending=1))
    two = _with(house, _made(admin, max_engines=3, scope="read"))
    lease = one.lease()
    assert two.show(lease.id) == lease.model_copy(update={"relay": None}), "who may only look gets no key to the lanes"
    who = one.call("GET", "/v1/whoami", 200, models.WhoAmI)
    assert (who.principal, who.scope, who.max_engines, who.max_pending) == ("cid", Scope.LEASE, 3, 1)
    assert (who.engines_in_use, who.pending_leases) == (1, 0)
    assert two.call("GET", "/v1/whoami", 200, models.WhoAmI).scope is Scope.READ


def test_tokens_are_listed_without_their_values(house: House, admin: Desk) -> None:
    """The list shows whose each token is, its scope, and when it was used last."""
    house.clock.advance(5)
    token = _made(admin)
    _with(house, token).call("GET", "/v1/whoami", 200, models.WhoAmI)
    listed = admin.call("GET", "/v1/tokens", 200, models.TokenList).tokens
    assert [(one.principal, one.scope) for one in listed] == [("root", Scope.ADMIN), ("cid", Scope.LEASE)]
    assert listed[1].last_used_at is not None
    assert listed[1].last_used_at.timestamp() == house.clock.now()


def test_revoking_a_token_acts_at_once_and_ends_no_lease(house: House, admin: Desk) -> None:
    """A revoked token is refused from the next call on; what its principal holds goes on, also for its other tokens."""
    house.add_engines(1)
    token, other = _made(admin), _with(house, _made(admin))
    lease = _with(house, token).lease()
    admin.command("DELETE", f"/v1/tokens/{token.id}")
    _with(house, token).refused("GET", "/v1/whoami", 401, "unauthenticated")
    assert other.call("POST", f"/v1/leases/{lease.id}/renew", 200, models.Lease).state is LeaseState.ACTIVE
    admin.refused("DELETE", f"/v1/tokens/{token.id}", 404, "not-found")


def test_a_token_revoked_by_another_process_is_refused_within_a_second(house: House, ann: Desk) -> None:
    """What is remembered of a token is forgotten so soon that revoking it on the host acts within a second."""
    ann.call("GET", "/v1/whoami", 200, models.WhoAmI)
    with house.database.write() as db:
        principals.delete_token(db, ann.token_id)
    house.clock.advance(0.9)
    ann.refused("GET", "/v1/whoami", 401, "unauthenticated")


def test_removing_a_principal_ends_all_its_leases(house: House, ann: Desk, bob: Desk, admin: Desk) -> None:
    """Removing a principal revokes its tokens and ends its leases, active and waiting; others' go on."""
    house.add_engines(2)
    active, theirs, waiting = ann.lease(), bob.lease(), ann.lease(wait=True, status=202)
    admin.command("DELETE", "/v1/principals/ann")
    ann.refused("GET", "/v1/whoami", 401, "unauthenticated")
    for lease in (active, waiting):
        ended = admin.show(lease.id)
        assert (ended.state, ended.ended_because) == (LeaseState.RELEASED, "ann was removed")
    assert house.engine("e-0").state is EngineState.RETIRING
    assert bob.show(theirs.id) == theirs
    admin.refused("DELETE", "/v1/principals/ann", 404, "not-found")
    assert "principal.removed" in [event.kind for event in admin.events()]


def test_what_administrators_do_with_tokens_is_told(house: House, admin: Desk) -> None:
    """Making and revoking a token are events with who did it, and without the value."""
    token = _made(admin)
    admin.command("DELETE", f"/v1/tokens/{token.id}")
    told = admin.events()
    assert [(event.kind, event.actor) for event in told] == [("token.made", "root"), ("token.revoked", "root")]
    assert token.token not in str(told)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"principal": ""},
        {"principal": "a b"},
        {"principal": "a", "scope": "root"},
        {"principal": "a", "token": "x"},
    ],
    ids=str,
)
def test_a_wrong_request_for_a_token_is_refused(admin: Desk, body: dict[str, object]) -> None:
    """A body that is not as described is 422, and makes nothing."""
    admin.refused("POST", "/v1/tokens", 422, "invalid", json=body)
    assert len(admin.call("GET", "/v1/tokens", 200, models.TokenList).tokens) == 1


# ---------------------------------------------------------------- who may do what


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        "Bearer wrong",
        "bearer \u00e9",
        "Bearer " + "x" * 5000,
        "Token {token}",
    ],
)
def test_without_a_good_token_nothing_is_told(house: House, ann: Desk, header: str | None) -> None:
    """No token, a wrong scheme, or an unknown token is 401 with how to authenticate."""
    headers = {} if header is None else {"Authorization": header.format(token=ann.token)}
    response = house.stranger().send("GET", "/v1/whoami", headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_the_scheme_may_be_written_in_any_case(house: House, ann: Desk) -> None:
    """'bearer' is as good as 'Bearer'."""
    headers = {"Authorization": f"bEARER  {ann.token} "}
    assert house.stranger().send("GET", "/v1/whoami", headers=headers).status_code == 200


def _protected(house: House) -> Iterator[tuple[str, str, Call]]:
    """(method, path, what the guard knows of it) of every call that needs a token."""
    known = house.app.calls.known
    for rule in house.rules():
        call = known[rule.endpoint]
        if call.scope is not None:
            path = str(rule).replace("<int:rank>", "0")
            for part in ("lease_id", "engine_id", "token_id", "name"):
                path = path.replace(f"<{part}>", "x")
            for method in (rule.methods or set()) - {"HEAD"}:
                yield method, path, call


def test_every_call_needs_its_scope(house: House, ann: Desk, reader: Desk) -> None:
    """Without a token each call but the public ones is 401; with too low a scope 403, whatever else is wrong with it."""
    found = list(_protected(house))
    assert len(found) >= 17
    for method, path, call in found:
        house.stranger().refused(method, path, 401, "unauthenticated")
        if call.scope is not Scope.READ:
            reader.refused(method, path, 403, "forbidden")
        if call.scope is Scope.ADMIN:
            ann.refused(method, path, 403, "forbidden")


def test_read_scope_changes_nothing(house: House) -> None:
    """Every call that changes something needs more than read scope."""
    for method, path, call in _protected(house):
        assert (call.scope is Scope.READ) == (method == "GET") or path == "/v1/tokens", (method, path)


def test_public_calls_are_few(house: House) -> None:
    """Without a token one can see whether the daemon is well, its certificate, and what calls there are; nothing else."""
    public = {str(rule) for rule in house.rules() if house.app.calls.known[rule.endpoint].scope is None}
    assert public == {"/healthz", "/readyz", "/ca.pem", "/openapi.json", "/docs"}


def test_a_request_rate_is_kept_for_each_token(house: House, ann: Desk, bob: Desk) -> None:
    """More requests than server.requests_per_s are 429 with Retry-After, for that token alone, until time has passed."""
    limit = int(house.config.server.requests_per_s)
    statuses = [ann.send("GET", "/v1/whoami").status_code for _ in range(limit + 1)]
    assert statuses == [200] * limit + [429]
    ann.refused("GET", "/v1/whoami", 429, "too-many-requests")
    bob.call("GET", "/v1/whoami", 200, models.WhoAmI)
    house.clock.advance(0.1)
    ann.call("GET", "/v1/whoami", 200, models.WhoAmI)


def test_a_flood_of_calls_does_not_cost_its_sender_the_lease(house: House, ann: Desk) -> None:
    """Heartbeats and releases have a rate of their own."""
    house.add_engines(1)
    lease = ann.lease()
    while ann.send("GET", "/v1/whoami").status_code != 429:
        pass
    ann.call("POST", f"/v1/leases/{lease.id}/renew", 200, models.Lease)
    ann.command("DELETE", f"/v1/leases/{lease.id}")


def test_a_used_token_does_not_need_a_writable_disk(house: House, ann: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noting when a token was used must not keep anybody from looking while the disk is full."""
    house.database._writing().execute("PRAGMA query_only = 1")
    assert ann.send("GET", "/v1/whoami").status_code == 200


def test_a_tokens_text_is_never_in_its_repr(house: House) -> None:
    """What makes a token does not show it by accident."""
    with house.database.write() as db:
        issued = make_token(db, principal="cid", scope=Scope.LEASE, now=0.0)
    assert issued.value not in repr(issued)
