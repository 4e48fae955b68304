"""A lease in the hands of the process that asked for it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NoReturn

from client_sdk import _html, models
from client_sdk._advice import Advice
from client_sdk._api import Api
from client_sdk._environ import claims
from client_sdk._errors import (
    ConnectionFault,
    CornermanError,
    LeaseLost,
    NotFound,
    Refused,
    Unavailable,
    WaitTimeout,
    WrongArgument,
)
from client_sdk._heartbeat import Heartbeat
from client_sdk._heartbeat_helper import Orders, Report
from client_sdk._progress import warn
from client_sdk._renewing import says_lost
from client_sdk._tunnel_end import Tunnel
from client_sdk._url import Target, is_loopback
from client_sdk.models import ENDED_LEASE_STATES, MAX_WAIT_S, EnvState, LeaseState

EXIT_TIMEOUT_S = 5.0
Via = Literal["tunnel", "direct"]
Local = Literal["sockets", "ports"]
# All of this process: whoever waits for engines that an earlier cell of the same notebook holds is to be told so.
open_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


class Lease:
    """Engines on loan: a context manager, or to be given back with ``release()``.

    While it is active ``DIAMBRA_ENVS`` names its engines, rank by rank, and a process of its own keeps it alive. It is
    released at the end of the ``with`` block, when this object or the interpreter goes, and when the process is killed.
    A forked child may look at it, but neither keeps it alive nor releases it.
    """

    def __init__(
        self,
        api: Api,
        first: models.Lease,
        *,
        via: Via = "direct",
        local: Local = "sockets",
        deadlines_s: Mapping[str, float] | None = None,
    ) -> None:
        self._api = api
        self._now = first
        self._owner = os.getpid()
        self._lock = threading.RLock()  # a signal's handler may call release() on the thread that holds it
        self._over = False
        self._lost: str | None = None
        self._addresses: dict[int, str] = {}
        self._claim = object()
        self._failing = ""
        self._announced: datetime | None = None
        self._tunnel: Tunnel | None = None
        self._taken = 0  # by how many this process uses the lanes itself
        self._heartbeat = self._start_heartbeat(first, via=via, local=local, deadlines_s=deadlines_s)
        self._on_collect = weakref.finalize(self, _abandon, self._owner, self._heartbeat, self._claim)
        self._on_collect.atexit = False
        self._on_exit = functools.partial(_release_at_exit, weakref.ref(self))
        atexit.register(self._on_exit)
        open_leases.add(self)
        self._accept(first)

    # ------------------------------------------------------------ what it is

    @property
    def model(self) -> models.Lease:
        """Everything the daemon said of it last."""
        return self._now

    @property
    def id(self) -> str:
        """The lease's opaque id."""
        return self._now.id

    @property
    def pool(self) -> str:
        """The pool that its engines are from."""
        return self._now.pool

    @property
    def state(self) -> LeaseState:
        """Where the lease is in its life, as far as known here."""
        return self._now.state

    @property
    def expires_at(self) -> datetime | None:
        """When it ends if no heartbeat gets through any more (UTC)."""
        return self._now.expires_at

    @property
    def envs(self) -> tuple[models.Env, ...]:
        """Its slots by rank, with the engine that each one holds."""
        return tuple(sorted(self._now.envs, key=lambda env: env.rank))

    @property
    def addresses(self) -> list[str]:
        """Where the stock client finds the engines, by rank: the tunnel's own, or ``host:port`` of each engine.

        The tunnel's never change; directly, a slot that waits for its next engine has the former one's.
        """
        if self._tunnel is not None:
            return self._tunnel.addresses
        return [env.address or self._addresses.get(env.rank, "replacing.invalid:0") for env in self.envs]

    @property
    def diambra_envs(self) -> str:
        """What ``DIAMBRA_ENVS`` is to say: the addresses, separated by spaces."""
        return " ".join(self.addresses)

    def __repr__(self) -> str:
        state = "lost" if self._lost is not None else self.state.value
        return f"<Lease {self.id} {state}: {self.diambra_envs or f'{self._now.envs_wanted} engines wanted'}>"

    def _repr_html_(self) -> str:
        return _html.lease_table(self._now, lost=self._lost)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A lease belongs to the process that asked for it; pass its addresses instead.")

    # ------------------------------------------------------------ what one does with it

    def check(self) -> None:
        """Raise LeaseLost if the lease is known to be lost; costs nothing, so it fits into a training loop."""
        if self._lost is not None:
            raise LeaseLost(self.id, self._lost)

    def refresh(self) -> None:
        """Ask the daemon how the lease is now, and raise LeaseLost if it has ended."""
        self._ask(lambda: self._api.show(self.id))

    def replace(self, rank: int, reason: str, *, timeout_s: float = 120.0) -> None:
        """Say that the engine of ``rank`` is broken, and wait until its slot has a fresh one.

        The stock client then needs a new ``make(..., rank=rank)``.
        """
        broken = self._slot(rank)
        request = models.ReplaceRequest(generation=broken.generation, reason=reason[:500] or "no reason given")
        with self._told_if_lost():
            self._api.replace(self.id, rank, request)
        deadline = time.monotonic() + timeout_s
        self.refresh()
        while not self._is_fresh(rank, after=broken.generation):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WaitTimeout(f"Rank {rank} of lease {self.id} got no fresh engine within {timeout_s:.0f} s.")
            self._await_change(left_s)

    def _is_fresh(self, rank: int, *, after: int) -> bool:
        env = self._slot(rank)
        return env.generation > after and env.state is EnvState.READY

    def advise(
        self,
        game_id: str = "doapp",
        env_settings: Any = None,
        wrappers_settings: Any = None,
        *,
        learner_s: float = 0.0,
        seconds: float = 2.0,
    ) -> Advice:
        """Play for some ``seconds`` with these settings, and say what limits and what to change: ``print`` it.

        ``learner_s`` is how long your learner thinks between two steps of all environments. Games that are under way on this lease
        are lost: ask first, and make the environments afterwards.
        """
        from client_sdk import _tune

        return _tune.advise(self, game_id, env_settings, wrappers_settings, learner_s=learner_s, seconds=seconds)

    def release(self) -> None:
        """Give the engines back; again, or after the lease was lost, is fine.

        Should the host not answer, the heartbeat process goes on trying for as long as the lease can live.
        """
        self._release(lambda: self._api.release(self.id))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except CornermanError as fault:  # must spoil neither a finished training nor the error that ended it
            warn(f"Lease {self.id} could not be released yet; its heartbeat process goes on trying. {fault}")
        if kind is None:
            self.check()

    # ------------------------------------------------------------ how it is kept

    @property
    def queue_position(self) -> int | None:
        """The place in the queue, 1 is next; None unless pending."""
        return self._now.queue_position

    def wait(self, *, within_s: float) -> bool:
        """Wait up to ``within_s`` for the grant and say whether it came; raises LeaseLost if the place is lost."""
        if self.state is LeaseState.PENDING:
            self._await_change(within_s)
        return self.state is LeaseState.ACTIVE

    def _await_change(self, within_s: float) -> None:
        version = self._now.version
        try:
            self._ask(lambda: self._api.await_change(self.id, after_version=version, wait_s=within_s))
        except (Unavailable, ConnectionFault) as busy:  # too many wait already, or the host restarts: ask again later
            asked_s = busy.retry_after_s if isinstance(busy, Unavailable) else None
            time.sleep(min(within_s, asked_s or 1.0, MAX_WAIT_S))

    def _connect(self) -> None:
        """Make the engines reachable, once they are granted; raises with the reason when they are not."""
        target = self._api.session.target
        if self._tunnel is None:
            _check_reachable(self._now, target)
        elif self._now.relay is not None:
            try:
                self._tunnel.open(self._now.relay)
            except LeaseLost as lost:
                self._lose(lost.reason)
                raise
            self._claim_addresses()
        else:
            raise ConnectionFault(
                f"The host {target.authority} runs no relay: set enabled = true in its [relay], or lease with "
                'via="direct", which is not encrypted.'
            )

    def _lanes_are_taken(self) -> None:
        """The relay is about to turn the tunnel away, and that is right."""
        self._taken += 1

    def _lanes_are_free(self, *, reached: bool) -> None:
        """This process uses the lanes no more: the tunnel may have them again, unless the host was out of reach at the end."""
        self._taken -= 1
        if reached and not self._taken and self._tunnel is not None and not self._over and self._lost is None:
            self._tunnel.open_again()

    def _start_heartbeat(
        self, first: models.Lease, *, via: Via, local: Local, deadlines_s: Mapping[str, float] | None
    ) -> Heartbeat:
        reference = weakref.WeakMethod(self._hear)  # the thread must not keep a lease that nobody holds any more

        def hear(report: Report) -> None:
            method = reference()
            if method is not None:
                method(report)

        orders = Orders.to_keep(first, session=self._api.session)
        if via == "direct":
            return Heartbeat(orders, hear=hear, warn=warn)
        self._tunnel = Tunnel(orders, hear=hear, warn=warn, ports=local == "ports", deadlines_s=deadlines_s)
        return self._tunnel

    def _ask(self, question: Callable[[], models.Lease]) -> None:
        with self._told_if_lost():
            self._accept(question())
        self.check()

    @contextlib.contextmanager
    def _told_if_lost(self) -> Iterator[None]:
        """Turn the daemon's word that the lease is over into LeaseLost."""
        try:
            yield
        except Refused as refused:
            if not says_lost(refused):
                raise
            self._lose(str(refused))
            raise LeaseLost(self.id, str(refused)) from refused

    def _slot(self, rank: int) -> models.Env:
        for env in self._now.envs:
            if env.rank == rank:
                return env
        raise WrongArgument(f"Lease {self.id} has no rank {rank}: its ranks are 0 to {len(self._now.envs) - 1}.")

    def _hear(self, report: Report) -> None:
        match report.event:
            case "renewed" if report.lease is not None:
                self._accept(report.lease)
                self._failing = ""
                self._announce(report.lease.idle_release_at)
            case "failing":
                self._worry("overdue" if report.overdue else "failing", report.text)
            case "opened":
                self._claim_addresses()
            case "closed" if not self._over and self._lost is None and not self._taken:
                warn(f"Lease {self.id} has no way to its engines any more. {report.text}")
            case "lost":
                self._lose(report.text)

    def _announce(self, ends_at: datetime | None) -> None:
        """Say once that the daemon will end the lease because nobody plays."""
        if ends_at is not None and self._announced is None:
            warn(
                f"Lease {self.id} ends at {ends_at:%H:%M:%S} UTC, because none of its engines is used; play to keep it."
            )
        self._announced = ends_at

    def _worry(self, how: Literal["failing", "overdue"], text: str) -> None:
        """Warn once when heartbeats stop getting through, and once more when the lease may have expired."""
        if self._over or self._failing == how:
            return
        self._failing = how
        fear = "may have expired" if how == "overdue" else "gets no heartbeat through just now"
        warn(f"Lease {self.id} {fear}; trying on. {text}")

    def _accept(self, now: models.Lease) -> None:
        """Take ``now`` as how the lease is, unless something newer is known already."""
        if os.getpid() != self._owner:
            self._now = now
            return
        with self._lock:
            if self._over or now.version < self._now.version:
                return
            self._now = now
            self._addresses.update({env.rank: env.address for env in now.envs if env.address is not None})
            self._claim_addresses()
        if now.state in ENDED_LEASE_STATES:
            self._lose(now.ended_because or f"it is {now.state.value}")

    def _claim_addresses(self) -> None:
        with self._lock:
            if self.state is LeaseState.ACTIVE and self.addresses and not self._over and self._lost is None:
                claims.put(self._claim, self.diambra_envs)

    def _lose(self, reason: str) -> None:
        if os.getpid() != self._owner:
            self._lost = reason
            return
        with self._lock:
            if self._over or self._lost is not None:
                return
            self._lost = reason
        claims.drop(self._claim)  # its engines may be somebody else's from now on
        warn(str(LeaseLost(self.id, reason)))

    def _release(self, call: Callable[[], None]) -> None:
        if os.getpid() != self._owner or not self._close():
            return
        if self._lost is None:
            try:
                with contextlib.suppress(NotFound):
                    call()
            except BaseException:
                self._heartbeat.hand_over()
                raise
            self._now = self._now.model_copy(update={"state": LeaseState.RELEASED, "queue_position": None})
        self._heartbeat.stop()

    def _close(self) -> bool:
        """Stop being kept alive; False if that was done already."""
        with self._lock:
            if self._over:
                return False
            self._over = True
        open_leases.discard(self)
        claims.drop(self._claim)
        self._on_collect.detach()
        atexit.unregister(self._on_exit)
        return True

    def _release_at_exit(self) -> None:
        with contextlib.suppress(CornermanError):
            self._release(lambda: self._api.release(self.id, timeout_s=EXIT_TIMEOUT_S, patient=False))


def _check_reachable(lease: models.Lease, target: Target) -> None:
    """Refuse addresses that mean this machine when the host is another one."""
    for env in lease.envs:
        host = (env.address or "").rpartition(":")[0].strip("[]")
        if host and is_loopback(host) and not target.is_loopback:
            raise WrongArgument(
                f'Pool {lease.pool} does not open its engines to other machines: leave out via="direct", or set '
                'expose = "direct" for it on the host.'
            )


def _release_at_exit(reference: weakref.ref[Lease]) -> None:
    lease = reference()
    if lease is not None:
        lease._release_at_exit()


def _abandon(owner: int, heartbeat: Heartbeat, claim: object) -> None:
    """The lease object is gone without a release: its helper does it, because a collection is no place for I/O."""
    if os.getpid() == owner:
        claims.drop(claim)
        heartbeat.hand_over()
