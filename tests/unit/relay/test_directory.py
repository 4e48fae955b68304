"""What the relay reads in the store and writes there, against the real store and pool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_sdk.wire import Method
from orchestrator.model import EngineState, LeaseState
from orchestrator.relay import directory as directory_module
from orchestrator.relay.directory import Directory, Standing
from orchestrator.relay.lane import Meter, Seat
from orchestrator.store import events, inquiries, meters
from tests.support.core import Core


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    """A pool of fake engines with a spare."""
    core = Core(tmp_path, main={"min_ready": 2, "max_engines": 6})
    core.settle()
    yield core
    core.close()


@pytest.fixture
def directory(core: Core, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """The relay's way into the store; it does not wait long for a reason."""
    monkeypatch.setattr(directory_module, "REASON_WITHIN_S", 0.3)
    return Directory(core.database, core.leasing, now=core.clock.now)


def _standing(directory: Directory, lease_id: str) -> Standing:
    found = asyncio.run(directory.standing(lease_id))
    assert found is not None
    return found


def test_a_lease_is_seen_with_its_engines(core: Core, directory: Directory) -> None:
    """An active lease has its seats by rank, each with the engine's address on this host; an unknown one is None."""
    lease = core.acquire(2).lease
    standing = _standing(directory, lease.id)
    assert (standing.state, standing.pool) == (LeaseState.ACTIVE, "main")
    assert [(seat.rank, seat.generation) for seat in standing.seats] == [(0, 1), (1, 1)]
    ports = {engine.id: engine.port for engine in core.engines(EngineState.LEASED)}
    assert [seat.address for seat in standing.seats] == [
        f"127.0.0.1:{ports[seat.engine_id or '']}" for seat in standing.seats
    ]
    assert asyncio.run(directory.standing("l-none")) is None


def test_an_ended_lease_says_why(core: Core, directory: Directory) -> None:
    """What has ended has no seats and a reason."""
    lease = core.acquire(1).lease
    core.leasing.finish(lease.id, LeaseState.EXPIRED, "nobody renewed it")
    standing = _standing(directory, lease.id)
    assert (standing.state, standing.because, standing.seats) == (LeaseState.EXPIRED, "nobody renewed it", ())


def test_a_hung_engine_is_replaced(core: Core, directory: Directory) -> None:
    """Report 30: an engine that hangs is taken out of its slot, and a ready one steps in at once, one generation on."""
    lease = core.acquire(1).lease
    (seat,) = _standing(directory, lease.id).seats
    text = asyncio.run(directory.hung(seat, Method.STEP, 30.0))
    for word in ("rank 0", str(seat.engine_id), "did not answer step within 30 s"):
        assert word in text
    (after,) = _standing(directory, lease.id).seats
    assert after.generation == 2
    assert after.engine_id != seat.engine_id
    assert after.lost_because == "it hangs: no answer to step within 30 s"
    core.settle()
    assert seat.engine_id not in {engine.id for engine in core.engines()}


def test_the_pools_own_finding_is_the_reason(core: Core, directory: Directory) -> None:
    """When the pool knows why an engine died, the call says so."""
    lease = core.acquire(1).lease
    (seat,) = _standing(directory, lease.id).seats
    engine = next(engine for engine in core.engines() if engine.id == seat.engine_id)

    async def die() -> str:
        telling = asyncio.create_task(directory.died(seat, "Socket closed"))
        await asyncio.sleep(0.05)
        with core.database.write() as db:
            core.leasing.lose(db, engine, "it ran out of memory: raise memory_mb", core.clock.now())
        return await telling

    text = asyncio.run(die())
    assert (
        text
        == f"The engine of rank 0 ({seat.engine_id}) died: it ran out of memory: raise memory_mb. Call make() again for a fresh one."
    )


def test_an_engine_that_nobody_else_finds_dead_is_noted_as_dead(core: Core, directory: Directory) -> None:
    """A broken connection to an engine that seems to run costs it its place after a moment."""
    lease = core.acquire(1).lease
    (seat,) = _standing(directory, lease.id).seats
    text = asyncio.run(directory.died(seat, "Socket closed"))
    assert "its connection broke (Socket closed)" in text
    assert _standing(directory, lease.id).seats[0].generation == 2


@pytest.mark.parametrize("of", ["another lease", "another rank", "nobody"])
def test_an_engine_that_sits_elsewhere_is_left_alone(core: Core, directory: Directory, of: str) -> None:
    """A late report about an engine that serves somebody else by now touches nothing."""
    lease = core.acquire(1).lease
    (seat,) = _standing(directory, lease.id).seats
    stale = {
        "another lease": Seat("l-other", 0, 1, seat.engine_id, seat.address),
        "another rank": Seat(lease.id, 3, 1, seat.engine_id, seat.address),
        "nobody": Seat(lease.id, 0, 1, "e-none", seat.address),
    }[of]
    asyncio.run(directory.unwanted(stale, "no good"))
    assert _standing(directory, lease.id).seats == (seat,)


def test_what_was_done_is_added_up_by_lane_and_pool(core: Core, directory: Directory) -> None:
    """Totals by lane for the lease's life, and counters by pool that never fall."""
    lease = core.acquire(1).lease
    for steps in (10, 5):
        core.clock.pass_s(5)
        done = {(lease.id, 0, "main"): Meter(steps=steps, calls=steps, raw_bytes=1000, wire_bytes=50, engine_s=0.5)}
        asyncio.run(directory.record(done, {lease.id}))
    with core.read() as db:
        (lane,) = meters.of_lease(db, lease.id)
        counted = events.counters(db)
    assert (lane.steps, lane.raw_bytes, lane.wire_bytes, lane.engine_s) == (15, 2000, 100, 1.0)
    assert lane.steps_per_s == pytest.approx(1.0)
    assert counted["relay_steps", "main"] == 15
    assert counted["relay_wire_bytes", "main"] == 100


def test_what_a_forgotten_lease_did_still_counts(core: Core, directory: Directory) -> None:
    """A lane whose lease is gone is counted by pool, and harms nothing."""
    asyncio.run(directory.record({("l-gone", 0, "main"): Meter(steps=3)}, {"l-gone"}))
    with core.read() as db:
        assert meters.of_lease(db, "l-gone") == []
        assert events.counters(db)["relay_steps", "main"] == 3


def test_only_frames_are_the_relays_to_answer(core: Core, directory: Directory) -> None:
    """A question for a frame is seen by the relay alone, and the pool's questions by the pool alone."""
    with core.database.write() as db:
        frame = inquiries.ask(db, "frame", {"engine_id": "e1"}, now=core.clock.now())
        logs = inquiries.ask(db, "logs", {"engine_id": "e1", "tail": 5}, now=core.clock.now())
    assert asyncio.run(directory.look()).frames == ((frame, "e1"),)
    core.tick()
    with core.read() as db:
        assert inquiries.answered(db, frame) is None
        assert inquiries.answered(db, logs) == ({"lines": []},)
    asyncio.run(directory.answer({frame: {"why": "none"}}))
    assert asyncio.run(directory.look()).frames == ()
