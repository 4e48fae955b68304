"""The daemon is killed at random moments; everything is accounted for afterwards."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from client_sdk import ConnectionFault, Cornerman, Refused
from client_sdk._api import Api
from client_sdk._http import Session
from client_sdk._url import parse
from client_sdk.models import ENDED_LEASE_STATES, Lease, LeaseRequest, LeaseState
from tests.support import accounts
from tests.support.docker_engine import PRACTICE_IMAGE, PrivateEngine, connect, engines_of
from tests.support.real_daemon import RealDaemon
from tests.support.waiting import wait_until

NewDaemon = Callable[..., RealDaemon]
PROCESS = ("--runtime", "process", "--max-engines", "6", "--min-ready", "2")
DOCKER = ("--runtime", "docker", "--image", PRACTICE_IMAGE, "--max-engines", "6", "--min-ready", "2")


class Caller(threading.Thread):
    """Leases, holds and releases again and again, whatever happens to the daemon; keeps what went wrong."""

    holders: dict[str, str]  # of engines, by engine: the lease that has it, shared by all callers

    def __init__(self, url: str, number: int, holders: dict[str, str], lock: threading.Lock) -> None:
        super().__init__(name=f"caller-{number}", daemon=True)
        self._url, self._random = url, random.Random(number)
        self._holders, self._lock = holders, lock
        self.stop = threading.Event()
        self.fault: BaseException | None = None
        self.leased = 0

    def run(self) -> None:
        """Go on until ``stop``."""
        try:
            with contextlib.closing(Session(parse(self._url))) as session:
                while not self.stop.is_set():
                    self._one(Api(session))
        except BaseException as fault:
            self.fault = fault

    def _one(self, api: Api) -> None:
        key, request = uuid.uuid4().hex, LeaseRequest(envs=self._random.choice((1, 2)), wait=True, ttl_s=60.0)
        lease = _insist(lambda: api.create(request, key=key))
        again = _insist(lambda: api.create(request, key=key))
        assert again.id == lease.id, "one key stood for two leases"
        while lease.state is LeaseState.PENDING and not self.stop.is_set():
            lease = _insist(partial(api.await_change, lease.id, after_version=lease.version, wait_s=1))
        if lease.state is LeaseState.ACTIVE:
            self._hold(api, lease)
        _insist(lambda: api.release(lease.id))

    def _hold(self, api: Api, lease: Lease) -> None:
        """Nobody else may have what this lease has, from the grant until it is released."""
        self.leased += 1
        mine: set[str] = set()
        for _ in range(self._random.randint(1, 4)):
            with self._lock:
                for env in lease.envs:
                    if env.engine_id is not None:
                        other = self._holders.setdefault(env.engine_id, lease.id)
                        assert other == lease.id, f"{env.engine_id} was given to {other} and to {lease.id}"
                        mine.add(env.engine_id)
            self.stop.wait(self._random.uniform(0.05, 0.4))
            lease = _insist(partial(api.renew, lease.id, timeout_s=10))


def _insist(call: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    """Repeat a call that may be repeated until the daemon, which may be dead just now, answers it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except ConnectionFault:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        except Refused as refused:
            if refused.status != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def _callers(daemon: RealDaemon, count: int) -> Iterator[list[Caller]]:
    holders: dict[str, str] = {}
    lock = threading.Lock()
    callers = [Caller(daemon.url, number, holders, lock) for number in range(count)]
    for caller in callers:
        caller.start()
    try:
        yield callers
    finally:
        for caller in callers:
            caller.stop.set()
        for caller in callers:
            caller.join(90)


def _kill_and_restart(daemon: RealDaemon, rounds: int, seed: int) -> None:
    """Let it live for a random time, kill it, look into its books, start it again; ``rounds`` times."""
    moments, pause = random.Random(seed), threading.Event()
    for _ in range(rounds):
        pause.wait(moments.uniform(0.2, 3.0))
        daemon.kill()
        accounts.check(daemon.config.database)
        pause.wait(moments.choice((0.0, 0.0, 1.0)))
        daemon.start()
        accounts.check(daemon.config.database)


def _practice_ports(daemon: RealDaemon) -> list[int]:
    """Ports of the practice engines that run for this daemon."""
    lines = [line.split() for line in daemon.family().values() if "practice_engine" in line]
    return sorted(int(words[words.index("--port") + 1]) for words in lines)


def _all_ended(daemon: RealDaemon) -> bool:
    with daemon.admin() as (_, api):
        return all(lease.state in ENDED_LEASE_STATES for lease in api.leases())


def _settled(daemon: RealDaemon, there: Callable[[], list[Any]]) -> bool:
    """Two engines are ready, no other is left, and what is ``there`` on the engine host is just these."""
    live, found = accounts.engines(daemon.config.database), there()
    names, ports = sorted(engine.name for engine in live), sorted(engine.port for engine in live)
    return [engine.state for engine in live] == ["ready", "ready"] and found in (names, ports)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [4, pytest.param(25, marks=pytest.mark.long)])
def test_practice_engines_are_accounted_for(new_daemon: NewDaemon, rounds: int) -> None:
    """Report 13: after kills at random moments no engine is lost, leaked or leased twice, and every caller is served."""
    daemon = new_daemon(*PROCESS)
    daemon.start()
    with _callers(daemon, 3) as callers:
        _kill_and_restart(daemon, rounds, seed=rounds)
        served = [caller.leased for caller in callers]
        wait_until(lambda: all(c.fault or c.leased > n for c, n in zip(callers, served, strict=True)), 90)
    assert [caller.fault for caller in callers] == [None] * 3
    assert all(not caller.is_alive() for caller in callers)
    wait_until(lambda: _all_ended(daemon), 30, what="the end of all leases")
    wait_until(lambda: _settled(daemon, lambda: _practice_ports(daemon)), 60, what="two ready engines and no more")
    accounts.check(daemon.config.database)
    assert "Traceback" not in daemon.log
    assert daemon.stop() == 0
    assert _practice_ports(daemon) == []
    assert not list((daemon.folder / "state/engines").iterdir())


class Player(threading.Thread):
    """The stock client, stepping one game until it is told to stop; keeps what went wrong."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.stop = threading.Event()
        self.steps = 0
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Play at random."""
        import diambra.arena

        try:
            settings = diambra.arena.EnvironmentSettings()
            settings.splash_screen = False
            settings.env_address = self._address
            env = diambra.arena.make("doapp", settings, log_level=logging.WARNING)
            env.reset(seed=1)
            while not self.stop.is_set():
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                self.steps += 1
                if terminated or truncated:
                    env.reset(seed=1)
        except BaseException as fault:
            self.fault = fault


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.*integratedGames.json")  # the stock client leaves it open
@pytest.mark.parametrize("rounds", [3, pytest.param(15, marks=pytest.mark.long)])
def test_games_in_docker_go_on(
    new_daemon: NewDaemon, docker_host: str, practice_image: str, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Report 13: games in Docker are not disturbed by the daemon's deaths, and no container is lost or leaked by them."""
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    daemon = new_daemon(*DOCKER, environ={"DOCKER_HOST": docker_host})
    daemon.start()
    instance = daemon.instance
    with Cornerman(daemon.url, quiet=True).lease(envs=2, ttl_s=60, timeout_s=60) as lease:
        before = lease.envs
        players = [Player(address) for address in lease.addresses]
        for player in players:
            player.start()
        wait_until(lambda: all(player.steps or player.fault for player in players), 60, what="the first steps")
        with _callers(daemon, 1) as callers:  # so that containers come and go at the moment of death
            _kill_and_restart(daemon, rounds, seed=rounds)
        steps = [player.steps for player in players]
        wait_until(lambda: all(p.fault or p.steps > n for p, n in zip(players, steps, strict=True)), 30)
        for player in players:
            player.stop.set()
        for player in players:
            player.join(30)
        assert [player.fault for player in players] == [None, None]
        assert [caller.fault for caller in callers] == [None]
        lease.refresh()
        assert lease.envs == before
    wait_until(lambda: _all_ended(daemon), 30, what="the end of all leases")
    wait_until(
        lambda: _settled(daemon, lambda: engines_of(docker_host, instance)),
        90,
        what="two ready engines and no more",
    )
    accounts.check(daemon.config.database)
    assert "Traceback" not in daemon.log


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["kill", pytest.param("terminate", marks=pytest.mark.long)])
def test_an_engine_host_that_restarts(
    new_daemon: NewDaemon, private_engine: PrivateEngine, practice_image: str, how: str
) -> None:
    """Report 14: while the engine host is away nothing is declared lost; then the dead are replaced and events followed."""
    private_engine.copy_image(practice_image)
    own = {"DOCKER_HOST": private_engine.host}
    daemon = new_daemon(*DOCKER, environ=own, settings={"observe_interval_s": "300.0"})
    try:
        daemon.start()
        with Cornerman(daemon.url, quiet=True).lease(envs=2, ttl_s=60, timeout_s=60) as lease:
            first = lease.envs
            getattr(private_engine, how)()
            wait_until(lambda: _host_fault(daemon), 30, what="word of the fault")
            if how == "kill":  # its containers live on, unseen
                lease.refresh()
                assert lease.envs == first, "unknown is not dead"
            private_engine.start()
            second = wait_until(lambda: _replaced(lease, first), 120, what="fresh engines in both places")
            assert [env.generation for env in second] == [2, 2]
            instance = daemon.instance
            wait_until(lambda: len(engines_of(private_engine.host, instance)) == 4, 120, what="a full pool")
            _kill_container(private_engine.host, daemon, str(second[0].engine_id))
            third = wait_until(lambda: _replaced(lease, second, ranks=(0,)), 30, what="a fresh engine, by an event")
            assert [env.generation for env in third] == [3, 2]
            accounts.check(daemon.config.database)
        assert "Traceback" not in daemon.log
    finally:
        daemon.close()


def _host_fault(daemon: RealDaemon) -> str:
    with accounts.reading(daemon.config.database) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'host_fault'").fetchone()
    return str(row[0]) if row else ""


def _replaced(lease: Any, before: Any, *, ranks: tuple[int, ...] = (0, 1)) -> Any:
    """The lease's places once all of ``ranks`` have another engine than ``before``, else None."""
    lease.refresh()
    now = lease.envs
    changed = all(now[rank].engine_id not in (None, before[rank].engine_id) for rank in ranks)
    return now if changed else None


def _kill_container(host: str, daemon: RealDaemon, engine_id: str) -> None:
    (name,) = [engine.name for engine in accounts.engines(daemon.config.database) if engine.id == engine_id]
    client = connect(host)
    try:
        client.api.kill(name)
    finally:
        client.close()
