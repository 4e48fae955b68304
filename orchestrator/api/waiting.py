"""Waiting for the store to change: long polls, and answers that only the pool process can give."""

from __future__ import annotations

import threading
import time
from typing import Any

from orchestrator.api.services import Services, caller, place, token_hash
from orchestrator.errors import Unauthenticated
from orchestrator.leasing import LeaseView
from orchestrator.store import inquiries, leases, meta

POOL_SILENT_S = 10.0  # without a sign of life for so long, the pool process is taken for dead
STATS_WITHIN_S = 2.0
LOGS_WITHIN_S = 5.0
FRAME_WITHIN_S = 3.0
MOST_INQUIRIES = 4


def lease_above(services: Services, lease_id: str, after_version: int | None, wait_s: float) -> LeaseView:
    """The lease once its version is above ``after_version`` (None: what it is now), or as it is after ``wait_s``."""
    view = services.leasing.get(caller(), lease_id)
    after = view.lease.version if after_version is None else after_version
    if wait_s <= 0 or view.lease.ended or view.lease.version > after:
        return view
    place().become_stream()
    deadline = time.monotonic() + wait_s
    while True:
        number = services.changes.number
        with services.database.read() as db:
            changed = leases.version(db, lease_id) > after
        left_s = deadline - time.monotonic()
        if changed or left_s <= 0 or services.stopping.is_set():
            return services.leasing.get(caller(), lease_id)
        if not services.tokens.still_valid(token_hash()):
            raise Unauthenticated("This token was revoked: ask whoever runs this host for a new one.")
        services.changes.wait(number, left_s)


class Inquiries:
    """Asks the pool process, or the relay; only a few at a time, so that a silent one cannot take all threads."""

    def __init__(self) -> None:
        self._few = threading.BoundedSemaphore(MOST_INQUIRIES)

    def ask(
        self, services: Services, kind: str, question: dict[str, Any], within_s: float, *, of_pool: bool = True
    ) -> Any | None:
        """The answer, or None when there is none ``within_s``."""
        if (of_pool and not pool_alive(services)) or not self._few.acquire(blocking=False):
            return None
        try:
            return self._ask(services, kind, question, within_s)
        finally:
            self._few.release()

    def _ask(self, services: Services, kind: str, question: dict[str, Any], within_s: float) -> Any | None:
        deadline = time.monotonic() + within_s
        with services.database.write() as db:
            inquiry_id = inquiries.ask(db, kind, question, now=services.now())
        try:
            while True:
                number = services.changes.number
                with services.database.read() as db:
                    answered = inquiries.answered(db, inquiry_id)
                left_s = deadline - time.monotonic()
                if answered is not None:
                    return answered[0]
                if left_s <= 0 or services.stopping.is_set():
                    return None
                services.changes.wait(number, left_s)
        finally:
            with services.database.write() as db:
                inquiries.drop(db, inquiry_id)


def pool_alive(services: Services) -> bool:
    """Whether the pool process has given a sign of life lately."""
    with services.database.read() as db:
        alive_at = meta.get(db, "pool_alive_at")
    return alive_at is not None and services.now() - float(alive_at) < POOL_SILENT_S
