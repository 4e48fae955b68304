"""Where a host's files are: the configuration, the admin's connection string, and the state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

CONFIG_NAME = "cornerman.toml"
ADMIN_URL_NAME = "admin.url"
SYSTEM_FOLDER = Path("/etc/cornerman")
SYSTEM_STATE = Path("/var/lib/cornerman")


@dataclass(frozen=True)
class Places:
    """The folder of the configuration and the one of the state; ``shared`` when others than its owner may look in."""

    folder: Path
    state_dir: Path
    shared: bool = False


def places(folder: Path | None = None) -> Places:
    """Where init puts things: all below ``folder``, else where a system's or a user's programs have them."""
    if folder is not None:
        folder = folder.expanduser().absolute()
        return Places(folder, folder / "state")
    if os.geteuid() == 0:
        return Places(SYSTEM_FOLDER, SYSTEM_STATE, shared=True)
    return Places(platformdirs.user_config_path("cornerman"), platformdirs.user_state_path("cornerman"))


def default_config() -> Path:
    """The configuration of this user, else the system's."""
    own = places().folder / CONFIG_NAME
    return own if own.exists() else SYSTEM_FOLDER / CONFIG_NAME
