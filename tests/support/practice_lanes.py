"""Practice engines at the end of a relay in this process, for tests of what plays over lanes: on every Python, without a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc

from client_sdk._reach import Route
from client_sdk.lanes import Lanes
from client_sdk.wire import Method, Status
from practice_engine.options import Options, Speed
from practice_engine.service import EnvServer, serve
from tests.support.fake_relay import TOKEN, FakeLane, FakeRelay, Fault, RelayThread, relaying

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.engine import interface_pb2 as pb

FAST = Options(speed=Speed("unlimited"))
_REQUESTS: dict[Method, Any] = {
    Method.ENV_INIT: pb.EnvSettings,
    Method.RESET: pb.EnvSettings.EpisodeSettings,
    Method.STEP: pb.Actions,
    Method.CLOSE: pb.Empty,
}


def new_engine() -> EnvServer:
    """A practice engine without a process."""
    return EnvServer(FAST, log=lambda _: None, exit_process=lambda: None)


class _Refused(Exception):
    pass


class _Context:
    """As much of a gRPC context as an engine uses."""

    def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise _Refused(code.value[0], text)


class PracticeLanes:
    """Engines by rank, and what goes wrong with them: ``dead`` ones die in their next call, ``hung`` ones do not answer it.

    ``slow`` says how many seconds a call of an engine takes.
    """

    def __init__(self, count: int) -> None:
        self.engines = {rank: new_engine() for rank in range(count)}
        self.dead: set[int] = set()
        self.hung: set[int] = set()
        self.cursed: set[int] = set()
        self._leaving: defaultdict[int, set[int]] = defaultdict(set)  # generations by rank
        self.slow: dict[tuple[int, Method], float] = {}
        self.calls: list[tuple[int, Method, bytes]] = []
        self.relay = FakeRelay(lanes_wanted=count, engine=self._answer)
        self.thread: RelayThread

    async def _answer(self, lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
        self.calls.append((lane.rank, method, request))
        generation = lane.generation
        await asyncio.sleep(self.slow.get((lane.rank, method), 0.0))
        if generation != lane.generation:
            return Status.UNAVAILABLE, f"The engine of rank {lane.rank} was replaced during the call."
        if lane.rank in self.dead:
            return self._lose(lane, Status.UNAVAILABLE, f"The engine of rank {lane.rank} died (exit code 139).")
        if lane.rank in self.hung:
            await asyncio.sleep(0.2)
            if generation != lane.generation:
                return Status.FAILED_PRECONDITION, "The engine was replaced: call make() again."
            return self._lose(
                lane, Status.DEADLINE_EXCEEDED, f"The engine of rank {lane.rank} did not answer for 0.2 s."
            )
        return await asyncio.to_thread(self._play, self.engines[lane.rank], method, request)

    def _lose(self, lane: FakeLane, status: Status, text: str) -> Fault:
        """The engine is of no more use; a fresh one comes a moment after this answer."""
        if lane.generation not in self._leaving[lane.rank]:
            self._leaving[lane.rank].add(lane.generation)
            task = asyncio.get_running_loop().create_task(self._come(lane.rank))
            self.relay._tasks.add(task)
            task.add_done_callback(self.relay._tasks.discard)
        return status, text

    async def _come(self, rank: int) -> None:
        await asyncio.sleep(0.05)
        await self.replace(rank)

    async def replace(self, rank: int) -> None:
        """A fresh engine sits in the slot, as good as new unless ranks are ``cursed``."""
        self.engines[rank] = new_engine()
        self.hung.discard(rank)
        if rank not in self.cursed:
            self.dead.discard(rank)
        await self.relay.replace(rank)

    @staticmethod
    def _play(engine: EnvServer, method: Method, request: bytes) -> bytes | Fault:
        context: Any = _Context()
        call: Callable[..., bytes] = getattr(engine, method.name.lower())
        try:
            return call(_REQUESTS[method].FromString(request), context)
        except _Refused as refused:
            return refused.args[0], refused.args[1]

    def open(self) -> Lanes:
        """A new connection to them."""
        return Lanes(Route(self.relay.url, TOKEN))

    def seeds(self) -> list[int]:
        """Those of all Resets so far."""
        resets = (request for _, method, request in self.calls if method is Method.RESET)
        return [pb.EnvSettings.EpisodeSettings.FromString(request).random_seed for request in resets]


@contextlib.contextmanager
def practice_lanes(count: int) -> Iterator[PracticeLanes]:
    """So many engines behind a relay until the end of the block."""
    lanes = PracticeLanes(count)
    with relaying(lanes.relay) as lanes.thread:
        yield lanes


@contextlib.contextmanager
def grpc_engines(count: int) -> Iterator[list[str]]:
    """The addresses of so many engines that DIAMBRA's own client reaches directly."""
    servers = [serve(new_engine(), host="127.0.0.1", port=0) for _ in range(count)]
    try:
        yield [f"127.0.0.1:{port}" for _, port in servers]
    finally:
        for server, _ in servers:
            server.stop(0).wait(5)
