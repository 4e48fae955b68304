"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, replace: bool = True) -> None:
    """Write ``path`` so that nobody sees a part of it; FileExistsError when it is there and ``replace`` is False."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if replace:
            part.replace(path)
        else:
            os.link(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
