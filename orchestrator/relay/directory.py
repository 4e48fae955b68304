"""What the relay reads in the store and writes there: seats of leases, and intents. It never ends a lease by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from client_sdk.wire import Method
from orchestrator.errors import NotFound
from orchestrator.leasing import Leasing
from orchestrator.model import EngineState, LeaseState
from orchestrator.probes import reached
from orchestrator.relay.lane import Meter, Seat
from orchestrator.store import engines, leases, meters
from orchestrator.store.database import Database

REASON_WITHIN_S, LOOK_EVERY_S = 2.0, 0.05
_GOING = (EngineState.RETIRING, EngineState.FAILED, EngineState.GONE)


@dataclass(frozen=True, slots=True)
class Standing:
    """A lease as the relay needs it."""

    state: LeaseState
    because: str | None
    version: int
    pool: str
    seats: tuple[Seat, ...]


class Directory:
    """Reads and writes the store off the loop. Also the ``Trouble`` that lanes report to."""

    def __init__(self, database: Database, leasing: Leasing) -> None:
        self._database, self._leasing = database, leasing

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
                address = f"{reached(engine.host)}:{engine.port}" if engine else None
                seats.append(Seat(slot.rank, slot.generation, engine.id if engine else None, address, lease.pool))
        return Standing(lease.state, lease.ended_because, lease.version, lease.pool, tuple(seats))

    async def versions(self) -> dict[str, int]:
        """The version of every active lease: one cheap look that tells which to look at again."""
        return await asyncio.to_thread(self._versions)

    def _versions(self) -> dict[str, int]:
        with self._database.read() as db:
            return leases.versions(db)

    # ------------------------------------------------------------ intents

    async def died(self, seat: Seat, text: str) -> str:
        """The engine broke off a call: wait for the pool's own finding of why, and note it as dead if there is none."""
        reason = await asyncio.to_thread(self._reason, seat, f"its connection broke ({text})")
        return f"The engine of rank {seat.rank} ({seat.engine_id}) died: {reason.rstrip('.')}. Call make() again for a fresh one."

    async def hung(self, seat: Seat, method: Method, after_s: float) -> str:
        """The engine did not answer in time: have it replaced."""
        name = method.name.lower()
        await asyncio.to_thread(self._lose, seat, f"it hangs: no answer to {name} within {after_s:.0f} s")
        return (
            f"The engine of rank {seat.rank} ({seat.engine_id}) did not answer {name} within {after_s:g} s and is replaced: "
            "call make() again."
        )

    async def unwanted(self, seat: Seat, reason: str) -> None:
        """The client has no more use for the engine: have it replaced."""
        await asyncio.to_thread(self._lose, seat, f"its client gave it up: {reason}")

    def _reason(self, seat: Seat, otherwise: str) -> str:
        deadline = time.monotonic() + REASON_WITHIN_S
        while time.monotonic() < deadline:
            with self._database.read() as db:
                try:
                    engine = engines.get(db, seat.engine_id or "")
                except NotFound:
                    return otherwise
            if engine.state in _GOING:
                return engine.reason or otherwise
            time.sleep(LOOK_EVERY_S)
        self._lose(seat, otherwise)
        return otherwise

    def _lose(self, seat: Seat, reason: str) -> None:
        """Empty the slot, unless another engine sits in it by now."""
        now = time.time()
        with self._database.write() as db:
            try:
                engine = engines.get(db, seat.engine_id or "")
            except NotFound:
                return
            if engine.state is EngineState.LEASED and engine.rank == seat.rank:
                self._leasing.lose(db, engine, reason, now)

    async def record(self, done: Mapping[tuple[str, int, str], Meter], active: Mapping[str, float]) -> None:
        """Add what lanes (lease, rank, pool) have done, and when leases (by id, wall clock) were last called for."""
        if done or active:
            await asyncio.to_thread(self._record, done, active)

    def _record(self, done: Mapping[tuple[str, int, str], Meter], active: Mapping[str, float]) -> None:
        now = time.time()
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
            for lease_id, at in active.items():
                leases.note_called(db, lease_id, at)
