"""The socket of a line finds its messages in the data, however that is cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from client_sdk._reach import Route, Socket, dial
from client_sdk.wire import SUBPROTOCOL

SIZES = (0, 1, 125, 126, 3000, 65535, 65536, 200_000)
Peer = Callable[[ServerConnection], Any]


async def _dialled(peer: Peer, use: Callable[[Socket], Any], **options: Any) -> None:
    async with (
        serve(peer, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], compression=None, **options) as server,  # type: ignore[list-item]
        dial(Route(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", "t"), within_s=5) as socket,
    ):
        assert isinstance(socket, Socket)
        await use(socket)


def _in_pieces(socket: Socket, chance: random.Random) -> None:
    """Let what comes come as if the line had cut it anywhere, or glued it together."""
    whole, kept = socket.data_received, bytearray()

    def data_received(data: bytes) -> None:
        kept.extend(data)
        if chance.random() < 0.3 and len(data) < 100_000 and data != b"":
            asyncio.get_running_loop().call_later(0.001, data_received, b"")
            return
        pieces = bytes(kept)
        kept.clear()
        while pieces:
            size = chance.choice((1, 2, 3, 9, 1000, 100_000))
            whole(pieces[:size])
            pieces = pieces[size:]

    socket.data_received = data_received  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(6))
def test_messages_in_pieces(seed: int) -> None:
    """Messages of all sizes are delivered once, whole and in order, also those sent in fragments and with pings between them."""
    chance = random.Random(seed)
    sent = [chance.randbytes(chance.choice(SIZES)) for _ in range(60)]
    delivered: list[bytes] = []

    async def peer(connection: ServerConnection) -> None:
        await connection.recv()
        for number, message in enumerate(sent):
            if number % 7 == 3:
                await connection.send([message[:10], message[10:]])
            else:
                await connection.send(message)
            if number % 5 == 0:
                await (await connection.ping())
        await connection.wait_closed()

    async def use(socket: Socket) -> None:
        _in_pieces(socket, chance)
        socket.deliver = lambda message: delivered.append(bytes(message))
        await socket.send(b"go")
        while len(delivered) < len([one for number, one in enumerate(sent) if number % 7 != 3]):
            await asyncio.sleep(0.005)
        in_fragments = [await asyncio.wait_for(socket.recv(), 5) for number in range(len(sent)) if number % 7 == 3]
        assert in_fragments == [one for number, one in enumerate(sent) if number % 7 == 3]
        assert delivered == [one for number, one in enumerate(sent) if number % 7 != 3]

    asyncio.run(asyncio.wait_for(_dialled(peer, use), 20))


def test_message_behind_the_handshake() -> None:
    """A message that comes together with the answer to the handshake, before anybody takes it, waits in websockets' queue."""

    async def peer(connection: ServerConnection) -> None:
        await connection.send(b"early")
        await connection.wait_closed()

    async def use(socket: Socket) -> None:
        assert await asyncio.wait_for(socket.recv(), 5) == b"early"

    asyncio.run(_dialled(peer, use))


def test_refusal_with_a_long_text() -> None:
    """A refused handshake keeps its text, though it comes in several pieces."""

    def refuse(connection: ServerConnection, request: object) -> Any:
        return connection.respond(409, "x" * 300_000)

    async def peer(connection: ServerConnection) -> None:
        raise AssertionError("it was not refused")

    async def use(socket: Socket) -> None:
        raise AssertionError("it was not refused")

    with pytest.raises(InvalidStatus) as refused:
        asyncio.run(_dialled(peer, use, process_request=refuse))
    assert refused.value.response.body == b"x" * 300_000


def test_close() -> None:
    """A peer that closes in good order is heard out first."""
    delivered: list[bytes] = []

    async def peer(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(b"last")

    async def use(socket: Socket) -> None:
        socket.deliver = lambda message: delivered.append(bytes(message))
        await socket.send(b"go")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 5)
        assert delivered == [b"last"]

    asyncio.run(_dialled(peer, use))
