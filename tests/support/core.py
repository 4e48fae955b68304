"""The daemon's core without threads and without real time: clocks that are set, and jobs that run when they are told to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.config import Config, build
from orchestrator.interfaces import Probe, Runtime
from orchestrator.leasing import Ask, LeaseView, Leasing
from orchestrator.model import Caller, Engine, EngineState, Lease, LeaseState, Policy, Pool, Scope, Slot
from orchestrator.policies import policies
from orchestrator.pool import PoolService
from orchestrator.runtimes.fake import FakeHost, FakeRuntime
from orchestrator.store import engines, events, leases, pools
from orchestrator.store.database import Database

START = 1_700_000_000.0
ALICE = Caller("alice", Scope.LEASE)
BOB = Caller("bob", Scope.LEASE)
ROOT = Caller("root", Scope.ADMIN)


class Clock:
    """A wall clock and a monotonic one that only move when they are moved."""

    def __init__(self, wall: float = START) -> None:
        self.wall, self.mono = wall, 1000.0

    def now(self) -> float:
        """Wall clock, seconds since the epoch."""
        return self.wall

    def monotonic(self) -> float:
        """Monotonic clock, seconds."""
        return self.mono

    def pass_s(self, seconds: float) -> None:
        """Both clocks go on."""
        self.wall += seconds
        self.mono += seconds

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.wall += seconds


class Later(Executor):
    """Runs what is submitted when it is told to, in the caller's thread."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self, which: int = 0) -> None:
        """Run one of those that wait."""
        self.waiting.pop(which % len(self.waiting))()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.waiting.clear()


def config_of(folder: Path, *, first_port: int = 32000, last_port: int = 32999, **named: dict[str, Any]) -> Config:
    """A configuration of fake pools: ``config_of(path, main={"max_engines": 4})``."""
    pool_settings = {name: {"runtime": "fake", "image": "engine:1", **settings} for name, settings in named.items()}
    values: dict[str, Any] = {"state_dir": str(folder), "pools": pool_settings, "default_pool": next(iter(named))}
    return build({**values, "first_port": first_port, "last_port": last_port})


class Core:
    """One installation: database, engine host and clock outlive the daemon's lives, which ``restart`` begins anew."""

    def __init__(
        self,
        folder: Path,
        *,
        runtime: Callable[[str, FakeHost], FakeRuntime] = FakeRuntime,
        database: Callable[[Path], Database] = Database,
        first_port: int = 32000,
        last_port: int = 32999,
        **named: dict[str, Any],
    ) -> None:
        self.config = config_of(folder, first_port=first_port, last_port=last_port, **(named or {"main": {}}))
        self.clock = Clock()
        self.bound: set[int] = set()  # ports that somebody on this machine listens on
        self.host = FakeHost(now=self.clock.monotonic)
        self._make_runtime, self._make_database = runtime, database
        Database.open(self.config.database).close()
        self.begin()

    def begin(self, config: Config | None = None) -> None:
        """A life of the daemon begins, on what the one before left."""
        self.config = config or self.config
        self.database = self._make_database(self.config.database)
        self.policies: dict[str, Policy] = policies(self.config)
        self.runtime: FakeRuntime = self._make_runtime("test", self.host)
        self.leasing = Leasing(self.database, self.policies, self.clock.now)
        self.jobs = Later()
        self.pool = self._service({self.runtime.name: self.runtime}, self.host.probe)
        self.pool.prepare()

    def _service(self, runtimes: dict[str, Runtime], probe: Probe) -> PoolService:
        return PoolService(
            database=self.database,
            config=self.config,
            policies=self.policies,
            runtimes=runtimes,
            probe=probe,
            leasing=self.leasing,
            instance="test",
            now=self.clock.now,
            monotonic=self.clock.monotonic,
            pause=self.clock.pass_s,
            is_free=lambda _host, port: port not in self.bound,
            executor=lambda _workers, _name: self.jobs,
        )

    def close(self) -> None:
        """End this life, in good order or not; nothing of it goes on."""
        self.jobs.waiting.clear()
        self.database.close()

    def restart(self, config: Config | None = None) -> None:
        """As after SIGKILL: what was under way is gone, the engine host is as it was."""
        self.close()
        self.begin(config)

    # ------------------------------------------------------------ letting time pass

    def tick(self, *, jobs: bool = True) -> None:
        """One tick, and unless told otherwise all work that it brings about."""
        self.pool.tick()
        while jobs and self.jobs.waiting:
            self.jobs.run()

    def settle(self, *, ticks: int = 12, every_s: float = 0.5, look: bool = True) -> None:
        """Let time pass until nothing is left to do."""
        for _ in range(ticks):
            if look:
                self.pool.look()
            self.tick()
            self.clock.pass_s(every_s)

    # ------------------------------------------------------------ asking for engines

    def acquire(self, envs: int = 1, caller: Caller = ALICE, *, key: str | None = None, **ask: Any) -> LeaseView:
        """Ask for engines, waiting for them by default."""
        wanted = Ask(**{"envs": envs, "pool": self.config.pool_default, "ttl_s": 60.0, "wait": True, **ask})
        return self.leasing.acquire(caller, wanted, key=key, body_sha256=repr(wanted))[0]

    def lease(self, lease_id: str) -> LeaseView:
        """A lease as it is now."""
        return self.leasing.get(ROOT, lease_id)

    # ------------------------------------------------------------ looking

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A view of the store."""
        with self.database.read() as db:
            yield db

    def engines(self, *states: EngineState) -> list[Engine]:
        """All engines that are not gone, or those in these states."""
        with self.read() as db:
            return [engine for engine in engines.live(db) if not states or engine.state in states]

    def ready(self) -> list[Engine]:
        """Engines that are ready."""
        return self.engines(EngineState.READY)

    def pool_state(self, name: str = "main") -> Pool:
        """A pool as it is now."""
        with self.read() as db:
            return pools.get(db, name, self.policies)

    def live_leases(self) -> list[Lease]:
        """Pending and active leases."""
        with self.read() as db:
            return leases.live(db)

    def events(self, kind: str = "") -> list[str]:
        """Texts of the event log, of one kind if given."""
        with self.read() as db:
            return [e.text for e in events.after(db, 0, holder=None, limit=100_000) if not kind or e.kind == kind]

    def patch(self, name: str = "main", **changes: Any) -> None:
        """Change a running pool, as an administrator does."""
        now = self.pool_state(name)
        with self.database.write() as db:
            settings = {
                "min_ready": now.min_ready,
                "max_engines": now.max_engines,
                "image": now.image,
                "paused": now.paused,
                **changes,
            }
            pools.update(db, name, **settings)


# ---------------------------------------------------------------- parts, for what needs no store


def a_policy(**changes: Any) -> Policy:
    """A policy with everything at an ordinary value."""
    values: dict[str, Any] = {
        "runtime": "fake",
        "expose": "local",
        "host": "127.0.0.1",
        "advertise": "127.0.0.1",
        "max_starting": 4,
        "start_timeout_s": 60.0,
        "probe_interval_s": 60.0,
        "probe_timeout_s": 5.0,
        "probe_failures": 3,
        "reuse": False,
        "max_uses": 1,
        "max_age_s": None,
        "max_lease_s": None,
        "allowed_images": ("engine:1",),
    }
    return Policy(**{**values, **changes})


def a_pool(name: str = "main", **changes: Any) -> Pool:
    """A pool with its image pinned; settings of its policy may be named too."""
    of_policy = {key: changes.pop(key) for key in list(changes) if key in Policy.__dataclass_fields__}
    values: dict[str, Any] = {"min_ready": 1, "max_engines": 16, "image": "engine:1", "pinned": "sha-1"}
    return Pool(name=name, policy=a_policy(**of_policy), **{**values, **changes})


def an_engine(number: int, state: EngineState = EngineState.READY, **changes: Any) -> Engine:
    """Engine ``e<number>`` of pool main, made and ready in the order of its number."""
    values: dict[str, Any] = {
        "pool": "main",
        "runtime": "fake",
        "state_since": START,
        "name": f"cornerman-test-e{number}",
        "image": "sha-1",
        "host": "127.0.0.1",
        "port": 32000 + number,
        "created_at": START + number / 1000,
        "handle": f"h{number}",
        "started_at": START,
        "ready_at": START + number / 1000 if state in (EngineState.READY, EngineState.LEASED) else None,
        "probed_at": START,
    }
    if state is EngineState.LEASED:
        values |= {"lease_id": "l0", "rank": number, "uses": 1}
    return Engine(id=f"e{number}", state=state, **{**values, **changes})


def a_lease(number: int, state: LeaseState = LeaseState.ACTIVE, **changes: Any) -> Lease:
    """Lease ``l<number>`` of pool main, the number-th to arrive, renewed just now."""
    values: dict[str, Any] = {
        "pool": "main",
        "holder": "alice",
        "envs_wanted": 1,
        "ttl_s": 60.0,
        "created_at": START,
        "expires_at": START + 60.0,
        "granted_at": START if state is LeaseState.ACTIVE else None,
    }
    return Lease(id=f"l{number}", seq=number, state=state, **{**values, **changes})


def a_hole(lease: int, rank: int = 0, **changes: Any) -> Slot:
    """An empty slot of lease ``l<lease>``."""
    return Slot(**{"lease_id": f"l{lease}", "rank": rank, "generation": 1, "empty_since": START, **changes})
