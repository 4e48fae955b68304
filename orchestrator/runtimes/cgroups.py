"""CPU and memory of a container from the kernel's files: 0.2 ms, where Docker's own answer takes a second."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Usage:
    """What a container has used: CPU seconds since its start, and bytes of memory it could not give back now."""

    cpu_s: float
    memory_bytes: int


def read_usage(container_id: str, root: Path = ROOT) -> Usage | None:
    """The usage of a container that runs on this machine, or None when its files are not here."""
    for group in (f"docker/{container_id}", f"system.slice/docker-{container_id}.scope"):
        try:
            if (root / "cgroup.controllers").exists():
                return _read_v2(root / group)
            return _read_v1(root, group)
        except (OSError, ValueError, KeyError):
            continue
    return None


def _read_v1(root: Path, group: str) -> Usage:
    cpu_ns = int((root / "cpuacct" / group / "cpuacct.usage").read_text())
    memory = root / "memory" / group
    used = int((memory / "memory.usage_in_bytes").read_text())
    return Usage(cpu_ns / 1e9, max(0, used - _table(memory / "memory.stat")["total_inactive_file"]))


def _read_v2(group: Path) -> Usage:
    cpu_us = _table(group / "cpu.stat")["usage_usec"]
    used = int((group / "memory.current").read_text())
    return Usage(cpu_us / 1e6, max(0, used - _table(group / "memory.stat")["inactive_file"]))


def _table(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


class CpuMeter:
    """Turns ever-growing CPU seconds into percent of one core since the last look at the same handle."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def percent(self, handle: str, cpu_s: float, *, at: float) -> float | None:
        """Percent of one core since the last look, ``at`` being monotonic seconds; None at the first look."""
        with self._lock:
            before = self._last.get(handle)
            if before is not None and at - before[1] < 0.05:
                return None  # too short a time to say anything; the older look is the better base
            self._last[handle] = (cpu_s, at)
        if before is None or cpu_s < before[0]:
            return None
        return 100.0 * (cpu_s - before[0]) / (at - before[1])

    def forget(self, handle: str) -> None:
        """Drop what is remembered of a handle."""
        with self._lock:
            self._last.pop(handle, None)
