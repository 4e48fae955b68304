"""The database's way back to a former Cornerman, after an upgrade that does not start."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.going_back import go_back, main
from orchestrator.lock import AlreadyRunning, owning
from orchestrator.store import meta, migrating
from orchestrator.store.database import Database

NEWER = (*migrating.scripts(), "CREATE TABLE more (a TEXT);\n")


def _put(path: Path, value: str, *, known: tuple[str, ...] | None = None) -> None:
    database = Database.open(path, known=known)
    with database.write() as db:
        meta.put(db, "who", value)
    database.close()


def _get(path: Path) -> str | None:
    database = Database.open(path)
    with database.read() as db:
        found = meta.get(db, "who")
    database.close()
    return found


@pytest.fixture
def upgraded(tmp_path: Path) -> Path:
    """A database that a newer Cornerman has brought to its schema, and has written to."""
    path = tmp_path / "cornerman.db"
    _put(path, "former")
    _put(path, "newer", known=NEWER)
    with pytest.raises(ConfigError, match="written by a newer Cornerman"):
        Database.open(path)
    return path


def test_the_former_version_opens_it_again(upgraded: Path) -> None:
    """What the former Cornerman left is in place, what the newer one wrote is kept, and both are for their owner only."""
    aside = go_back(upgraded, migrating.latest())
    assert aside is not None
    assert _get(upgraded) == "former"
    for path in (upgraded, aside):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(sqlite3.connect(aside)) as db:
        assert meta.get(db, "who") == "newer"
    assert go_back(upgraded, migrating.latest()) is None


def test_what_was_in_the_log_of_a_killed_daemon_does_not_come_back(upgraded: Path) -> None:
    """A newer daemon that was killed leaves a write-ahead log; it is not taken for one of the copy that is put in place."""
    db = sqlite3.connect(upgraded)
    db.execute("UPDATE meta SET value = 'killed' WHERE key = 'who'")
    db.commit()
    log = upgraded.with_name("cornerman.db-wal").read_bytes()
    db.close()
    upgraded.with_name("cornerman.db-wal").write_bytes(log)
    go_back(upgraded, migrating.latest())
    assert _get(upgraded) == "former"


def test_nothing_is_changed_without_a_copy(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a copy of such a schema, or while a daemon runs, the database stays as it is, and one sentence says why."""
    before = upgraded.read_bytes()
    with owning(upgraded), pytest.raises(AlreadyRunning):
        go_back(upgraded, migrating.latest())
    for copy in (upgraded.parent / migrating.BACKUPS).iterdir():
        copy.unlink()
    assert main([str(upgraded), str(migrating.latest())]) == 1
    assert capsys.readouterr().err.startswith(f"cornerman: There is no copy of schema {migrating.latest()} in ")
    assert upgraded.read_bytes() == before
