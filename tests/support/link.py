"""A line between two machines, in user space: a TCP proxy with distance, a bandwidth that all its connections share, and a
bounded queue, that can be cut and mended. On a thread here, or as a process of its own (``python -m tests.support.link``),
which takes one command a line (``cut``, ``cut drop``, ``mend``, ``reset``, ``counts``, ``add HOST:PORT``, ``set MS MBIT``) on
standard input, and ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import selectors
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 16 * 1024, 128 * 1024
CHUNK_S = 0.001  # of the line's time is read at once, so that fast lines cost less


@dataclass(frozen=True)
class Settings:
    """``rtt_s`` is shared half and half by both ways; each way has ``bit_per_s`` for all connections together, None for no
    limit, and a queue of ``queue_bytes``, after which senders have to wait."""

    rtt_s: float = 0.0
    bit_per_s: float | None = None
    queue_bytes: int = 256 * 1024

    @property
    def chunk_bytes(self) -> int:
        """How much of a connection is read at once."""
        wanted = MAX_CHUNK_BYTES if self.bit_per_s is None else int(self.bit_per_s / 8 * CHUNK_S)
        return min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, wanted))


class _Way:
    """One direction of the line: when a chunk that is offered now will have arrived."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._free_at = 0.0
        self.bytes = 0

    def arrival(self, size: int, now: float) -> float:
        """Take ``size`` bytes and tell when they are at the other end."""
        self.bytes += size
        start = max(now, self._free_at)
        rate = self.settings.bit_per_s
        self._free_at = start + (size * 8 / rate if rate else 0.0)
        return self._free_at + self.settings.rtt_s / 2

    def wait_s(self, now: float) -> float:
        """How long a sender has to wait until the queue has room again."""
        rate = self.settings.bit_per_s
        queued_s = max(0.0, self._free_at - now)
        return max(0.0, queued_s - self.settings.queue_bytes * 8 / rate) if rate else 0.0


class _Pipe(asyncio.Protocol):
    """One end of one connection: what it reads arrives at ``peer`` when its way allows."""

    def __init__(self, line: _Line, way: _Way) -> None:
        self._line, self._way = line, way
        self.peer: _Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self.dead = False  # the line was cut under it: it says and hears nothing any more
        self.open_at = 0.0
        self._sent: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.adapt()
        self._line.pipes.add(self)

    def adapt(self) -> None:
        """Read and hold as much at once as suits the line."""
        if self.transport is not None:
            chunk_bytes = self._line.settings.chunk_bytes
            self.transport.set_write_buffer_limits(high=4 * chunk_bytes)
            self.transport.max_size = chunk_bytes  # type: ignore[attr-defined]  # of one read

    def data_received(self, data: bytes) -> None:
        if self.dead:
            return
        now = self._line.loop.time()
        self._sent.append((self._way.arrival(len(data), max(now, self.open_at)), data))
        self.schedule()
        wait_s = self._way.wait_s(now)
        if wait_s > 0 and self.transport is not None:
            self.transport.pause_reading()
            self._line.loop.call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing() and not self._held:
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        if not self.dead:
            self._sent.append((self._way.arrival(0, self._line.loop.time()), None))
            self.schedule()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.pipes.discard(self)
        if exc is not None and not self.dead and self.peer is not None and self.peer.transport is not None:
            self.peer.transport.abort()

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.hold()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.let_go()

    def hold(self) -> None:
        """The other end does not take any more."""
        self._held = True
        if self.transport is not None:
            self.transport.pause_reading()

    def let_go(self) -> None:
        """It does again."""
        self._held = False
        self._read_on()

    def schedule(self) -> None:
        """Deliver what has arrived, and come back for what has not."""
        if self._timer is not None or self._line.is_cut:
            return
        now, loop = self._line.loop.time(), self._line.loop
        while self._sent and self.peer is not None and self.peer.transport is not None:
            at, data = self._sent[0]
            if at > now:
                self._timer = loop.call_at(at, self._due)
                return
            self._sent.popleft()
            if self.peer.dead or self.peer.transport.is_closing():
                continue
            if data is None:
                with contextlib.suppress(OSError):  # the other end has gone already
                    self.peer.transport.write_eof()
            else:
                self.peer.transport.write(data)

    def _due(self) -> None:
        self._timer = None
        self.schedule()


class _Line:
    """The proxy on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self.loop, self.settings = loop, settings
        self.up, self.down = _Way(settings), _Way(settings)
        self.pipes: set[_Pipe] = set()
        self.is_cut = False
        self.accepted = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, to: tuple[str, int]) -> _Pipe:
        """A connection for ``to`` has come in; how long its handshake would have taken is waited for before its first byte leaves."""
        self.accepted += 1
        near = _Pipe(self, self.up)
        near.open_at = self.loop.time() + self.settings.rtt_s
        task = self.loop.create_task(self._connect(near, to))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return near

    async def _connect(self, near: _Pipe, to: tuple[str, int]) -> None:
        while self.is_cut and not near.dead:
            await asyncio.sleep(0.02)
        if near.dead:
            return
        try:
            _, far = await self.loop.create_connection(lambda: _Pipe(self, self.down), *to)
        except OSError:
            if near.transport is not None:
                near.transport.abort()
            return
        near.peer, far.peer = far, near
        near.schedule()

    def change(self, settings: Settings) -> None:
        """Have other settings from the next byte on."""
        self.settings = self.up.settings = self.down.settings = settings
        for pipe in self.pipes:
            pipe.adapt()

    def cut(self, *, drop: bool) -> None:
        """Nothing gets through; with ``drop`` the connections of now are dead for ever, though nobody tells their ends."""
        self.is_cut = True
        for pipe in self.pipes:
            pipe.dead = pipe.dead or drop
            if not drop:
                pipe.hold()

    def mend(self) -> None:
        """Everything gets through again, also what was sent meanwhile."""
        self.is_cut = False
        for pipe in list(self.pipes):
            pipe.let_go()
            pipe.schedule()

    def reset(self) -> None:
        """Break all connections, and say so to both ends."""
        for pipe in list(self.pipes):
            if pipe.transport is not None:
                raw = pipe.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                pipe.transport.abort()

    def counts(self) -> dict[str, int]:
        """Bytes each way, and connections so far."""
        return {"up": self.up.bytes, "down": self.down.bytes, "accepted": self.accepted}


class Link:
    """A line to ``to`` that listens on 127.0.0.1, on a thread of its own until ``close``."""

    def __init__(self, to: tuple[str, int], settings: Settings = Settings(), *, port: int = 0) -> None:
        # With select() a timer is right to some ten microseconds; epoll rounds it up to a millisecond.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._line = _Line(self._loop, settings)
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._live, name="link", daemon=True)
        self._thread.start()
        self.port = self.add(to, port=port)

    def add(self, to: tuple[str, int], *, port: int = 0) -> int:
        """Lead to one more place on the same line: the port that does."""
        return asyncio.run_coroutine_threadsafe(self._listen(to, port), self._loop).result(10)

    async def _listen(self, to: tuple[str, int], port: int) -> int:
        server = await self._loop.create_server(lambda: self._line.accept(to), "127.0.0.1", port, backlog=512)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def change(self, *, rtt_s: float, bit_per_s: float | None) -> None:
        """Have another distance and bandwidth from now on; what is under way arrives as it would have."""
        self._do(lambda: self._line.change(replace(self._line.settings, rtt_s=rtt_s, bit_per_s=bit_per_s)))

    def _live(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_all())
        self._loop.close()

    def cut(self, *, drop: bool = False) -> None:
        """Nothing gets through from now on; with ``drop`` the connections of now never recover."""
        self._do(lambda: self._line.cut(drop=drop))

    def mend(self) -> None:
        """End a cut."""
        self._do(self._line.mend)

    def reset(self) -> None:
        """Break all connections."""
        self._do(self._line.reset)

    def counts(self) -> dict[str, int]:
        """Bytes ``up`` and ``down`` so far, and connections ``accepted``."""
        return cast(dict[str, int], self._do(self._line.counts))

    def _do(self, what: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def close(self) -> None:
        """End it, and all its connections."""
        for server in self._servers:
            self._do(server.close)
        self._do(self._line.reset)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def linked(to: tuple[str, int], settings: Settings = Settings()) -> Iterator[Link]:
    """A line to ``to`` until the end of the block."""
    link = Link(to, settings)
    try:
        yield link
    finally:
        link.close()


class LinkProcess:
    """The same in a process of its own, so that it takes no time from whoever uses it."""

    def __init__(self, to: tuple[str, int], settings: Settings = Settings(), *, port: int = 0) -> None:
        options = ["--port", f"{port}"]
        options += ["--rtt-ms", f"{settings.rtt_s * 1e3}", "--queue-bytes", f"{settings.queue_bytes}"]
        if settings.bit_per_s is not None:
            options += ["--mbit", f"{settings.bit_per_s / 1e6}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.link", f"{to[0]}:{to[1]}", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.port = int(json.loads(self._answer())["port"])

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def command(self, line: str) -> dict[str, int]:
        """``cut``, ``cut drop``, ``mend``, ``reset`` or ``counts``: what was counted so far; ``add`` and ``set`` as below."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return cast(dict[str, int], json.loads(self._answer()))

    def add(self, to: tuple[str, int]) -> int:
        """Lead to one more place on the same line: the port that does."""
        return self.command(f"add {to[0]}:{to[1]}")["port"]

    def change(self, *, rtt_s: float, bit_per_s: float | None) -> None:
        """Have another distance and bandwidth from now on."""
        self.command(f"set {rtt_s * 1e3} {'-' if bit_per_s is None else bit_per_s / 1e6}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def main() -> None:
    """Run a line until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("to", help="HOST:PORT")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--mbit", type=float)
    parser.add_argument("--queue-bytes", type=int, default=Settings.queue_bytes)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    rate = None if options.mbit is None else options.mbit * 1e6
    settings = Settings(options.rtt_ms / 1e3, rate, options.queue_bytes)
    link = Link(_place(options.to), settings, port=options.port)
    print(json.dumps({"port": link.port}), flush=True)
    for line in sys.stdin:
        more: dict[str, int] = {}
        match line.split():
            case ["cut", *how]:
                link.cut(drop="drop" in how)
            case ["mend"]:
                link.mend()
            case ["reset"]:
                link.reset()
            case ["add", to]:
                more = {"port": link.add(_place(to))}
            case ["set", rtt_ms, mbit]:
                link.change(rtt_s=float(rtt_ms) / 1e3, bit_per_s=None if mbit == "-" else float(mbit) * 1e6)
        print(json.dumps({**link.counts(), **more}), flush=True)
    link.close()


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
