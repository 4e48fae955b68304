"""When to send the next heartbeat, and what its outcome means; process and pipe are elsewhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from client_sdk import models
from client_sdk._api import Api
from client_sdk._errors import (
    CornermanError,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Refused,
    VersionMismatch,
)
from client_sdk.models import ENDED_LEASE_STATES

RENEWALS_PER_TTL = 3
FIRST_BACKOFF_S = 0.5


def says_lost(fault: CornermanError) -> bool:
    """Whether the daemon said that the lease has ended, or that it knows of none."""
    return isinstance(fault, NotFound) or (isinstance(fault, Refused) and fault.status == 410)


@dataclass(frozen=True)
class Renewed:
    """The lease lives on, as ``lease`` says."""

    lease: models.Lease


@dataclass(frozen=True)
class Failing:
    """No heartbeat got through for ``silent_s``; ``overdue`` when the lease may have expired by now."""

    text: str
    silent_s: float
    overdue: bool


@dataclass(frozen=True)
class Lost:
    """The lease has ended, and ``reason`` says why."""

    reason: str


Outcome = Renewed | Failing | Lost


class Renewing:
    """Sends heartbeats for one lease, and after a failure tries again as long as the lease may live.

    An unreachable host proves nothing: after its restart every lease gets another ``ttl_s``. So only the daemon's own
    word ends it, or a token that stays refused for a whole ``ttl_s``.
    """

    def __init__(
        self,
        renew: Callable[[float], models.Lease],
        *,
        ttl_s: float,
        now: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._renew = renew
        self._ttl_s = ttl_s
        self._now = now
        self._jitter = jitter
        self._last_good = now()
        self._failures = 0
        self.due = self._last_good + ttl_s / RENEWALS_PER_TTL

    @classmethod
    def of(cls, api: Api, lease_id: str, *, ttl_s: float) -> Renewing:
        """Heartbeats for a lease that was renewed just now."""
        return cls(lambda timeout_s: api.renew(lease_id, timeout_s=timeout_s), ttl_s=ttl_s, now=time.monotonic)

    @property
    def timeout_s(self) -> float:
        """How long one heartbeat may take, so that several fit into a ``ttl_s``."""
        return min(10.0, self._ttl_s / RENEWALS_PER_TTL)

    def beat(self) -> Outcome:
        """Send one heartbeat now and set ``due`` to the time of the next."""
        sent = self._now()
        try:
            lease = self._renew(self.timeout_s)
        except CornermanError as fault:
            return self._failed(fault)
        if lease.state in ENDED_LEASE_STATES:
            return Lost(lease.ended_because or f"it is {lease.state.value}")
        self._failures = 0
        self._ttl_s = lease.ttl_s
        self._last_good = sent
        self.due = sent + self._ttl_s / RENEWALS_PER_TTL
        return Renewed(lease)

    def _failed(self, fault: CornermanError) -> Outcome:
        now = self._now()
        silent_s = now - self._last_good
        overdue = silent_s >= self._ttl_s
        hopeless = isinstance(fault, NotAuthenticated | NotAllowed | VersionMismatch)
        if says_lost(fault):
            return Lost(str(fault))
        if hopeless and overdue:
            return Lost(str(fault))
        self._failures += 1
        pause_s = FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 10)
        pause_s = min(pause_s, self._ttl_s / 12) * (0.75 + self._jitter() / 2)
        asked_s = (fault.retry_after_s or 0.0) if isinstance(fault, Refused) else 0.0
        self.due = now + max(pause_s, min(asked_s, self._ttl_s / 6))
        return Failing(str(fault), silent_s, overdue)
