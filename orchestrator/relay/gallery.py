"""Shows what is played to the API process, over a Unix socket that only this user can open; nothing is made while nobody looks.

One line of JSON asks, and one answers: ``{"engines": {id: mark last seen}, "width": pixels or null}`` gives
``{"pictures": {id: {...}}, "wait_s": seconds}``. What has not changed is left out, and ``wait_s`` says when to ask again, so that
all who look together cost a fixed share of one core.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from client_sdk.wire import Method
from orchestrator import local_socket
from orchestrator.relay import thumbnail
from orchestrator.relay.lane import Lane
from orchestrator.relay.picture import Unreadable

log = structlog.get_logger(__name__)

SHARE = 0.025  # of one core, for all pictures together
BURST_S = 0.02
SOONEST_S, LATEST_S = 0.25, 5.0
EACH_S = 1 / 64  # asking costs too: 32 engines are shown twice a second at most
MOST_ENGINES = 64
ASK_WITHIN_S = 10.0
MOST_ASKED = 64 * 1024
Lanes = Callable[[], Mapping[str, Lane]]


class Allowance:
    """How much time may be spent: ``SHARE`` of what passes, and a little at once."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._left_s, self._at = BURST_S, monotonic()

    def spend(self, cost_s: float, *, engines: int = 1) -> float:
        """Take ``cost_s`` from it; how long to wait until it is made up for, and not too soon for so many ``engines``."""
        now = self._monotonic()
        self._left_s = min(BURST_S, self._left_s + (now - self._at) * SHARE) - cost_s
        self._at = now
        return min(LATEST_S, max(SOONEST_S, engines * EACH_S, -self._left_s / SHARE))


# From 3.13 on asyncio removes the socket at the end, by a path that leads there only while it is made. The next relay removes it.
_LEFT_THERE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class Gallery:
    """Answers on the socket; ``lanes`` are those there are now, by the engine they step."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes, self._allowance = lanes, Allowance()
        # One thread, so that the loop, which carries steps, competes with one only.
        self._artist = ThreadPoolExecutor(1, thread_name_prefix="pictures")
        self._known: dict[tuple[str, int | None], dict[str, Any]] = {}
        self._server: asyncio.Server | None = None

    async def open(self, state_dir: Path) -> None:
        """Begin to answer; a relay that cannot is a relay without pictures."""
        try:
            with local_socket.address(state_dir, local_socket.PICTURES) as path:
                self._server = await asyncio.start_unix_server(self._serve, path, limit=MOST_ASKED, **_LEFT_THERE)
                os.chmod(path, 0o600)
        except OSError as fault:
            log.warning("the dashboard will have no pictures", fault=str(fault))

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        self._artist.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError, asyncio.TimeoutError, RuntimeError):
                while line := await asyncio.wait_for(reader.readline(), ASK_WITHIN_S):
                    asked = json.loads(line)
                    answer = await self.show(asked["engines"], width=asked.get("width"))
                    writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
                    await asyncio.wait_for(writer.drain(), ASK_WITHIN_S)
        except (KeyError, TypeError, AttributeError) as fault:
            log.warning("a question for pictures cannot be understood", fault=repr(fault))
        finally:
            writer.close()

    async def show(self, engines: Mapping[str, str], *, width: int | None) -> dict[str, Any]:
        """Pictures of those of ``engines`` whose mark is another one by now, and how soon to ask again."""
        lanes, loop = self._lanes(), asyncio.get_running_loop()
        self._forget(lanes)
        pictures: dict[str, Any] = {}
        cost_s = 0.0
        for engine_id, seen in list(engines.items())[:MOST_ENGINES]:
            lane = lanes.get(engine_id)
            mark = _mark(lane)
            if mark == seen:
                continue
            known = self._known.get((engine_id, width))
            if known is None or known["mark"] != mark:
                drawn, took_s = await loop.run_in_executor(self._artist, _draw, _sketch(lane, mark), width)
                known, cost_s = drawn, cost_s + took_s
                if lane is not None:
                    self._known[engine_id, width] = known
            pictures[engine_id] = known
        return {"pictures": pictures, "wait_s": round(self._allowance.spend(cost_s, engines=len(engines)), 3)}

    def _forget(self, lanes: Mapping[str, Lane]) -> None:
        gone = [key for key in self._known if key[0] not in lanes]
        for key in gone:
            del self._known[key]


def _mark(lane: Lane | None) -> str:
    """Changes whenever a lane's picture may have."""
    return "none" if lane is None else f"{lane.seat.generation}.{lane.ran}"


@dataclass(frozen=True, slots=True)
class _Sketch:
    """What a lane had to show when it was looked at: its replies, and the request that began its game."""

    mark: str
    shown: Mapping[Method, bytes] | None  # None: there is no such lane
    env_init: bytes | None = None


def _sketch(lane: Lane | None, mark: str) -> _Sketch:
    return _Sketch(mark, None) if lane is None else _Sketch(mark, dict(lane.shown), lane.env_init)


def _draw(sketch: _Sketch, width: int | None) -> tuple[dict[str, Any], float]:
    """What there is to show of a lane, and the seconds of a core that it took."""
    began, found = time.thread_time(), dict[str, Any](mark=sketch.mark)
    if sketch.shown is None:
        return found | {"why": "no call of its lease has come through the relay yet"}, 0.0
    if sketch.env_init is not None:
        found["game"] = thumbnail.game_id(sketch.env_init)
    try:
        found["jpeg"] = base64.b64encode(thumbnail.jpeg(sketch.shown, width=width)).decode()
        told = thumbnail.fight(sketch.shown)
        found |= {"health": told.health, "wins": told.wins, "stage": told.stage}
    except Unreadable as fault:
        found["why"] = str(fault)
    return found, time.thread_time() - began
