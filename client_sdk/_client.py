"""The entry to a host: asks for leases and shows what there is."""

from __future__ import annotations

import contextlib
import operator
import reprlib
import time
import uuid
from collections.abc import Mapping
from typing import NoReturn, SupportsIndex, TypedDict, get_args

from pydantic import ValidationError

from client_sdk import models
from client_sdk._api import Api
from client_sdk._errors import CornermanError, WaitTimeout, WrongArgument
from client_sdk._http import Session
from client_sdk._lease import Lease, Local, Via, open_leases
from client_sdk._progress import Progress
from client_sdk._url import from_environment
from client_sdk.models import DEFAULT_TTL_S, ENDED_LEASE_STATES, LeaseState

_POLL_S = 10.0
_TIMED, _LONGEST_CALL_S = ("env_init", "reset", "step", "close", "shutdown"), 3600.0


class Cornerman:
    """A Cornerman host, by its connection string or the one in ``CORNERMAN_URL``; ``quiet`` shows no progress."""

    def __init__(self, url: str | None = None, *, quiet: bool = False) -> None:
        self._api = Api(Session(from_environment(url)))
        self._quiet = quiet

    def __repr__(self) -> str:
        return f"Cornerman({self._api.session.target.authority})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Cornerman holds a token, so it cannot be pickled; make one where it is needed.")

    def lease(
        self,
        envs: SupportsIndex = 4,
        pool: str | None = None,
        *,
        ttl_s: float = DEFAULT_TTL_S,
        wait: bool = True,
        timeout_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        note: str = "",
        via: Via | None = None,
        local: Local = "sockets",
        deadlines_s: Mapping[str, float] | None = None,
    ) -> Lease:
        """Lease ``envs`` engines of ``pool`` (or of the host's default one), all or nothing.

        With ``wait`` it queues for them, at most ``timeout_s`` seconds, else PoolExhausted is raised when they are not
        all ready. The lease ends ``ttl_s`` seconds after its last heartbeat.

        Steps go ``via`` an encrypted "tunnel", or "direct" to the engines' ports; left out, directly if the host is this
        machine, else by the tunnel. Its ``local`` end is Unix "sockets", or "ports" of 127.0.0.1 for a client that cannot
        use those. ``deadlines_s`` is how long a call may take there, by "env_init", "reset" and "step".
        """
        how = _way(via or ("direct" if self._api.session.target.is_loopback else "tunnel"), local, deadlines_s)
        request = _request(envs=envs, pool=pool, ttl_s=ttl_s, wait=wait, labels=labels, note=note)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        first = self._create(request)
        try:
            lease = Lease(self._api, first, **how)
        except BaseException:  # no heartbeats, so no lease
            with contextlib.suppress(CornermanError):
                self._api.release(first.id)
            raise
        try:
            self._wait(lease, request.envs, deadline, timeout_s)
            lease._connect()
        except BaseException:
            _release_whatever_comes(lease)
            raise
        return lease

    def leases(self) -> list[models.Lease]:
        """Your leases, newest first; everybody's for an admin."""
        return self._api.leases()

    def engines(self) -> list[models.Engine]:
        """The engines of your leases; all of them for an admin."""
        return self._api.engines()

    def whoami(self) -> models.WhoAmI:
        """Who the token is, its quota and what of it is used."""
        return self._api.whoami()

    def release(self, lease_id: str) -> None:
        """Release a lease by its id, also one of another process; again is fine."""
        self._api.release(lease_id)

    def _create(self, request: models.LeaseRequest) -> models.Lease:
        """Ask under one key, so that a lost answer costs nothing; an answer that has ended already needs another."""
        while True:
            lease = self._api.create(request, key=uuid.uuid4().hex)
            if lease.state not in ENDED_LEASE_STATES:
                return lease

    def _fault(self, pool: str) -> str | None:
        """What the waiting may be for; that this cannot be told must not end it."""
        with contextlib.suppress(CornermanError):
            return self._api.fault(pool)
        return None

    def _wait(self, lease: Lease, envs: int, deadline: float | None, timeout_s: float | None) -> None:
        progress, started = Progress(quiet=self._quiet), time.monotonic()
        told: str | None = None
        try:
            while lease.state is not LeaseState.ACTIVE:
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise WaitTimeout(
                        f"{envs} engines did not become free within {timeout_s:g} s; "
                        "wait longer, ask for fewer, or look with `cornerman ps` who holds them."
                    )
                fault = None if self._quiet else self._fault(lease.pool)
                if fault is not None and fault != told:
                    progress.tell(f"Pool {lease.pool} cannot start engines just now: {fault}")
                told = fault
                progress.show(_waiting_text(lease, envs), elapsed_s=now - started)
                lease.wait(within_s=_POLL_S if deadline is None else min(_POLL_S, deadline - now))
        finally:
            progress.done()


class _Way(TypedDict):
    via: Via
    local: Local
    deadlines_s: dict[str, float]


def _way(via: Via, local: Local, deadlines_s: Mapping[str, float] | None) -> _Way:
    """How steps travel, checked before anything is leased."""
    if via not in get_args(Via):
        raise WrongArgument(f'via={via!r} is not known; it is "tunnel" or "direct".')
    if local not in get_args(Local):
        raise WrongArgument(f'local={local!r} is not known; it is "sockets" or "ports".')
    deadlines = dict(deadlines_s or {})
    for name, seconds in deadlines.items():
        if name not in _TIMED or not 0.1 <= seconds <= _LONGEST_CALL_S:
            raise WrongArgument(
                f"deadlines_s cannot have {name!r}: {seconds!r}; it has seconds from 0.1 to {_LONGEST_CALL_S:.0f} for "
                f"{', '.join(_TIMED)}."
            )
    return {"via": via, "local": local, "deadlines_s": deadlines}


def _waiting_text(lease: Lease, envs: int) -> str:
    place = f"place {lease.queue_position} in the queue" if lease.queue_position else "in the queue"
    text = f"Waiting for {envs} engine{'s' if envs != 1 else ''}: {place}"
    own = [other for other in list(open_leases) if other is not lease and other.state is LeaseState.ACTIVE]
    if own:
        held = sum(len(other.envs) for other in own)
        text += f"; this process itself holds {held} (release() of {', '.join(other.id for other in own)} frees them)"
    return text


def _release_whatever_comes(lease: Lease) -> None:
    # The error that brought us here matters more, and the heartbeat process goes on trying.
    with contextlib.suppress(CornermanError):
        lease.release()


def _request(
    *,
    envs: SupportsIndex,
    pool: str | None,
    ttl_s: float,
    wait: bool,
    labels: Mapping[str, str] | None,
    note: str,
) -> models.LeaseRequest:
    fields: dict[str, object] = {"envs": envs, "ttl_s": float(ttl_s), "wait": bool(wait)}
    if pool is not None:
        fields["pool"] = pool
    if labels:
        fields["labels"] = dict(labels)
    if note:
        fields["note"] = note
    try:
        fields["envs"] = operator.index(envs)
        return models.LeaseRequest.model_validate(fields)
    except TypeError:
        raise WrongArgument(f"envs must be a whole number, not {envs!r}.") from None
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WrongArgument(f"{place} cannot be {reprlib.repr(first['input'])}: {first['msg']}.") from None
