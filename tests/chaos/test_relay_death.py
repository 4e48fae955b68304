"""The relay is killed, stopped and started at random moments under running games; every step is accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from diambra.engine import interface_pb2 as pb

from client_sdk import models
from client_sdk._api import Api
from client_sdk._lane import CallFault
from client_sdk._line import Line
from client_sdk._reach import Route
from client_sdk.models import LeaseRequest, LeaseState
from client_sdk.wire import Method, Status
from practice_engine import wire as practice_wire
from tests.support import processes
from tests.support.real_daemon import RealDaemon, set_up
from tests.support.relay import looped, until

LANES = 3
PRACTICE = ("--runtime", "process", "--max-engines", str(2 * LANES), "--min-ready", str(LANES))
INIT = pb.EnvSettings(
    game_id="doapp", frame_shape=pb.FrameShape(h=128, w=128, c=1), step_ratio=6, n_players=1
).SerializeToString()
RESET = pb.EnvSettings.EpisodeSettings(random_seed=7, difficulty=3, continue_game=-1000).SerializeToString()
ACTION = pb.Actions(actions=[pb.Actions.Action(move=1, attack=1)]).SerializeToString()
_EXPECTED_FAULTS = {Status.UNAVAILABLE, Status.FAILED_PRECONDITION}


def _steps_run(reply: bytes) -> int:
    message = pb.StepResetResponse.FromString(reply)
    category = message.observation.ram_states_categories[pb.RamStatesCategories.Value("internal")]
    return int(category.ram_states[practice_wire.STEPS_RUN])


@dataclass
class Player:
    """Plays one lane, and holds every reply against the engine's own count of its steps."""

    line: Line
    rank: int
    counted: int = 0
    total: int = 0
    faults: int = 0

    async def begin(self) -> None:
        """A game from its beginning, however often it takes."""
        while True:
            try:
                await self.line.call(self.rank, Method.ENV_INIT, INIT)
                await self.line.call(self.rank, Method.RESET, RESET)
            except CallFault as fault:
                self._expect(fault)
                await asyncio.sleep(0.05)
                continue
            self.counted = 0
            return

    async def step(self) -> None:
        """One step; after a fault that may be, a new game."""
        try:
            reply = await self.line.call(self.rank, Method.STEP, ACTION)
        except CallFault as fault:
            self._expect(fault)
            await self.begin()
            return
        self.counted += 1
        self.total += 1
        assert _steps_run(reply.data) == self.counted, f"rank {self.rank} lost a step, or ran one twice"

    def _expect(self, fault: CallFault) -> None:
        assert fault.status in _EXPECTED_FAULTS, fault
        self.faults += 1

    async def play(self, stop: asyncio.Event) -> None:
        """Step until ``stop``."""
        while not stop.is_set():
            await self.step()


@pytest.fixture
def host(state_dir: Path) -> Iterator[RealDaemon]:
    """A daemon with fast practice engines."""
    daemon = set_up(state_dir, *PRACTICE, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    daemon.start()
    yield daemon
    daemon.close()
    processes.kill(daemon.family())


@contextlib.contextmanager
def _leased(daemon: RealDaemon) -> Iterator[tuple[Api, models.Lease]]:
    with daemon.session(daemon.url) as session:
        api = Api(session)
        lease = api.create(LeaseRequest(envs=LANES, wait=True, ttl_s=600.0), key=os.urandom(8).hex())
        while lease.state is LeaseState.PENDING:
            lease = api.await_change(lease.id, after_version=lease.version, wait_s=5)
        yield api, lease


@contextlib.asynccontextmanager
async def _players(lease: models.Lease) -> AsyncIterator[list[Player]]:
    """A line to the relay, and a player for each lane, in a game that has begun."""
    assert lease.relay is not None
    line = Line(Route(lease.relay.url, lease.relay.token, trusting=ssl._create_unverified_context()))
    keeping = asyncio.create_task(line.run())
    try:
        await asyncio.wait_for(line.opened.wait(), 20)
        players = [Player(line, rank) for rank in line.ranks]
        await asyncio.gather(*(player.begin() for player in players))
        yield players
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


@contextlib.asynccontextmanager
async def _playing(players: list[Player]) -> AsyncIterator[None]:
    """The players step meanwhile; one that failed fails the test."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(player.play(stop)) for player in players]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def _another_relay(daemon: RealDaemon, number: signal.Signals) -> None:
    """Send a signal to the relay, and wait until another one is there."""
    (pid,) = daemon.relay_pids()
    os.kill(pid, number)
    await until(lambda: daemon.relay_pids() - {pid}, within_s=30, what="another relay")


async def _more_steps(players: list[Player], count: int = 5) -> None:
    """Wait until every player has stepped on."""
    before = [player.total for player in players]
    await until(
        lambda: all(player.total >= had + count for player, had in zip(players, before, strict=True)),
        within_s=40,
        what="steps of every lane",
    )


async def _kill_again_and_again(daemon: RealDaemon, lease: models.Lease, rounds: int, seed: int) -> None:
    moments = random.Random(seed)
    async with _players(lease) as players:
        idle, busy = players[0], players[1:]
        for _ in range(5):
            await idle.step()
        async with _playing(busy):
            for _ in range(rounds):
                await _more_steps(busy)
                await asyncio.sleep(moments.uniform(0, 0.5))
                await _another_relay(daemon, signal.SIGKILL)
            await _more_steps(busy)
        await idle.step()
        assert (idle.counted, idle.faults) == (6, 0), "an idle lane did not go on"


def test_a_killed_relay_loses_no_lease_and_no_idle_lane(host: RealDaemon) -> None:
    """SIGKILL under running games: what was under way gets a new engine, an idle lane goes on, no step is lost or run twice."""

    @looped
    async def play() -> None:
        await _kill_again_and_again(host, lease, rounds=2, seed=1)

    with _leased(host) as (api, lease):
        play()
        assert api.renew(lease.id, timeout_s=20).state is LeaseState.ACTIVE


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_relay_that_dies_all_the_time_loses_no_lease(host: RealDaemon) -> None:
    """The same for more deaths than a slot may lose engines that never played."""
    with _leased(host) as (api, lease):
        asyncio.run(asyncio.wait_for(_kill_again_and_again(host, lease, rounds=5, seed=2), 800))
        assert api.renew(lease.id, timeout_s=20).state is LeaseState.ACTIVE


def test_a_relay_that_is_stopped_in_good_order_disturbs_no_game(host: RealDaemon) -> None:
    """SIGTERM under running games: the next relay goes on with every lane, without a single fault."""

    @looped
    async def play() -> None:
        async with _players(lease) as players, _playing(players):
            for _ in range(2):
                await _more_steps(players)
                await _another_relay(host, signal.SIGTERM)
            await _more_steps(players)
            assert [player.faults for player in players] == [0] * LANES

    with _leased(host) as (_, lease):
        play()


def test_a_crash_of_the_api_disturbs_no_step(host: RealDaemon) -> None:
    """While the API's process is killed and started again, games go on."""

    @looped
    async def play() -> None:
        async with _players(lease) as players, _playing(players):
            (pid,) = host.api_pids()
            os.kill(pid, signal.SIGKILL)
            await _more_steps(players, 20)
            assert [player.faults for player in players] == [0] * LANES
            assert [player.line.connections for player in players] == [1] * LANES

    with _leased(host) as (_, lease):
        play()
