"""The tunnel: the process that keeps a lease alive and carries its steps, whatever the notebook's kernel is doing.

It takes the place of the heartbeat helper, and talks to the kernel in the same way: one line of JSON (``Orders``) on its
standard input, later one more (``Opening``) when the engines are there, then nothing but the end; reports on its standard output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from client_sdk._api import Api
from client_sdk._gateway import Gateways
from client_sdk._heartbeat_helper import POLL_S, Kernel, Orders, Outbox, Report, keep_alive
from client_sdk._http import Session
from client_sdk._line import Line, LineLost
from client_sdk._opening import Opening
from client_sdk._reach import Route
from client_sdk._relay import route_to
from client_sdk.models import Relay
from client_sdk.wire import Bye, Method

_STDIN, _STDOUT = 0, 1
OPEN_WITHIN_S = 15.0
SECOND_CHANCE_S = 2.0  # a relay that is being restarted is there again by then


class Mailbox(Outbox):
    """An outbox for several threads, in which a report only takes the place of an older one of its own kind."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._lock = threading.Lock()
        self._kept: dict[str, Report] = {}

    def put(self, report: Report) -> None:
        """Queue ``report``; raises BrokenPipeError when nobody is left to read."""
        with self._lock:
            kind = report.event if report.event in ("opened", "closed") else "lease"
            self._kept.pop(kind, None)
            self._kept[kind] = report
            self.flush()
            while self._kept and not self._begun:
                first = self._kept.pop(next(iter(self._kept)))
                self._next = first.model_dump_json().encode() + b"\n"
                self.flush()


class Parent(Kernel):
    """The kernel, as the loop's thread watches it and the heartbeats' thread waits for its end."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self._event = threading.Event()

    def gone(self, *, within_s: float) -> bool:
        """Wait up to ``within_s`` for the kernel's end."""
        return self._event.wait(max(0.0, within_s)) or os.getppid() != self._pid

    def went(self) -> None:
        """Note that it is gone."""
        self._event.set()


class Tunnel:
    """The parts of the process, on one loop; the heartbeats have a thread."""

    def __init__(self, orders: Orders, api: Api) -> None:
        self._orders, self._api = orders, api
        self._mailbox = Mailbox(_STDOUT)
        self._parent = Parent(orders.parent_pid)
        self._over = asyncio.Event()  # nobody is left who could call
        self._carrying: asyncio.Task[None] | None = None
        self._folder: Path | None = None

    async def run(self, rest: bytes) -> None:
        """Live as long as the kernel, and until the lease is released; ``rest`` is what came after the orders."""
        loop = asyncio.get_running_loop()
        beating = threading.Thread(target=self._beat, name="heartbeats")
        beating.start()
        reading = loop.create_task(self._read(rest))
        try:
            await self._over.wait()
        finally:
            self._parent.went()
            reading.cancel()
            await self._stop_carrying()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            await asyncio.to_thread(beating.join)

    def _beat(self) -> None:
        # When the lease is lost the sockets stay, so that every call is told why.
        keep_alive(self._orders, self._api, self._parent, self._mailbox)

    async def _read(self, rest: bytes) -> None:
        """Follow what the kernel says, until its end."""
        readable = asyncio.Event()
        os.set_blocking(_STDIN, False)  # the event may be set once more after everything was read
        asyncio.get_running_loop().add_reader(_STDIN, readable.set)
        try:
            while os.getppid() == self._orders.parent_pid:
                while b"\n" in rest:
                    line, _, rest = rest.partition(b"\n")
                    await self._open(Opening.model_validate_json(line))
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(readable.wait(), POLL_S)
                if readable.is_set():
                    readable.clear()
                    with contextlib.suppress(BlockingIOError):
                        chunk = os.read(_STDIN, 65536)
                        if not chunk:
                            return
                        rest += chunk
        finally:
            asyncio.get_running_loop().remove_reader(_STDIN)
            self._over.set()

    # ------------------------------------------------------------ carrying calls

    async def _open(self, opening: Opening) -> None:
        await self._stop_carrying()
        self._carrying = asyncio.get_running_loop().create_task(self._carry(opening))

    async def _stop_carrying(self) -> None:
        carrying, self._carrying = self._carrying, None
        if carrying is not None:
            carrying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await carrying

    async def _carry(self, opening: Opening) -> None:
        line = Line(self._route(opening))
        keeping = asyncio.get_running_loop().create_task(line.run())
        gateways = Gateways(line)
        try:
            await self._await_line(line, opening)
            addresses = await self._listen(gateways, opening)
            self._tell(Report(event="opened", addresses=addresses, opening=opening.number))
            await asyncio.wait({keeping})
            self._tell(_closed(keeping.exception(), opening))
            await asyncio.get_running_loop().create_future()  # calls are told why for as long as the kernel lives
        except LineLost as lost:
            self._tell(_closed(lost, opening))
        except OSError as fault:
            text = f"The tunnel cannot listen on this machine ({fault})."
            self._tell(Report(event="closed", text=text, opening=opening.number))
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError, LineLost):
                await keeping
            await gateways.close()

    def _route(self, opening: Opening) -> Route:
        chosen = {Method[name.upper()]: seconds for name, seconds in opening.deadlines_s.items()}
        relay = Relay(url=opening.url, token=opening.token.get_secret_value())
        return route_to(
            relay, self._orders.target, ca_pem=self._orders.ca_pem, deadlines_s=chosen, ttl_s=self._orders.ttl_s
        )

    async def _await_line(self, line: Line, opening: Opening) -> None:
        """Wait for the first connection; LineLost, with the reason, when there is none within seconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not opening.again:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(line.opened.wait(), 0.1)
            waited_s = loop.time() - began
            if line.opened.is_set() or line.lost:
                break
            if waited_s > OPEN_WITHIN_S or (line.fault is not None and waited_s > SECOND_CHANCE_S):
                raise LineLost(line.fault or "The relay does not answer; is it running, and its port open to you?")
        await line.opened.wait()
        if line.lost is not None:
            raise line.lost

    async def _listen(self, gateways: Gateways, opening: Opening) -> list[str]:
        if opening.folder is None:
            return await gateways.open_ports(opening.ports)
        self._folder = Path(opening.folder)
        return await gateways.open_sockets(self._folder)

    def _tell(self, report: Report) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._mailbox.put(report)


def _closed(fault: BaseException | None, opening: Opening) -> Report:
    """Why no more calls are carried; the end of the lease is news of its own."""
    if isinstance(fault, LineLost):
        if fault.bye is Bye.LEASE_ENDED:
            return Report(event="lost", text=str(fault))
        return Report(event="closed", text=str(fault), untrusted=fault.untrusted, opening=opening.number)
    return Report(event="closed", text=f"The tunnel failed ({fault!r}).", opening=opening.number)


def _read_orders() -> tuple[Orders, bytes] | None:
    got = b""
    while b"\n" not in got:
        chunk = os.read(_STDIN, 65536)
        if not chunk:
            return None
        got += chunk
    line, _, rest = got.partition(b"\n")
    return Orders.model_validate_json(line), rest


def main() -> int:
    """Run the tunnel; its exit code means nothing, because all that matters has been reported or is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    read = _read_orders()
    if read is None:
        return 0
    orders, rest = read
    api = Api(Session(orders.target, ca_pem=orders.ca_pem))

    async def live() -> None:
        await Tunnel(orders, api).run(rest)

    asyncio.run(live())
    return 0


if __name__ == "__main__":
    sys.exit(main())
