"""The event log, as JSON and as a stream of server-sent events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from flask import Response, g, request
from pydantic import Field

from client_sdk import models
from orchestrator.api import views
from orchestrator.api.calls import Calls, Header, Query, answer
from orchestrator.api.lanes import Place
from orchestrator.api.services import Services, caller, place, services, token_hash
from orchestrator.model import Scope
from orchestrator.store import events

STREAM = "text/event-stream"
PING_S = 15.0
BATCH = 500
_LAST = 2**62


class EventsQuery(Query):
    """From where on, and how many."""

    after: int = Field(default=0, ge=0, le=_LAST)
    limit: int = Field(default=1000, ge=1, le=1000, description="of an answer in JSON")


class ResumeHeader(Header):
    """Where a stream broke off: browsers send it by themselves."""

    last_event_id: str | None = Field(default=None, alias="Last-Event-ID", pattern=r"^[0-9]{1,18}$")


def register(calls: Calls) -> None:
    """Add the call for events."""

    @calls.add(
        "get",
        "/v1/events",
        tag="events",
        scope=Scope.READ,
        answers={200: _answers()},
    )
    def list_events(header: ResumeHeader, query: EventsQuery) -> Response:
        """The event log above number after: all of it for an administrator, else that of the caller's leases"""
        parts, who = services(), caller()
        holder = None if who.is_admin else who.principal
        after = query.after if header.last_event_id is None else int(header.last_event_id)
        if request.method == "GET" and _wants_stream():
            return _stream(parts, holder, after)
        with parts.database.read() as db:
            found = events.after(db, after, holder=holder, limit=query.limit)
        following = found[-1].seq if found else after
        return answer(models.EventList(events=[views.event(event) for event in found], next=following))


def _wants_stream() -> bool:
    return request.accept_mimetypes.best_match(["application/json", STREAM], default="application/json") == STREAM


def _stream(parts: Services, holder: str | None, after: int) -> Response:
    place().become_stream()
    stream = EventStream(parts, holder, after, place=g.pop("place"), token_sha256=token_hash())
    response = Response(stream, mimetype=STREAM)
    response.headers["X-Accel-Buffering"] = "no"  # a proxy that collects would deliver nothing
    return response


class EventStream:
    """Server-sent events until the client goes, its token is revoked, or the server stops; holds its place so long."""

    def __init__(self, parts: Services, holder: str | None, after: int, *, place: Place, token_sha256: str) -> None:
        self._parts, self._holder, self._after = parts, holder, after
        self._place, self._token_sha256 = place, token_sha256
        self._begun = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next events, or a comment when there were none for a while."""
        if not self._begun:
            self._begun = True
            return b"retry: 2000\n: events follow\n\n"
        ping_at = time.monotonic() + PING_S
        while not self._parts.stopping.is_set() and self._parts.tokens.still_valid(self._token_sha256):
            number = self._parts.changes.number
            with self._parts.database.read() as db:
                found = events.after(db, self._after, holder=self._holder, limit=BATCH)
            if found:
                self._after = found[-1].seq
                return b"".join(map(_written, found))
            left_s = ping_at - time.monotonic()
            if left_s <= 0:
                return b": ping\n\n"
            self._parts.changes.wait(number, left_s)
        self.close()
        raise StopIteration

    def close(self) -> None:
        """The client has gone, or the stream has ended."""
        self._place.leave()


def _written(event: events.Event) -> bytes:
    return f"id: {event.seq}\ndata: {views.event(event).model_dump_json()}\n\n".encode()


def _answers() -> dict[str, Any]:
    schema = {"schema": {"$ref": "#/components/schemas/EventList"}}
    return {
        "description": "The events, or a stream of them with Accept: text/event-stream",
        "content": {"application/json": schema, STREAM: {"schema": {"type": "string"}}},
    }
