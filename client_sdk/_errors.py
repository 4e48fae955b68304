"""Everything the SDK raises on purpose; each text is one sentence that says what happened and what to do.

CornermanError
├── WrongConnectionString   the connection string is missing or not of its form
├── WrongArgument           an argument of a call cannot be meant (also a ValueError)
├── ConnectionFault         the host was not reached, or did not answer in time: trying again may help
├── UntrustedHost           who answers cannot prove to be the host that the connection string names
├── VersionMismatch         this SDK and that daemon speak different versions
├── Refused                 the daemon said no: ``status``, ``slug``, ``request_id``, ``retry_after_s``
│   ├── NotAuthenticated    401: the token is not known (any more)
│   ├── NotAllowed          403: the token is known, but may not do that
│   │   └── QuotaExceeded   403: more than this token may hold
│   ├── NotFound            404: there is no such thing, or it is somebody else's
│   ├── PoolExhausted       409: not enough engines are ready, and the caller did not want to wait
│   └── Unavailable         429, 503 and other faults of the host: try again later
├── WaitTimeout             the queue took longer than ``timeout_s`` (also a TimeoutError)
├── LeaseLost               the lease has ended without being released here: ``lease_id``, ``reason``
└── HeartbeatFault          the process that keeps the lease alive could not be started
"""

from __future__ import annotations


class CornermanError(Exception):
    """Base of all errors of the SDK."""


class WrongConnectionString(CornermanError):
    """The connection string is missing or not of the form ``cornerman://TOKEN@host:8443?ca=sha256:HEX``."""


class WrongArgument(CornermanError, ValueError):
    """An argument of a call cannot be meant."""


class ConnectionFault(CornermanError):
    """The host was not reached, or did not answer in time."""


class UntrustedHost(CornermanError):
    """Who answers cannot prove to be the host that the connection string names."""


class VersionMismatch(CornermanError):
    """This SDK and that daemon speak different versions of the API."""


class Refused(CornermanError):
    """The daemon said no, and its text says why."""

    def __init__(
        self,
        detail: str,
        *,
        status: int = 400,
        slug: str = "refused",
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class NotAuthenticated(Refused):
    """The token is not known, or not any more."""


class NotAllowed(Refused):
    """The token is known, but its scope does not reach that far."""


class QuotaExceeded(NotAllowed):
    """More than this token may hold."""


class NotFound(Refused):
    """There is no such thing, or it is somebody else's."""


class PoolExhausted(Refused):
    """Not enough engines are ready, and the caller did not want to wait; ``retry_after_s`` says when to ask again."""


class Unavailable(Refused):
    """The host cannot serve this just now."""


class WaitTimeout(CornermanError, TimeoutError):
    """The engines did not become free within ``timeout_s``; the place in the queue was given up."""


class LeaseLost(CornermanError):
    """The lease has ended without being released here; its engines are not ours any more."""

    def __init__(self, lease_id: str, reason: str) -> None:
        super().__init__(f"Lease {lease_id} is lost: {reason.rstrip('.')}; ask for a new one with lease().")
        self.lease_id = lease_id
        self.reason = reason


class HeartbeatFault(CornermanError):
    """The process that keeps the lease alive could not be started."""
