"""Cookies of the dashboard: signed, with an expiry, and good only as long as the token they were made with."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from itsdangerous import BadData, URLSafeSerializer

from orchestrator.interfaces import Now

LOGGED_IN_S = 12 * 3600.0
LOGIN_PAGE_S = 3600.0
LONGEST_COOKIE = 1024
_PURPOSE = b"cornerman dashboard sessions"


@dataclass(frozen=True, slots=True)
class Session:
    """One browser: ``token_sha256`` is None before its login; ``csrf`` must come with everything that changes something."""

    token_sha256: str | None
    csrf: str
    expires_at: float

    def __repr__(self) -> str:
        return f"Session(logged_in={self.token_sha256 is not None})"


class Sessions:
    """Makes and reads cookies; nothing is kept here, so that they outlive a restart."""

    def __init__(self, secret: bytes, now: Now) -> None:
        key = hmac.new(secret, _PURPOSE, hashlib.sha256).digest()
        self._serializer = URLSafeSerializer(
            key, salt=_PURPOSE, signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"}
        )
        self._now = now

    def begin(self, token_sha256: str | None) -> Session:
        """A new session of who logged in with this token, or of a browser that is to log in."""
        lasts_s = LOGIN_PAGE_S if token_sha256 is None else LOGGED_IN_S
        return Session(token_sha256, secrets.token_urlsafe(24), self._now() + lasts_s)

    def write(self, session: Session) -> str:
        """The cookie's value."""
        value = [session.token_sha256 or "", session.csrf, round(session.expires_at)]
        return str(self._serializer.dumps(value))

    def read(self, cookie: str | None) -> Session | None:
        """The session of a cookie that was made here, also one that has expired; None for anything else."""
        if not cookie or len(cookie) > LONGEST_COOKIE:
            return None
        try:
            value: Any = self._serializer.loads(cookie)
            token_sha256, csrf, expires_at = value
            return Session(str(token_sha256) or None, str(csrf), float(expires_at))
        except (BadData, ValueError, TypeError):
            return None

    def is_over(self, session: Session) -> bool:
        """Whether its time is up."""
        return session.expires_at <= self._now()


def same(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that tells nothing of where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
