"""How fast the line is, as a client measures it by what the relay sends."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from client_sdk._reach import Route
from client_sdk._speed import bit_per_s
from tests.support.link import Settings, linked
from tests.support.relay import looped, relay_house, token_of


def _route(port: int, *, token: str | None = None) -> Route:
    return Route(f"ws://127.0.0.1:{port}/v1/leases/l-1", token_of("l-1") if token is None else token)


@looped
async def test_client_measures_the_line() -> None:
    """What is measured over a line of 40 Mbit/s is 40 Mbit/s; the holder of a lease asks for it as for its lanes."""
    async with relay_house() as house:
        with linked(("127.0.0.1", house.port), Settings(rtt_s=0.02, bit_per_s=40e6)) as line:
            speeds = [await asyncio.to_thread(bit_per_s, _route(line.port)) for _ in range(3)]
    assert statistics.median(speed or 0.0 for speed in speeds) == pytest.approx(40e6, rel=0.2)


@looped
async def test_nobody_else_can_ask_for_bytes() -> None:
    """Without the lease's token there are none, and the client says that it does not know; a proxy's speed is not taken for the line's."""
    async with relay_house() as house:
        assert await asyncio.to_thread(bit_per_s, _route(house.port, token="wrong")) is None
        route = Route(f"ws://127.0.0.1:{house.port}/v1/leases/l-1", token_of("l-1"), proxy="http://127.0.0.1:9")
        assert await asyncio.to_thread(bit_per_s, route) is None
        assert house.directory.seen == []
    assert await asyncio.to_thread(bit_per_s, _route(house.port)) is None
