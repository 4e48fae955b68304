"""Calls about the daemon itself: is it well, its metrics, its certificate, and what calls there are."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flask import Response

from client_sdk import models
from orchestrator import metrics
from orchestrator.api.calls import Calls, answer, text_answer
from orchestrator.api.document import Document
from orchestrator.api.page import render as render_page
from orchestrator.api.services import Services, services
from orchestrator.api.waiting import POOL_SILENT_S
from orchestrator.config import Config
from orchestrator.errors import NotFound, Refused
from orchestrator.model import Scope
from orchestrator.store import engines, meta, pools

CA_FILE = Path("tls") / "ca.pem"  # below the state folder
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def register(calls: Calls, document: Document) -> None:
    """Add the calls about the daemon itself."""
    healths = {200: models.Health, 503: models.Health}

    @calls.add("get", "/healthz", tag="system", vital=True, answers=healths)
    def healthz() -> Response:
        """Whether the API process is alive and can read its state"""
        try:
            with services().database.read() as db:
                meta.get(db, "pool_alive_at")
        except (sqlite3.Error, Refused):
            return _health("state-unreadable")
        return _health("", well="alive")

    @calls.add("get", "/readyz", tag="system", vital=True, answers=healths)
    def readyz() -> Response:
        """Whether a lease could be given: yes, or no with a reason slug"""
        try:
            return _health(_why_not_ready(services()), well="ready")
        except (sqlite3.Error, Refused):
            return _health("state-unreadable")

    @calls.add(
        "get", "/metrics", tag="system", scope=Scope.READ, answers={200: text_answer("Prometheus text", "text/plain")}
    )
    def prometheus() -> Response:
        """Counters, and counts by pool, as Prometheus reads them"""
        parts = services()
        with parts.database.read() as db:
            text = metrics.render(db, parts.policies, parts.now(), state_dir=parts.config.state_dir)
        return Response(text, content_type=metrics.CONTENT_TYPE)

    @calls.add(
        "get",
        "/ca.pem",
        tag="system",
        answers={200: text_answer("The CA's certificate", "application/x-pem-file")},
        refuses=(404,),
    )
    def ca_certificate() -> Response:
        """The certificate of the daemon's own CA; clients hold it against the hash in their connection string"""
        pem = _ca_pem(services().config)
        if pem is None:
            raise NotFound("This host has no CA of its own: its certificate is signed by one that your system knows.")
        return Response(pem, mimetype="application/x-pem-file")

    @calls.add("get", "/openapi.json", tag="system", answers={200: _anything()})
    def openapi_document() -> Response:
        """This document"""
        response = Response(document.json, mimetype="application/json")
        response.headers["Cache-Control"] = "public, max-age=300"
        return response

    @calls.add("get", "/docs", tag="system", answers={200: text_answer("The calls as a page", "text/html")})
    def docs() -> Response:
        """This document as a page to read"""
        page = render_page(document)
        response = Response(page, mimetype="text/html")
        response.headers["Content-Security-Policy"] = _PAGE_POLICY
        response.headers["Cache-Control"] = "public, max-age=300"
        return response


def _health(fault: str, *, well: str = "") -> Response:
    return answer(models.Health(ok=not fault, reason=fault or well), 503 if fault else 200)


def _why_not_ready(parts: Services) -> str:
    """A slug, or "" when at least one pool could lease."""
    with parts.database.read() as db:
        alive_at, host_fault = meta.get(db, "pool_alive_at"), meta.get(db, "host_fault")
        if alive_at is None or parts.now() - float(alive_at) >= POOL_SILENT_S:
            return "pool-process-silent"
        open_pools = [pool for pool in pools.all_of(db, parts.policies) if not pool.paused]
        if not open_pools:
            return "pools-paused"
        if any(engines.count_ready(db, pool.name) or not (pool.fault or host_fault) for pool in open_pools):
            return ""
    return "engine-host-unreachable" if host_fault else "pools-degraded"


def _ca_pem(config: Config) -> bytes | None:
    """The CA's certificate, when it is the one that signs what this server shows."""
    if not config.server.tls or config.server.certificate is not None:
        return None
    try:
        return (config.state_dir / CA_FILE).read_bytes()
    except FileNotFoundError:
        return None


def _anything() -> dict[str, object]:
    return {"description": "An OpenAPI document", "content": {"application/json": {"schema": {"type": "object"}}}}
