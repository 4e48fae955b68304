"""The line that people see while they wait."""

from __future__ import annotations

import io

from client_sdk._progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class NotebookStream(io.StringIO):
    """Looks like a notebook's standard error."""

    __module__ = "ipykernel.iostream"


class ClosedStream(io.StringIO):
    """Fails at every write."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_line_changes_in_place_on_a_terminal_and_in_a_notebook() -> None:
    """The line is rewritten, shorter texts leave nothing behind, and at the end it is wiped."""
    for stream in (Terminal(), NotebookStream()):
        progress = Progress(stream)
        progress.show("Waiting: place 10", elapsed_s=9.6)
        progress.show("Waiting: 1", elapsed_s=20)
        progress.done()
        assert "\n" not in stream.getvalue()
        assert stream.getvalue().split("\r")[1:3] == ["Waiting: place 10 (10 s)", "Waiting: 1 (20 s)".ljust(24)]
        assert stream.getvalue().endswith("\r")


def test_file_gets_one_line_for_each_change() -> None:
    """A log is not filled with the seconds that pass."""
    stream = io.StringIO()
    progress = Progress(stream)
    for elapsed_s in range(10):
        progress.show("place 2" if elapsed_s < 5 else "place 1", elapsed_s=elapsed_s)
    progress.done()
    assert stream.getvalue() == "place 2\nplace 1\n"


def test_nobody_there_to_see_is_no_error() -> None:
    """A closed standard error does not end the waiting."""
    progress = Progress(ClosedStream())
    progress.show("a", elapsed_s=0)
    progress.show("b", elapsed_s=0)
    progress.done()
