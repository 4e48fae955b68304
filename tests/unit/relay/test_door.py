"""The relay's listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from orchestrator.relay.door import Door


async def _without_delay() -> int:
    """Whether a connection that came in by a door waits for nothing before it sends."""
    door = Door.opened("127.0.0.1", 0)
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(look, sock=door):
        _, writer = await asyncio.open_connection(*door.getsockname())
        found = await asyncio.wait_for(seen, 10)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return found


def test_answers_do_not_wait_for_the_line() -> None:
    """What the relay sends leaves at once, and not when the client has acknowledged what came before, a round trip later."""
    assert asyncio.run(_without_delay())
