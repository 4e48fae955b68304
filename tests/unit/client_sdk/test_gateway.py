"""The tunnel's local servers: what a gRPC client gets from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from client_sdk._gateway import Gateways
from client_sdk._line import Line, LineLost, Route
from client_sdk.wire import Method, Status
from tests.support.fake_relay import TOKEN, FakeLane, FakeRelay, Fault, within

SOON_S = 30.0


@contextlib.asynccontextmanager
async def listening(relay: FakeRelay) -> AsyncIterator[list[str]]:
    """Local servers for the lanes of ``relay``, on sockets; their addresses."""
    await relay.start()
    line = Line(Route(relay.url, TOKEN))
    running = asyncio.get_running_loop().create_task(line.run())
    gateways = Gateways(line)
    with tempfile.TemporaryDirectory(prefix="cm-", dir="/tmp") as folder:
        try:
            await asyncio.wait_for(line.opened.wait(), SOON_S)
            yield await gateways.open_sockets(Path(folder))
        finally:
            await gateways.close()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, LineLost):
                await running
            await relay.stop()


def test_bytes_in_bytes_out() -> None:
    """Requests and replies of every method pass as they are, of any size."""

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            return frame if method is Method.STEP else request

        frame = os.urandom(737_280)
        async with listening(FakeRelay(engine=engine)) as addresses:
            options = [("grpc.max_receive_message_length", 8 << 20)]
            async with grpc.aio.insecure_channel(addresses[1], options=options) as channel:
                for method in Method:
                    request = os.urandom(3000)
                    got = await channel.unary_unary(method.path)(request, timeout=20)
                    assert got == (frame if method is Method.STEP else request)
                assert await channel.unary_unary(Method.CLOSE.path)(b"", timeout=20) == b""

    within(SOON_S, scenario())


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.FAILED_PRECONDITION, Status.DEADLINE_EXCEEDED, 99])
def test_faults_keep_their_status(status: int) -> None:
    """A fault has the relay's gRPC status and sentence; a status that gRPC does not know is UNKNOWN."""

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
            return status, "Rank 0 – gone: 100 % sure, call make() again."

        async with (
            listening(FakeRelay(engine=engine)) as addresses,
            grpc.aio.insecure_channel(addresses[0]) as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(Method.STEP.path)(b"", timeout=20)
        known = {code.value[0]: code for code in grpc.StatusCode}
        assert failed.value.code() is known.get(status, grpc.StatusCode.UNKNOWN)
        assert failed.value.details() == "Rank 0 – gone: 100 % sure, call make() again."

    within(SOON_S, scenario())


def test_cancelled_call_leaves_its_lane_usable() -> None:
    """A gRPC call that is cancelled, or runs out of its own time, ends on the engine, and the next one comes after it."""

    async def scenario() -> None:
        go_on = asyncio.Event()

        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            await go_on.wait()
            return b"step %d" % lane.steps

        relay = FakeRelay(engine=engine)
        async with listening(relay) as addresses, grpc.aio.insecure_channel(addresses[0]) as channel:
            step = channel.unary_unary(Method.STEP.path)
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await step(b"", timeout=0.5)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            after = asyncio.ensure_future(step(b"", timeout=20))
            await asyncio.sleep(0.1)
            go_on.set()
            assert await after == b"step 2"

    within(SOON_S, scenario())


def test_clients_come_and_go() -> None:
    """A socket serves one client after the other, and several at once."""

    async def scenario() -> None:
        async with listening(FakeRelay()) as addresses:
            for number in range(1, 4):
                async with grpc.aio.insecure_channel(addresses[0]) as channel:
                    assert await channel.unary_unary(Method.STEP.path)(b"", timeout=20) == b"step %d" % number
            async with (
                grpc.aio.insecure_channel(addresses[0]) as one,
                grpc.aio.insecure_channel(addresses[1]) as other,
            ):
                replies = await asyncio.gather(
                    one.unary_unary(Method.STEP.path)(b"", timeout=20),
                    other.unary_unary(Method.STEP.path)(b"", timeout=20),
                )
                assert list(replies) == [b"step 4", b"step 1"]

    within(SOON_S, scenario())


def test_oversized_request_is_refused() -> None:
    """A request larger than any engine takes is refused here, and does not harm the lane."""

    async def scenario() -> None:
        relay = FakeRelay()
        async with listening(relay) as addresses, grpc.aio.insecure_channel(addresses[0]) as channel:
            step = channel.unary_unary(Method.STEP.path)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await step(bytes(2 << 20), timeout=20)
            assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await step(b"", timeout=20) == b"step 1"

    within(SOON_S, scenario())
