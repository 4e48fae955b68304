"""One WebSocket connection of a lease: frames in, answers out, joined when they are ready together. A slow reader stalls only itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from client_sdk.wire import JOIN_BYTES, Bye, Kind, Method, answer_frame, text_frame
from orchestrator.relay.codec import Encoder
from orchestrator.relay.lane import Result

COMPRESS_ELSEWHERE = 64 * 1024  # replies above this are compressed off the loop


class Connection:
    """Sends what the lanes deliver. What it owes is bounded: a lane's answer is queued at most once."""

    def __init__(
        self, socket: ServerConnection, *, session: str, executor: Executor, sent: Callable[[int, int], None]
    ) -> None:
        self.session = session
        self.socket = socket
        self._executor, self._sent = executor, sent
        self._encoders: dict[int, Encoder] = {}
        self._outbox: deque[bytes] = deque()
        self._owed: set[int] = set()  # lanes whose answer is being made or waits to be sent
        self._generations: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def deliver(self, result: Result) -> None:
        """Send what a call came to, unless that is under way already."""
        if result.rank in self._owed or self._closing:
            return
        self._owed.add(result.rank)
        reply = result.outcome.reply
        if reply is None:
            self.tell(
                text_frame(
                    Kind.FAULT,
                    result.outcome.text,
                    code=result.outcome.status,
                    lane=result.rank,
                    generation=result.generation,
                    seq=result.seq,
                )
            )
        elif len(reply) <= COMPRESS_ELSEWHERE:
            self.tell(self._encode(result))
        else:
            task = asyncio.create_task(self._encode_elsewhere(result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def tell(self, frame: bytes) -> None:
        """Queue a frame."""
        self._outbox.append(frame)
        self._wake.set()

    async def _encode_elsewhere(self, result: Result) -> None:
        frame = await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, result)
        self.tell(frame)

    def _encode(self, result: Result) -> bytes:
        reply = result.outcome.reply
        assert reply is not None
        encoder = self._encoders.setdefault(result.rank, Encoder())
        if result.method is Method.ENV_INIT or self._generations.get(result.rank) != result.generation:
            encoder.restart()
            self._generations[result.rank] = result.generation
        data, flags = encoder.encode(reply)
        self._sent(result.rank, len(data))
        return answer_frame(
            data,
            flags=flags,
            lane=result.rank,
            generation=result.generation,
            seq=result.seq,
            engine_us=int(result.engine_s * 1e6),
            queue_us=int(result.queue_s * 1e6),
            raw_size=len(reply),
        )

    async def send_forever(self) -> None:
        """Send until the connection is closed; answers that wait together go as one message."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    batch: list[bytes] = []
                    size = 0
                    while self._outbox and (not batch or size + len(self._outbox[0]) <= JOIN_BYTES):
                        frame = self._outbox.popleft()
                        batch.append(frame)
                        size += len(frame)
                        if frame[0] in (Kind.ANSWER, Kind.FAULT):
                            self._owed.discard(int.from_bytes(frame[2:4], "big"))
                    await self.socket.send(batch[0] if len(batch) == 1 else b"".join(batch))
        except ConnectionClosed:
            return

    async def bye(self, why: Bye, text: str) -> None:
        """Say why, and close."""
        if self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(2.0):
                await self.socket.send(text_frame(Kind.BYE, text, code=why))
                await self.socket.close()
        except (ConnectionClosed, TimeoutError):
            self.socket.transport.abort()
