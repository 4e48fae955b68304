"""What the Docker Engine says of itself, of images, and of ports that containers have asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from docker import APIClient
from docker.utils import kwargs_from_env

from orchestrator.config import Config
from orchestrator.doctor.engine_host import DockerFacts, ImageFacts
from orchestrator.doctor.service import PoolFacts
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.runtimes import docker_view
from orchestrator.runtimes.docker import DEFAULT_URL, DeadlineClient
from orchestrator.runtimes.docker_faults import translated

TIMEOUT_S = 10.0


def docker(config: Config, pools: Mapping[str, PoolFacts]) -> tuple[DockerFacts, list[ImageFacts], frozenset[int]]:
    """The engine itself, the pools' images, and the host ports of all containers."""
    arguments: dict[str, Any] = dict(kwargs_from_env())
    url = str(config.docker.url or arguments.get("base_url") or DEFAULT_URL)
    try:
        with translated("answer", url=url):
            client = DeadlineClient(
                **{**arguments, "base_url": url, "version": "auto", "timeout": min(TIMEOUT_S, config.docker.timeout_s)}
            )
        with closing(client) as api:
            with translated("tell about itself", url=url):
                info = api.info()
            facts = DockerFacts(
                url=url, version=info["ServerVersion"], architecture=info["Architecture"], root=info["DockerRootDir"]
            )
            return facts, list(_images(api, config, pools, url)), _ports(api, url)
    except RuntimeFault as fault:
        return DockerFacts(url, fault=str(fault)), [], frozenset()


def _images(api: APIClient, config: Config, pools: Mapping[str, PoolFacts], url: str) -> Iterator[ImageFacts]:
    for name, pool in config.pools.items():
        if pool.runtime != "docker":
            continue
        known = pools.get(name)
        image = known.image if known is not None else pool.image
        pinned = known.pinned if known is not None else None
        try:
            with translated(f"find the image {image}", url=url):
                info = api.inspect_image(image)  # type: ignore[no-untyped-call]
        except RuntimeFault as fault:
            if fault.kind is not FaultKind.IMAGE_MISSING:
                raise
            yield ImageFacts(name, image, pool.docker.pull, there=None, pinned=pinned)
            continue
        there = docker_view.pinned(image, info)
        yield ImageFacts(name, image, pool.docker.pull, there, str(info.get("Architecture", "")), pinned)


def _ports(api: APIClient, url: str) -> frozenset[int]:
    """Those that run; what a stopped container has asked for is free until it is started again."""
    with translated("list its containers", url=url):
        return frozenset(port for item in api.containers() for port in docker_view.published(item.get("Ports") or ()))
