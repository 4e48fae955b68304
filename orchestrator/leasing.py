"""Leases: acquire, renew, release, replace, grant, expire. Each is one transaction; a request's disconnect owns nothing."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from client_sdk.models import EnvState
from orchestrator import planning
from orchestrator.errors import Conflict, LeaseEnded, NotFound, PoolExhausted, QuotaExceeded, Unprocessable
from orchestrator.interfaces import Now
from orchestrator.model import (
    Caller,
    Died,
    Engine,
    EngineState,
    Granted,
    Lease,
    LeaseState,
    Policy,
    Pool,
    Retired,
    Returned,
    Scope,
)
from orchestrator.store import engines, events, leases, meters, pools
from orchestrator.store.database import Database

KEY_LIVES_S = 86400.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants to lease."""

    envs: int
    pool: str
    ttl_s: float
    wait: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class EnvView:
    """One slot of a lease as its holder sees it; ``address`` is None while its engine is being replaced."""

    rank: int
    engine_id: str | None
    generation: int
    state: EnvState
    address: str | None


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as its holder sees it."""

    lease: Lease
    queue_position: int | None
    envs: tuple[EnvView, ...]


class Leasing:
    """All that happens to leases; used by the API process and by the pool process alike."""

    def __init__(self, database: Database, policies: Mapping[str, Policy], now: Now) -> None:
        self._database, self._policies, self._now = database, policies, now

    def acquire(
        self, caller: Caller, ask: Ask, *, key: str | None = None, body_sha256: str = ""
    ) -> tuple[LeaseView, bool]:
        """A lease, active at once or pending, and whether it was made just now (False: the key stood for it already).

        Raises NotFound (pool), Unprocessable (more than the pool can hold, or key reused for another body), QuotaExceeded, PoolExhausted.
        """
        now = self._now()
        with self._database.write() as db:
            if key is not None and (known := leases.find_key(db, caller.principal, key, after=now - KEY_LIVES_S)):
                if known[1] != body_sha256:
                    raise Unprocessable(
                        "This Idempotency-Key was used with another request body: use a fresh key for each request."
                    )
                return self._view(db, leases.get(db, known[0])), False
            pool = pools.get(db, ask.pool, self._policies)
            there = leases.situation(db, pool.name, caller.principal)
            _check(caller, ask, pool, there)
            at_once = _can_grant(pool, ask.envs, there)
            if not at_once and not ask.wait:
                raise _exhausted(pool, ask.envs, there)
            if not at_once:
                _check_pending(caller, there)
            lease = Lease(
                id=f"l-{secrets.token_hex(8)}",
                seq=there.next_seq,
                state=LeaseState.ACTIVE if at_once else LeaseState.PENDING,
                pool=pool.name,
                holder=caller.principal,
                envs_wanted=ask.envs,
                ttl_s=ask.ttl_s,
                created_at=now,
                expires_at=now + ask.ttl_s,
                labels=dict(ask.labels),
                note=ask.note,
                granted_at=now if at_once else None,
            )
            leases.insert(db, lease)
            if key is not None:
                leases.save_key(db, caller.principal, key, body_sha256=body_sha256, lease_id=lease.id, now=now)
            if at_once:
                held = self._move_in(db, lease, engines.ready(db, pool.name, ask.envs), now, by=caller)
                return LeaseView(lease, None, tuple(_first(pool.policy, held))), True
            text = f"{caller.principal} waits for {ask.envs} engines"
            self._tell(db, "lease.queued", text, lease, now, by=caller)
            return self._view(db, lease), True

    def get(self, caller: Caller, lease_id: str) -> LeaseView:
        """The lease as it is now; looking has no side effects. Somebody else's is NotFound."""
        with self._database.read() as db:
            return self._view(db, self._own(db, caller, lease_id))

    def listed(
        self,
        caller: Caller,
        *,
        states: tuple[LeaseState, ...] = (),
        labels: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> list[LeaseView]:
        """The caller's leases, or everybody's for an admin, newest first; ``labels`` must all match."""
        holder = None if caller.is_admin else caller.principal
        with self._database.read() as db:
            found = leases.listed(db, holder=holder, states=states, labels=labels or {}, limit=limit)
            return [self._view(db, lease) for lease in found]

    def renew(self, caller: Caller, lease_id: str) -> LeaseView:
        """One more TTL from now; LeaseEnded when it is too late. Renewal and expiry race for one row: exactly one wins."""
        now = self._now()
        with self._database.write() as db:
            lease = self._own(db, caller, lease_id)
            if not leases.renew(db, lease_id, expires_at=now + lease.ttl_s):
                raise LeaseEnded(
                    f"Lease {lease_id} has ended ({lease.state.value}: {lease.ended_because}): ask for a new one."
                )
            return self._view(db, leases.get(db, lease_id))

    def release(self, caller: Caller, lease_id: str) -> None:
        """End a lease; again is fine."""
        now = self._now()
        with self._database.write() as db:
            lease = self._own(db, caller, lease_id)
            who = "its holder" if caller.principal == lease.holder else f"administrator {caller.principal}"
            self.end(db, lease, LeaseState.RELEASED, f"{who} released it", now, by=caller)

    def replace(self, caller: Caller, lease_id: str, rank: int, *, generation: int, reason: str) -> LeaseView:
        """Retire a broken engine and leave its slot to a fresh one; naming an old generation changes nothing."""
        now = self._now()
        with self._database.write() as db:
            lease = self._own(db, caller, lease_id)
            if lease.ended:
                raise LeaseEnded(
                    f"Lease {lease_id} has ended ({lease.state.value}: {lease.ended_because}): ask for a new one."
                )
            if lease.state is LeaseState.PENDING:
                raise Conflict(f"Lease {lease_id} has no engines yet: wait until it is active.")
            slot = leases.slot(db, lease_id, rank)
            if slot is None:
                raise NotFound(f"Lease {lease_id} has no rank {rank}: its ranks are 0 to {lease.envs_wanted - 1}.")
            if generation > slot.generation:
                raise Conflict(
                    f"Rank {rank} is at generation {slot.generation}, not {generation}: look at the lease again."
                )
            engine = next((engine for engine in engines.of_lease(db, lease_id) if engine.rank == rank), None)
            if generation == slot.generation and engine is not None:
                who = "its holder" if caller.principal == lease.holder else f"administrator {caller.principal}"
                self.lose(db, engine, f"{who} reported it as broken: {reason}", now, by=caller)
                self.fill_if_next(db, lease_id, rank, now)
            return self._view(db, leases.get(db, lease_id))

    def end_all_of(self, db: sqlite3.Connection, principal: str, now: float, *, by: Caller) -> None:
        """End all leases of a principal who is being removed. In the caller's transaction."""
        live = (LeaseState.PENDING, LeaseState.ACTIVE)
        for lease in leases.listed(db, holder=principal, states=live, limit=1_000_000):
            self.end(db, lease, LeaseState.RELEASED, f"{principal} was removed", now, by=by)

    # ------------------------------------------------------------ what the pool decides

    def grant(self, lease_id: str) -> bool:
        """Give a pending lease its engines; False when it is not pending, or they are not all there any more."""
        now = self._now()
        with self._database.write() as db:
            lease = leases.get(db, lease_id)
            if lease.state is not LeaseState.PENDING or lease.expires_at <= now:
                return False
            if leases.pending_before(db, lease.pool, lease.seq):
                return False
            if engines.count_ready(db, lease.pool) - leases.count_empty_slots(db, lease.pool) < lease.envs_wanted:
                return False
            self._grant(db, lease, now)
            return True

    def fill_slot(self, lease_id: str, rank: int) -> bool:
        """Put a ready engine into an empty slot; False when there is none, or the slot is not empty any more."""
        now = self._now()
        with self._database.write() as db:
            return self.fill(db, lease_id, rank, now)

    def finish(self, lease_id: str, state: LeaseState, because: str, *, if_expired: bool = False) -> bool:
        """End a lease as expired or failed; False when it has ended, or (``if_expired``) was renewed in the meantime."""
        now = self._now()
        with self._database.write() as db:
            lease = leases.get(db, lease_id)
            policy = self._policies.get(lease.pool)
            longest = policy.max_lease_s if policy else None
            overlong = longest is not None and lease.granted_at is not None and lease.granted_at + longest <= now
            idle = policy is not None and planning.is_idle(lease, policy, now)
            if if_expired and lease.expires_at > now and not overlong and not idle:
                return False
            return self.end(db, lease, state, because, now)

    def warn_idle(self, lease_id: str, ends_at: float) -> bool:
        """Announce that a lease ends for idleness; False when it is used again, or was told already."""
        now = self._now()
        with self._database.write() as db:
            lease = leases.get(db, lease_id)
            called = lease.last_call_at
            if called is None or not leases.announce_idle(db, lease_id, ends_at, last_call_at=called):
                return False
            text = (
                f"none of its engines was used for {now - called:.0f} s: it ends in {ends_at - now:.0f} s unless one is"
            )
            self._tell(db, "lease.idle_soon", text, lease, now, data={"ends_in_s": round(ends_at - now)})
            return True

    def note_called(self, db: sqlite3.Connection, lease_id: str, now: float) -> None:
        """One of its engines was called: it is not idle. In the caller's transaction."""
        if leases.note_called(db, lease_id, now):
            lease = leases.get(db, lease_id)
            self._tell(db, "lease.used_again", "one of its engines was used: it goes on", lease, now)

    def lose(
        self, db: sqlite3.Connection, engine: Engine, reason: str, now: float, *, by: Caller | None = None
    ) -> None:
        """An engine is dead or broken: its slot, if it has one, is empty from now on. In the caller's transaction."""
        engines.happen(db, engine, Died(reason), now)
        if engine.lease_id is None or engine.rank is None:
            return
        if (slot := leases.slot(db, engine.lease_id, engine.rank)) is not None:
            steps = meters.steps(db, engine.lease_id, engine.rank)
            lost = planning.lost_by_then(slot, steps, now)
            leases.empty_slot(db, engine.lease_id, engine.rank, because=reason, now=now, lost=lost, steps=steps)
        leases.touch(db, engine.lease_id)
        lease = leases.get(db, engine.lease_id)
        text = f"rank {engine.rank} lost its engine: {reason}"
        self._tell(db, "lease.engine_lost", text, lease, now, engine_id=engine.id, by=by, data={"rank": engine.rank})

    def fill(self, db: sqlite3.Connection, lease_id: str, rank: int, now: float) -> bool:
        """As ``fill_slot``, in the caller's transaction."""
        lease, slot = leases.get(db, lease_id), leases.slot(db, lease_id, rank)
        if slot is None or planning.losses(slot, now) > planning.MAX_LOSSES:
            return False  # it has ended, or is about to
        spare = engines.ready(db, lease.pool, 1)
        if not spare or not leases.fill_slot(db, lease_id, rank):
            return False
        engines.happen(db, spare[0], Granted(lease_id, rank), now)
        leases.touch(db, lease_id)
        text = f"rank {rank} has a fresh engine"
        self._tell(db, "lease.engine_replaced", text, lease, now, engine_id=spare[0].id, data={"rank": rank})
        return True

    def fill_if_next(self, db: sqlite3.Connection, lease_id: str, rank: int, now: float) -> bool:
        """As ``fill``, unless more slots wait than engines are ready: then it is the planner who decides."""
        pool = leases.get(db, lease_id).pool
        if leases.count_empty_slots(db, pool) > engines.count_ready(db, pool):
            return False
        return self.fill(db, lease_id, rank, now)

    # ------------------------------------------------------------ inside

    def _own(self, db: sqlite3.Connection, caller: Caller, lease_id: str) -> Lease:
        lease = leases.get(db, lease_id)
        if lease.holder != caller.principal and not caller.is_admin:
            raise NotFound(f"There is no lease {lease_id!r} of yours: 'cornerman ps' lists those you have.")
        return lease

    def _grant(self, db: sqlite3.Connection, lease: Lease, now: float) -> None:
        spare = engines.ready(db, lease.pool, lease.envs_wanted)
        if not leases.activate(db, lease.id, now=now, expires_at=now + lease.ttl_s):
            raise PoolExhausted("The engines went to somebody else meanwhile: try again.", retry_after_s=1)
        self._move_in(db, lease, spare, now)

    def _move_in(
        self, db: sqlite3.Connection, lease: Lease, spare: list[Engine], now: float, *, by: Caller | None = None
    ) -> list[Engine]:
        """The engines of a lease that has become active step into its slots, by rank."""
        if len(spare) < lease.envs_wanted:
            raise PoolExhausted("The engines went to somebody else meanwhile: try again.", retry_after_s=1)
        leases.add_slots(db, lease.id, lease.envs_wanted)
        held = [engines.happen(db, engine, Granted(lease.id, rank), now) for rank, engine in enumerate(spare)]
        waited_s = max(0.0, now - lease.created_at)
        text = f"{lease.holder} has {lease.envs_wanted} engines"
        by = by or Caller(lease.holder, Scope.LEASE)  # whose waiting has come to its end
        self._tell(db, "lease.granted", text, lease, now, by=by, data={"waited_s": round(waited_s, 3)})
        if waited_s:
            events.add(db, "lease_wait_seconds", waited_s, pool=lease.pool)
        return held

    def end(
        self,
        db: sqlite3.Connection,
        lease: Lease,
        state: LeaseState,
        because: str,
        now: float,
        *,
        by: Caller | None = None,
    ) -> bool:
        """End a lease and let go of its engines, in the caller's transaction; False when it had ended already."""
        held = engines.of_lease(db, lease.id)
        if not leases.end(db, lease.id, state, because=because, now=now):
            return False
        policy = self._policies.get(lease.pool)
        for engine in held:
            if policy is not None and _may_serve_again(engine, policy, now):
                engines.happen(db, engine, Returned(), now)
            else:
                engines.happen(db, engine, Retired("its lease ended"), now)
        self._tell(db, f"lease.{state.value}", f"the lease of {lease.holder} ended: {because}", lease, now, by=by)
        return True

    def _tell(
        self,
        db: sqlite3.Connection,
        kind: str,
        text: str,
        lease: Lease,
        now: float,
        *,
        engine_id: str | None = None,
        by: Caller | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        events.record(
            db,
            kind,
            text,
            now=now,
            pool=lease.pool,
            lease_id=lease.id,
            holder=lease.holder,
            engine_id=engine_id,
            actor=by.principal if by else None,
            token_id=by.token_id if by else "",
            data=data,
        )

    def _view(self, db: sqlite3.Connection, lease: Lease) -> LeaseView:
        position = leases.pending_before(db, lease.pool, lease.seq) + 1 if lease.state is LeaseState.PENDING else None
        return LeaseView(lease, position, tuple(self._envs(db, lease)))

    def _envs(self, db: sqlite3.Connection, lease: Lease) -> Iterable[EnvView]:
        if lease.state is not LeaseState.ACTIVE:
            return
        held = {engine.rank: engine for engine in engines.of_lease(db, lease.id)}
        policy = self._policies.get(lease.pool)
        for slot in leases.slots(db, lease.id):
            engine = held.get(slot.rank)
            if engine is None:
                yield EnvView(slot.rank, None, slot.generation, EnvState.REPLACING, None)
            else:
                yield EnvView(slot.rank, engine.id, slot.generation, EnvState.READY, _address(engine, policy))


def _check(caller: Caller, ask: Ask, pool: Pool, there: leases.Situation) -> None:
    if ask.envs > pool.max_engines:
        raise Unprocessable(
            f"Pool {pool.name} holds at most {pool.max_engines} engines, not {ask.envs}: ask for fewer."
        )
    if caller.max_engines is not None and there.used + ask.envs > caller.max_engines:
        raise QuotaExceeded(
            f"{caller.principal} may hold {caller.max_engines} engines and has asked for {there.used} already: "
            f"release some, or ask for at most {max(0, caller.max_engines - there.used)}."
        )


def _check_pending(caller: Caller, there: leases.Situation) -> None:
    if caller.max_pending is not None and there.waiting >= caller.max_pending:
        raise QuotaExceeded(
            f"{caller.principal} may have {caller.max_pending} leases waiting, and has: release one of them first."
        )


def _can_grant(pool: Pool, envs: int, there: leases.Situation) -> bool:
    """Nobody overtakes the queue, and replacements go before everybody."""
    return not pool.paused and not there.queued and there.ready - there.holes >= envs


def _exhausted(pool: Pool, envs: int, there: leases.Situation) -> PoolExhausted:
    if pool.paused:
        return PoolExhausted(
            f"Pool {pool.name} is paused by an administrator: try later, or wait with wait=true.", retry_after_s=60
        )
    trouble = f" It is degraded: {pool.fault}" if pool.fault else ""
    return PoolExhausted(
        f"Pool {pool.name} has {there.ready} engines ready, not {envs}: try again, or wait for them with wait=true.{trouble}",
        retry_after_s=5,
    )


def _first(policy: Policy, held: Iterable[Engine]) -> Iterable[EnvView]:
    """The slots of a lease that has just begun: each has its first engine."""
    for rank, engine in enumerate(held):
        yield EnvView(rank, engine.id, 1, EnvState.READY, _address(engine, policy))


def _address(engine: Engine, policy: Policy | None) -> str:
    host = policy.advertise if policy else engine.host
    return f"[{host}]:{engine.port}" if ":" in host else f"{host}:{engine.port}"


def _may_serve_again(engine: Engine, policy: Policy, now: float) -> bool:
    return (
        policy.reuse
        and engine.state is EngineState.LEASED
        and not engine.draining
        and engine.uses < policy.max_uses
        and (policy.max_age_s is None or now - engine.created_at <= policy.max_age_s)
    )
