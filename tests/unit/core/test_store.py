"""The store: transactions, migrations, what happens when the disk is full, and who is told of changes."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, InvalidTransition, NotFound, Unavailable
from orchestrator.model import FETCH, LOOK_UP, EngineState, Granted, LeaseState, ProbePassed, Retired
from orchestrator.store import database as database_module
from orchestrator.store import engines, events, inquiries, leases, meta, pools
from orchestrator.store.database import Changes, Database
from tests.support.core import START, a_lease, a_policy, an_engine
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database with pool main."""
    database = Database.open(tmp_path / "state" / "cornerman.db")
    with database.write() as db:
        pools.configure(db, "main", min_ready=1, max_engines=4, image="engine:1")
    yield database
    database.close()


# ---------------------------------------------------------------- opening


def test_a_database_is_made_with_its_folder_for_its_owner_only(tmp_path: Path) -> None:
    """The first start makes the state folder, and nobody else can read it."""
    Database.open(tmp_path / "new" / "cornerman.db").close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_what_was_written_is_there_after_opening_again(database: Database) -> None:
    """State outlives the process."""
    with database.write() as db:
        name = meta.instance(db)
    database.close()
    again = Database.open(database.path)
    with again.write() as db:
        assert meta.instance(db) == name
    again.close()


@pytest.mark.parametrize("content", [b"this is no database, and long enough to be looked at" * 100])
def test_what_is_no_database_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    """A damaged file does not end in a traceback of somebody else's library."""
    (tmp_path / "cornerman.db").write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be opened .*restore it from a backup"):
        Database.open(tmp_path / "cornerman.db")


def test_a_folder_that_cannot_be_made_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """A file where the state folder should be is said so."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be opened"):
        Database.open(tmp_path / "file" / "cornerman.db")


# ---------------------------------------------------------------- transactions


def test_a_transaction_happens_wholly_or_not_at_all(database: Database) -> None:
    """Whatever goes wrong within a transaction, none of it is there afterwards."""

    def interrupted() -> None:
        with database.write() as db:
            meta.put(db, "a", "1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with database.read() as db:
        assert meta.get(db, "a") is None


def test_a_reader_sees_one_moment_and_waits_for_no_writer(database: Database) -> None:
    """While a transaction is being written others read what was before it, at once."""
    seen: list[str | None] = []

    def read() -> None:
        with database.read() as db:
            seen.append(meta.get(db, "a"))

    with database.write() as db:
        meta.put(db, "a", "1")
        began = time.monotonic()
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(5)
        assert time.monotonic() - began < 2
    assert seen == [None]
    read()
    assert seen == [None, "1"]


def test_what_a_reader_sees_does_not_change_under_it(database: Database) -> None:
    """One view stays one view, whatever others commit meanwhile."""
    with database.read() as db:
        assert meta.get(db, "a") is None
        writer = threading.Thread(target=lambda: _put(database, "a"))
        writer.start()
        writer.join(5)
        assert meta.get(db, "a") is None


def _put(database: Database, key: str) -> None:
    with database.write() as db:
        meta.put(db, key, "1")


def test_many_writers_take_turns(database: Database) -> None:
    """Sixteen threads that write at once lose nothing, and none of them is starved."""
    slowest = [0.0]

    def write(number: int) -> None:
        for turn in range(20):
            began = time.monotonic()
            with database.write() as db:
                events.record(db, "test", f"{number}/{turn}", now=START)
            slowest[0] = max(slowest[0], time.monotonic() - began)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as db:
        assert len(events.after(db, 0, holder=None, limit=1000)) == 320
        assert events.counters(db)["test", ""] == 320
    assert slowest[0] < 5


def test_connections_of_ended_threads_are_closed(database: Database) -> None:
    """Threads come and go for weeks, and no file handle stays behind."""

    def handles() -> int:
        gc.collect()
        return sum(1 for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(str(database.path)))

    _put(database, "a")
    before = handles()
    for _ in range(30):
        thread = threading.Thread(target=_put, args=(database, "a"))
        thread.start()
        thread.join()
    assert handles() <= before + 2


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_a_database_that_somebody_else_keeps_locked_is_said_to_be_busy(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of another process that does not let go leads to "try again", not to an unknown fault."""
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.05)
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    impatient = Database(database.path)
    try:
        with pytest.raises(Unavailable, match="try again") as caught:
            _put(impatient, "a")
        assert caught.value.retry_after_s
    finally:
        other.execute("ROLLBACK")
        other.close()
        impatient.close()


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def no_bigger_files(database: Database) -> Iterator[None]:
    """The files of this process cannot grow much more, which to a program is a full disk."""
    size = max(file.stat().st_size for file in database.path.parent.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_changes_nothing_and_says_what_to_do(database: Database, no_bigger_files: None) -> None:
    """On a full disk a change is refused as a whole, with what to do; reading goes on, and when there is room again so does all."""
    long = "x" * 10_000

    def fill() -> None:
        for number in range(100):
            with database.write() as db:
                meta.put(db, "last", str(number))
                meta.put(db, f"filler-{number}", long)

    with pytest.raises(Unavailable, match="free some space") as caught:
        fill()
    assert caught.value.status == 503
    with database.read() as db:
        last = int(meta.get(db, "last") or -1)
        assert last >= 0
        assert meta.get(db, f"filler-{last}") == long
        assert meta.get(db, f"filler-{last + 1}") is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    fill()
    with database.read() as db:
        assert meta.get(db, "last") == "99"


# ---------------------------------------------------------------- engines


def test_a_change_decided_on_old_knowledge_is_refused(database: Database) -> None:
    """Every change of state is guarded: what was read before somebody else's change cannot overwrite it."""
    with database.write() as db:
        engines.insert(db, an_engine(1))
    with database.write() as db:
        engines.happen(db, an_engine(1), Retired("first"), START)
    with pytest.raises(InvalidTransition), database.write() as db:
        engines.happen(db, an_engine(1), Retired("second"), START)
    with database.read() as db:
        assert engines.get(db, "e1").reason == "first"


def test_two_engines_never_have_one_port(database: Database) -> None:
    """Report 1: even a fault of ours cannot write one port twice; once the first engine is gone its port is free."""
    with database.write() as db:
        engines.insert(db, an_engine(1, EngineState.RETIRING, port=32001))
    with pytest.raises(sqlite3.IntegrityError), database.write() as db:
        engines.insert(db, an_engine(2, port=32001))
    with database.write() as db:
        db.execute("UPDATE engines SET state = 'gone'")
        engines.insert(db, an_engine(2, port=32001))


def test_two_engines_never_have_one_slot(database: Database) -> None:
    """Even a fault of ours cannot put two engines into one slot."""
    with database.write() as db:
        leases.insert(db, a_lease(1, LeaseState.PENDING))
        for number in (1, 2):
            engines.insert(db, an_engine(number))
        engines.happen(db, an_engine(1), Granted("l1", 0), START)
    with pytest.raises(sqlite3.IntegrityError), database.write() as db:
        engines.happen(db, an_engine(2), Granted("l1", 0), START)


def test_an_engine_reads_as_it_was_written(database: Database) -> None:
    """Nothing of an engine gets lost on the way to the disk and back."""
    engine = an_engine(1, draining=True, reason="why", probe_failures=2, uses=3)
    with database.write() as db:
        engines.insert(db, engine)
        assert engines.get(db, "e1") == engine
        assert engines.live(db) == engines.live(db, runtime="fake") == [engine]
        assert engines.live(db, runtime="docker") == []
        with pytest.raises(NotFound):
            engines.get(db, "e2")


def test_no_statement_about_a_lease_reads_engines_that_are_gone(database: Database) -> None:
    """After an hour of busy leasing a hundred thousand engines are gone, and nothing that happens at each lease looks at them."""
    statements = [
        "SELECT * FROM engines WHERE lease_id = 'l1' ORDER BY rank",
        "SELECT * FROM engines WHERE state <> 'gone' ORDER BY created_at, id",
        "SELECT * FROM engines WHERE pool = 'main' AND state = 'ready' AND NOT draining ORDER BY ready_at, id LIMIT 1",
        "SELECT count(*) FROM engines WHERE pool = 'main' AND state = 'ready' AND NOT draining",
        "SELECT port FROM engines WHERE state <> 'gone'",
        "DELETE FROM engines WHERE state = 'gone' AND state_since < 1",
        "SELECT lease_id FROM engines WHERE lease_id IS NOT NULL",
    ]
    with database.read() as db:
        for statement in statements:
            steps = [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert all("INDEX engines_" in step for step in steps), (statement, steps)


def test_starting_again_does_not_wind_back_the_start_deadline(database: Database) -> None:
    """Report 16: an engine whose start is tried over and over still runs into its deadline."""
    with database.write() as db:
        engines.insert(db, an_engine(1, EngineState.STARTING, started_at=None))
        engines.note_started(db, "e1", START + 1)
        engines.note_started(db, "e1", START + 99)
        assert engines.get(db, "e1").started_at == START + 1


def test_what_nobody_could_look_after_gets_its_time_anew(database: Database) -> None:
    """After an outage of daemon or engine host the starts under way there have their whole deadline again."""
    with database.write() as db:
        engines.insert(db, an_engine(1, EngineState.STARTING, started_at=START - 99))
        engines.insert(db, an_engine(2, EngineState.STARTING, started_at=None))
        engines.insert(db, an_engine(3, EngineState.STARTING, runtime="docker"))
        engines.restart_clocks(db, START + 9, runtimes=["fake"])
        assert [(e.state_since, e.started_at) for e in engines.live(db)] == [
            (START + 9, START + 9),
            (START + 9, None),
            (START, START),
        ]


def test_draining_an_engine_that_is_going_keeps_its_reason(database: Database) -> None:
    """Whoever retires an engine that has failed does not hide why it failed."""
    with database.write() as db:
        engines.insert(db, an_engine(1, EngineState.FAILED, reason="out of memory"))
        engines.drain(db, "e1", "root retired it")
        assert engines.get(db, "e1").reason == "out of memory"


# ---------------------------------------------------------------- the clock, and what is forgotten


def test_a_step_of_the_clock_moves_all_that_is_measured_by_it(database: Database) -> None:
    """Report 18: after a step deadlines, backoffs, quarantines and losses are as far away as before, and leases have a whole TTL."""
    with database.write() as db:
        engines.insert(db, an_engine(1, EngineState.STARTING))
        leases.insert(db, a_lease(1, LeaseState.PENDING))
        leases.activate(db, "l1", now=START, expires_at=START + 1)
        leases.add_slots(db, "l1", 1)
        leases.empty_slot(db, "l1", 0, because="gone", now=START, lost=(START,), steps=7)
        pools.note_fault(db, "main", fault="broken", retry_at=START + 4, again=True, now=START)
        engines.quarantine_port(db, 32005, START + 100)
        meta.shift_clock(db, -3600.0, START - 3600)
        engine, (slot,), lease = engines.get(db, "e1"), leases.empty_slots(db), leases.get(db, "l1")
        assert (engine.started_at, engine.state_since) == (START - 3600, START - 3600)
        assert (slot.empty_since, slot.lost) == (START - 3600, (START - 3600,))
        assert (lease.granted_at, lease.expires_at) == (START - 3600, START - 3600 + lease.ttl_s)
        assert pools.get(db, "main", {"main": a_policy()}).retry_at == START - 3596
        assert engines.port_history(db)[32005][1] == START - 3500


def test_the_event_log_does_not_grow_without_end(database: Database) -> None:
    """Old events are forgotten, and of a flood only the newest stay; numbers never repeat, counters never fall."""
    with database.write() as db:
        for number in range(20):
            events.record(db, "test", str(number), now=START + number)
        assert events.forget(db, START + 5) == 5
        assert events.forget(db, 0, keep=10) == 5
        assert events.forget(db, 0, keep=0, at_most=3) == 3
        assert events.forget(db, 0, keep=0) == 6  # the newest stays: numbers never repeat
        events.record(db, "test", "after", now=START)
        assert [event.seq for event in events.after(db, 0, holder=None, limit=9)] == [20, 21]
        assert events.counters(db)["test", ""] == 21


def test_forgotten_leases_take_their_keys_with_them(database: Database) -> None:
    """Ended leases are kept for a while and then deleted, those that have not ended are not."""
    with database.write() as db:
        for number in (1, 2):
            leases.insert(db, a_lease(number, LeaseState.PENDING))
            leases.save_key(db, "alice", f"k{number}", body_sha256="", lease_id=f"l{number}", now=START)
        leases.end(db, "l1", LeaseState.RELEASED, because="", now=START)
        assert leases.forget_ended(db, START + 1) == 1
        assert leases.find_key(db, "alice", "k1", after=0) is None
        assert leases.find_key(db, "alice", "k2", after=0) == ("l2", "")


def test_forgetting_leases_costs_no_more_when_many_are_kept(database: Database) -> None:
    """The work of forgetting ended leases grows with how many there are, not with its square: others wait to write."""
    count, steps = 400, 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with database.write() as db:
        for number in range(count):
            leases.insert(db, a_lease(number, LeaseState.PENDING))
            leases.save_key(db, "alice", f"k{number}", body_sha256="", lease_id=f"l{number}", now=START)
            leases.end(db, f"l{number}", LeaseState.RELEASED, because="", now=START + number)
        db.set_progress_handler(step, 100)
        assert leases.forget_ended(db, START + count / 2) == count / 2
        db.set_progress_handler(None, 100)
        assert leases.find_key(db, "alice", "k0", after=0) is None
        assert leases.forget_ended(db, START + count, at_most=3) == 3
    assert steps * 100 < 200 * count


def test_an_unchanged_configuration_keeps_what_was_changed_while_running(database: Database) -> None:
    """What an administrator set over REST outlives a restart, until the file itself says something new."""
    policies = {"main": a_policy()}
    with database.write() as db:
        pools.update(db, "main", min_ready=3, max_engines=9, image="engine:2", paused=True)
        pools.pin(db, "main", image="engine:2", pinned="sha-2")
        pools.configure(db, "main", min_ready=1, max_engines=4, image="engine:1")
        assert pools.get(db, "main", policies).min_ready == 3
        pools.ask_fresh(db, "main")
        pools.note_repin_fault(db, "main", image="engine:2", fault="engine:2 is not here", retry_at=START)
        pools.configure(db, "main", min_ready=2, max_engines=4, image="engine:1")
        pool = pools.get(db, "main", policies)
        assert (pool.repin, pool.repin_fault) == (0, None)
        assert (pool.min_ready, pool.max_engines, pool.image, pool.pinned) == (2, 4, "engine:1", None)


def test_a_pin_for_an_image_the_pool_has_left_is_refused(database: Database) -> None:
    """An image resolved slowly does not win over the one an administrator has chosen meanwhile."""
    with database.write() as db:
        pools.update(db, "main", min_ready=1, max_engines=4, image="engine:2", paused=False)
        assert not pools.pin(db, "main", image="engine:1", pinned="sha-1")
        assert pools.get(db, "main", {"main": a_policy()}).pinned is None


def test_an_image_that_cannot_be_had_is_not_held_against_the_next(database: Database) -> None:
    """A fetch that fails after an administrator has moved on says nothing of the image chosen meanwhile, and delays it not."""
    policies = {"main": a_policy()}
    with database.write() as db:
        pools.pin(db, "main", image="engine:1", pinned="sha-1")
        pools.update(db, "main", min_ready=1, max_engines=4, image="engine:3", paused=False)
        assert not pools.note_repin_fault(db, "main", image="engine:2", fault="engine:2 is not here", retry_at=START)
        pool = pools.get(db, "main", policies)
        assert (pool.repin, pool.repin_fault, pool.repin_retry_at) == (LOOK_UP, None, 0)
        assert pools.note_repin_fault(db, "main", image="engine:3", fault="nor is engine:3", retry_at=START)
        assert pools.get(db, "main", policies).repin_fault == "nor is engine:3"


def test_what_is_asked_for_during_a_look_up_is_not_forgotten(database: Database) -> None:
    """An upgrade that is asked for while the image's name is being looked up is still to be done afterwards."""
    policies = {"main": a_policy()}
    with database.write() as db:
        pools.pin(db, "main", image="engine:1", pinned="sha-1")
        pools.update(db, "main", min_ready=1, max_engines=4, image="engine:2", paused=False)
        assert pools.get(db, "main", policies).repin == LOOK_UP
        pools.ask_fresh(db, "main")
        pools.pin(db, "main", image="engine:2", pinned="sha-2", done=LOOK_UP)
        assert pools.get(db, "main", policies).repin == FETCH
        pools.pin(db, "main", image="engine:2", pinned="sha-2", done=FETCH)
        assert pools.get(db, "main", policies).repin == 0


def test_a_question_is_answered_once_and_forgotten(database: Database) -> None:
    """What API and pool ask each other lies in the store no longer than somebody waits for it."""
    with database.write() as db:
        asked = inquiries.ask(db, "logs", {"engine_id": "e1", "tail": 5}, now=START)
        assert inquiries.open_ones(db, kinds=("logs",)) == [(asked, "logs", {"engine_id": "e1", "tail": 5})]
        assert inquiries.open_ones(db, kinds=("frame",)) == []  # is for another process
        assert inquiries.answered(db, asked) is None
        inquiries.answer(db, asked, {"lines": []})
        assert inquiries.open_ones(db, kinds=("logs",)) == []
        assert inquiries.answered(db, asked) == ({"lines": []},)
        inquiries.drop_old(db, START + 1)
        assert inquiries.answered(db, asked) is None


# ---------------------------------------------------------------- changes


def test_a_stamp_stays_as_long_as_nothing_is_committed(database: Database) -> None:
    """What the pool has read is read again after any commit, its own, another thread's or another process's, and only then."""
    seen = [database.stamp()]

    def changed() -> bool:
        seen.append(database.stamp())
        return seen[-1] != seen[-2]

    assert not changed()
    with database.read() as db:
        meta.get(db, "a")
    assert not changed()
    _put(database, "a")
    assert changed()
    assert not changed()
    other = threading.Thread(target=_put, args=(database, "b"))
    other.start()
    other.join()
    assert changed()
    stranger = Database.open(database.path)
    _put(stranger, "c")
    stranger.close()
    assert changed()
    assert not changed()


def test_a_change_by_another_process_wakes_whoever_waits(database: Database) -> None:
    """API and pool are two processes, and each sees what the other wrote within a moment."""
    changes = Changes(database)
    try:
        wait_until(lambda: changes.number, 5)
        seen = changes.number
        script = (
            "import pathlib, sys; from orchestrator.store.database import Database; from orchestrator.store import meta\n"
            "database = Database.open(pathlib.Path(sys.argv[1]))\nwith database.write() as db: meta.put(db, 'a', '1')\ndatabase.close()"
        )
        other = subprocess.Popen([sys.executable, "-c", script, str(database.path)], cwd=ROOT)
        assert changes.wait(seen, 20) > seen
        assert other.wait(20) == 0
    finally:
        changes.close()


def test_a_change_by_a_thread_of_the_same_process_wakes_too(database: Database) -> None:
    """A grant that the pool itself writes wakes the pool's own loop, within a fraction of a second, also after a quiet hour."""
    hours = itertools.count(0.0, 3600.0)
    changes = Changes(database, monotonic=lambda: next(hours))
    try:
        seen = wait_until(lambda: changes.number, 5)
        began = time.monotonic()
        _put(database, "a")
        assert changes.wait(seen, 5) > seen
        assert time.monotonic() - began < 2
    finally:
        changes.close()


def test_waiting_ends_when_there_is_nothing_to_wait_for_any_more(database: Database) -> None:
    """Stopping lets go of everybody who waits, and a wait without change ends at its deadline."""
    changes = Changes(database)
    seen = wait_until(lambda: changes.number, 5)
    assert changes.wait(seen, 0.01) == seen
    waiter = threading.Thread(target=changes.wait, args=(10**9, 60))
    waiter.start()
    changes.close()
    waiter.join(5)
    assert not waiter.is_alive()


def test_a_forked_or_spawned_reader_needs_nothing_of_its_parent(database: Database) -> None:
    """Another process opens the same file by its path, while this one has it open."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_count_pools, (database.path,)).get(60) == 1


def _count_pools(path: Path) -> int:
    database = Database.open(path)
    with database.read() as db:
        (count,) = db.execute("SELECT count(*) FROM pools").fetchone()
    database.close()
    return int(count)


def test_ready_engines_come_in_the_order_in_which_they_became_ready(database: Database) -> None:
    """Those ready for longest are given away first."""
    with database.write() as db:
        for number, at in ((1, 5.0), (2, 3.0), (3, 4.0)):
            engines.insert(db, an_engine(number, EngineState.STARTING))
            engines.happen(db, engines.get(db, f"e{number}"), ProbePassed(), START + at)
        assert [engine.id for engine in engines.ready(db, "main", 2)] == ["e2", "e3"]
