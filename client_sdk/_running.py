"""Runs a command as if it had been started without us: its signals reach it, and its exit code is ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import FrameType

from client_sdk._errors import WrongArgument

_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
    if hasattr(signal, name)
)
_FROM_TERMINAL = frozenset({"SIGINT", "SIGQUIT", "SIGWINCH", "SIGCONT"})


class Ended(BaseException):
    """A signal asked this process to end before there was a command to forward it to."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum


class Relay:
    """Passes signals on to a child; without one, those that mean "end" raise ``Ended``."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._early: list[int] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[Relay]:
        """Take over the signals, and give them back afterwards."""
        # What is ignored (nohup, a background job) stays so, for the child too.
        wanted = [signum for signum in _FORWARDED if signal.getsignal(signum) is not signal.SIG_IGN]
        former = {signum: signal.signal(signum, self._handle) for signum in wanted}
        try:
            yield self
        finally:
            for signum, handler in former.items():
                signal.signal(signum, handler)

    def run(self, command: Sequence[str]) -> int:
        """Run ``command`` to its end: its exit code, or 128 plus the signal that ended it."""
        self._starting = True
        try:
            self._child = subprocess.Popen(command)
        except OSError as fault:
            raise WrongArgument(f"{command[0]} could not be started: {fault.strerror}.") from fault
        for signum in self._early:
            self._send(signum)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._child is not None:
            self._pass_on(signum)
        elif self._starting:
            self._early.append(signum)
        elif signal.Signals(signum).name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP"):
            raise Ended(signum)

    def _pass_on(self, signum: int) -> None:
        if signal.Signals(signum).name in _FROM_TERMINAL and _in_foreground():
            return  # the terminal has sent it to the child as well
        self._send(signum)

    def _send(self, signum: int) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signum)


def find(program: str) -> None:
    """Refuse a command that cannot be found, before anything is leased for it."""
    if shutil.which(program) is None:
        raise WrongArgument(f"There is no command {program!r} here; check its name and PATH.")


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
