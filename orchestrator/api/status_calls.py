"""The call that tells how the host is, in one answer."""

from __future__ import annotations

from flask import Response

from client_sdk import models
from client_sdk._version import __version__
from orchestrator.api import views
from orchestrator.api.calls import Calls, answer
from orchestrator.api.services import services
from orchestrator.model import LeaseState, Scope
from orchestrator.store import idle_stop, leases, meta


def register(calls: Calls) -> None:
    """Add the call."""

    @calls.add("get", "/v1/status", tag="system", scope=Scope.READ, answers={200: models.HostStatus})
    def status() -> Response:
        """How the host is: its version, what is wrong with it, how much it is used, and when it stops by itself"""
        parts = services()
        with parts.database.read() as db:
            held = [leases.counts(db, name) for name in parts.policies]
            stop, fault = idle_stop.get(db), meta.get(db, "host_fault")
        return answer(
            models.HostStatus(
                version=__version__,
                now=views.at(parts.now()),
                fault=fault or None,
                pending_leases=sum(counts.get(LeaseState.PENDING, 0) for counts in held),
                active_leases=sum(counts.get(LeaseState.ACTIVE, 0) for counts in held),
                idle_after_s=parts.config.idle.after,
                idle_stop=None if stop is None else views.idle_stop(stop),
            )
        )
