"""What lies at the paths of credentials and ROMs, and who may read it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import Config, DockerOptions, PoolConfig
from orchestrator.doctor import roms
from orchestrator.doctor.files import CredentialFacts, Kind, RomFacts
from orchestrator.setup import SERVICE_USER

_DIAMBRA = "diambra/"


@dataclass(frozen=True, slots=True)
class Reader:
    """As whom engines run: a container has no further groups."""

    name: str
    uid: int
    gid: int


def credentials(config: Config) -> list[CredentialFacts]:
    """Those of every pool that runs containers."""
    return [
        _credentials(name, pool, reader(pool.docker)) for name, pool in config.pools.items() if pool.runtime == "docker"
    ]


def rom_folders(config: Config, listed: roms.RomList) -> list[RomFacts]:
    """Those of every pool that runs containers; one folder of several pools is read once."""
    surveyed: dict[Path, roms.RomFolder] = {}
    found = []
    for name, pool in config.pools.items():
        path = pool.docker.roms_path
        if pool.runtime != "docker":
            continue
        if path is None:
            found.append(RomFacts(name, _needs_diambra(pool), None))
        elif path not in surveyed:
            surveyed[path] = roms.survey(name, path.expanduser(), listed)
            found.append(RomFacts(name, True, surveyed[path]))
    return found


def reader(options: DockerOptions) -> Reader:
    """Whom a container of these options runs as."""
    if options.user is not None:
        user, _, group = options.user.partition(":")
        if user.isdigit() and (group or "0").isdigit():
            return Reader(f"user {options.user}", int(user), int(group or 0))
        with suppress(KeyError):
            entry = pwd.getpwnam(user)
            gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid if group else entry.pw_gid
            return Reader(f"user {user}", entry.pw_uid, gid)
    if os.geteuid() == 0:
        with suppress(KeyError):
            entry = pwd.getpwnam(SERVICE_USER)
            return Reader(f"user {SERVICE_USER}", entry.pw_uid, entry.pw_gid)
    return Reader(f"user {os.geteuid()}:{os.getegid()}", os.geteuid(), os.getegid())


def _credentials(name: str, pool: PoolConfig, who: Reader) -> CredentialFacts:
    path, needed = pool.docker.credentials_path, _needs_diambra(pool)
    if path is None:
        return CredentialFacts(name, needed, None)
    shown = str(path.expanduser())
    try:
        status = path.expanduser().stat()
    except PermissionError:
        return CredentialFacts(name, needed, shown, Kind.HIDDEN)
    except OSError:
        return CredentialFacts(name, needed, shown, Kind.NOTHING)
    kind = Kind.FOLDER if stat.S_ISDIR(status.st_mode) else Kind.FILE
    return CredentialFacts(name, needed, shown, kind, status.st_size, _may_read(status, who), who.name)


def _may_read(status: os.stat_result, who: Reader) -> bool:
    """By the rights of the file alone: a container without capabilities may no more, not even as root."""
    if status.st_uid == who.uid:
        return bool(status.st_mode & stat.S_IRUSR)
    if status.st_gid == who.gid:
        return bool(status.st_mode & stat.S_IRGRP)
    return bool(status.st_mode & stat.S_IROTH)


def _needs_diambra(pool: PoolConfig) -> bool:
    return pool.image.removeprefix("docker.io/").startswith(_DIAMBRA)
