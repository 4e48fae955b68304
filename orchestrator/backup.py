"""A host's state as one file, and back: database, keys, certificates and configuration.

The file is as secret as the host: it holds the CA's key and the administrator's connection string.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from client_sdk._version import __version__
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.files import write_atomically
from orchestrator.lock import owning, unused
from orchestrator.places import ADMIN_URL_NAME, CONFIG_NAME
from orchestrator.store import copies, migrating

_MANIFEST, _STATE, _CONFIG = "manifest.json", "state", "config"
_FORM = 1
_NOT_KEPT = (migrating.BACKUPS,)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a backup says of itself."""

    version: str
    schema: int
    made_at: str


def back_up(config: Config, config_file: Path, target: Path, *, now: datetime) -> Kept:
    """Write ``target``, while the daemon runs or not; ConfigError, with no file left, when that cannot be."""
    if not config.database.exists():
        raise ConfigError(f"There is no database in {config.state_dir}: set this host up with 'cornerman init' first.")
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.absolute().parent) as folder:
            database = Path(folder) / config.database.name
            copies.copy(config.database, database)
            with closing(sqlite3.connect(database)) as db:
                kept = Kept(__version__, migrating.version_of(db), now.isoformat(timespec="seconds"))
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                _add_text(archive, json.dumps({"form": _FORM, **_fields(kept)}))
                archive.add(database, f"{_STATE}/{database.name}")
                for path, name in _files(config, config_file):
                    archive.add(path, name, recursive=False)
                archive.close()
                file.flush()
                os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise ConfigError(
            f"The backup cannot be written to {target} ({error.strerror or error}): name another place, and run as a user "
            f"who may read {config.state_dir}."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()
    return kept


def restore(
    source: Path, config_file: Path, state_dir: Path, *, replace: bool, now: datetime
) -> tuple[Kept, Path | None]:
    """Put what ``source`` holds in place; returns where the state that was there is now.

    ConfigError, with nothing changed, when daemon or relay runs, the file is not whole or of a newer Cornerman, or something is
    there and ``replace`` is not said. A configuration that is there stays.
    """
    database = state_dir / "cornerman.db"
    if database.exists() and not replace:
        raise ConfigError(
            f"There is a state in {state_dir} already, and nothing was changed: add --replace to put it aside and restore."
        )
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        with (
            owning(database),
            unused(database),
            tempfile.TemporaryDirectory(prefix=".restore-", dir=state_dir.parent) as name,
        ):
            folder = Path(name)
            kept = _unpack(source, folder)
            copies.unfinished(database).touch(mode=0o600)  # until all is in place, also when we are killed
            aside = _put_in_place(folder / _STATE, state_dir, now)
            copies.unfinished(database).unlink()
            for one in (CONFIG_NAME, ADMIN_URL_NAME):
                if (folder / _CONFIG / one).exists() and not (config_file.parent / one).exists():
                    config_file.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(folder / _CONFIG / one, config_file.parent / one)
                    if one == CONFIG_NAME:
                        _name_state(config_file.parent / one, state_dir)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or source} cannot be used ({error.strerror or error}): check the file, and run as root or as the "
            f"user who owns {state_dir}."
        ) from error
    return kept, aside


def _put_in_place(fresh: Path, state_dir: Path, now: datetime) -> Path | None:
    """The new files one by one into the folder, whose lock is held; what is there goes into a folder beside them.

    When that fails half-way everything is as before.
    """
    staying = (".lock", copies.unfinished(state_dir / "cornerman.db").suffix)
    there = [path for path in state_dir.iterdir() if path.name not in _NOT_KEPT and path.suffix not in staying]
    aside = state_dir / migrating.BACKUPS / f"before-restore-{now:%Y%m%dT%H%M%S}"
    with ExitStack() as undo:
        undo.callback(copies.unfinished(state_dir / "cornerman.db").unlink, missing_ok=True)
        if there:
            aside.mkdir(parents=True, mode=0o700)
            undo.callback(aside.rmdir)
        for path in there:
            path.rename(aside / path.name)
            undo.callback((aside / path.name).rename, path)
        for path in sorted(fresh.iterdir()):
            undo.callback(_remove, state_dir / path.name)
            shutil.move(path, state_dir / path.name)
        undo.pop_all()
    return aside if there else None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _name_state(config_file: Path, state_dir: Path) -> None:
    """A configuration that was restored somewhere else names where its state is now."""
    line = f"state_dir = {json.dumps(str(state_dir))}"
    text = re.sub(r"^state_dir\s*=.*$", lambda _: line, config_file.read_text("utf-8"), count=1, flags=re.MULTILINE)
    write_atomically(config_file, text.encode(), mode=0o600)


def _unpack(source: Path, folder: Path) -> Kept:
    try:
        with tarfile.open(source, "r:gz") as archive:
            told = json.loads(_text(archive))
            for member in archive:
                place = PurePosixPath(member.name)
                if member.isfile() and place.parts[0] in (_STATE, _CONFIG) and ".." not in place.parts:
                    _write(archive, member, folder)
        kept = Kept(str(told["version"]), int(told["schema"]), str(told["made_at"]))
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{source} is no backup of Cornerman's, or not a whole one ({error}); nothing was changed."
        ) from error
    if told["form"] != _FORM or kept.schema > migrating.latest():
        raise ConfigError(
            f"{source} is of Cornerman {kept.version} (schema {kept.schema}, this one knows {migrating.latest()}): upgrade Cornerman, "
            "then restore; nothing was changed."
        )
    database = folder / _STATE / "cornerman.db"
    if not database.is_file():
        raise ConfigError(f"{source} is no whole backup of Cornerman's, for it has no database; nothing was changed.")
    with closing(sqlite3.connect(database)) as db:
        copies.check(db, source)
    return kept


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One file of the archive; tarfile's own way to do that safely is missing from the Python of some distributions."""
    content, target = archive.extractfile(member), folder / member.name
    if content is None:
        raise ValueError(f"{member.name} is no file")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with content, open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
        os.fchmod(file.fileno(), 0o600 | (member.mode & 0o044))


def _files(config: Config, config_file: Path) -> Iterator[tuple[Path, str]]:
    """Keys and certificates, and the configuration with the administrator's string; not the database, its locks and copies."""
    for path in sorted(config.state_dir.rglob("*")):
        inside = path.relative_to(config.state_dir)
        mine = inside.parts[0] not in _NOT_KEPT and not inside.name.startswith((config.database.name, "."))
        if mine and path.is_file() and not path.is_symlink():
            yield path, f"{_STATE}/{inside.as_posix()}"
    yield config_file, f"{_CONFIG}/{CONFIG_NAME}"
    if (admin := config_file.parent / ADMIN_URL_NAME).is_file():
        yield admin, f"{_CONFIG}/{ADMIN_URL_NAME}"


def _fields(kept: Kept) -> dict[str, object]:
    return {"version": kept.version, "schema": kept.schema, "made_at": kept.made_at}


def _add_text(archive: tarfile.TarFile, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(_MANIFEST)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _text(archive: tarfile.TarFile) -> bytes:
    file = archive.extractfile(archive.getmember(_MANIFEST))
    if file is None:
        raise ValueError("its manifest is no file")
    return file.read()
