"""Copies of a database that may be written meanwhile: whole or absent, and for their owner only."""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from orchestrator.errors import ConfigError


def copy(source: Path, target: Path) -> None:
    """Copy the committed state of ``source``; ConfigError when there is no room or the copy is not whole."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        part.touch(mode=0o600, exist_ok=False)
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as one,
            closing(sqlite3.connect(part)) as other,
        ):
            one.backup(other)
            other.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
            check(other, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"{source} cannot be copied to {target} ({error}): free some space there; nothing was changed."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def unfinished(database: Path) -> Path:
    """The file that lies beside ``database`` while another state is put in its place."""
    return database.with_name(f"{database.name}.restoring")


def check(connection: sqlite3.Connection, path: Path) -> None:
    """ConfigError unless the database is whole."""
    try:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        said = str(error)
    if said != "ok":
        raise ConfigError(f"{path} is damaged ({said}): take another copy.")
