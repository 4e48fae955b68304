"""Following what Docker tells about the engines of one instance."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from docker import APIClient
from docker.errors import DockerException
from docker.types import CancellableStream
from urllib3.exceptions import HTTPError

from orchestrator.interfaces import LABEL_INSTANCE, HostEvent
from orchestrator.runtimes import docker_view


class EventStreams:
    """Opens streams of events; each goes on where the last one ended, as far as Docker still remembers."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._since: int | None = None  # seconds, by Docker's clock once it has told anything
        self._open: set[CancellableStream[Any]] = set()
        self._lock = threading.Lock()

    def follow(self, api: APIClient) -> Iterator[HostEvent]:
        """A stream that ends when its connection does; it is open when this returns."""
        filters: dict[str, Any] = {
            "type": "container",
            "label": f"{LABEL_INSTANCE}={self._instance}",
            "event": [*docker_view.EVENT_KINDS],
        }
        since = self._since or int(time.time())
        stream: CancellableStream[Any] = api.events(since=since, filters=filters, decode=True)
        self._since = since
        with self._lock:
            self._open.add(stream)
        return self._read(stream)

    def close(self) -> None:
        """End all streams, whoever waits on them."""
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            _hang_up(stream)

    def _read(self, stream: CancellableStream[Any]) -> Iterator[HostEvent]:
        try:
            for raw in stream:
                self._since = int(raw.get("time") or 0) or self._since
                event = docker_view.host_event(raw)
                if event is not None:
                    yield event
        except (DockerException, HTTPError, OSError, ValueError, AttributeError):
            return  # broken, quiet for too long, or closed in the middle of an event: ended
        finally:
            with self._lock:
                self._open.discard(stream)
            _hang_up(stream)


def _hang_up(stream: CancellableStream[Any]) -> None:
    # A stream that ended meanwhile has no socket left to shut down.
    with suppress(OSError, AttributeError, ValueError, DockerException):
        stream.close()
