"""A host's state as one file, and back."""

from __future__ import annotations

import datetime
import errno
import itertools
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from client_sdk import _url
from orchestrator import auth, config, places, setup, tls
from orchestrator.backup import back_up, restore
from orchestrator.errors import ConfigError
from orchestrator.lock import AlreadyRunning, owning, using
from orchestrator.setup import Choices, Made
from orchestrator.store import meta, migrating, principals
from orchestrator.store.database import Database

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.timezone.utc)


@pytest.fixture
def host(tmp_path: Path) -> Made:
    """A host that was set up."""
    return setup.init(places.places(tmp_path / "host"), Choices(), now=NOW)


def _back_up(host: Made, target: Path) -> Path:
    back_up(config.load(host.config), host.config, target, now=NOW)
    return target


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_comes_back_somewhere_else(host: Made, tmp_path: Path) -> None:
    """CA, keys, tokens and configuration: strings that were handed out are good again, and the configuration names its new state."""
    file = _back_up(host, tmp_path / "backup")
    folder = tmp_path / "new"
    kept, aside = restore(file, folder / "cornerman.toml", folder / "state", replace=False, now=NOW)
    assert (kept.schema, kept.made_at, aside) == (migrating.latest(), "2026-11-30T12:00:00+00:00", None)
    restored = config.load(folder / "cornerman.toml")
    assert restored.state_dir == folder / "state"
    assert tls.fingerprint(tls.files(restored.state_dir).ca) == _url.parse(host.url).ca_sha256
    assert (folder / "admin.url").read_text() == host.admin_url.read_text()
    database = Database.open(restored.database)
    with database.read() as db:
        assert principals.find_token(db, auth.digest(_url.parse(host.url).token.get_secret_value())) is not None
    database.close()
    before, after = _contents(host.state_dir), _contents(folder / "state")
    assert {name: after[name] for name in ("ca.pem", "ca.key", "server.pem", "server.key", "relay.key")} == {
        name: before[name] for name in ("ca.pem", "ca.key", "server.pem", "server.key", "relay.key")
    }


def test_an_early_python_3_11_restores_too(host: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python 3.11 of Debian 12 and Ubuntu 22.04 has a tarfile that knows no filters."""

    def without_filters(self: tarfile.TarFile, member: object, path: str = "", set_attrs: bool = True) -> None:
        raise AssertionError("what it would have written is not checked")

    monkeypatch.setattr(tarfile.TarFile, "extract", without_filters)
    file = _back_up(host, tmp_path / "backup")
    kept, _ = restore(file, tmp_path / "n" / "cornerman.toml", tmp_path / "n" / "state", replace=False, now=NOW)
    assert kept.schema == migrating.latest()


def test_only_its_owner_reads_it(host: Made, tmp_path: Path) -> None:
    """The file holds the CA's key, and so do the files that come out of it."""
    file = _back_up(host, tmp_path / "backup")
    assert file.stat().st_mode & 0o077 == 0
    restore(file, tmp_path / "n" / "cornerman.toml", tmp_path / "n" / "state", replace=False, now=NOW)
    for path in [tmp_path / "n" / "state", *(tmp_path / "n" / "state").rglob("*.key"), tmp_path / "n" / "admin.url"]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_nobody_can_prepare_a_place_for_the_secrets(host: Made, tmp_path: Path) -> None:
    """In a folder that others may write to, as /tmp, a link or file that somebody left there gets nothing of it."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".backup.part").symlink_to(victim)
    (tmp_path / "backup").symlink_to(victim)
    file = _back_up(host, tmp_path / "backup")
    assert victim.read_text() == "mine"
    assert not file.is_symlink()
    assert file.stat().st_mode & 0o077 == 0


def test_a_backup_holds_what_was_written_last(host: Made, tmp_path: Path) -> None:
    """While a daemon writes: what is committed is in it, though it is only in SQLite's log yet."""
    database = Database.open(host.state_dir / "cornerman.db")
    with database.write() as db:
        meta.put(db, "mark", "last")
    file = _back_up(host, tmp_path / "backup")
    database.close()
    restore(file, tmp_path / "n" / "cornerman.toml", tmp_path / "n" / "state", replace=False, now=NOW)
    with closing(sqlite3.connect(tmp_path / "n" / "state" / "cornerman.db")) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'mark'").fetchone() == ("last",)


def test_a_state_that_is_there_is_put_aside_only_when_asked(host: Made, tmp_path: Path) -> None:
    """Nothing is overwritten; with --replace the old state lies in a folder of its own, and the configuration stays."""
    file = _back_up(host, tmp_path / "backup")
    before = _contents(host.state_dir)
    with pytest.raises(ConfigError, match="nothing was changed: add --replace"):
        restore(file, host.config, host.state_dir, replace=False, now=NOW)
    host.config.write_text(host.config.read_text() + "# mine\n")
    _, aside = restore(file, host.config, host.state_dir, replace=True, now=NOW)
    assert aside == host.state_dir / "backups" / "before-restore-20261130T120000"
    assert _contents(aside)["ca.key"] == before["ca.key"]
    assert host.config.read_text().endswith("# mine\n")
    Database.open(host.state_dir / "cornerman.db").close()


def test_a_running_daemon_is_not_pulled_away_from_under_itself(host: Made, tmp_path: Path) -> None:
    """Restoring is refused while a daemon owns the state."""
    file = _back_up(host, tmp_path / "backup")
    before = _contents(host.state_dir)
    with owning(host.state_dir / "cornerman.db"), pytest.raises(AlreadyRunning, match="stop it first"):
        restore(file, host.config, host.state_dir, replace=True, now=NOW)
    assert _contents(host.state_dir) | {"cornerman.db.lock": b""} == before | {"cornerman.db.lock": b""}


def test_a_running_relay_keeps_its_state(host: Made, tmp_path: Path) -> None:
    """The relay is a unit of its own, and would go on with the state that was put aside: restoring waits until it is stopped."""
    file = _back_up(host, tmp_path / "backup")
    database = host.state_dir / "cornerman.db"
    with (
        using(database),
        using(database),
        pytest.raises(AlreadyRunning, match="systemctl stop cornerman cornerman-relay"),
    ):
        restore(file, host.config, host.state_dir, replace=True, now=NOW)
    assert not (host.state_dir / "backups").exists()
    restore(file, host.config, host.state_dir, replace=True, now=NOW)


def test_a_restore_that_fails_half_way_leaves_the_state_as_it_was(
    host: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full when half of the files are in place: what was there is there again."""
    file = _back_up(host, tmp_path / "backup")
    before = _contents(host.state_dir)
    move, moved = shutil.move, list[str]()

    def full(source: Path, target: Path) -> None:
        if len(moved) == 2:
            target.write_bytes(b"a part of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        moved.append(source.name)
        move(source, target)

    monkeypatch.setattr(shutil, "move", full)
    with pytest.raises(ConfigError, match="No space left"):
        restore(file, host.config, host.state_dir, replace=True, now=NOW)
    after = _contents(host.state_dir)
    assert {name: content for name, content in after.items() if not name.endswith(".lock")} == before
    assert len(moved) == 2


def _killed_after(moves: int, work: Callable[[], object]) -> bool:
    """Do it in a process of its own that is killed in the place of a later move of a file; whether that happened."""
    if (child := os.fork()) == 0:
        try:
            left, rename = iter(range(moves)), Path.rename

            def move(source: Path, target: Path) -> None:
                if next(left, None) is None:
                    os._exit(9)
                rename(source, target)

            Path.rename = shutil.move = move  # type: ignore[assignment, method-assign]
            work()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_restore_that_is_killed_half_way_is_not_taken_for_a_new_host(host: Made, tmp_path: Path) -> None:
    """After kill -9 between any two files no daemon begins with an empty state: it asks for the restore again, and that works."""
    file, database = _back_up(host, tmp_path / "backup"), host.state_dir / "cornerman.db"
    before = _contents(host.state_dir / "tls")
    seconds = itertools.count()

    def again() -> None:
        now = NOW + datetime.timedelta(seconds=next(seconds))
        restore(file, host.config, host.state_dir, replace=True, now=now)

    for moves in itertools.count():
        if not _killed_after(moves, again):
            break
        next(seconds)
        with pytest.raises(ConfigError, match="was ended half-way: run 'cornerman restore --replace FILE' again"):
            Database.open(database)
        again()
        Database.open(database).close()
        assert _contents(host.state_dir / "tls") == before
    assert moves > 4


def _cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _no_archive(file: Path) -> None:
    file.write_text("hello")


def _without_manifest(file: Path) -> None:
    with tarfile.open(file, "w:gz"):
        pass


def _evil(file: Path) -> None:
    with tarfile.open(file, "r:gz") as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        content = manifest.read()
    with tarfile.open(file, "w:gz") as archive:
        (file.parent / "manifest.json").write_bytes(content)
        archive.add(file.parent / "manifest.json", "manifest.json")
        archive.add(file.parent / "manifest.json", "state/../../../evil")


@pytest.mark.parametrize("spoil", [_cut, _no_archive, _without_manifest, _evil])
def test_a_file_that_is_no_whole_backup_changes_nothing(host: Made, tmp_path: Path, spoil: object) -> None:
    """A download that broke off, another file, or one that somebody forged: one sentence, and the state as it was."""
    file = _back_up(host, tmp_path / "backup")
    assert callable(spoil)
    spoil(file)
    before = _contents(host.state_dir)
    with pytest.raises(ConfigError):
        restore(file, host.config, host.state_dir, replace=True, now=NOW)
    after = _contents(host.state_dir)
    assert {name: after[name] for name in before} == before
    assert not list(tmp_path.rglob("evil"))
    assert [path.name for path in host.config.parent.iterdir() if path.name.startswith(".restore")] == []


def test_a_backup_of_a_newer_cornerman_is_refused(host: Made, tmp_path: Path) -> None:
    """It says to upgrade first, and changes nothing."""
    with closing(sqlite3.connect(host.state_dir / "cornerman.db")) as db:
        db.execute(f"PRAGMA user_version = {migrating.latest() + 1}")
    file = _back_up(host, tmp_path / "backup")
    with pytest.raises(ConfigError, match=r"upgrade Cornerman, then restore; nothing was changed"):
        restore(file, tmp_path / "n" / "cornerman.toml", tmp_path / "n" / "state", replace=False, now=NOW)
    assert not (tmp_path / "n" / "state" / "cornerman.db").exists()


def test_a_backup_that_cannot_be_written_leaves_no_file(host: Made, tmp_path: Path) -> None:
    """No folder, or no database: one sentence that says what to do, and nothing half written."""
    with pytest.raises(ConfigError, match="cannot be written"):
        _back_up(host, tmp_path / "absent" / "backup")
    (host.state_dir / "cornerman.db").rename(tmp_path / "away.db")
    with pytest.raises(ConfigError, match="cornerman init"):
        _back_up(host, tmp_path / "backup")
    assert not list(tmp_path.glob("*backup*"))
