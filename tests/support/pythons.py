"""The Python interpreters of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OTHER_VERSIONS = ("3.10", "3.12", "3.13")  # those the SDK supports besides the one that everything is tested on


def find_python(version: str) -> Path | None:
    """A Python of ``version`` ("3.12") with venv, from the PATH or pyenv's folder; None when there is none."""
    found = subprocess.run(
        [ROOT / "scripts" / "find-python", version], capture_output=True, text=True, check=False, timeout=60
    )
    return Path(found.stdout.strip()) if found.returncode == 0 else None
