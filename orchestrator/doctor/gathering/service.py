"""The units as systemd has them, and the daemon's state, which is only read."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.config import Config
from orchestrator.doctor.service import POWEROFF_UNIT, UNITS, PoolFacts, StateFacts, UnitFacts
from orchestrator.places import SYSTEM_FOLDER
from orchestrator.store import migrating

_SYSTEMD, _LOCKS = Path("/run/systemd/system"), Path("/proc/locks")
_PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload")


def units(config_file: Path) -> tuple[UnitFacts, ...] | None:
    """Those of the system's own daemon; None for another's, and where systemd does not run."""
    systemctl = shutil.which("systemctl")
    if not _SYSTEMD.is_dir() or systemctl is None or config_file.parent != SYSTEM_FOLDER:
        return None
    return tuple(_unit(systemctl, name) for name in (*UNITS, POWEROFF_UNIT))


def _unit(systemctl: str, name: str) -> UnitFacts:
    text = ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([systemctl, *show(name)], capture_output=True, text=True, timeout=10, check=False)
        text = done.stdout
    return parse_unit(name, text)


def show(name: str) -> tuple[str, ...]:
    """What systemctl is asked for a unit."""
    return "show", name, f"--property={','.join(_PROPERTIES)}"


def parse_unit(name: str, text: str) -> UnitFacts:
    """What systemctl answered; "unknown" where it did not."""
    shown = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return UnitFacts(
        name=name,
        load=shown.get("LoadState", "unknown"),
        active=shown.get("ActiveState", "unknown"),
        enabled=shown.get("UnitFileState", "") or "not installed",
        needs_reload=shown.get("NeedDaemonReload") == "yes",
    )


def state(config: Config) -> StateFacts:
    """The state folder and its database, as they are now."""
    path, running = str(config.state_dir), is_owned(config.database)
    try:
        mode = stat.S_IMODE(config.state_dir.stat().st_mode)
        config.database.stat()
    except FileNotFoundError:
        return StateFacts(path, exists=False, running=running)
    except OSError as error:
        return StateFacts(path, exists=True, running=running, fault=error.strerror or str(error))
    try:
        with closing(sqlite3.connect(f"{config.database.as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            db.row_factory = sqlite3.Row
            return _read(db, StateFacts(path, exists=True, running=running, mode=mode, known_schema=migrating.latest()))
    except sqlite3.Error as error:
        return StateFacts(path, exists=True, running=running, mode=mode, fault=str(error))


def _read(db: sqlite3.Connection, so_far: StateFacts) -> StateFacts:
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    (whole,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if whole != "ok":
        raise sqlite3.DatabaseError(f"it is damaged ({whole})")
    known = replace(so_far, schema=int(schema))
    if not 1 <= schema <= so_far.known_schema:
        return known
    fault = db.execute("SELECT value FROM meta WHERE key = 'host_fault'").fetchone()
    event = db.execute("SELECT at FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    return replace(
        known,
        host_fault="" if fault is None else str(fault[0]),
        newest_event=None if event is None else float(event[0]),
        engine_ports=frozenset(row[0] for row in db.execute("SELECT port FROM engines WHERE state <> 'gone'")),
        pools={
            row["name"]: PoolFacts(row["image"], row["pinned"], row["fault"], bool(row["paused"]))
            for row in db.execute("SELECT * FROM pools")
        },
    )


def is_owned(database: Path) -> bool:
    """Whether a daemon holds the lock beside ``database``: looked up, because taking it could turn away one that starts."""
    try:
        inode = database.with_name(f"{database.name}.lock").stat().st_ino
        locks = _LOCKS.read_text("ascii").splitlines()
    except OSError:
        return False
    fields = (line.split() for line in locks if "->" not in line)
    return any(
        words[1] == "FLOCK" and words[3] == "WRITE" and words[5].rpartition(":")[2] == str(inode) for words in fields
    )
