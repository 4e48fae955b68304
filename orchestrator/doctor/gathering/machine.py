"""What the kernel says of memory, cores, disks, ports and the clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.config import Config
from orchestrator.doctor.machine import Disk, MachineFacts, PortRange, parse_ports

_NET = Path("/proc/sys/net/ipv4")
_TIMEX_BYTES, _TIME_ERROR = 512, 5  # more than struct timex of any libc; "the clock is not synchronised"


def machine(config: Config, *, docker_root: str, newest_event: float | None) -> MachineFacts:
    """This machine; ``docker_root`` is "" where no pool uses Docker, or its files are elsewhere."""
    disks = [_disk("the state", config.state_dir, for_docker=False)]
    if docker_root and Path(docker_root).exists():
        disks.append(_disk("Docker", Path(docker_root), for_docker=True))
    return MachineFacts(
        memory_bytes=psutil.virtual_memory().total,
        cores=len(os.sched_getaffinity(0)),
        disks=tuple(found for found in disks if found is not None),
        outgoing_ports=_outgoing_ports(),
        reserved_ports=parse_ports(_read(_NET / "ip_local_reserved_ports")),
        clock_in_step=_clock_in_step(),
        now=time.time(),
        newest_event=newest_event,
    )


def _disk(what: str, path: Path, *, for_docker: bool) -> Disk | None:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    with suppress(OSError):
        return Disk(what, str(path), shutil.disk_usage(there).free, for_docker)
    return None


def _outgoing_ports() -> PortRange | None:
    numbers = [int(word) for word in _read(_NET / "ip_local_port_range").split()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError:
        return ""


def _clock_in_step() -> bool | None:
    """What the kernel holds of its own clock; None where it may not be asked."""
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _TIME_ERROR
