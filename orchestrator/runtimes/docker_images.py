"""Images of engines: found on the host, or pulled, and pinned to what cannot change under a running pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from docker import APIClient

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.runtimes import docker_view
from orchestrator.runtimes.docker_faults import brief, classify, translated

PULL_S = 3600.0
_OF_THE_HOST = (FaultKind.UNREACHABLE, FaultKind.TIMEOUT, FaultKind.DISK_FULL)


def pinned(api: APIClient, image: str, *, url: str) -> str:
    """The digest or id of an image that is on the host; RuntimeFault(IMAGE_MISSING) when it is not."""
    with translated(f"find the image {image}", url=url):
        return docker_view.pinned(image, api.inspect_image(image))  # type: ignore[no-untyped-call]


def is_fetched(api: APIClient, image: str, *, url: str) -> bool:
    """Whether an image that is on the host came from a registry; one that was built or loaded here cannot be fetched."""
    try:
        with translated(f"find the image {image}", url=url):
            return bool(api.inspect_image(image).get("RepoDigests"))  # type: ignore[no-untyped-call]
    except RuntimeFault as fault:
        if fault.kind is FaultKind.IMAGE_MISSING:
            return False  # it is pulled because it is absent
        raise


def pull(api: APIClient, image: str, *, url: str) -> None:
    """Fetch an image from its registry; RuntimeFault(IMAGE_MISSING) with the reason when it cannot be had."""
    try:
        with translated(f"pull the image {image}", url=url):
            failed = _await(api.pull(image, stream=True, decode=True))
    except RuntimeFault as fault:
        if fault.kind in _OF_THE_HOST:
            raise
        raise _unobtainable(image, str(getattr(fault.__cause__, "explanation", fault))) from fault
    if failed is None:
        return
    if classify(None, failed) is FaultKind.DISK_FULL:
        raise RuntimeFault(
            FaultKind.DISK_FULL,
            f"The disk is full, so {image} cannot be pulled: free space with 'docker system prune'.",
        )
    raise _unobtainable(image, failed)


def _await(progress: Iterator[dict[str, Any]]) -> str | None:
    """Read a pull's progress to its end; returns what failed."""
    deadline = time.monotonic() + PULL_S
    for step in progress:
        if "error" in step:
            return str(step["error"])
        if time.monotonic() > deadline:
            return f"not done after {PULL_S:.0f} s"
    return None


def _unobtainable(image: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        FaultKind.IMAGE_MISSING,
        f"The image {image} is not here and cannot be pulled ({brief(why)}): check its name and this host's network, "
        "run 'docker login' if it is private, or build or load it here.",
    )
