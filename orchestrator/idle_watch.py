"""Looks whether the host is used, tells when it will stop, and runs the command that stops it."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from orchestrator import idle
from orchestrator.errors import CornermanError
from orchestrator.idle import Idle, Seen, Step
from orchestrator.idle_settings import POWEROFF_WISH, IdleConfig
from orchestrator.interfaces import Now
from orchestrator.store import events, idle_stop, leases
from orchestrator.store.database import Database
from orchestrator.store.idle_stop import IdleStop

log = structlog.get_logger(__name__)

COMMAND_S = 60.0
LOOK_EVERY_S = 5.0
HEARD_WITHIN_S = 20.0
_DRIFT_S = 2.0

Run = Callable[[Sequence[str]], str]
"""Runs a command; what went wrong in a few words, "" for success."""


def run_command(words: Sequence[str]) -> str:
    """Run a command without a shell, at most COMMAND_S."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {COMMAND_S:g} s"
    except OSError as error:
        return f"{words[0]}: {error.strerror or error}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no word of why"])[-1]
    return f"it ended with {done.returncode}: {last[:200]}"


def until_heard(wish: Path, *, within_s: float = HEARD_WITHIN_S) -> str:
    """Wait until systemd has taken the wish to power off; else withdraw it, so that it does not come true at another time."""
    deadline = time.monotonic() + within_s
    while wish.exists():
        if time.monotonic() >= deadline:
            wish.unlink(missing_ok=True)
            return "nobody took it: cornerman-poweroff.path does not run"
        time.sleep(0.1)
    return ""


class IdleWatch:
    """For the daemon's main thread: ``look`` now and then; a start of the daemon counts as use."""

    def __init__(
        self,
        database: Database,
        settings: IdleConfig,
        *,
        now: Now = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        run: Run = run_command,
        heard: Callable[[Path], str] = until_heard,
    ) -> None:
        self._heard = heard
        self._database, self._settings, self._now, self._monotonic, self._run = database, settings, now, monotonic, run
        self._idle = Idle(since=monotonic())
        self._told: IdleStop | None = None
        self._looked_at = -1e9
        self._command: threading.Thread | None = None
        self._outcome: str | None = None

    def look(self) -> None:
        """See whether somebody uses the host, and do what that asks for; a store that cannot be read or written is use."""
        mono = self._monotonic()
        if mono - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = mono
        try:
            self._look(mono)
        except (CornermanError, sqlite3.Error) as error:
            log.warning("cannot look whether the host is used", fault=str(error))

    def begin(self) -> None:
        """What a former life announced holds no more."""
        with self._database.write() as db:
            idle_stop.put(db, None)

    def _look(self, mono: float) -> None:
        after_s = self._settings.after
        if after_s is None:
            return
        if self._command is not None:
            self._finish(mono, after_s)
            return
        with self._database.read() as db:
            decided, step, shown = self._judge(db, after_s, mono)
        if step is not Step.NOTHING or not _alike(shown, self._told):
            with self._database.write() as db:  # nobody can come while this is open: what is told and done is true
                decided, step, shown = self._judge(db, after_s, mono)
                idle_stop.put(db, shown)
                if step is not Step.NOTHING:
                    kind, text = self._event(step, after_s)
                    events.record(db, kind, text, now=self._now())
            self._told = shown
        self._idle = decided
        if step is Step.STOP:
            log.info("nobody uses this host: it stops", command=self._settings.command)
            self._command = threading.Thread(target=self._work, name="idle-stop", daemon=True)
            self._command.start()

    def _judge(self, db: sqlite3.Connection, after_s: float, mono: float) -> tuple[Idle, Step, IdleStop | None]:
        """How idle the host is, what there is to do, and when it stops as far as that is to be shown."""
        now = self._now()
        seen = see(db, now)
        decided, step = idle.decide(self._idle, seen, after_s=after_s, now=mono)
        announced = decided.announced_at is not None
        if seen.queued or (seen.quiet_s is not None and not announced):
            return decided, step, None
        stop = IdleStop(now - (mono - decided.since), now + (decided.stops_at(after_s) - mono), announced)
        return decided, step, stop

    def _event(self, step: Step, after_s: float) -> tuple[str, str]:
        """Kind and text of what is told of a step."""
        if step is Step.ANNOUNCE:
            left = _minutes(idle.notice_s(after_s))
            return "host.idle_announced", f"nobody leases: this host stops in {left} unless somebody does before"
        if step is Step.CALL_OFF:
            return "host.idle_called_off", "this host is used again, and does not stop"
        return "host.idle_stopping", f"nobody leased for {_minutes(after_s)}: {self._settings.command!r} is run"

    def _work(self) -> None:
        fault = self._run(self._settings.words)
        if not fault and self._settings.is_default:
            fault = self._heard(Path(POWEROFF_WISH))
        self._outcome = fault

    def _finish(self, mono: float, after_s: float) -> None:
        """The command has ended, or is still running: then nothing else is decided."""
        if self._outcome is None:
            return
        fault, self._outcome, self._command = self._outcome, None, None
        self._idle = idle.after_command(self._idle, succeeded=not fault, after_s=after_s, now=mono)
        if not fault:
            return
        log.warning("the command that stops this host failed", command=self._settings.command, fault=fault)
        with self._database.write() as db:
            text = f"{self._settings.command!r} failed, so this host goes on ({fault}): see 'cornerman doctor'"
            events.record(db, "host.idle_failed", text, now=self._now())


def see(db: sqlite3.Connection, now: float) -> Seen:
    """What the store says of the host's use; a lease that the relay never saw may be used without anybody seeing it."""
    live = leases.live(db)
    active = [lease for lease in live if lease.granted_at is not None]
    quiet = [
        0.0 if lease.last_call_at is None else now - max(lease.last_call_at, lease.granted_at or 0) for lease in active
    ]
    return Seen(
        queued=len(live) - len(active),
        newest_lease=leases.newest(db),
        quiet_s=min(quiet, default=None),
    )


def _alike(one: IdleStop | None, other: IdleStop | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.announced == other.announced and abs(one.stops_at - other.stops_at) < _DRIFT_S


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
