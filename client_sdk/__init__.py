"""Cornerman's SDK: leases DIAMBRA engines to a training session elsewhere.

    from client_sdk import Cornerman

    with Cornerman("cornerman://TOKEN@host:8443?ca=sha256:...").lease(envs=4) as lease:
        env = diambra.arena.make("doapp", rank=2)  # DIAMBRA_ENVS is set

All errors are CornermanErrors; ``client_sdk._errors`` draws their tree.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from client_sdk._version import __version__

if TYPE_CHECKING:
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
    from client_sdk.vector import make_parallel, make_vec

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
    "make_parallel",
    "make_vec",
]

_HOMES = {"Cornerman": "_client", "Lease": "_lease", "make_parallel": "vector", "make_vec": "vector"}


def __getattr__(name: str) -> Any:
    """The public names are loaded when they are first used: the daemon takes only the wire models from here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "_errors")
    value = getattr(importlib.import_module(f"client_sdk.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
