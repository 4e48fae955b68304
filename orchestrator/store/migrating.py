"""Brings a database to the newest schema: all scripts that it lacks in one transaction, after a backup."""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import structlog

from orchestrator.errors import ConfigError
from orchestrator.store import copies

log = structlog.get_logger(__name__)

BACKUPS = "backups"
"""The folder beside the database for copies that were made before a migration."""
KEEP = 5


@functools.cache
def scripts() -> tuple[str, ...]:
    """All migrations in their order; the version of the schema is how many were run."""
    folder = resources.files("orchestrator.store.migrations")
    found = {entry.name: entry for entry in folder.iterdir() if re.fullmatch(r"\d{4}\.sql", entry.name)}
    return tuple(found[f"{number:04}.sql"].read_text("utf-8") for number in range(1, len(found) + 1))


def latest() -> int:
    """The newest version that this Cornerman knows."""
    return len(scripts())


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a database's schema; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, path: Path, *, known: Sequence[str] | None = None) -> None:
    """Run what ``connection`` lacks of the ``known`` scripts; ConfigError, with nothing changed, when it is of a newer Cornerman.

    A database that holds something is copied into BACKUPS first; without the copy nothing is changed.
    """
    known = scripts() if known is None else known
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)
        if version > len(known):
            raise ConfigError(
                f"{path} was written by a newer Cornerman (schema {version}, this one knows {len(known)}): upgrade Cornerman, "
                f"or restore a backup of schema {len(known)} from {path.parent / BACKUPS}."
            )
        if 0 < version < len(known):
            _back_up(path, version)
        for script in known[version:]:
            for statement in _statements(script):
                connection.execute(statement)
        if version < len(known):
            connection.execute(f"PRAGMA user_version = {len(known)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _back_up(path: Path, version: int) -> None:
    folder = path.parent / BACKUPS
    folder.mkdir(mode=0o700, exist_ok=True)
    numbers = [int(found[1]) for file in folder.iterdir() if (found := _NAME.fullmatch(file.name))]
    target = folder / f"{max(numbers, default=0) + 1:04}-schema-{version:04}.db"
    copies.copy(path, target)
    log.info("copied the database before its schema changes", copy=str(target), schema=version)
    kept = sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
    for old in kept[:-KEEP]:
        old.unlink()


_NAME = re.compile(r"(\d{4,})-schema-\d{4}\.db")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one, so that they can be part of a transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
