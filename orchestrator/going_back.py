"""After an upgrade whose daemon did not start: the database as the former Cornerman left it, so that this one can run again.

    python -m orchestrator.going_back DATABASE SCHEMA

A newer Cornerman has brought the database to a schema that the former one refuses, and kept a copy of it before. The installer
runs this as root, with daemon and relay stopped; what it takes away is kept beside that copy.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.errors import ConfigError, CornermanError
from orchestrator.lock import owning, unused
from orchestrator.store import copies, migrating


def go_back(database: Path, schema: int) -> Path | None:
    """Put the newest copy of ``schema`` or an older one in place; returns where the newer database is kept, None when all is well.

    ConfigError, with nothing changed, when there is no such copy.
    """
    with owning(database), unused(database):
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as db:
            version = migrating.version_of(db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else the rest of it would be taken for the copy's
        if version <= schema:
            return None
        former = _newest(database.parent / migrating.BACKUPS, schema)
        aside = former.with_name(f"{former.stem.partition('-')[0]}-newer-{version:04}.db")
        copies.copy(database, aside)
        part = database.with_name(f".{database.name}.former")
        part.unlink(missing_ok=True)
        copies.copy(former, part)
        for file in (aside, part):
            _give(file, like=database)
        for name in ("-wal", "-shm"):
            database.with_name(f"{database.name}{name}").unlink(missing_ok=True)
        part.replace(database)
    return aside


def _newest(folder: Path, schema: int) -> Path:
    found = {
        int(match[1]): file
        for file in sorted(folder.glob("*.db"))
        if (match := re.fullmatch(r"(\d{4,})-schema-(\d{4})\.db", file.name)) and int(match[2]) <= schema
    }
    if not found:
        raise ConfigError(f"There is no copy of schema {schema} in {folder}: restore a backup of your own.")
    return found[max(found)]


def _give(file: Path, *, like: Path) -> None:
    status = like.stat()
    os.chown(file, status.st_uid, status.st_gid)


def main(arguments: Sequence[str]) -> int:
    """Run it; returns the exit code."""
    database, schema = arguments
    try:
        aside = go_back(Path(database), int(schema))
    except (CornermanError, OSError, sqlite3.Error) as fault:
        print(f"cornerman: {fault}", file=sys.stderr)  # noqa: T201 - a command's own output
        return 1
    if aside is not None:
        print(f"cornerman: the database is again as it was before; the newer one is {aside}", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
