"""One daemon owns a state folder: a second one refuses to start, and nobody puts another state there while one is used."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import CornermanError


class AlreadyRunning(CornermanError):
    """Another daemon owns this state folder."""


@contextmanager
def owning(database: Path) -> Iterator[None]:
    """Hold the lock beside ``database``; the kernel lets go of it when this process ends, however it ends."""
    path = database.with_name(f"{database.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            raise AlreadyRunning(
                f"A daemon (process {owner}) runs with the state in {path.parent} already: stop it first, or give this one "
                "a state_dir and a port of its own."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def using(database: Path) -> Iterator[None]:
    """For a process beside the daemon, as the relay is: the state is not exchanged until this one has ended."""
    with _users_lock(database, fcntl.LOCK_SH) as got:
        if not got:
            raise AlreadyRunning(f"The state in {database.parent} is being restored: try again when that is done.")
        yield


@contextmanager
def unused(database: Path) -> Iterator[None]:
    """Hold off every process that would begin to use the state; AlreadyRunning while one does."""
    with _users_lock(database, fcntl.LOCK_EX) as got:
        if not got:
            raise AlreadyRunning(
                f"The relay or the API still uses the state in {database.parent}: stop it first "
                "(systemctl stop cornerman cornerman-relay)."
            )
        yield


@contextmanager
def _users_lock(database: Path, kind: int) -> Iterator[bool]:
    path = database.with_name(f"{database.name}.users.lock")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
