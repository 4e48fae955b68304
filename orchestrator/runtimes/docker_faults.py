"""What can go wrong with Docker, told as one RuntimeFault with one sentence that says what to do.

Docker reports most faults as an HTTP status and a text; the texts matched here are those of Docker Engine 20.10
and later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from docker.errors import APIError, DockerException, ImageNotFound

from orchestrator.errors import FaultKind, RuntimeFault

_PORT_TAKEN = ("port is already allocated", "address already in use", "ports are not available")
_DISK_FULL = ("no space left on device", "disk quota exceeded")
_BAD_SPEC = (
    "bind source path does not exist",
    "cannot assign requested address",
    "unable to find user",
    "oci runtime create failed",
    "failed to create shim",
    "invalid mount",
    "network not found",
)
_NO_NETWORK = re.compile(r"network \S+ not found|no such network(?! interface)")


@contextmanager
def translated(doing: str, *, url: str) -> Iterator[None]:
    """Turn whatever the Docker SDK raises inside into a RuntimeFault; ``doing`` completes "Docker could not ..."."""
    try:
        yield
    except (DockerException, requests.RequestException, OSError) as error:
        raise as_fault(error, doing=doing, url=url) from error


def as_fault(error: BaseException, *, doing: str, url: str) -> RuntimeFault:
    """The RuntimeFault that says what ``error`` means."""
    if isinstance(error, APIError):
        return _refusal(error, doing)
    chain = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in chain):
        return RuntimeFault(
            FaultKind.UNREACHABLE,
            f"This user may not use Docker at {url}: add it to the group 'docker' and log in again.",
        )
    if any(isinstance(cause, requests.ReadTimeout) for cause in chain):
        return RuntimeFault(
            FaultKind.TIMEOUT,
            f"Docker at {url} took too long to {doing}: see 'journalctl -u docker', "
            "and raise docker.timeout_s if it is only slow.",
        )
    return RuntimeFault(
        FaultKind.UNREACHABLE,
        f"Docker does not answer at {url}: start it with 'systemctl start docker', "
        "or set docker.url to where it listens.",
    )


def classify(status: int | None, text: str) -> FaultKind:
    """The kind of an answer by its HTTP status and text."""
    text = text.lower()
    if any(part in text for part in _PORT_TAKEN):
        return FaultKind.PORT_TAKEN
    if any(part in text for part in _DISK_FULL):
        return FaultKind.DISK_FULL
    if "no such image" in text or "manifest unknown" in text or "pull access denied" in text:
        return FaultKind.IMAGE_MISSING
    if _NO_NETWORK.search(text) or any(part in text for part in _BAD_SPEC) or status == 400:
        return FaultKind.BAD_SPEC
    if status == 404:
        return FaultKind.NOT_FOUND
    return FaultKind.OTHER


def _refusal(error: APIError, doing: str) -> RuntimeFault:
    said = brief(str(error.explanation or error))
    kind = FaultKind.IMAGE_MISSING if isinstance(error, ImageNotFound) else classify(error.status_code, said)
    return RuntimeFault(kind, f"Docker could not {doing} ({said}): {_CURES[kind]}.")


_CURES = {
    FaultKind.PORT_TAKEN: "another port is needed; see who holds this one with 'ss -ltnp' and 'docker ps -a'",
    FaultKind.DISK_FULL: "free space where Docker keeps its data, for instance with 'docker system prune'",
    FaultKind.IMAGE_MISSING: "check the image's name, pull or build it, or allow pulling with docker.pull = true",
    FaultKind.BAD_SPEC: "correct the pool's docker settings",
    FaultKind.NOT_FOUND: "it is gone already",
    FaultKind.OTHER: "see 'journalctl -u docker' for the cause",
}


def brief(text: str) -> str:
    """One line of at most 300 characters, without the full stop at its end."""
    text = " ".join(text.split()).rstrip(". ")
    return text if len(text) <= 300 else text[:299] + "…"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue: list[BaseException] = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        # urllib3 and requests keep the cause among the arguments, or as a reason, as often as in the chain.
        linked = [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
        queue.extend(item for item in linked if isinstance(item, BaseException))
