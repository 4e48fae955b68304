"""Cornerman's SDK: leases DIAMBRA engines to a training session elsewhere.

    from client_sdk import Cornerman

    with Cornerman("cornerman://TOKEN@host:8443?ca=sha256:...").lease(envs=4) as lease:
        env = diambra.arena.make("doapp", rank=2)  # DIAMBRA_ENVS is set

All errors are CornermanErrors; ``client_sdk._errors`` draws their tree.
"""

from __future__ import annotations

from client_sdk._client import Cornerman
from client_sdk._errors import (
    ConnectionFault,
    CornermanError,
    HeartbeatFault,
    LeaseLost,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    PoolExhausted,
    QuotaExceeded,
    Refused,
    Unavailable,
    UntrustedHost,
    VersionMismatch,
    WaitTimeout,
    WrongArgument,
    WrongConnectionString,
)
from client_sdk._lease import Lease
from client_sdk._version import __version__

__all__ = [
    "ConnectionFault",
    "Cornerman",
    "CornermanError",
    "HeartbeatFault",
    "Lease",
    "LeaseLost",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "PoolExhausted",
    "QuotaExceeded",
    "Refused",
    "Unavailable",
    "UntrustedHost",
    "VersionMismatch",
    "WaitTimeout",
    "WrongArgument",
    "WrongConnectionString",
    "__version__",
]
