"""What administrators do to engines, pools, tokens and principals: each is one transaction that writes intent and an event."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from client_sdk.models import PoolPatch, TokenRequest
from orchestrator.auth import Issued, make_token
from orchestrator.errors import Unprocessable
from orchestrator.interfaces import Now
from orchestrator.leasing import Leasing
from orchestrator.model import Caller, Engine, EngineState, Policy, Pool, Retired
from orchestrator.store import engines, events, leases, pools, principals
from orchestrator.store.database import Database


class Administration:
    """The calls of admin scope; whether a caller has it is for the caller of these to see to."""

    def __init__(
        self, database: Database, policies: Mapping[str, Policy], leasing: Leasing, now: Now, *, ports: int
    ) -> None:
        self._database, self._policies, self._leasing, self._now, self._ports = database, policies, leasing, now, ports

    def retire(self, caller: Caller, engine_id: str, *, at_once: bool) -> Engine:
        """Get rid of an engine: a leased one ends with its lease, or is replaced ``at_once``; again changes nothing."""
        now = self._now()
        by = f"administrator {caller.principal} retired it"
        with self._database.write() as db:
            engine = engines.get(db, engine_id)
            if engine.state in (EngineState.STARTING, EngineState.READY):
                engines.happen(db, engine, Retired(by), now)
            elif engine.state is EngineState.LEASED and at_once:
                self._leasing.lose(db, engine, by, now, by=caller)
                if engine.lease_id is not None and engine.rank is not None:
                    self._leasing.fill_if_next(db, engine.lease_id, engine.rank, now)
            elif engine.state is EngineState.LEASED and not engine.draining:
                engines.drain(db, engine_id, by)
            else:
                return engine
            holder = leases.get(db, engine.lease_id).holder if engine.lease_id else None
            when = "" if engine.lease_id is None else " at once" if at_once else " when its lease ends"
            events.record(
                db,
                "engine.retire_asked",
                f"{engine_id} is to go{when}: {by}",
                now=now,
                pool=engine.pool,
                engine_id=engine_id,
                lease_id=engine.lease_id,
                holder=holder,
                actor=caller.principal,
                token_id=caller.token_id,
                data={"now": at_once},
            )
            return engines.get(db, engine_id)

    def change_pool(self, caller: Caller, name: str, patch: PoolPatch) -> Pool:
        """Change a running pool's settings; what is None stays. Unprocessable when they would contradict each other."""
        now = self._now()
        with self._database.write() as db:
            before = pools.get(db, name, self._policies)
            changes = patch.model_dump(exclude_none=True)
            after = replace(before, **changes)
            if after == before:
                return before
            self._check(db, after)
            pools.update(
                db,
                name,
                min_ready=after.min_ready,
                max_engines=after.max_engines,
                image=after.image,
                paused=after.paused,
            )
            told = ", ".join(f"{key} = {value}" for key, value in changes.items())
            text = f"{caller.principal} set {told} for pool {name}"
            events.record(
                db,
                "pool.changed",
                text,
                now=now,
                pool=name,
                actor=caller.principal,
                token_id=caller.token_id,
                data=changes,
            )
            return pools.get(db, name, self._policies)

    def upgrade(self, caller: Caller, name: str) -> Pool:
        """Have a pool's image fetched anew; it goes on with the one it has until that is done."""
        now = self._now()
        with self._database.write() as db:
            pool = pools.get(db, name, self._policies)
            pools.ask_fresh(db, name)
            text = f"{caller.principal} asked for the newest {pool.image} for pool {name}"
            events.record(
                db, "pool.upgrade_asked", text, now=now, pool=name, actor=caller.principal, token_id=caller.token_id
            )
            return pools.get(db, name, self._policies)

    def _check(self, db: sqlite3.Connection, pool: Pool) -> None:
        if pool.min_ready > pool.max_engines:
            raise Unprocessable(
                f"min_ready ({pool.min_ready}) would be above max_engines ({pool.max_engines}): "
                "lower one or raise the other."
            )
        if pool.image not in pool.policy.allowed_images:
            raise Unprocessable(
                f"Image {pool.image!r} is not allowed for pool {pool.name}: choose one of "
                f"{', '.join(pool.policy.allowed_images)}, or add it to allowed_images in the configuration."
            )
        others = sum(other.max_engines for other in pools.all_of(db, self._policies) if other.name != pool.name)
        if others + pool.max_engines > self._ports:
            raise Unprocessable(
                f"There are {self._ports} ports, and the pools could hold {others + pool.max_engines} engines: "
                f"set max_engines to {max(0, self._ports - others)} or less."
            )

    def issue(self, caller: Caller, request: TokenRequest) -> Issued:
        """A new token for a principal, who is made if need be; quotas that are given replace those it had."""
        now = self._now()
        with self._database.write() as db:
            issued = make_token(
                db,
                principal=request.principal,
                scope=request.scope,
                note=request.note,
                now=now,
                max_engines=request.max_engines,
                max_pending=request.max_pending,
            )
            text = f"{caller.principal} made token {issued.token.id} of {request.scope.value} scope for {request.principal}"
            events.record(db, "token.made", text, now=now, actor=caller.principal, token_id=caller.token_id)
            return issued

    def revoke(self, caller: Caller, token_id: str) -> None:
        """A token is good for nothing from now on; its principal's leases go on."""
        now = self._now()
        with self._database.write() as db:
            principals.delete_token(db, token_id)
            text = f"{caller.principal} revoked token {token_id}"
            events.record(db, "token.revoked", text, now=now, actor=caller.principal, token_id=caller.token_id)

    def remove_principal(self, caller: Caller, name: str) -> None:
        """Forget a principal with its tokens, and end all its leases."""
        now = self._now()
        with self._database.write() as db:
            principals.delete_principal(db, name)
            self._leasing.end_all_of(db, name, now, by=caller)
            text = f"{caller.principal} removed {name} and ended its leases"
            events.record(db, "principal.removed", text, now=now, actor=caller.principal, token_id=caller.token_id)
