"""Checks of the Docker Engine and of the images that engines are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.doctor.findings import Finding, fault, ok, warning

OLDEST = (20, 10)
"""What Debian 12 and 13, Ubuntu 22.04 and Amazon Linux 2023 have, and what this was tested with."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class DockerFacts:
    """What the Docker Engine says of itself; ``fault`` when it says nothing."""

    url: str
    fault: str | None = None
    version: str = ""
    architecture: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image of a pool: ``there`` is the digest or id that the Docker Engine has under that name."""

    pool: str
    image: str
    pull: bool
    there: str | None
    architecture: str = ""
    pinned: str | None = None  # what the daemon starts engines from now


def docker(facts: DockerFacts) -> Iterator[Finding]:
    """It answers, and is not too old."""
    if facts.fault is not None:
        cure = "sudo cornerman doctor" if "may not use" in facts.fault else "systemctl enable --now docker"
        yield fault("docker", facts.fault, cure)
        return
    numbers = tuple(int(number) for number in re.findall(r"\d+", facts.version)[:2])
    if numbers < OLDEST:
        text = f"Docker Engine {facts.version} is older than 20.10, the oldest that Cornerman was tried with."
        yield warning("docker", text, "apt-get install --only-upgrade docker.io")
    else:
        yield ok("docker", f"Docker Engine {facts.version} answers at {facts.url}.")


def images(host: DockerFacts, found: Iterable[ImageFacts]) -> Iterator[Finding]:
    """Every pool's image is there, is for this machine, and is the one that engines are started from."""
    for facts in found:
        yield _image(host, facts)


def _image(host: DockerFacts, facts: ImageFacts) -> Finding:
    name = f"The image {facts.image} of pool {facts.pool}"
    if facts.there is None:
        cure = f"docker pull {facts.image}"
        if facts.pull:
            return warning(
                "image", f"{name} is not here yet, so that the first engines wait for a long download.", cure
            )
        return fault("image", f"{name} is not here, and pull = false keeps the daemon from fetching it.", cure)
    if facts.architecture and facts.architecture != _here(host):
        text = f"{name} is for {facts.architecture} processors, and this machine's is {host.architecture}."
        return fault(
            "image", text, f"docker pull --platform linux/{facts.architecture} is no cure: take such a machine"
        )
    if facts.pinned is not None and facts.pinned != facts.there:
        text = f"{name} is now {_short(facts.there)}, but engines are still started from {_short(facts.pinned)}."
        return warning("image", text, f"cornerman upgrade-image {facts.pool}")
    return ok("image", f"{name} is {_short(facts.there)}.")


def _here(host: DockerFacts) -> str:
    return _ARCHITECTURES.get(host.architecture, host.architecture)


def _short(digest: str) -> str:
    name, _, digits = digest.rpartition("sha256:")
    return f"{name}sha256:{digits[:12]}" if name or digest.startswith("sha256:") else digest
