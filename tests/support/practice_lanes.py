"""Practice engines at the end of a relay in this process, for tests of what plays over lanes: on every Python, without a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
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
        self.slow: dict[tuple[int, Method], float] = {}
        self.calls: list[tuple[int, Method, bytes]] = []
        self.relay = FakeRelay(lanes_wanted=count, engine=self._answer)
        self.thread: RelayThread

    async def _answer(self, lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
        self.calls.append((lane.rank, method, request))
        await asyncio.sleep(self.slow.get((lane.rank, method), 0.0))
        if lane.rank in self.dead:
            self._replace(lane.rank)
            return Status.UNAVAILABLE, f"The engine of rank {lane.rank} died (exit code 139)."
        if lane.rank in self.hung:
            await asyncio.sleep(0.2)
            self._replace(lane.rank)
            return Status.DEADLINE_EXCEEDED, f"The engine of rank {lane.rank} did not answer for 0.2 s."
        return await asyncio.to_thread(self._play, self.engines[lane.rank], method, request)

    def _replace(self, rank: int) -> None:
        """Let a fresh engine come a moment after the answer."""
        self.dead.discard(rank)
        self.hung.discard(rank)

        async def come() -> None:
            await asyncio.sleep(0.05)
            self.engines[rank] = new_engine()
            await self.relay.replace(rank)

        task = asyncio.get_running_loop().create_task(come())
        self.relay._tasks.add(task)
        task.add_done_callback(self.relay._tasks.discard)

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
