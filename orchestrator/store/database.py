"""One SQLite file: opening, migrating, and transactions that do not starve each other."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog

from orchestrator.errors import ConfigError, Unavailable
from orchestrator.store import copies, migrating

log = structlog.get_logger(__name__)

BUSY_TIMEOUT_S = 10.0
RETRY_S = 0.001
"""How soon another process's writer is asked again: SQLite's own back-off grows to 100 ms, and starves beside a busy writer."""
POLL_S, CALM_POLL_S, CALM_AFTER_S = 0.05, 0.2, 10.0
"""How often ``Changes`` looks, and how often when nothing has changed for a while: each look costs some 40 microseconds, felt in an idle daemon."""
_FULL = ("disk is full", "disk I/O error", "readonly database", "unable to open")
_BROKEN = ("not a database", "malformed")


_numbers = itertools.count()


class _Connection:
    """A connection that closes itself when its thread ends."""

    def __init__(self, path: Path) -> None:
        self.number = next(_numbers)
        self.raw = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self.raw.row_factory = sqlite3.Row
        try:
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON", "temp_store = MEMORY"):
                self.raw.execute(f"PRAGMA {pragma}")
        except BaseException:
            self.raw.close()
            raise

    def __del__(self) -> None:
        if hasattr(self, "raw"):
            self.raw.close()


class Database:
    """A SQLite database shared by the threads of this process and by other processes.

    Each thread reads through a connection of its own, as long as it lives. Writers of one process queue at a lock, take turns at
    one connection (its cache stays good as long as no other process writes), and ask again soon when another process
    writes, because SQLite's busy back-off starves under load. ``synchronous`` is NORMAL: a killed process loses nothing,
    a power failure may lose the last moment, and it ends the engines as well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writer: _Connection | None = None
        self._local = threading.local()
        self._all: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._all_lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, known: Sequence[str] | None = None) -> Database:
        """Open ``path``, made and migrated if need be; ConfigError when it cannot be, or is of a newer version.

        ``known`` are the migrations, for tests of older and newer versions.
        """
        if copies.unfinished(path).exists():  # else a new, empty one would be made in the place of what is half moved
            raise ConfigError(
                f"A restore of the state in {path.parent} was ended half-way: run 'cornerman restore --replace FILE' again."
            )
        database = cls(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            migrating.migrate(database._connection(), path, known=known)
        except (sqlite3.Error, OSError) as error:
            database.close()
            broken = any(sign in str(error) for sign in _BROKEN)
            cure = "restore it from a backup" if broken else f"check the owner and the free space of {path.parent}"
            if "locked" in str(error):
                cure = "another process is busy with it, perhaps moving it to a newer schema; try again in a moment"
            raise ConfigError(f"The database {path} cannot be opened ({error}): {cure}.") from error
        except BaseException:
            database.close()
            raise
        return database

    def _connection(self) -> sqlite3.Connection:
        return self._own().raw

    def _own(self) -> _Connection:
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = _Connection(self.path)
            self._local.connection = connection
            with self._all_lock:
                self._all.add(connection)
        return connection

    def _writing(self) -> sqlite3.Connection:
        """The connection that writes; only with the lock."""
        if self._writer is None:
            self._writer = _Connection(self.path)
            self._writer.raw.execute("PRAGMA busy_timeout = 0")  # ``_begin`` waits
            with self._all_lock:
                self._all.add(self._writer)
        return self._writer.raw

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that holds the write lock from its beginning: all of it happens, or nothing."""
        with self._lock, _saying_what_to_do(self.path):
            connection = self._writing()
            _begin(connection)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view; never waits for a writer."""
        with _saying_what_to_do(self.path):
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def data_version(self) -> int:
        """A number that changes when any other connection has committed something."""
        (version,) = self._connection().execute("PRAGMA data_version").fetchone()
        return int(version)

    def stamp(self) -> tuple[int, int, int]:
        """While it stays the same, asked by one thread, nobody has committed anything: what was read before still holds."""
        own = self._own()
        return own.number, self.data_version(), own.raw.total_changes

    def close(self) -> None:
        """Close the connections of all threads; none may be in use."""
        with self._all_lock:
            for connection in list(self._all):
                connection.raw.close()
            self._all.clear()
        self._writer = None
        self._local = threading.local()


def _begin(connection: sqlite3.Connection) -> None:
    """Take the write lock, waiting for other processes at most BUSY_TIMEOUT_S."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_S)


@contextmanager
def _saying_what_to_do(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if any(sign in text for sign in _FULL):
            raise Unavailable(
                f"The state cannot be written ({text}): free some space in {path.parent}; nothing was changed.",
                retry_after_s=10,
            ) from error
        if "locked" in text or "busy" in text:
            raise Unavailable("The state is busy for longer than usual: try again.", retry_after_s=1) from error
        raise


class Changes:
    """Wakes whoever waits for the database to change, whichever process changed it."""

    def __init__(self, database: Database, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database, self._monotonic = database, monotonic
        self._condition = threading.Condition()
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="changes", daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """How many changes were seen: read it before looking at the data, and pass it to ``wait``."""
        return self._number

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until ``number`` is above ``after``, at most ``timeout_s``; returns ``number``."""
        with self._condition:
            self._condition.wait_for(lambda: self._number > after or self._stop.is_set(), timeout=timeout_s)
            return self._number

    def nudge(self) -> None:
        """Wake everybody as if something had changed."""
        with self._condition:
            self._number += 1
            self._condition.notify_all()

    def _watch(self) -> None:
        last, well, changed_at = None, True, self._monotonic()
        while not self._stop.wait(CALM_POLL_S if self._monotonic() - changed_at > CALM_AFTER_S else POLL_S):
            try:
                version = self._database.data_version()
            except sqlite3.Error as error:  # must go on: waiters depend on it
                if well:
                    log.warning("the database cannot be watched", fault=str(error))
                well = False
                continue
            well = True
            if version != last:
                last, changed_at = version, self._monotonic()
                self.nudge()

    def close(self) -> None:
        """Stop watching and let go of everybody who waits."""
        self._stop.set()
        self._thread.join()
        self.nudge()
