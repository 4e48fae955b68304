"""Following Docker's events when nothing happens for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from urllib3.exceptions import ReadTimeoutError

from orchestrator.runtimes.docker_events import EventStreams


class QuietStream:
    """A stream on which nothing comes until its time is over."""

    closed = False

    def __iter__(self) -> Iterator[Any]:
        raise ReadTimeoutError(None, "/events", "Read timed out.")  # type: ignore[arg-type]

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


class QuietDocker:
    """Docker, where nothing happens."""

    def __init__(self) -> None:
        self.stream = QuietStream()

    def events(self, **_: object) -> QuietStream:
        """The stream."""
        return self.stream


def test_a_stream_that_is_quiet_for_too_long_ends_like_any_other() -> None:
    """When no engine lives or dies for minutes the event stream ends without an error, and is followed anew."""
    docker = QuietDocker()
    assert list(EventStreams("i").follow(docker)) == []  # type: ignore[arg-type]
    assert docker.stream.closed
