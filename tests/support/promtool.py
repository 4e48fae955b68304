"""Prometheus' own checker: the one on this machine, else the one of Debian's package, fetched once and kept."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.left_out import leave_out

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "promtool"
PACKAGE, INSIDE = "prometheus", Path("usr/bin/promtool")

_COMMANDS = (
    f"apt-get download {PACKAGE} || {{ apt-get update && apt-get download {PACKAGE}; }}",
    "dpkg-deb -x ./*.deb unpacked",
)


def promtool() -> Path:
    """The program; left out where there is none and none can be fetched."""
    if (found := shutil.which("promtool")) is not None:
        return Path(found)
    if not KEPT.exists():
        _fetch()
    return KEPT


def _fetch() -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT.parent) as folder:
        try:
            for command in _COMMANDS:
                subprocess.run(("sh", "-c", command), cwd=folder, check=True, capture_output=True, timeout=100)
        except (OSError, subprocess.SubprocessError) as error:
            leave_out(f"promtool is not installed, and Debian's package {PACKAGE} cannot be fetched ({error})")
        (Path(folder) / "unpacked" / INSIDE).rename(KEPT)
