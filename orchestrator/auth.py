"""Who asks, and how often: tokens of 256 random bits, known here only by their SHA-256, and a request rate for each."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.errors import Forbidden, TooMany, Unauthenticated, Unavailable
from orchestrator.interfaces import Now
from orchestrator.model import Caller, Scope
from orchestrator.store import principals
from orchestrator.store.database import Database

TOKEN_BITS = 256
CACHE_S = 0.5  # a token revoked by another process is refused after this
NOTE_USE_EVERY_S = 60.0
MOST_CACHED = 10_000
LONGEST_TOKEN = 512
_RANK = {Scope.READ: 0, Scope.LEASE: 1, Scope.ADMIN: 2}

Monotonic = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Issued:
    """A token just made; its value is nowhere else."""

    token: principals.Token
    value: str

    def __repr__(self) -> str:
        return f"Issued({self.token.id})"


def make_token(
    db: sqlite3.Connection,
    *,
    principal: str,
    scope: Scope,
    note: str = "",
    now: float,
    max_engines: int | None = None,
    max_pending: int | None = None,
) -> Issued:
    """Make a token for ``principal``, who is made if need be, in the caller's transaction."""
    principals.put_principal(db, principal, max_engines=max_engines, max_pending=max_pending, now=now)
    token = principals.Token(f"t-{secrets.token_hex(6)}", principal, scope, note, now, None)
    value = secrets.token_urlsafe(TOKEN_BITS // 8)
    principals.add_token(db, token, digest(value))
    return Issued(token, value)


def issue_token(db: sqlite3.Connection, *, principal: str, scope: Scope, note: str = "", now: float) -> str:
    """As ``make_token``, for who wants no more than its value."""
    return make_token(db, principal=principal, scope=scope, note=note, now=now).value


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def require(caller: Caller, scope: Scope) -> None:
    """Raise Forbidden unless the caller's scope reaches as far as ``scope``; each one includes those below it."""
    if _RANK[caller.scope] < _RANK[scope]:
        raise Forbidden(
            f"This needs a token of {scope.value} scope, and yours is of {caller.scope.value} scope: "
            "ask whoever runs this host for one."
        )


class Tokens:
    """Tells who a token belongs to. What it knows is forgotten after ``CACHE_S``, or at once by ``forget``."""

    def __init__(self, database: Database, now: Now, *, monotonic: Monotonic = time.monotonic) -> None:
        self._database, self._now, self._monotonic = database, now, monotonic
        self._known: dict[str, tuple[Caller, float]] = {}
        self._noted: dict[str, float] = {}

    def caller(self, authorization: str | None) -> tuple[Caller, str]:
        """(the caller named by an ``Authorization`` header, the hash of its token); Unauthenticated unless it is good."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            raise Unauthenticated(
                "A token is needed: send 'Authorization: Bearer TOKEN' with the one of your connection string."
            )
        sha256 = digest(token)
        caller = self.find(sha256)
        if caller is None:
            raise Unauthenticated(
                "This token is not known: it was revoked or mistyped; ask whoever runs this host for a new one."
            )
        return caller, sha256

    def find(self, sha256: str) -> Caller | None:
        """Whose token has this hash; None when there is no such token (any more)."""
        known = self._known.get(sha256)
        now = self._monotonic()
        if known is not None and now - known[1] < CACHE_S:
            return known[0]
        caller = self._look_up(sha256)
        if caller is None:
            self._known.pop(sha256, None)
            return None
        if len(self._known) >= MOST_CACHED:
            self._known.clear()
        self._known[sha256] = (caller, now)
        self._note_used(caller.token_id, now)
        return caller

    def still_valid(self, sha256: str) -> bool:
        """Whether the token is there now, whatever is remembered: for those who stay connected for long."""
        return self._look_up(sha256) is not None

    def forget(self) -> None:
        """Something about tokens or principals has changed: remember nothing."""
        self._known.clear()

    def _look_up(self, sha256: str) -> Caller | None:
        with self._database.read() as db:
            found = principals.find_token(db, sha256)
        return found[0] if found is not None and hmac.compare_digest(found[1], sha256) else None

    def _note_used(self, token_id: str, now: float) -> None:
        if now - self._noted.get(token_id, -math.inf) < NOTE_USE_EVERY_S:
            return
        if len(self._noted) >= MOST_CACHED:
            self._noted.clear()
        self._noted[token_id] = now
        with suppress(Unavailable), self._database.write() as db:  # a full disk must not keep anybody from looking
            principals.note_used(db, token_id, self._now())


class RateLimit:
    """A bucket for each key: ``per_s`` calls a second on average, and as many at once as a second fills."""

    def __init__(self, per_s: float, *, monotonic: Monotonic = time.monotonic) -> None:
        self._per_s, self._monotonic = per_s, monotonic
        self._size = max(1.0, per_s)
        self._buckets: dict[str, tuple[float, float]] = {}  # (what is in it, when that was counted)
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        """Count one call of ``key``; TooMany when its bucket is empty."""
        now = self._monotonic()
        with self._lock:
            left, at = self._buckets.get(key, (self._size, now))
            left = min(self._size, left + (now - at) * self._per_s)
            if left >= 1.0:
                if len(self._buckets) >= MOST_CACHED:
                    self._buckets.clear()
                self._buckets[key] = (left - 1.0, now)
                return
            self._buckets[key] = (left, now)
        wait_s = (1.0 - left) / self._per_s
        raise TooMany(
            f"This token may make {self._per_s:g} requests a second and makes more: wait {math.ceil(wait_s)} s.",
            retry_after_s=wait_s,
        )
