"""What the relay reads in the store and writes there: seats of leases, and intents. It never ends a lease by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from client_sdk.wire import Method
from orchestrator.errors import NotFound
from orchestrator.interfaces import Now
from orchestrator.leasing import Leasing
from orchestrator.model import Caller, EngineState, LeaseState, Scope
from orchestrator.probes import reached
from orchestrator.relay.lane import Meter, Seat
from orchestrator.store import engines, inquiries, leases, meters
from orchestrator.store.database import Database

REASON_WITHIN_S, LOOK_EVERY_S = 2.0, 0.1
FRAME = "frame"
_GOING = (EngineState.RETIRING, EngineState.FAILED, EngineState.GONE)


@dataclass(frozen=True, slots=True)
class Standing:
    """A lease as the relay needs it."""

    state: LeaseState
    because: str | None
    version: int
    pool: str
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Standings:
    """What a look at the store tells: the versions of active leases, and the open questions (id, engine id) for frames."""

    versions: Mapping[str, int]
    frames: tuple[tuple[str, str], ...]


class Directory:
    """Reads and writes the store off the loop. Also the ``Trouble`` that lanes report to."""

    def __init__(self, database: Database, leasing: Leasing, *, now: Now = time.time) -> None:
        self._database, self._leasing, self._now = database, leasing, now

    # ------------------------------------------------------------ looking

    async def standing(self, lease_id: str) -> Standing | None:
        """The lease as it is now, or None when there is none of that id."""
        return await asyncio.to_thread(self._standing, lease_id)

    def _standing(self, lease_id: str) -> Standing | None:
        with self._database.read() as db:
            try:
                lease = leases.get(db, lease_id)
            except NotFound:
                return None
            held = {engine.rank: engine for engine in engines.of_lease(db, lease_id)}
            seats = []
            for slot in leases.slots(db, lease_id):
                engine = held.get(slot.rank)
                seats.append(
                    Seat(
                        lease_id=lease_id,
                        rank=slot.rank,
                        generation=slot.generation,
                        engine_id=engine.id if engine else None,
                        address=f"{_in_address(reached(engine.host))}:{engine.port}" if engine else None,
                        pool=lease.pool,
                        lost_because=slot.lost_because,
                    )
                )
        return Standing(lease.state, lease.ended_because, lease.version, lease.pool, tuple(seats))

    async def look(self) -> Standings:
        """One cheap look that tells which leases to look at again, and whether anybody wants to see a frame."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Standings:
        with self._database.read() as db:
            asked = inquiries.open_ones(db, kinds=(FRAME,))
            return Standings(
                leases.versions(db), tuple((one, str(question.get("engine_id"))) for one, _, question in asked)
            )

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer questions by their ids."""
        await asyncio.to_thread(self._answer, answers)

    def _answer(self, answers: Mapping[str, Any]) -> None:
        with self._database.write() as db:
            for inquiry_id, value in answers.items():
                inquiries.answer(db, inquiry_id, value)

    # ------------------------------------------------------------ intents

    async def died(self, seat: Seat, text: str) -> str:
        """The engine broke off a call: wait for the pool's own finding of why, and note it as dead if there is none."""
        reason = await self._reason(seat, f"its connection broke ({text})")
        return f"The engine of rank {seat.rank} ({seat.engine_id}) died: {reason.rstrip('.')}. Call make() again for a fresh one."

    async def hung(self, seat: Seat, method: Method, after_s: float) -> str:
        """The engine did not answer in time: have it replaced."""
        name = method.name.lower()
        await asyncio.to_thread(self._lose, seat, f"it hangs: no answer to {name} within {after_s:g} s")
        return (
            f"The engine of rank {seat.rank} ({seat.engine_id}) did not answer {name} within {after_s:g} s and is replaced: "
            "call make() again."
        )

    async def unwanted(self, seat: Seat, reason: str) -> None:
        """The client has no more use for the engine: have it replaced."""
        await asyncio.to_thread(self._lose, seat, f"its client gave it up: {reason}", by_holder=True)

    async def _reason(self, seat: Seat, otherwise: str) -> str:
        deadline = time.monotonic() + REASON_WITHIN_S
        while time.monotonic() < deadline:
            state, reason = await asyncio.to_thread(self._fate, seat)
            if state is None or state in _GOING:
                return reason or otherwise
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.to_thread(self._lose, seat, otherwise)
        return otherwise

    def _fate(self, seat: Seat) -> tuple[EngineState | None, str | None]:
        with self._database.read() as db:
            try:
                engine = engines.get(db, seat.engine_id or "")
            except NotFound:
                return None, None
            return engine.state, engine.reason

    def _lose(self, seat: Seat, reason: str, *, by_holder: bool = False) -> None:
        """Empty the slot and let the next engine in, unless the one that is meant sits there no more."""
        now = self._now()
        with self._database.write() as db:
            try:
                engine = engines.get(db, seat.engine_id or "")
            except NotFound:
                return
            sits = (engine.state, engine.lease_id, engine.rank)
            if sits == (EngineState.LEASED, seat.lease_id, seat.rank):
                holder = leases.get(db, seat.lease_id).holder  # whoever has the lease's own token speaks for it
                by = Caller(holder, Scope.LEASE) if by_holder else None
                self._leasing.lose(db, engine, reason, now, by=by)
                self._leasing.fill_if_next(db, seat.lease_id, seat.rank, now)

    async def connected(self, lease_id: str) -> None:
        """The lease uses the relay: from now on its calls, and their absence, are seen."""
        await asyncio.to_thread(self._connected, lease_id)

    def _connected(self, lease_id: str) -> None:
        with self._database.write() as db:
            leases.note_seen(db, lease_id, self._now())

    async def record(self, done: Mapping[tuple[str, int, str], Meter], active: Collection[str]) -> None:
        """Add what lanes (lease, rank, pool) have done; ``active`` are the leases that were called for."""
        if done or active:
            await asyncio.to_thread(self._record, done, active)

    def _record(self, done: Mapping[tuple[str, int, str], Meter], active: Collection[str]) -> None:
        now = self._now()
        with self._database.write() as db:
            for (lease_id, rank, pool), meter in done.items():
                meters.add(
                    db,
                    lease_id,
                    rank,
                    pool=pool,
                    steps=meter.steps,
                    raw_bytes=meter.raw_bytes,
                    wire_bytes=meter.wire_bytes,
                    engine_s=meter.engine_s,
                    queue_s=meter.queue_s,
                    now=now,
                )
            for lease_id in active:
                self._leasing.note_called(db, lease_id, now)


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
