"""A Unix socket in the state folder, whose path may be longer than a socket's address can be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PICTURES = "pictures.sock"
"""Where the relay shows what is played, to processes of this user on this host."""


@contextmanager
def address(folder: Path, name: str) -> Iterator[str]:
    """An address for ``name`` in ``folder``, good inside the block for bind and for connect; OSError without the folder."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
