"""Asks the relay what is played, over its Unix socket: never through the store, which pictures would only wear out."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from orchestrator import local_socket

WITHIN_S = 3.0
RETRY_S = 3.0
LARGE, MEDIUM, SMALL = 240, 160, 128
"""Pixels that a picture on the wall is wide: where there are few, in between, and when there are many."""
MANY = 16


def width(count: int, *, large: bool) -> int:
    """How wide to draw so many pictures; ``large``: there is room for it."""
    return SMALL if count > MANY else LARGE if large else MEDIUM


def ask(state_dir: Path, engines: Mapping[str, str], *, width: int | None) -> bytes:
    """JSON with pictures of those of ``engines`` (id: mark last seen) that have changed, as the relay wrote it.

    Of a relay that is not there: when to ask again, and why there is nothing.
    """
    if not engines:
        return _nothing()
    question = json.dumps({"engines": dict(engines), "width": width}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(WITHIN_S)
            with local_socket.address(state_dir, local_socket.PICTURES) as path:
                line.connect(path)
            line.sendall(question)
            with line.makefile("rb") as answer:
                found = answer.readline()
    except OSError:
        found = b""
    whole = found.endswith(b"\n")
    return found if whole else _nothing(why="the relay does not answer")


def _nothing(**more: str) -> bytes:
    return json.dumps({"pictures": {}, "wait_s": RETRY_S, **more}).encode()
