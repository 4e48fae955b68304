"""Both ends of a long line on one machine: a daemon with canned engines, a line in a process of its own, and leases over it."""

from __future__ import annotations

import contextlib
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from client_sdk import Cornerman, Lease
from tests.support.link import LinkProcess, Settings
from tests.support.real_daemon import RealDaemon, set_up

HOST_END = "127.0.0.2"  # where the relay listens; the line has its port at 127.0.0.1, where clients look for it


@dataclass(frozen=True)
class Point:
    """One kind of line, the step_ratio that is played over it, and how many turns all ways take."""

    rtt_s: float
    bit_per_s: float
    step_ratio: int
    turns: int

    def __str__(self) -> str:
        rate = f"{self.bit_per_s / 1e6:g} Mbit/s" if self.bit_per_s < 1e9 else f"{self.bit_per_s / 1e9:g} Gbit/s"
        return f"{self.rtt_s * 1e3:g} ms, {rate}, step_ratio {self.step_ratio}"


@dataclass
class Rig:
    """What the ways of stepping need."""

    daemon: RealDaemon
    line: LinkProcess
    stack: ExitStack

    def lease(self, envs: int, *, via: str) -> Lease:
        """So many engines, until the end of the rig."""
        sdk = Cornerman(self.daemon.url, quiet=True)
        return self.stack.enter_context(sdk.lease(envs, via=via, timeout_s=180.0))  # type: ignore[arg-type]

    def over_line(self, address: str) -> str:
        """The address at the near end of the line that leads to ``address``."""
        host, _, port = address.rpartition(":")
        return f"127.0.0.1:{self.line.add((host, int(port)))}"

    def lay(self, point: Point) -> None:
        """Give the line the distance and the bandwidth of ``point``."""
        self.line.change(rtt_s=point.rtt_s, bit_per_s=point.bit_per_s)

    def counted(self) -> tuple[int, int]:
        """Bytes up and down the line so far."""
        counts = self.line.command("counts")
        return counts["up"], counts["down"]


@contextlib.contextmanager
def rig(engines: int, **practice: str) -> Iterator[Rig]:
    """A running daemon with so many engines at published speed, whose relay is reached over the line alone.

    ``practice`` are settings of the practice engines, as ``reset_seconds="3"``; frames are pre-rendered unless ``canned="0"``.
    """
    environ = {f"CORNERMAN_PRACTICE_{name.upper()}": value for name, value in {"canned": "1", **practice}.items()}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cornerman-wan-")))
        arguments = ("--runtime", "process", "--max-engines", str(engines), "--min-ready", str(engines))
        daemon = set_up(folder, *arguments, ports=engines + 8, environ=environ)
        path = daemon.folder / "cornerman.toml"
        path.write_text(path.read_text().replace('#bind = "0.0.0.0"\nport =', f'bind = "{HOST_END}"\nport =', 1))
        relay = daemon.config.relay
        assert relay.bind == HOST_END
        line = LinkProcess((HOST_END, relay.port), Settings(), port=relay.port)
        stack.callback(line.close)
        stack.callback(daemon.close)
        daemon.start()
        yield Rig(daemon, line, stack)


# ------------------------------------------------------------ is the line what it says?

PINGS, PROBE_S = 25, 0.2


def probed(line: LinkProcess) -> tuple[float, float]:
    """The line as it is measured to be: the median round trip in seconds, and bit/s down."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=_answer, args=(listener,), daemon=True)
        answering.start()
        with socket.create_connection(("127.0.0.1", line.add(listener.getsockname()))) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _fetch(peer, 1)
            trips = [_fetch(peer, 1) for _ in range(PINGS)]
            rtt_s = statistics.median(trips)
            size = 1 << 20
            while (took_s := _fetch(peer, size) - rtt_s) < PROBE_S and size < 1 << 26:
                size *= 2
        answering.join(5)
    return rtt_s, size * 8 / took_s


def _answer(listener: socket.socket) -> None:
    """Send as many bytes as are asked for, until the asker goes."""
    peer, _ = listener.accept()
    with peer, contextlib.suppress(OSError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while asked := peer.recv(4):
            peer.sendall(bytes(int.from_bytes(asked, "big")))


def _fetch(peer: socket.socket, size: int) -> float:
    """Seconds until so many bytes are here."""
    began, left = time.perf_counter(), size
    peer.sendall(size.to_bytes(4, "big"))
    while left > 0:
        got = len(peer.recv(min(left, 1 << 20)))
        if not got:
            raise SystemExit("The line broke while it was checked.")
        left -= got
    return time.perf_counter() - began
