"""What a new life of the daemon does first with what the one before left in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping

from orchestrator.clock import TOLERANCE_S
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.leasing import Leasing
from orchestrator.model import EngineState, LeaseState, Policy, Removed, Retired
from orchestrator.store import engines, events, leases, meta, pools


def take_over(
    db: sqlite3.Connection,
    *,
    config: Config,
    policies: Mapping[str, Policy],
    runtimes: Collection[str],
    leasing: Leasing,
    now: float,
) -> None:
    """Settings as the file has them, every lease with a whole TTL to come back, and nothing where it cannot stay.

    ConfigError when engines are left on a host that no pool uses any more: nobody else could remove them.
    """
    _check_hosts(db, runtimes)
    for name, pool in config.pools.items():
        if pools.configure(db, name, min_ready=pool.min_ready, max_engines=pool.max_engines, image=pool.image):
            text = f"the configuration sets min_ready = {pool.min_ready}, max_engines = {pool.max_engines}, image = {pool.image} for pool {name}"
            events.record(db, "pool.configured", text, now=now, pool=name)
    if (step := now - float(meta.get(db, "pool_alive_at") or now)) < -TOLERANCE_S:
        record_step(db, step, now)
    _end_leases_without_pool(db, policies, leasing, now)
    _drop_misplaced_engines(db, policies, runtimes, leasing, now)
    engines.restart_clocks(db, now, runtimes=runtimes)
    meta.extend_leases(db, now)


def record_step(db: sqlite3.Connection, step: float, now: float) -> None:
    """The wall clock was stepped by ``step`` seconds: no deadline may come nearer or go away by that."""
    meta.shift_clock(db, step, now)
    text = f"the clock was stepped by {step:+.0f} s: every lease has its whole TTL again"
    events.record(db, "clock.stepped", text, now=now, data={"seconds": step})


def _check_hosts(db: sqlite3.Connection, runtimes: Collection[str]) -> None:
    for engine in engines.live(db):
        if engine.runtime not in runtimes and engine.runtime != "process":  # those ended with the daemon
            raise ConfigError(
                f"There are engines on {engine.runtime}, which no pool uses any more (of pool {engine.pool}, for one): "
                f"give a pool runtime = \"{engine.runtime}\" again, with min_ready = 0, until 'cornerman status' shows none."
            )


def _end_leases_without_pool(
    db: sqlite3.Connection, policies: Mapping[str, Policy], leasing: Leasing, now: float
) -> None:
    for lease in leases.live(db):
        if lease.pool not in policies:
            because = f"pool {lease.pool} was taken out of the configuration"
            leasing.end(db, lease, LeaseState.FAILED, because, now)


def _drop_misplaced_engines(
    db: sqlite3.Connection, policies: Mapping[str, Policy], runtimes: Collection[str], leasing: Leasing, now: float
) -> None:
    """Engines of pools that are configured no more, or that run elsewhere now, and child processes of a former life."""
    for engine in engines.live(db):
        policy = policies.get(engine.pool)
        if policy is None:
            engine = engines.happen(db, engine, Retired("its pool was taken out of the configuration"), now)
        elif policy.runtime != engine.runtime:
            leasing.lose(db, engine, f"its pool runs on {policy.runtime} now", now)
        elif engine.runtime == "process" and engine.state is not EngineState.STARTING:
            leasing.lose(db, engine, "it ended with the daemon that had started it", now)
        if engine.runtime not in runtimes:  # nothing is left of it, and nobody could be asked
            engines.happen(db, engines.get(db, engine.id), Removed(), now)
