"""What the kernel tells its tunnel once the engines are there, and the folder they share."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr, field_serializer

from client_sdk._errors import CornermanError

LONGEST_SOCKET_PATH = 100  # the kernel allows 107 bytes; on other systems it is 103
_LONGEST_NAME = "/cornerman-12345678/999.sock"


class Opening(BaseModel):
    """Where the relay of the lease is, and where to listen for the stock client; it holds a token.

    Without a ``folder`` it listens on 127.0.0.1: on ``ports``, by rank, or on free ones. With ``again`` the tunnel was open
    before, so that nothing but the end of the lease is a reason to give up. What is reported of it bears its ``number``.
    """

    model_config = ConfigDict(frozen=True)

    url: str
    token: SecretStr
    folder: str | None
    ports: tuple[int, ...] = ()
    deadlines_s: dict[str, float] = {}
    again: bool = False
    number: int = 0

    @field_serializer("token", when_used="json")
    def _reveal(self, token: SecretStr) -> str:
        return token.get_secret_value()


def private_folder() -> Path:
    """A new folder that only this user can enter, with a path short enough for the sockets in it."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108
        if base and len(os.fsencode(base + _LONGEST_NAME)) <= LONGEST_SOCKET_PATH and _is_safe(base):
            return Path(tempfile.mkdtemp(prefix="cornerman-", dir=base))
    raise CornermanError(
        "There is no folder for the tunnel's sockets: set XDG_RUNTIME_DIR or TMPDIR to one that you can write to and "
        'whose path is short, or lease with local="ports".'
    )


def _is_safe(base: str) -> bool:
    """Whether a folder in ``base`` stays ours: nobody else may write to it, or not remove what is another's."""
    try:
        about = os.stat(base)
    except OSError:
        return False
    ours = about.st_uid in (0, os.geteuid())
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return ours and os.access(base, os.W_OK | os.X_OK) and (not shared or bool(about.st_mode & stat.S_ISVTX))
