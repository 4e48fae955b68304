"""What people see on standard error: one line while they wait, and a sentence when something went wrong."""

from __future__ import annotations

import sys
from typing import TextIO


class Progress:
    """One line that changes in place on a terminal or in a notebook, and a new line for each change elsewhere."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._in_place = _can_rewrite(self._stream)
        self._shown = ""

    def show(self, text: str, *, elapsed_s: float) -> None:
        """Show ``text``; the elapsed time only where the line can change in place."""
        if self._quiet or self._stream is None:
            return
        if self._in_place:
            line = f"{text} ({elapsed_s:.0f} s)"
            self._write(f"\r{line.ljust(len(self._shown))}")
            self._shown = line
        elif text != self._shown:
            self._write(f"{text}\n")
            self._shown = text

    def tell(self, text: str) -> None:
        """Say a sentence that stays; the line goes on below it."""
        self.done()
        if not self._quiet and self._stream is not None:
            self._write(f"cornerman: {text}\n")

    def done(self) -> None:
        """Wipe the line that changes in place."""
        if self._in_place and self._shown:
            self._write("\r" + " " * len(self._shown) + "\r")
        self._shown = ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody there to see it
            self._quiet = True


def warn(text: str) -> None:
    """Say one sentence on standard error, from any thread and without ever failing."""
    if sys.stderr is not None:
        Progress(sys.stderr)._write(f"cornerman: {text}\n")


def _can_rewrite(stream: TextIO | None) -> bool:
    if stream is None:
        return False
    if type(stream).__module__.startswith("ipykernel"):
        return True
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
