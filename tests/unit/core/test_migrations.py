"""The schema's way forward: from every version that was released, whole or not at all, and with a copy made before."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.model import EngineState, LeaseState
from orchestrator.store import copies, events, leases, meta, migrating, principals
from orchestrator.store.database import Database
from tests.support.core import Core

DUMPS = sorted((Path(__file__).resolve().parents[2] / "fixtures" / "schemas").glob("*.sql"))
MORE = "CREATE TABLE more (a TEXT);\n"


def _as_released(dump: Path, folder: Path) -> Path:
    """A database as a released Cornerman left it."""
    path = folder / "cornerman.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(dump.read_text("utf-8"))
        db.execute("PRAGMA journal_mode = WAL")
    return path


def _schema(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every table with its columns, every index and trigger: what counts, whatever the statements looked like."""
    with closing(sqlite3.connect(path)) as db:
        names = db.execute(
            "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        return {
            f"{kind} {name}": [row[1:] for row in db.execute(f"PRAGMA {kind}_xinfo('{name}')")]
            if kind != "trigger"
            else []
            for kind, name in names
        }


def _backups(path: Path) -> list[Path]:
    return sorted((path.parent / migrating.BACKUPS).glob("*"))


@pytest.fixture
def known() -> tuple[str, ...]:
    """The migrations, and one more that a newer Cornerman has."""
    return (*migrating.scripts(), MORE)


def test_there_is_a_database_of_every_released_schema() -> None:
    """A new migration comes with a dump of the schema before it, as the release that had it left it."""
    assert [dump.stem for dump in DUMPS] == [f"{number:04}" for number in range(1, len(DUMPS) + 1)]
    assert len(DUMPS) >= migrating.latest() - 1


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_every_released_schema_becomes_the_newest(dump: Path, tmp_path: Path) -> None:
    """Tables, columns, indexes and triggers are those of a new database, and nothing in it is broken."""
    path = _as_released(dump, tmp_path)
    Database.open(path).close()
    Database.open(tmp_path / "new.db").close()
    assert _schema(path) == _schema(tmp_path / "new.db")
    with closing(sqlite3.connect(path)) as db:
        assert migrating.version_of(db) == migrating.latest()
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        copies.check(db, path)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_what_a_released_daemon_left_goes_on(dump: Path, tmp_path: Path) -> None:
    """Leases, queue, tokens, counters and events are there after the upgrade, and the daemon works with them."""
    path = _as_released(dump, tmp_path)
    with closing(sqlite3.connect(path)) as db:
        before = {
            table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("leases", "slots", "tokens", "principals", "events", "counters", "meters", "idempotency")
        }
        newest = db.execute("SELECT max(seq) FROM events").fetchone()[0]
    core = Core(tmp_path, main={"min_ready": 1, "max_engines": 4}, second={"min_ready": 0, "max_engines": 2})
    with core.read() as read:
        for table, count in before.items():
            assert read.execute(f"SELECT count(*) FROM {table}").fetchone()[0] >= count, table
        assert {lease.state for lease in leases.live(read)} == {LeaseState.ACTIVE, LeaseState.PENDING}
        assert {token.principal for token in principals.list_tokens(read)} == {"alice", "bob", "root"}
        assert len(meta.instance(read)) > 0
        assert events.newest(read) >= newest
    core.settle(ticks=20)
    (active,) = (lease for lease in core.live_leases() if lease.state is LeaseState.ACTIVE)
    assert len([engine for engine in core.engines(EngineState.LEASED) if engine.lease_id == active.id]) == 2
    core.close()


def test_a_copy_is_made_before_a_migration(tmp_path: Path, known: tuple[str, ...]) -> None:
    """What was there before lies beside the database, whole, of the old schema, and for its owner only."""
    path = tmp_path / "cornerman.db"
    database = Database.open(path)
    with database.write() as db:
        meta.put(db, "mark", "before")
    database.close()
    assert _backups(path) == []  # a new database has nothing to lose
    upgraded = Database.open(path, known=known)
    (copy,) = _backups(path)
    assert copy.name == f"0001-schema-{migrating.latest():04}.db"
    assert copy.stat().st_mode & 0o077 == copy.parent.stat().st_mode & 0o077 == 0
    upgraded.close()
    again = Database.open(copy)  # an older Cornerman goes on with it
    with again.read() as db:
        assert meta.get(db, "mark") == "before"
    again.close()
    Database.open(path, known=known).close()
    assert _backups(path) == [copy]


def test_old_copies_give_way(tmp_path: Path, known: tuple[str, ...]) -> None:
    """Only the newest few copies are kept."""
    path = tmp_path / "cornerman.db"
    for number in range(1, 9):
        steps = (*known, *("SELECT 1;\n" for _ in range(number)))
        Database.open(path, known=steps).close()
    assert [copy.name[:4] for copy in _backups(path)] == ["0003", "0004", "0005", "0006", "0007"]


def test_a_migration_is_done_once_and_wholly(tmp_path: Path, known: tuple[str, ...]) -> None:
    """A migration that fails changes nothing, and the database is as good as before."""
    path = tmp_path / "cornerman.db"
    Database.open(path).close()
    with pytest.raises(ConfigError, match="already exists"):
        Database.open(path, known=(*known, MORE))
    with closing(sqlite3.connect(path)) as db:
        assert migrating.version_of(db) == migrating.latest()
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'more'").fetchone()[0] == 0
    for _ in range(2):
        Database.open(path, known=known).close()
    with closing(sqlite3.connect(path)) as db:
        assert migrating.version_of(db) == migrating.latest() + 1


def test_a_migration_without_room_for_the_copy_is_not_begun(
    tmp_path: Path, known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the copy cannot be made nothing is changed, and the sentence says to free some space."""
    path = tmp_path / "cornerman.db"
    Database.open(path).close()
    (tmp_path / migrating.BACKUPS).write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="cannot be opened"):
        Database.open(path, known=known)
    (tmp_path / migrating.BACKUPS).unlink()

    def full(_source: Path, target: Path) -> None:
        raise ConfigError(f"{target} cannot be written: free some space there; nothing was changed.")

    monkeypatch.setattr(copies, "copy", full)
    with pytest.raises(ConfigError, match="free some space"):
        Database.open(path, known=known)
    with closing(sqlite3.connect(path)) as db:
        assert migrating.version_of(db) == migrating.latest()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path, known: tuple[str, ...]) -> None:
    """An older daemon does not touch what a newer one wrote, and says to upgrade or where the copy from before is."""
    path = tmp_path / "cornerman.db"
    Database.open(path, known=known).close()
    with pytest.raises(
        ConfigError, match=r"newer Cornerman \(schema \d+, this one knows \d+\): upgrade Cornerman, or restore"
    ):
        Database.open(path)


def test_a_database_that_another_process_migrates_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemon and relay start together after an upgrade: who comes second and waits too long looks for no full disk."""
    monkeypatch.setattr("orchestrator.store.database.BUSY_TIMEOUT_S", 0.1)
    path = tmp_path / "cornerman.db"
    Database.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigError, match=r"busy with it.*try again"):
            Database.open(path)
    Database.open(path).close()
