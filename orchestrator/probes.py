"""Does an engine answer? An open TCP port proves nothing: Docker's proxy accepts with nobody behind it.

A gRPC channel is ready when the server has sent its HTTP/2 settings. Asking for just that takes a socket and half a
millisecond; a channel of the gRPC library takes 200 ms and ten times the CPU for it (docs/decisions/0011).
"""

from __future__ import annotations

import socket
import struct
import time

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER = struct.Struct(">BHBBI")  # length (24 bits), type, flags, stream
_SETTINGS = 4
_LARGEST_SETTINGS = 16384


class GrpcProbe:
    """Passes when a gRPC channel to the engine would become ready: a live server, and no call into anybody's game."""

    def __call__(self, host: str, port: int, *, timeout_s: float) -> bool:
        """True when the server shows itself within ``timeout_s``; a refusal is False at once; never raises."""
        try:
            return _greets(reached(host), port, time.monotonic() + timeout_s)
        except OSError:
            return False


def reached(host: str) -> str:
    """The address by which a listener on ``host`` is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def _greets(host: str, port: int, deadline: float) -> bool:
    with socket.create_connection((host, port), timeout=_left(deadline)) as peer:
        peer.sendall(_PREFACE + _frame(_SETTINGS))
        header = b""
        while len(header) < _FRAME_HEADER.size:
            peer.settimeout(_left(deadline))
            more = peer.recv(_FRAME_HEADER.size - len(header))
            if not more:
                return False
            header += more
    high, low, kind, _, stream = _FRAME_HEADER.unpack(header)
    return bool(kind == _SETTINGS and stream == 0 and (high << 16) + low <= _LARGEST_SETTINGS)


def _frame(kind: int) -> bytes:
    return _FRAME_HEADER.pack(0, 0, kind, 0, 0)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
