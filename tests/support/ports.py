"""Ports and addresses for tests. Ports are below the ones the kernel gives to outgoing connections, and away from Cornerman's own."""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 20000, 31900
_generator = random.Random(os.getpid() ^ int.from_bytes(os.urandom(4), "big"))
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now and that this run has not given out before."""
    return free_port_range(1)


def free_port_range(count: int) -> int:
    """The first of ``count`` consecutive ports, all free now and not given out before."""
    for _ in range(1000):
        first = _generator.randrange(FIRST, LAST - count)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first
    raise AssertionError(f"no {count} consecutive free ports between {FIRST} and {LAST}")


def own_address() -> str:
    """The address by which others would reach this machine; without one, a loopback address that is not 127.0.0.1. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(line.getsockname()[0])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
