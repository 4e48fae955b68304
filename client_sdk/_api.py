"""The calls of the API that the SDK makes, one function's worth each."""

from __future__ import annotations

import uuid
from urllib.parse import quote

from pydantic import BaseModel

from client_sdk import models
from client_sdk._http import READ_TIMEOUT_S, Session
from client_sdk.models import MAX_WAIT_S


class Api:
    """Typed calls over one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def create(self, request: models.LeaseRequest, *, key: str) -> models.Lease:
        """Ask for a lease; the same ``key`` again gives the same lease."""
        return self.session.call("POST", "/v1/leases", answer=models.Lease, body=request, key=key)

    def show(self, lease_id: str) -> models.Lease:
        """The lease as it is now."""
        return self.session.call("GET", _lease(lease_id), answer=models.Lease)

    def await_change(self, lease_id: str, *, after_version: int, wait_s: float) -> models.Lease:
        """The lease as soon as its version is above ``after_version``, or as it is after ``wait_s``."""
        wait_s = max(0.0, min(wait_s, MAX_WAIT_S))
        return self.session.call(
            "GET",
            _lease(lease_id),
            answer=models.Lease,
            params={"wait_s": f"{wait_s:.3f}", "after_version": str(after_version)},
            read_timeout_s=wait_s + READ_TIMEOUT_S,
            patient=False,
        )

    def renew(self, lease_id: str, *, timeout_s: float) -> models.Lease:
        """One heartbeat, tried once."""
        path = f"{_lease(lease_id)}/renew"
        return self.session.call("POST", path, answer=models.Lease, read_timeout_s=timeout_s, patient=False)

    def replace(self, lease_id: str, rank: int, request: models.ReplaceRequest) -> None:
        """Say that an engine is broken; naming its generation makes a second call harmless."""
        path = f"{_lease(lease_id)}/envs/{rank}/replace"
        self.session.call("POST", path, answer=_Anything, body=request, key=uuid.uuid4().hex)

    def release(self, lease_id: str, *, timeout_s: float = READ_TIMEOUT_S, patient: bool = True) -> None:
        """Give a lease back; again is fine."""
        self.session.command("DELETE", _lease(lease_id), read_timeout_s=timeout_s, patient=patient)

    def fault(self, pool: str) -> str | None:
        """What keeps a pool from having engines, in words; None when nothing does. Asked once, and soon given up."""
        found = self.session.call("GET", "/v1/pools", answer=models.PoolList, read_timeout_s=5.0, patient=False).pools
        return next((one.fault for one in found if one.name == pool), None)

    def leases(self) -> list[models.Lease]:
        """The caller's leases, newest first; everybody's for an admin."""
        return self.session.call("GET", "/v1/leases", answer=models.LeaseList).leases

    def engines(self) -> list[models.Engine]:
        """The engines of the caller's leases; all of them for an admin."""
        return self.session.call("GET", "/v1/engines", answer=models.EngineList).engines

    def whoami(self) -> models.WhoAmI:
        """Who the token is, its quota and what of it is used."""
        return self.session.call("GET", "/v1/whoami", answer=models.WhoAmI)


class _Anything(BaseModel):
    """An answer whose content does not matter, because the lease is read again anyway."""


def _lease(lease_id: str) -> str:
    return f"/v1/leases/{quote(lease_id, safe='')}"
