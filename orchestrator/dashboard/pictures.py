"""Asks the relay what is played, over its Unix socket: never through the store, which pictures would only wear out."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import local_socket

WITHIN_S = 3.0
RETRY_S = 3.0
WIDTHS = {False: 160, True: 240}
"""Pixels that a picture on the wall is wide, and where there is room for larger ones."""


def ask(state_dir: Path, engines: Mapping[str, str], *, width: int | None) -> dict[str, Any]:
    """Pictures of those of ``engines`` (id: mark last seen) that have changed; of a relay that is not there, only when to ask again."""
    if not engines:
        return {"pictures": {}, "wait_s": RETRY_S}
    question = json.dumps({"engines": dict(engines), "width": width}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(WITHIN_S)
            with local_socket.address(state_dir, local_socket.PICTURES) as path:
                line.connect(path)
            line.sendall(question)
            with line.makefile("rb") as answer:
                found: dict[str, Any] = json.loads(answer.readline())
                return found
    except (OSError, ValueError):
        return {"pictures": {}, "wait_s": RETRY_S, "why": "The relay does not answer, so there are no pictures."}
