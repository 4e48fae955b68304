"""The lanes of a lease inside this process: all its engines over one connection, for code that steps many at once.

    lanes = Lanes.of(lease)
    calls = lanes.begin([(rank, Method.STEP, request) for rank in lanes.ranks])
    lanes.wait(calls)                      # or count=1: whoever is ready first
    frames = [call.result().data for call in calls]

The connection lives on a thread of its own. What is begun together travels as one message, and whoever waits is woken once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence

from client_sdk._errors import ConnectionFault, CornermanError, LeaseLost, UntrustedHost
from client_sdk._lane import CallFault, Outcome, Reply
from client_sdk._lease import Lease
from client_sdk._line import Line, LineLost
from client_sdk._reach import Route
from client_sdk._relay import route_to
from client_sdk.wire import Bye, Method, Status

__all__ = ["CallFault", "Lanes", "Method", "Pending", "Reply", "Status"]

OPEN_WITHIN_S = 15.0


class Pending:
    """A call under way, or what it came to."""

    __slots__ = ("_waiter", "method", "outcome", "rank")

    def __init__(self, rank: int, method: Method) -> None:
        self.rank, self.method = rank, method
        self.outcome: Outcome | None = None
        self._waiter: _Waiter | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return self.outcome is not None

    def result(self) -> Reply:
        """The engine's reply; CallFault if the call failed."""
        if self.outcome is None:
            raise CornermanError("This call is still under way: wait() for it first.")
        if isinstance(self.outcome, CallFault):
            raise self.outcome
        return self.outcome


class _Waiter:
    """Somebody who sleeps until so many more calls have ended."""

    __slots__ = ("left", "wake")

    def __init__(self, left: int) -> None:
        self.left = left
        self.wake = threading.Lock()
        self.wake.acquire()


class Lanes:
    """One connection to a relay, for one process: a forked child cannot use it. Safe to use from several threads."""

    def __init__(self, route: Route, *, open_within_s: float = OPEN_WITHIN_S) -> None:
        self._owner = os.getpid()
        self._lease: weakref.ref[Lease] | None = None  # whose lanes they are, and free again when these close
        self._lock = threading.Lock()
        self._thread = _LineThread(route)
        self._on_collect = weakref.finalize(self, _LineThread.close, self._thread)
        try:
            self._thread.await_open(open_within_s)
        except BaseException:
            self.close()
            raise
        self._line = self._thread.line

    @classmethod
    def of(cls, lease: Lease, *, deadlines_s: Mapping[Method, float] | None = None) -> Lanes:
        """The lanes of ``lease``, which stops listening for the stock client until they are closed.

        ``deadlines_s`` says how long a call may take before its engine counts as hung.
        """
        relay, session = lease.model.relay, lease._api.session
        if relay is None:
            raise ConnectionFault(
                f"The host {session.target.authority} runs no relay: set enabled = true in its [relay]."
            )
        route = route_to(relay, session.target, ca_pem=session.ca_pem, ttl_s=lease.model.ttl_s, deadlines_s=deadlines_s)
        lease._lanes_are_taken()
        try:
            lanes = cls(route)
        except BaseException:
            lease._lanes_are_free(reached=False)
            raise
        lanes._lease = weakref.ref(lease)  # it ends when nobody holds it, whoever has lanes of it
        return lanes

    @property
    def ranks(self) -> list[int]:
        """The lanes there are."""
        return self._line.ranks

    @property
    def lost(self) -> str | None:
        """Why no call will be answered any more, or None."""
        return None if self._line.lost is None else str(self._line.lost)

    @property
    def taken_over(self) -> bool:
        """Whether no call will be answered because the lease is used by another connection now."""
        return self._line.lost is not None and self._line.lost.bye is Bye.TAKEN_OVER

    @property
    def out_of_reach(self) -> str | None:
        """Why calls are refused until the line comes back, or None; a line that is briefly broken only makes them wait."""
        return self._line.out_of_reach

    def generation(self, rank: int) -> int:
        """Which engine in turn sits in the slot of ``rank``; it rises when the engine is replaced."""
        return self._line.generation(rank)

    def begin(self, calls: Iterable[tuple[int, Method, bytes]]) -> list[Pending]:
        """Begin calls, each of a rank, a method and a request; those of one rank run one after the other."""
        self._check_owner()
        begun = [(Pending(rank, method), request) for rank, method, request in calls]
        self._thread.soon(self._submit, begun)
        return [pending for pending, _ in begun]

    def wait(
        self, calls: Sequence[Pending], *, count: int | None = None, timeout_s: float | None = None
    ) -> list[Pending]:
        """Wait until ``count`` of ``calls`` (all without) have ended, at most ``timeout_s``: those that have."""
        self._check_owner()
        with self._lock:
            under_way = [call for call in calls if call.outcome is None]
            left = (len(calls) if count is None else count) - (len(calls) - len(under_way))
            waiter = _Waiter(left)
            for call in under_way if left > 0 else ():
                call._waiter = waiter
        if left > 0:
            waiter.wake.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        return [call for call in calls if call.outcome is not None]

    def call(self, rank: int, method: Method, request: bytes) -> Reply:
        """One call from begin to end; CallFault if it fails."""
        pending = self.begin([(rank, method, request)])
        self.wait(pending)
        return pending[0].result()

    def give_up(self, rank: int, reason: str) -> None:
        """Say that the engine of ``rank`` is of no more use: a fresh one takes its place."""
        self._check_owner()
        self._thread.soon(self._line.give_up, rank, reason)

    def close(self) -> None:
        """Close the connection; what is under way fails. Again is fine."""
        if os.getpid() == self._owner:
            of, self._lease = self._lease, None
            reached = of is not None and self.lost is None and self.out_of_reach is None
            self._on_collect()
            lease = of() if of is not None else None
            if lease is not None:
                lease._lanes_are_free(reached=reached)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _submit(self, begun: list[tuple[Pending, bytes]]) -> None:
        for pending, request in begun:
            self._line.submit(pending.rank, pending.method, request, _Done(self._lock, pending))

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise CornermanError(
                "These lanes belong to the process that opened them; a child needs a lease of its own."
            )


class _Done:
    """Keeps what a call came to, and wakes whoever waits for it."""

    __slots__ = ("_lock", "_pending")

    def __init__(self, lock: threading.Lock, pending: Pending) -> None:
        self._lock, self._pending = lock, pending

    def __call__(self, outcome: Outcome) -> None:
        with self._lock:
            self._pending.outcome = outcome
            waiter = self._pending._waiter
            if waiter is not None:
                waiter.left -= 1
                if waiter.left == 0:
                    waiter.wake.release()


class _LineThread:
    """The thread that a line lives on; it knows nothing of those who use it, so that they can be collected."""

    def __init__(self, route: Route) -> None:
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.line = Line(route)
        self._opened = threading.Event()
        self._running: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._live, name="cornerman-lanes", daemon=True)
        self._thread.start()

    def soon(self, what: object, *arguments: object) -> None:
        """Let the loop call ``what``; CornermanError once it is closed."""
        try:
            self._loop.call_soon_threadsafe(what, *arguments)  # type: ignore[arg-type]
        except RuntimeError as closed:
            raise CornermanError("These lanes are closed.") from closed

    def await_open(self, within_s: float) -> None:
        """Wait for the first connection; the reason, within seconds, when there is none."""
        deadline, said_at = time.monotonic() + within_s, None
        while not self._opened.wait(0.05):
            now = time.monotonic()
            if self.line.fault is not None and said_at is None:
                said_at = now
            if now > deadline or (said_at is not None and now - said_at > 2.0):
                raise ConnectionFault(self.line.fault or "The relay does not answer.")
        lost = self.line.lost
        if lost is not None:
            if lost.bye is Bye.LEASE_ENDED:
                raise LeaseLost("of these lanes", str(lost)) from lost
            raise (UntrustedHost if lost.untrusted else ConnectionFault)(str(lost)) from lost

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._keep())
        self._loop.close()

    async def _keep(self) -> None:
        self._running = asyncio.ensure_future(self.line.run())
        opened = asyncio.ensure_future(self.line.opened.wait())
        await asyncio.wait({self._running, opened}, return_when=asyncio.FIRST_COMPLETED)
        self._opened.set()
        with contextlib.suppress(LineLost):
            await self._running
        opened.cancel()
        await asyncio.Event().wait()  # what is begun from now on is told why it cannot be

    def close(self) -> None:
        """End the connection and the thread."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
