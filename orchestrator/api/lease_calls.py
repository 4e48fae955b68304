"""Calls about leases."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated

from flask import Response, request
from pydantic import Field, field_validator

from client_sdk import models
from orchestrator.api import views
from orchestrator.api.calls import Calls, Path, Query, answer
from orchestrator.api.services import caller, services
from orchestrator.api.waiting import lease_above
from orchestrator.errors import Unprocessable
from orchestrator.leasing import Ask, LeaseView
from orchestrator.model import LeaseState, Scope
from orchestrator.relay_token import relay_token

_LABEL = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}=[^\x00]{0,255}$"
_KEY = r"^[\x20-\x7e]{1,128}$"
_KEY_PARAMETER = {
    "name": models.IDEMPOTENCY_HEADER,
    "in": "header",
    "required": False,
    "description": "Any text of the caller's own: the same one again gives the same lease, for a day.",
    "schema": {"type": "string", "pattern": _KEY},
}


class LeasePath(Path):
    """Which lease."""

    lease_id: str = Field(min_length=1, max_length=200)


class RankPath(LeasePath):
    """Which slot of which lease."""

    rank: int = Field(ge=0)


class WaitQuery(Query):
    """How long to wait for a change."""

    wait_s: float = Field(default=0.0, ge=0, le=models.MAX_WAIT_S, allow_inf_nan=False)
    after_version: int | None = Field(default=None, ge=0, le=2**53)


class LeasesQuery(Query):
    """Which leases."""

    state: list[models.LeaseState] = Field(default_factory=list, max_length=len(models.LeaseState))
    label: list[Annotated[str, Field(pattern=_LABEL)]] = Field(
        default_factory=list, max_length=16, description="key=value; all of them must match"
    )
    limit: int = Field(default=1000, ge=1, le=1000)

    @field_validator("label")
    @classmethod
    def _text(cls, value: list[str]) -> list[str]:
        for label in value:
            label.encode("utf-8")
        return value


def register(calls: Calls) -> None:
    """Add the calls about leases."""

    @calls.add(
        "post",
        "/v1/leases",
        tag="leases",
        scope=Scope.LEASE,
        answers={200: models.Lease, 201: models.Lease, 202: models.Lease},
        refuses=(404, 409),
        parameters=[_KEY_PARAMETER],
    )
    def create_lease(body: models.LeaseRequest) -> Response:
        """Ask for engines, all or nothing: 201 active, 202 waiting, 200 when the key stood for this lease already"""
        parts = services()
        ask = Ask(
            envs=body.envs,
            pool=body.pool or parts.config.pool_default,
            ttl_s=body.ttl_s,
            wait=body.wait,
            labels=body.labels,
            note=body.note,
        )
        key = _key()
        view, made = parts.leasing.acquire(caller(), ask, key=key, body_sha256=_digest(body) if key else "")
        status = 202 if view.lease.state is LeaseState.PENDING else 201 if made else 200
        return answer(_shown(view), status, location=f"/v1/leases/{view.lease.id}")

    @calls.add("get", "/v1/leases", tag="leases", scope=Scope.READ, answers={200: models.LeaseList})
    def list_leases(query: LeasesQuery) -> Response:
        """The caller's leases, newest first; everybody's for an administrator"""
        labels = dict(label.split("=", 1) for label in query.label)
        found = services().leasing.listed(caller(), states=tuple(query.state), labels=labels, limit=query.limit)
        return answer(models.LeaseList(leases=[views.lease(view) for view in found]))

    @calls.add(
        "get", "/v1/leases/<lease_id>", tag="leases", scope=Scope.READ, answers={200: models.Lease}, refuses=(404,)
    )
    def show_lease(path: LeasePath, query: WaitQuery) -> Response:
        """A lease as it is now, or as soon as its version is above after_version; looking has no side effects"""
        return answer(_shown(lease_above(services(), path.lease_id, query.after_version, query.wait_s)))

    @calls.add(
        "post",
        "/v1/leases/<lease_id>/renew",
        tag="leases",
        scope=Scope.LEASE,
        vital=True,
        answers={200: models.Lease},
        refuses=(404, 410),
    )
    def renew_lease(path: LeasePath) -> Response:
        """A heartbeat: one more ttl_s from now, and the engines as they are now"""
        return answer(_shown(services().leasing.renew(caller(), path.lease_id)))

    @calls.add(
        "post",
        "/v1/leases/<lease_id>/envs/<int:rank>/replace",
        tag="leases",
        scope=Scope.LEASE,
        answers={200: models.Lease, 202: models.Lease},
        refuses=(404, 409, 410),
    )
    def replace_env(path: RankPath, body: models.ReplaceRequest) -> Response:
        """Retire a broken engine and give its slot a fresh one: 200 there already, 202 on its way"""
        view = services().leasing.replace(
            caller(), path.lease_id, path.rank, generation=body.generation, reason=body.reason
        )
        return answer(_shown(view), 200 if _is_ready(view, path.rank) else 202, location=f"/v1/leases/{view.lease.id}")

    @calls.add(
        "delete",
        "/v1/leases/<lease_id>",
        tag="leases",
        scope=Scope.LEASE,
        vital=True,
        answers={204: None},
        refuses=(404,),
    )
    def release_lease(path: LeasePath) -> Response:
        """Give a lease back; again is fine"""
        services().leasing.release(caller(), path.lease_id)
        return Response(status=204)


def _shown(view: LeaseView) -> models.Lease:
    """A lease by itself: its holder is told how to reach its lanes, unless with a token that may only look."""
    parts, who = services(), caller()
    inner = view.lease
    if inner.ended or inner.holder != who.principal or who.scope is Scope.READ or not parts.config.relay.enabled:
        return views.lease(view)
    token = relay_token(parts.relay_secret, inner.id)
    return views.lease(view, models.Relay(url=parts.config.relay_url(inner.id), token=token))


def _key() -> str | None:
    """The idempotency key; Unprocessable when it is not one."""
    key = request.headers.get(models.IDEMPOTENCY_HEADER)
    if key is not None and not re.fullmatch(_KEY, key):
        raise Unprocessable(
            f"{models.IDEMPOTENCY_HEADER} must be 1 to 128 printable ASCII characters: a UUID does well."
        )
    return key


def _digest(body: models.LeaseRequest) -> str:
    """The hash of what a body means, however it was written."""
    return hashlib.sha256(json.dumps(body.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _is_ready(view: LeaseView, rank: int) -> bool:
    return any(env.rank == rank and env.state is models.EnvState.READY for env in view.envs)
