"""What a release's source archive has, for tests that install it."""

from __future__ import annotations

import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PARTS = (
    "client_sdk", "orchestrator", "practice_engine", "deploy", "systemd", "setup.cfg", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip


def archive(where: Path) -> Path:
    """Write ``cornerman.tar.gz`` into ``where``, with everything below one folder as an archive of a repository has it."""
    made = where / "cornerman.tar.gz"
    with tarfile.open(made, "w:gz", compresslevel=1) as out:
        for part in _PARTS:
            out.add(ROOT / part, f"cornerman-main/{part}", filter=_kept)
    return made


def _kept(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in item.name else item
