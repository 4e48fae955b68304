"""From an EngineSpec to what Docker's create call is told; pure, so that every hardening can be read in one place."""

from __future__ import annotations

import os
from typing import Any

from docker import APIClient
from docker.types import LogConfig, Mount

from orchestrator.config import DockerOptions
from orchestrator.interfaces import EngineSpec
from orchestrator.runtimes.seeds import with_seed

CREDENTIALS = "/tmp/.diambra/credentials"  # noqa: S108 - where the engine looks for it
ROMS = "/opt/diambraArena/roms"
HOME = "/home/engine"
LOG_FILES = 2
MIB = 1024 * 1024


def create_arguments(api: APIClient, spec: EngineSpec, network: str) -> dict[str, Any]:
    """The arguments of ``APIClient.create_container``; ``network`` is the id or name of the network to join."""
    options = options_of(spec)
    return {
        "image": spec.image,
        "command": engine_args(spec, options),
        "name": spec.name,
        "labels": {**spec.labels(), "diambra": "env"},  # the official CLI's label: its tools see our engines too
        "user": options.user or f"{os.getuid()}:{os.getgid()}",
        "environment": _environment(spec, options),
        "tty": options.tty,
        "stdin_open": True,
        "stop_signal": "SIGKILL",
        "ports": [options.container_port],
        "use_config_proxy": False,
        "host_config": _host_config(api, spec, network),
    }


def options_of(spec: EngineSpec) -> DockerOptions:
    """The pool's Docker settings, or the defaults."""
    return spec.options if isinstance(spec.options, DockerOptions) else DockerOptions()


def engine_args(spec: EngineSpec, options: DockerOptions) -> list[str]:
    """The engine's arguments, a seed among them."""
    return with_seed(spec.args or options.args, spec.engine_id, options.random_seed)


def _environment(spec: EngineSpec, options: DockerOptions) -> dict[str, str]:
    home = {"HOME": HOME} if options.private_home else {}
    return {**home, **options.env, **spec.env}


def _host_config(api: APIClient, spec: EngineSpec, network: str) -> Any:
    options = options_of(spec)
    memory = options.memory_mb * MIB if options.memory_mb is not None else None
    return api.create_host_config(
        network_mode=network,
        # Host address and port are always given: left open, IPv4 and IPv6 get different ports, on all addresses.
        port_bindings={options.container_port: (spec.host, spec.port)},
        mounts=_mounts(options),
        tmpfs=_tmpfs(spec, options),
        cap_drop=list(options.cap_drop),
        cap_add=list(options.cap_add),
        security_opt=_security(options),
        read_only=options.read_only,
        pids_limit=options.pids,
        mem_limit=memory,
        memswap_limit=memory,  # no swap: an engine out of memory ends, with a reason, instead of crawling
        nano_cpus=round(options.cpus * 1e9) if options.cpus is not None else None,
        init=options.init,
        log_config=LogConfig(
            type="json-file", config={"max-size": f"{options.log_max_mb}m", "max-file": str(LOG_FILES)}
        ),
        auto_remove=False,  # the exit code and the last lines of a dead engine are needed
        restart_policy={"Name": "no"},
    )


def _mounts(options: DockerOptions) -> list[Mount]:
    # Mounts, not volumes: for a missing source the latter make a folder owned by root.
    wanted = ((CREDENTIALS, options.credentials_path), (ROMS, options.roms_path))
    return [
        Mount(target=target, source=str(path.expanduser().absolute()), type="bind", read_only=True)
        for target, path in wanted
        if path is not None
    ]


def _tmpfs(spec: EngineSpec, options: DockerOptions) -> dict[str, str]:
    """Private folders, mounted before the credentials inside /tmp: Docker mounts the shorter path first."""
    if not options.private_home:
        return {}
    # exec: an engine may unpack programs there; suid and devices stay forbidden.
    settings = f"rw,exec,nosuid,nodev,mode=1777,size={options.tmpfs_mb}m"
    return {path: settings for path in (_environment(spec, options)["HOME"], "/tmp")}  # noqa: S108


def _security(options: DockerOptions) -> list[str]:
    wanted = []
    if options.no_new_privileges:
        wanted.append("no-new-privileges")
    if options.seccomp == "unconfined":
        wanted.append("seccomp=unconfined")
    return wanted
