"""Everything the daemon raises on purpose.

CornermanError
├── ConfigError            the configuration, or a file it names, is wrong
├── Refused                a caller asked for what cannot be: has an HTTP status and a slug
│   ├── NotFound           404
│   ├── Conflict           409
│   │   └── PoolExhausted  409, try again after ``retry_after_s``
│   ├── LeaseEnded         410
│   ├── Unprocessable      422
│   ├── Unauthenticated    401
│   ├── Forbidden          403
│   ├── TooMany            429
│   └── Unavailable        503
├── InvalidTransition      a fault of ours: that event cannot happen in that state
└── RuntimeFault           the engine host refused or failed; ``kind`` says how
"""

from __future__ import annotations

from enum import Enum


class CornermanError(Exception):
    """Base of all errors of the daemon; its text is one sentence that says what happened and what to do."""


class ConfigError(CornermanError):
    """The configuration, or a file it names, is wrong."""


class InvalidTransition(CornermanError):
    """An event that cannot happen to an engine or a lease in that state."""

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"{event!r} cannot happen in state {state!r}.")


class Refused(CornermanError):
    """A caller asked for something that cannot be done; becomes one ``application/problem+json``."""

    status = 400
    slug = "refused"
    title = "Refused"

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class NotFound(Refused):
    """There is no such thing, or the caller may not know of it."""

    status, slug, title = 404, "not-found", "Not found"


class Conflict(Refused):
    """What was asked contradicts how things are now."""

    status, slug, title = 409, "conflict", "Conflict"


class PoolExhausted(Conflict):
    """Not enough engines are ready, and the caller does not want to wait."""

    slug, title = "pool-exhausted", "Pool exhausted"


class LeaseEnded(Refused):
    """The lease has ended; the text says why."""

    status, slug, title = 410, "lease-ended", "Lease ended"


class Unprocessable(Refused):
    """The request is well-formed but can never be fulfilled."""

    status, slug, title = 422, "unprocessable", "Unprocessable request"


class QuotaExceeded(Refused):
    """More than this principal may hold."""

    status, slug, title = 403, "quota-exceeded", "Quota exceeded"


class Unauthenticated(Refused):
    """No token, or one that is not known."""

    status, slug, title = 401, "unauthenticated", "Not authenticated"


class Forbidden(Refused):
    """The token is known, but its scope does not reach that far."""

    status, slug, title = 403, "forbidden", "Forbidden"


class TooMany(Refused):
    """More requests than allowed in that time."""

    status, slug, title = 429, "too-many-requests", "Too many requests"


class Unavailable(Refused):
    """Cannot be served just now; try again."""

    status, slug, title = 503, "unavailable", "Unavailable"


class FaultKind(str, Enum):
    """How an engine host failed us: the pool decides by this, people read the text beside it."""

    UNREACHABLE = "unreachable"  # no answer at all: nothing is known about any engine
    TIMEOUT = "timeout"  # this call took too long; what it asked for may have happened
    PORT_TAKEN = "port-taken"
    IMAGE_MISSING = "image-missing"
    BAD_SPEC = "bad-spec"  # a mount, network, user or argument the host does not accept
    DISK_FULL = "disk-full"
    NOT_FOUND = "not-found"
    OTHER = "other"


class RuntimeFault(CornermanError):
    """The engine host refused or failed a call."""

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
