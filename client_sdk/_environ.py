"""``DIAMBRA_ENVS``: where the stock client looks for its engines, shared by all leases of the process."""

from __future__ import annotations

import os
import threading

from client_sdk import _forkserver

NAME = "DIAMBRA_ENVS"


class Claims:
    """Who wants the variable to say what: the latest claim holds, and after the last one the former value is back.

    A value that somebody else has set in the meantime is left alone.
    """

    def __init__(self) -> None:
        self._former: str | None = None
        self._written: str | None = None
        self._stack: list[tuple[object, str]] = []
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # a lock that was held at the fork is never released there

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    @property
    def newest(self) -> object | None:
        """Whose claim holds."""
        with self._lock:
            return self._stack[-1][0] if self._stack else None

    def put(self, owner: object, value: str) -> None:
        """Let ``owner`` claim the variable, or change what it claims."""
        with self._lock:
            if not self._stack:
                self._former = os.environ.get(NAME)
                self._written = self._former
            for place, (holder, _) in enumerate(self._stack):
                if holder is owner:
                    self._stack[place] = (owner, value)
                    break
            else:
                self._stack.append((owner, value))
            self._write(self._stack[-1][1])

    def drop(self, owner: object) -> None:
        """Give up the claim of ``owner``, if it has one."""
        with self._lock:
            left = [claim for claim in self._stack if claim[0] is not owner]
            if len(left) < len(self._stack):
                self._stack = left
                self._write(left[-1][1] if left else self._former)

    def _write(self, value: str | None) -> None:
        if os.environ.get(NAME) != self._written:
            return
        if value == self._written:
            return
        if value is None:
            os.environ.pop(NAME, None)
        else:
            os.environ[NAME] = value
        self._written = value
        _forkserver.forget()


# One for the process, as the variable itself is.
claims = Claims()
