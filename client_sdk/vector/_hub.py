"""Waiting for many engines at once in one thread: each environment runs in a greenlet, and is put aside while its engine works.

So DIAMBRA's environments and wrappers stay as they are, although they know only calls that block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from client_sdk._errors import CornermanError
from client_sdk.lanes import CallFault, Lanes, Pending, Reply
from client_sdk.wire import Method, Status

Job = Callable[[], Any]

# Each waking costs about as much as a step's work, so it is for half of those that are missing. But whoever has to call its engine
# once more, for a reset, is held up by others no longer than this.
HELD_UP_S = 0.02


class Task:
    """One environment at work: what it came to, once ``done``."""

    __slots__ = ("_job", "awaited", "done", "fault", "greenlet", "index", "value")

    def __init__(self, index: int, job: Job) -> None:
        self.index, self.done = index, False
        self.awaited: Pending | None = _BEGUN  # so that wait() begins it, if an interrupt kept start() from that
        self._job = job
        self.value: Any = None
        self.fault: BaseException | None = None
        self.greenlet: greenlet | None = None  # what it runs in, once it has begun

    def go_on(self) -> None:
        """Let it run until it waits for an engine or is done."""
        assert self.greenlet is not None
        try:
            self.greenlet.parent = getcurrent()
        except ValueError as elsewhere:
            raise CornermanError(
                "A vector environment belongs to one thread: recv() what was sent in the thread that sent it."
            ) from elsewhere
        pending, self.awaited = self.awaited, None
        self.greenlet.switch(self if pending is _BEGUN else pending)

    def run(self) -> None:
        """Do the job, in a greenlet."""
        try:
            self.value = self._job()
        except KeyboardInterrupt:  # is for whoever waits, and now; for others it is only something that failed
            self.fault = CornermanError(
                f"Environment {self.index} was interrupted in the middle of a call: reset() all."
            )
            raise
        except GreenletExit:  # nobody holds it any more
            raise
        except BaseException as fault:  # whoever asks for the result gets it
            self.fault = fault
        finally:
            self.done = True

    def result(self) -> Any:
        """What the job returned; raises what it raised."""
        if self.fault is not None:
            raise self.fault
        return self.value


def _run_tasks() -> None:
    """What a greenlet does: one task after the other, because a new greenlet costs fifteen times what a switch does.

    The first comes by a switch too: what a greenlet is begun with it keeps, with all it knows.
    """
    while True:
        parent = getcurrent().parent
        assert parent is not None
        task: Task | None = parent.switch()
        assert task is not None
        task.run()
        task = None


def _new_greenlet() -> greenlet:
    begun = greenlet(_run_tasks)
    begun.switch()
    return begun


class _Idle(threading.local):
    """Greenlets that have nothing to do; each can only be used in its own thread."""

    def __init__(self) -> None:
        self.greenlets: list[greenlet] = []


class Hub:
    """Runs tasks side by side over the lanes of one lease. A task goes on in the thread that began it."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._running: dict[greenlet, Task] = {}
        self._idle = _Idle()
        self._asked: list[tuple[Task, int, Method, bytes]] = []

    # ------------------------------------------------------------ what environments call

    def call(self, rank: int, method: Method, request: bytes) -> Reply:
        """One call of an engine; a task that makes it is put aside until the answer is there."""
        task = self._running.get(getcurrent())
        if task is None:
            return self.lanes.call(rank, method, request)
        self._asked.append((task, rank, method, request))
        return self._put_aside().result()

    def wait_for(self, pending: Pending) -> Reply:
        """The reply of a call that was begun already."""
        task = self._running.get(getcurrent())
        if task is None:
            self.lanes.wait([pending])
        elif not pending.done:
            task.awaited = pending
            self._put_aside()
        return pending.result()

    @staticmethod
    def _put_aside() -> Pending:
        parent = getcurrent().parent
        assert parent is not None
        pending: Pending = parent.switch()
        return pending

    # ------------------------------------------------------------ what the crew calls

    def start(self, tasks: Iterable[Task]) -> None:
        """Begin tasks; their first calls travel together."""
        for task in tasks:
            self._go_on(task)
        self._send()

    def wait(self, tasks: Sequence[Task], *, count: int, timeout_s: float | None = None) -> None:
        """Let tasks go on until ``count`` of them are done, at most ``timeout_s``, and for as long as anything can come of them."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiting = [task for task in tasks if not task.done]
        missing = count - (len(tasks) - len(waiting))
        while True:
            for task in waiting:
                if task.awaited is not None and task.awaited.done:
                    self._go_on(task)
                    missing -= task.done
            self._send()
            if missing <= 0:
                return
            waiting = [task for task in waiting if not task.done]
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            awaited = [task.awaited for task in waiting if task.awaited]
            if not awaited:  # an interrupt came between a task's call and its sending
                return
            some = max(1, min(missing, len(awaited)) // 2)
            if some > 1:
                left_s = HELD_UP_S if left_s is None else min(left_s, HELD_UP_S)
            self.lanes.wait(awaited, count=some, timeout_s=left_s)

    def drop(self, tasks: Iterable[Task]) -> None:
        """Expect nothing of these any more: greenlets that wait end with that, and let go of what they know."""
        for task in tasks:
            if task.greenlet is not None:
                self._running.pop(task.greenlet, None)
                task.greenlet = None

    def _go_on(self, task: Task) -> None:
        own = task.greenlet
        if own is None:
            idle = self._idle.greenlets
            own = task.greenlet = idle.pop() if idle else _new_greenlet()
        self._running[own] = task
        try:
            task.go_on()
        finally:
            if task.done:
                self._running.pop(own, None)
                if not own.dead:
                    own.gr_context = None  # the next task begins with nothing of this one
                    self._idle.greenlets.append(own)

    def _send(self) -> None:
        """Begin all calls that were asked for, as one message."""
        asked, self._asked = self._asked, []
        if not asked:
            return
        try:
            begun = self.lanes.begin((rank, method, request) for _, rank, method, request in asked)
        except CornermanError as closed:  # tasks have to hear of it, or they would wait for ever
            begun = [_refused(rank, method, str(closed)) for _, rank, method, _ in asked]
        for (task, *_), pending in zip(asked, begun, strict=True):
            task.awaited = pending


_BEGUN = Pending(-1, Method.STEP)
_BEGUN.outcome = Reply(b"")


def _refused(rank: int, method: Method, text: str) -> Pending:
    pending = Pending(rank, method)
    pending.outcome = CallFault(Status.UNAVAILABLE, text)
    return pending
