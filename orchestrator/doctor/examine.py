"""All checks of ``cornerman doctor`` in one go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.config import Config
from orchestrator.doctor import certificates, engine_host, files, machine, network, roms, service
from orchestrator.doctor.findings import Finding, fault, ok
from orchestrator.doctor.gathering import certificates as gather_certificates
from orchestrator.doctor.gathering import files as gather_files
from orchestrator.doctor.gathering import machine as gather_machine
from orchestrator.doctor.gathering import network as gather_network
from orchestrator.doctor.gathering import service as gather_service
from orchestrator.errors import ConfigError

_AS_ROOT = "sudo cornerman doctor"


def examine(config_file: Path) -> list[Finding]:
    """Everything that can be found out; a configuration that cannot be used is the only finding, because all else hangs on it."""
    try:
        config = configuration.load(config_file)
    except ConfigError as error:
        cure = f"{os.environ.get('EDITOR', 'nano')} {config_file}" if config_file.is_file() else "cornerman init"
        return [fault("config", str(error), cure if os.access(config_file.parent, os.X_OK) else _AS_ROOT)]
    except OSError as error:
        return [fault("config", f"{config_file} cannot be looked at ({error.strerror}).", _AS_ROOT)]
    return [ok("config", f"{config_file} is usable."), *_findings(config, config_file)]


def _findings(config: Config, config_file: Path) -> Iterator[Finding]:
    state = gather_service.state(config)
    yield from service.state(state)
    yield from service.units(config, gather_service.units(config_file), state)
    yield from service.pools(config, state)

    docker_root, containers_ports = "", frozenset[int]()
    if any(pool.runtime == "docker" for pool in config.pools.values()):
        from orchestrator.doctor.gathering import engine_host as gather_engine_host

        host, images, containers_ports = gather_engine_host.docker(config, state.pools)
        docker_root = host.root
        yield from engine_host.docker(host)
        yield from engine_host.images(host, images)
        listed = roms.known()
        yield from files.credentials(gather_files.credentials(config))
        yield from files.roms(gather_files.rom_folders(config, listed), listed)

    facts = gather_machine.machine(config, docker_root=docker_root, newest_event=state.newest_event)
    yield from machine.memory(config, facts)
    yield from machine.cores(config, facts)
    yield from machine.disk(config, facts)
    yield from machine.kernel_ports(config, facts)
    yield from machine.clock(facts)

    yield from certificates.certificate(config, gather_certificates.certificate(config))
    seen = gather_network.network(config, state, containers_ports=containers_ports)
    yield from network.server_ports(config, seen)
    yield from network.engine_ports(config, seen)
    yield from network.open_ports(config, seen)
    yield from network.public_host(config, seen)
