"""Random histories of a daemon: callers, faults, clocks and deaths at any point, over the real pool, leasing and database."""

from __future__ import annotations

import itertools
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from structlog.testing import capture_logs

from client_sdk.models import EnvState
from orchestrator.administration import Administration
from orchestrator.errors import Refused
from orchestrator.model import EngineState, LeaseState
from orchestrator.store import engines, leases
from tests.support.core import ALICE, BOB, ROOT, Core
from tests.support.crashing import CrashingDatabase, CrashingRuntime, Fuse, Killed

POOLS: dict[str, dict[str, Any]] = {
    "main": {"min_ready": 1, "max_engines": 3, "max_starting": 2, "start_timeout_s": 2.0, "probe_interval_s": 5.0},
    "again": {
        "min_ready": 1,
        "max_engines": 2,
        "max_starting": 1,
        "start_timeout_s": 2.0,
        "recycle": "reuse",
        "max_uses": 3,
    },
}
FIRST_PORT, LAST_PORT = 32000, 32007  # five engines at most, and three ports to spare
TTL_S = 60.0
whose = st.sampled_from([ALICE, BOB])
CALLS = st.sampled_from(["create", "start", "remove", "find", "list"])
pool_names = st.sampled_from(["main", "again"])


class Daemon(RuleBasedStateMachine):
    """What may happen to an installation, and what must hold all the time."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count(1)
        self.patches = pytest.MonkeyPatch()  # ids in order, so that a history can be played again
        self.patches.setattr(secrets, "token_hex", lambda nbytes: f"{next(numbers):0{2 * nbytes}x}")
        self.folder = Path(tempfile.mkdtemp(prefix="cm-core-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.fuse = Fuse()
        self.core = Core(
            self.folder,
            runtime=lambda instance, host: CrashingRuntime(instance, host, self.fuse),
            database=lambda path: CrashingDatabase(path, self.fuse),
            first_port=FIRST_PORT,
            last_port=LAST_PORT,
            **POOLS,
        )
        self.asked: dict[str, Any] = {}  # lease id -> caller, of leases that were not released
        self.generations: dict[tuple[str, int], tuple[int, str | None]] = {}
        self.keys = 0
        self.logging = capture_logs()
        self.logs = self.logging.__enter__()
        self.core.settle()

    def teardown(self) -> None:
        try:
            self.in_the_end_all_is_well()
            self.everybody_goes_home()
            self.until_well()
            assert [lease.id for lease in self.core.live_leases()] == []
        finally:
            self.core.close()
            self.logging.__exit__(None, None, None)
            self.patches.undo()
            shutil.rmtree(self.folder, ignore_errors=True)

    def survive(self, what: Any) -> Any:
        """Do it; if the process dies of it, start the next one."""
        try:
            return what()
        except Refused:
            return None
        except Killed:
            self.fuse.unset()
            self.begin_again()
            return None

    # ------------------------------------------------------------ the daemon goes on

    @rule(count=st.integers(1, 4), look=st.booleans())
    def tick(self, count: int, look: bool) -> None:
        """Decide, and leave the work for later."""
        if look:
            self.survive(self.core.pool.look)
        for _ in range(count):
            self.survive(lambda: self.core.tick(jobs=False))
            self.core.clock.pass_s(0.25)

    @precondition(lambda self: self.core.jobs.waiting)
    @rule(which=st.integers(0, 20))
    def work(self, which: int) -> None:
        self.survive(lambda: self.core.jobs.run(which))

    @rule(ticks=st.integers(2, 6))
    def settle(self, ticks: int) -> None:
        self.survive(lambda: self.core.settle(ticks=ticks))

    @rule()
    def settle_well(self) -> None:
        """Without any trouble, so that histories get somewhere."""
        self.trouble_ends(catch_up=False)
        self.settle(8)

    @rule()
    def restart(self) -> None:
        self.fuse.unset()
        self.begin_again()

    def begin_again(self) -> None:
        """The next life; on a full disk none can begin."""
        self.fuse.disk_is_full = False
        late = self.runtime.late
        self.core.restart()
        self.runtime.late = late

    @rule(calls=st.integers(0, 25))
    def die_soon(self, calls: int) -> None:
        self.fuse.set(calls)

    # ------------------------------------------------------------ callers

    @rule(caller=whose, pool=pool_names)
    def acquire_one(self, caller: Any, pool: str) -> None:
        self.acquire(caller, 1, pool, wait=True)

    @rule(caller=whose, envs=st.integers(1, 3), wait=st.booleans())
    def acquire_some(self, caller: Any, envs: int, wait: bool) -> None:
        self.acquire(caller, envs, "main", wait=wait)

    def acquire(self, caller: Any, envs: int, pool: str, *, wait: bool) -> None:
        self.keys += 1
        key = f"key-{self.keys}"

        def ask() -> Any:
            return self.core.acquire(envs, caller, key=key, pool=pool, wait=wait, ttl_s=TTL_S)

        view = self.survive(ask) or self.survive(ask)  # as the SDK does: again, with the same key
        if view is not None:
            self.asked[view.lease.id] = caller
            again = self.survive(ask)
            assert again is None or again.lease.id == view.lease.id, "one key, two leases"

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 20))
    def release(self, which: int) -> None:
        lease_id = list(self.asked)[which % len(self.asked)]
        caller = self.asked.pop(lease_id)
        for _ in range(2):  # the second time in case the first one died
            self.survive(lambda: self.core.leasing.release(caller, lease_id))

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 20))
    def walk_away(self, which: int) -> None:
        """Never seen again."""
        self.asked.pop(list(self.asked)[which % len(self.asked)])

    @rule()
    def renew_all(self) -> None:
        for lease_id, caller in list(self.asked.items()):
            if self.survive(lambda c=caller, i=lease_id: self.core.leasing.renew(c, i)) is None:
                view = self.core.lease(lease_id)
                if view.lease.ended:
                    self.asked.pop(lease_id)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 20), rank=st.integers(0, 2), old=st.booleans())
    def replace(self, which: int, rank: int, old: bool) -> None:
        lease_id = list(self.asked)[which % len(self.asked)]
        seen = self.core.lease(lease_id)
        if rank >= len(seen.envs):
            return
        generation = seen.envs[rank].generation - (1 if old else 0)
        caller = self.asked[lease_id]

        def ask() -> Any:
            return self.core.leasing.replace(caller, lease_id, rank, generation=generation, reason="hung")

        after = self.survive(ask)
        if old and after is not None:
            assert after.envs[rank].engine_id == seen.envs[rank].engine_id, "an old generation changed something"

    # ------------------------------------------------------------ faults

    @precondition(lambda self: self.core.host.engines)
    @rule(which=st.integers(0, 20), how=st.sampled_from(["kill", "hang", "vanish"]))
    def an_engine_breaks(self, which: int, how: str) -> None:
        there = list(self.core.host.engines.values())
        engine = there[which % len(there)]
        if how == "kill" and engine.seen.running:
            self.core.host.kill(engine.spec.name)
        elif how == "hang":
            self.core.host.hang(engine.spec.name)
        elif how == "vanish":
            self.core.host.remove(engine.handle)

    @rule(
        trouble=st.one_of(
            st.tuples(st.sampled_from(["lose_answers", "time_out"]), CALLS, st.integers(1, 3)),
            st.tuples(st.sampled_from(["create_late", "lie_about_removals"]), st.integers(1, 2)),
            st.tuples(st.just("hold_port"), st.integers(FIRST_PORT, LAST_PORT)),
            st.tuples(st.just("boot_slowly"), st.sampled_from([1.0, 5.0])),
            st.tuples(st.just("lack_images"), st.sampled_from([(), ("engine:1",), ("engine:2",)])),
            st.tuples(st.just("be_unreachable")),
            st.tuples(st.just("disk_full")),
        )
    )
    def trouble_begins(self, trouble: tuple[Any, ...]) -> None:
        host = self.core.host
        match trouble:
            case ("lose_answers", call, times):
                host.lose_answers(call, times)
            case ("time_out", call, times):
                self.runtime.lost[call] = times
            case ("create_late", times):
                self.runtime.creates_late = times
            case ("lie_about_removals", times):
                self.runtime.lies_about_removals = times
            case ("hold_port", port):
                host.hold_port(port)
            case ("boot_slowly", seconds):
                host.boot_s = seconds
            case ("lack_images", images):
                host.images = set(images)
            case ("be_unreachable",):
                host.unreachable = True
            case ("disk_full",):
                self.fuse.disk_is_full = True

    @rule(catch_up=st.booleans())
    def trouble_ends(self, catch_up: bool) -> None:
        host, runtime = self.core.host, self.runtime
        self.fuse.disk_is_full = False
        host.unreachable, host.images, host.boot_s = False, None, 0.1
        runtime.lost.clear()
        runtime.creates_late = runtime.lies_about_removals = 0
        for call in ("create", "start", "remove"):
            host.lose_answers(call, 0)
        for port in range(FIRST_PORT, LAST_PORT + 1):
            host.free_port(port)
        if catch_up:
            runtime.catch_up()

    @rule(which=st.integers(0, 20), at_once=st.booleans())
    def an_administrator_retires(self, which: int, at_once: bool) -> None:
        there = self.core.engines()
        if there:
            engine_id = there[which % len(there)].id
            self.survive(lambda: self.administration().retire(ROOT, engine_id, at_once=at_once))

    def administration(self) -> Administration:
        core = self.core
        return Administration(core.database, core.policies, core.leasing, core.clock.now, ports=10)

    @property
    def runtime(self) -> CrashingRuntime:
        assert isinstance(self.core.runtime, CrashingRuntime)
        return self.core.runtime

    @rule(seconds=st.sampled_from([-7200.0, -3600.0, -3.0, 3.0, 3600.0, 90000.0]))
    def clock_step(self, seconds: float) -> None:
        """Report 18: nothing expires by a step of the clock, whichever way, and whatever happens at the same moment."""
        before = {lease.id for lease in self.core.live_leases()}
        self.core.clock.step(seconds)
        self.survive(lambda: self.core.tick(jobs=False))
        if abs(seconds) > 5:
            lost = before - {lease.id for lease in self.core.live_leases()}
            because = [self.core.lease(lease_id).lease.ended_because or "" for lease_id in lost]
            assert all("renewed" not in text and "asked" not in text for text in because), because

    @rule(seconds=st.sampled_from([1.0, 10.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.core.clock.pass_s(seconds)

    @rule(name=pool_names, maximum=st.integers(1, 4), image=st.sampled_from(["engine:1", "engine:2"]))
    def change_pool(self, name: str, maximum: int, image: str) -> None:
        limit = min(maximum, POOLS[name]["max_engines"])
        self.survive(lambda: self.core.patch(name, max_engines=limit, min_ready=1, image=image))

    # ------------------------------------------------------------ what holds at every moment

    @invariant()
    def no_engine_twice(self) -> None:
        """Never two leases on one engine, nor two engines in one slot, nor a slot whose engine is somebody else's."""
        with self.core.read() as db:
            held = [engine for engine in engines.live(db) if engine.state is EngineState.LEASED]
            active = {lease.id for lease in leases.live(db) if lease.state is LeaseState.ACTIVE}
            places = [(engine.lease_id, engine.rank) for engine in held]
            assert len(places) == len(set(places))
            assert {engine.lease_id for engine in held} <= active
            for lease_id in active:
                for slot in leases.slots(db, lease_id):
                    assert ((lease_id, slot.rank) in places) == (slot.empty_since is None), "a slot is not what it says"

    @invariant()
    def generations_only_rise(self) -> None:
        for lease in self.core.live_leases():
            for env in self.core.lease(lease.id).envs:
                at = (lease.id, env.rank)
                generation, engine = self.generations.get(at, (0, None))
                assert env.generation >= generation
                if env.engine_id is not None and engine is not None and env.engine_id != engine:
                    assert env.generation > generation, "another engine under the same generation"
                self.generations[at] = (env.generation, env.engine_id or engine)

    @invariant()
    def within_bounds(self) -> None:
        """Report 19: starts under way count, so that no pool ever has more than it may, nor more starts at once."""
        for name, pool in POOLS.items():
            here = [engine for engine in self.core.engines() if engine.pool == name]
            assert len(here) <= pool["max_engines"]
            assert sum(engine.state is EngineState.STARTING for engine in here) <= pool["max_starting"]
        made = [engine.spec.pool for engine in self.core.host.engines.values()]
        for name, pool in POOLS.items():
            assert made.count(name) <= pool["max_engines"], "more containers than the pool may have engines"

    @invariant()
    def nothing_is_a_fault_of_ours(self) -> None:
        """What the edges of loops and threads catch is logged: nothing may be."""
        assert [line for line in self.logs if line["log_level"] in ("error", "critical")] == []

    @invariant()
    def ports_are_single(self) -> None:
        ports = [engine.port for engine in self.core.engines()]
        assert len(ports) == len(set(ports))
        assert all(FIRST_PORT <= port <= LAST_PORT for port in ports)

    # ------------------------------------------------------------ what holds in the end

    def in_the_end_all_is_well(self) -> None:
        """Reports 12, 13 and 20: once the faults end, all that is asked for comes, nothing is leaked, no row is stuck."""
        core, host = self.core, self.core.host
        self.fuse.unset()
        self.trouble_ends(catch_up=True)
        for name, pool in POOLS.items():
            core.patch(name, max_engines=pool["max_engines"], min_ready=1)
        for engine in list(host.engines.values()):
            engine.hung = False
        self.until_well()

    def until_well(self) -> None:
        trouble: list[str] = ["not looked yet"]
        for _ in range(1500):
            self.core.settle(ticks=1, every_s=0.5)
            self.renew_all()
            trouble = self.trouble()
            if not trouble:
                return
        raise AssertionError("; ".join(trouble) + "\n" + "\n".join(self.core.events()[-40:]))

    def trouble(self) -> list[str]:
        core = self.core
        found = []
        rows = {engine.id: engine for engine in core.engines()}
        there = {engine.spec.engine_id for engine in core.host.engines.values()}
        if set(rows) != there:
            found.append(f"rows without engines {set(rows) - there}, engines without rows {there - set(rows)}")
        found += [
            f"{engine.id} is {engine.state.value}"
            for engine in rows.values()
            if engine.state not in (EngineState.READY, EngineState.LEASED)
        ]
        demand = dict.fromkeys(POOLS, 0)
        for lease in core.live_leases():
            if lease.state is LeaseState.PENDING:
                demand[lease.pool] += lease.envs_wanted
            elif any(env.state is not EnvState.READY for env in core.lease(lease.id).envs):
                found.append(f"{lease.id} lacks an engine")
        for name, pool in POOLS.items():
            here = [engine for engine in rows.values() if engine.pool == name]
            leased = sum(engine.state is EngineState.LEASED for engine in here)
            if len(here) != min(pool["max_engines"], leased + 1) and not demand[name]:
                found.append(f"{name} has {len(here)} engines, {leased} of them leased")
            head = next(
                (one for one in core.live_leases() if one.pool == name and one.state is LeaseState.PENDING), None
            )
            if head is not None and leased + head.envs_wanted <= pool["max_engines"]:
                found.append(f"{head.id} waits for {head.envs_wanted} of {name}, where {leased} are leased")
            if core.pool_state(name).fault:
                found.append(f"{name} is degraded: {core.pool_state(name).fault}")
        return found

    def everybody_goes_home(self) -> None:
        """When nobody wants anything any more each pool is back at its reserve."""
        for lease in self.core.live_leases():
            self.survive(lambda lease_id=lease.id: self.core.leasing.release(ROOT, lease_id))
        self.asked.clear()


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Daemon,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.timeout(600)  # when it fails, most of that goes into finding a short history
def test_whatever_happens_no_engine_is_lost_leaked_or_given_twice() -> None:
    """Report 13: killed at any call, with any faults around it, the daemon accounts for every engine, lease and port."""
    _run(examples=40, steps=40)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whatever_happens_for_longer() -> None:
    """Report 13, with many more and longer histories."""
    _run(examples=500, steps=60)
