"""When a host that nobody uses stops: the decision, what is told of it, and the command."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import idle_watch
from orchestrator.config import build
from orchestrator.errors import ConfigError
from orchestrator.idle import AGAIN_S, Idle, Seen, Step, after_command, decide, notice_s
from orchestrator.idle_settings import POWEROFF_COMMAND, IdleConfig
from orchestrator.idle_watch import IdleWatch, run_command, see, until_heard
from orchestrator.model import LeaseState
from orchestrator.status_line import status_line
from orchestrator.store import events, idle_stop, leases, pools
from orchestrator.store.database import Database
from tests.support.core import START, Clock, a_lease
from tests.support.waiting import wait_until

AFTER_S = 2700.0
UNUSED = Seen(queued=0, newest_lease=7)


def _steps(seen: Seen, times: Sequence[float], before: Idle | None = None) -> tuple[Idle, list[Step]]:
    """What is decided at those seconds after the daemon's start, while the store says ``seen``."""
    state, steps = before or Idle(since=0.0), []
    for now in times:
        state, step = decide(state, seen, after_s=AFTER_S, now=now)
        steps.append(step)
    return state, steps


# ---------------------------------------------------------------- the decision


def test_an_unused_host_is_told_of_and_then_stops() -> None:
    """Five minutes before, the stop is announced; after the whole time it comes, and not earlier."""
    _, steps = _steps(UNUSED, [0, 2399, 2400, 2699, 2700])
    assert steps == [Step.NOTHING, Step.NOTHING, Step.ANNOUNCE, Step.NOTHING, Step.STOP]


def test_the_notice_is_always_a_whole_one() -> None:
    """A daemon that looks late, because the machine was asleep, still announces first."""
    _, steps = _steps(UNUSED, [0, 9000, 9299, 9300])
    assert steps == [Step.NOTHING, Step.ANNOUNCE, Step.NOTHING, Step.STOP]


def test_a_queue_keeps_the_host_up() -> None:
    """However long somebody waits, the host does not stop under them, and their coming calls an announced stop off."""
    announced, _ = _steps(UNUSED, [0, 2400])
    state, steps = _steps(Seen(queued=1, newest_lease=8), [2500, 2700, 99999], announced)
    assert steps == [Step.CALL_OFF, Step.NOTHING, Step.NOTHING]
    assert state.stops_at(AFTER_S) == 99999 + AFTER_S


def test_a_lease_whose_engines_are_called_keeps_the_host_up() -> None:
    """A lease that was called within the time counts as use, one that nobody sees the calls of as well."""
    for quiet in (0.0, AFTER_S / 2):
        state, steps = _steps(Seen(queued=0, newest_lease=7, quiet_s=quiet), range(0, 20_000, 100))
        assert Step.STOP not in steps
        assert state.since >= 19_900 - quiet


def test_a_lease_that_nobody_uses_does_not_keep_the_host_up_for_ever() -> None:
    """A forgotten notebook whose engines were not called in all that time costs no instance."""
    state = Idle(since=0.0)
    for now in range(0, 2701, 100):
        state, step = decide(state, Seen(queued=0, newest_lease=7, quiet_s=float(now)), after_s=AFTER_S, now=now)
    assert step is Step.STOP


def test_a_lease_that_came_and_went_between_two_looks_is_use() -> None:
    """A short lease, which no look saw, begins the time anew; that ended leases are forgotten does not."""
    announced, _ = _steps(UNUSED, [0, 2400])
    state, steps = _steps(Seen(queued=0, newest_lease=8), [2500], announced)
    assert (steps, state.since) == ([Step.CALL_OFF], 2500)
    _, steps = _steps(Seen(queued=0, newest_lease=3), [2700], announced)
    assert steps == [Step.STOP]


def test_after_the_command_nothing_happens_for_a_while() -> None:
    """The machine goes down; if the command failed it is tried again in ten minutes, announced anew."""
    state, _ = _steps(UNUSED, [0, 2400, 2700])
    assert after_command(state, succeeded=True, after_s=AFTER_S, now=2700).stops_at(AFTER_S) == 2700 + AFTER_S
    failed = after_command(state, succeeded=False, after_s=AFTER_S, now=2700)
    assert failed.stops_at(AFTER_S) == 2700 + AGAIN_S
    assert _steps(UNUSED, [2701, 3000, 3300], failed)[1] == [Step.NOTHING, Step.ANNOUNCE, Step.STOP]


@given(
    st.lists(
        st.tuples(st.floats(0.1, 2000), st.integers(0, 2), st.integers(0, 3), st.none() | st.floats(-100, 5000)),
        max_size=60,
    )
)
def test_it_never_stops_while_used_nor_without_notice(history: list[tuple[float, int, int, float | None]]) -> None:
    """Whatever happens in whatever order: no stop with a queue or a recent call, and none that was not announced in time."""
    state, now, newest, used_at, announced_at = Idle(since=0.0), 0.0, 0, 0.0, -1.0
    for passed, queued, came, quiet in history:
        now, newest = now + passed, newest + came
        state, step = decide(state, Seen(queued, newest, quiet), after_s=AFTER_S, now=now)
        if queued:
            used_at = now
        elif quiet is not None:
            used_at = max(used_at, now - max(0.0, quiet))
        if step is Step.ANNOUNCE:
            announced_at = now
        elif step is Step.CALL_OFF:
            announced_at = -1.0
        elif step is Step.STOP:
            assert now - used_at >= AFTER_S - 1e-6
            assert 0 <= announced_at <= now - notice_s(AFTER_S) + 1e-6
            state = after_command(state, succeeded=True, after_s=AFTER_S, now=now)
            announced_at = -1.0


# ---------------------------------------------------------------- what the daemon does


class Host:
    """A database, clocks, and a watch whose command only says that it ran."""

    def __init__(self, folder: Path, *, outcome: str = "") -> None:
        self.clock, self.ran, self.outcome = Clock(), list[Sequence[str]](), outcome
        self.database = Database.open(folder / "cornerman.db")
        with self.database.write() as db:
            pools.configure(db, "main", min_ready=0, max_engines=4, image="engine:1")
        self.watch = self._watch()

    def _watch(self) -> IdleWatch:
        watch = IdleWatch(
            self.database,
            IdleConfig.model_validate({"after": "45m", "command": "stop 'this machine'"}),
            now=self.clock.now,
            monotonic=self.clock.monotonic,
            run=self._run,
        )
        watch.begin()
        return watch

    def _run(self, words: Sequence[str]) -> str:
        self.ran.append(words)
        return self.outcome

    def restart(self) -> None:
        """Another life of the daemon."""
        self.watch = self._watch()

    def pass_s(self, seconds: float) -> None:
        """Let time pass, with a look every minute; a command that was begun has ended then."""
        for _ in range(int(seconds // 60)):
            self.clock.pass_s(60)
            self.watch.look()
            wait_until(lambda: not _working(), 5)

    def told(self) -> list[str]:
        """Kinds of the events so far."""
        with self.database.read() as db:
            return [event.kind for event in events.after(db, 0, holder=None, limit=99)]

    @property
    def stop(self) -> idle_stop.IdleStop | None:
        """What API and dashboard show."""
        with self.database.read() as db:
            return idle_stop.get(db)


def _working() -> bool:
    return any(thread.name == "idle-stop" for thread in threading.enumerate())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host that stops after 45 minutes."""
    host = Host(tmp_path)
    yield host
    host.database.close()


def test_the_stop_is_shown_announced_and_carried_out(host: Host) -> None:
    """From the first look on it is shown when the host stops; events tell of it; the command's words are a shell's."""
    host.pass_s(60)
    assert host.stop == idle_stop.IdleStop(since=START, stops_at=START + 2700, announced=False)
    host.pass_s(40 * 60)
    assert host.stop is not None
    assert host.stop.announced
    host.pass_s(6 * 60)
    assert host.ran == [("stop", "this machine")]
    assert host.told() == ["host.idle_announced", "host.idle_stopping"]


def test_systemctl_shows_an_announced_stop(host: Host, tmp_path: Path) -> None:
    """Whoever looks at the unit of an unused host sees when it goes."""
    config = build({"state_dir": str(tmp_path), "pools": {"main": {"runtime": "fake", "image": "engine:1"}}})
    host.pass_s(60)
    assert status_line(host.database, config, host.clock.now()) == "main: no engines"
    host.pass_s(40 * 60)
    line = status_line(host.database, config, host.clock.now())
    assert line == "main: no engines; nobody leases, it stops in 4 min"


def test_a_lease_calls_the_stop_off(host: Host) -> None:
    """While a lease waits, or is held by somebody whose calls are unseen, no stop is shown and none comes."""
    host.pass_s(41 * 60)
    with host.database.write() as db:
        leases.insert(db, a_lease(1, LeaseState.PENDING))
    host.pass_s(60)
    assert (host.told()[-1], host.stop) == ("host.idle_called_off", None)
    with host.database.write() as db:
        leases.activate(db, "l1", now=host.clock.now(), expires_at=host.clock.now() + 1e6)
    host.pass_s(100 * 60)
    assert (host.ran, host.stop) == ([], None)
    with host.database.write() as db:
        leases.end(db, "l1", LeaseState.RELEASED, because="", now=host.clock.now())
    host.pass_s(44 * 60)
    assert host.ran == []
    host.pass_s(2 * 60)
    assert len(host.ran) == 1


def test_who_comes_at_the_last_moment_keeps_the_host_up(tmp_path: Path) -> None:
    """Somebody who asks for a lease just after the look that found nobody is not turned off: the stop is called off."""
    host, came = Host(tmp_path), list[str]()

    class Late(Database):
        """A database in which somebody gets the lock just before the watch."""

        @contextmanager
        def write(self) -> Iterator[sqlite3.Connection]:
            if host.clock.now() >= START + 2700 and not came:
                came.append("l1")
                with super().write() as db:
                    leases.insert(db, a_lease(1, LeaseState.PENDING))
            with super().write() as db:
                yield db

    host.database.close()
    host.database = Late(tmp_path / "cornerman.db")
    host.restart()
    host.pass_s(60 * 60)
    assert (came, host.ran, host.stop) == (["l1"], [], None)
    assert host.told() == ["host.idle_announced", "host.idle_called_off"]
    host.database.close()


def test_a_command_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """The host goes on, an event says why, and ten minutes later it is tried again."""
    host = Host(tmp_path, outcome="it ended with 1: no such folder")
    host.pass_s(47 * 60)
    assert host.told() == ["host.idle_announced", "host.idle_stopping", "host.idle_failed"]
    host.pass_s(12 * 60)
    assert len(host.ran) == 2
    host.database.close()


def test_a_wish_that_nobody_hears_is_a_failure(host: Host, tmp_path: Path) -> None:
    """Where cornerman-poweroff.path does not run the host says so, and the wish does not come true when somebody turns that on."""
    wish = tmp_path / "idle-poweroff"
    host.watch = IdleWatch(
        host.database,
        IdleConfig.model_validate({"after": "45m"}),
        now=host.clock.now,
        monotonic=host.clock.monotonic,
        run=lambda words: run_command((words[0], str(wish))),
        heard=lambda _: until_heard(wish, within_s=0.2),
    )
    host.pass_s(47 * 60)
    assert host.told() == ["host.idle_announced", "host.idle_stopping", "host.idle_failed"]
    assert not wish.exists()
    wish.touch()
    threading.Timer(0.2, wish.unlink).start()
    assert until_heard(wish, within_s=10) == ""


def test_a_new_life_of_the_daemon_gives_the_whole_time(host: Host) -> None:
    """After a restart nothing of the former announcement is shown or holds."""
    host.pass_s(41 * 60)
    host.restart()
    assert host.stop is None
    host.pass_s(44 * 60)
    assert host.ran == []


def test_a_step_of_the_clock_stops_nothing(host: Host) -> None:
    """Report 18: an hour forward on the wall clock is no hour without use."""
    host.pass_s(60)
    host.clock.step(7200)
    host.pass_s(30 * 60)
    assert host.ran == []
    assert host.stop is not None
    assert host.stop.stops_at == pytest.approx(START + 7200 + 2700, abs=3)


def test_without_the_setting_nothing_is_ever_run(tmp_path: Path) -> None:
    """A host stops only where that was asked for."""
    host = Host(tmp_path)
    watch = IdleWatch(host.database, IdleConfig(), now=host.clock.now, monotonic=host.clock.monotonic, run=host._run)
    for _ in range(100):
        host.clock.pass_s(3600)
        watch.look()
    assert (host.ran, host.stop, host.told()) == ([], None, [])
    host.database.close()


def test_what_the_store_says_is_read_as_use(host: Host) -> None:
    """A lease that was called is as quiet as its last call; the least quiet one counts."""
    with host.database.write() as db:
        for number in (1, 2):
            leases.insert(db, a_lease(number, LeaseState.PENDING))
            leases.activate(db, f"l{number}", now=START, expires_at=START + 1e6)
            leases.note_called(db, f"l{number}", START + 100 * number)
        assert see(db, START + 500) == Seen(queued=0, newest_lease=2, quiet_s=300)


# ---------------------------------------------------------------- the command and its settings


def test_a_command_runs_without_a_shell() -> None:
    """What it says is success, an exit code with its last words, or that it cannot be run."""
    assert run_command(("true",)) == ""
    assert run_command(("/nonexistent/stop",)) == "/nonexistent/stop: No such file or directory"
    failing = (sys.executable, "-c", "import sys; sys.exit('not allowed; $HOME')")
    assert run_command(failing) == "it ended with 1: not allowed; $HOME"


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not keep the watch from looking for ever."""
    monkeypatch.setattr(idle_watch, "COMMAND_S", 0.2)
    assert run_command(("sleep", "30")) == "it did not end within 0.2 s"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45m", 2700), ("2h", 7200), ("90s", 90), ("1.5 h", 5400), ("600", 600), (600, 600), ("1D", 86400)],
)
def test_durations_are_written_as_people_write_them(text: object, seconds: float) -> None:
    """A number and a unit, or seconds; also from the environment, where everything is text."""
    assert IdleConfig.model_validate({"after": text}).after == seconds


@pytest.mark.parametrize("wrong", ["soon", "-5m", "5", 1, "inf", "45 minutes", float("nan")])
def test_durations_that_are_none_are_refused(wrong: object, tmp_path: Path) -> None:
    """In one sentence with the place; a time so short that nobody could lease is refused too."""
    with pytest.raises(ConfigError, match=r"idle\.after: "):
        build({"state_dir": str(tmp_path), "idle": {"after": wrong}, "pools": {"main": {}}})


def test_the_default_command_is_what_the_power_off_unit_waits_for() -> None:
    """The daemon may ask for a power-off by that file, and for nothing else."""
    assert IdleConfig(after=2700).is_default
    assert POWEROFF_COMMAND == "touch /run/cornerman/idle-poweroff"
    with pytest.raises(ValueError, match="cannot be split"):
        IdleConfig(command="stop 'this")
    with pytest.raises(ValueError, match="is empty"):
        IdleConfig(command="  ")
