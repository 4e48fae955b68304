"""A small JPEG of a lane's last frame, and what its game is about: what the dashboard's wall is made of.

WebP would be a tenth smaller and take eight times as long; a wall of pictures must cost next to nothing.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

from client_sdk.wire import Method
from orchestrator.relay.picture import MOST_PIXELS, Unreadable, fields, frame_of, frame_shape

QUALITY, FULL_QUALITY = 65, 85
_GAME_ID = 1  # in EnvSettings
_INIT_RAM, _OBSERVATION, _RAM = (
    6,
    1,
    2,
)  # categories in EnvInitResponse; in StepResetResponse and inside its observation
_COMMON, _SIDES = 1, (2, 3)
_HEALTHS = (203, 210)  # health, or that of the first of a team
_STAGE, _WINS = 100, 201
MOST_GAME_ID = 40


@dataclass(frozen=True, slots=True)
class Fight:
    """What a reply tells of the fight: shares of full health from 0 to 1, rounds won and the stage; None where it does not say."""

    health: tuple[float | None, float | None] = (None, None)
    wins: tuple[int | None, int | None] = (None, None)
    stage: int | None = None


def game_id(env_init_request: bytes) -> str | None:
    """Which game was asked for, in EnvInit's request."""
    try:
        for number, value in fields(env_init_request):
            if number == _GAME_ID and isinstance(value, memoryview):
                return bytes(value).decode("utf-8", "replace")[:MOST_GAME_ID]
    except Unreadable:
        pass
    return None


def last_reply(shown: Mapping[Method, bytes]) -> bytes:
    """The last reply with a frame; Unreadable when there is none yet."""
    if Method.ENV_INIT not in shown:
        raise Unreadable("its game was begun before the relay came, and its frames' shape is not known")
    reply = shown.get(Method.STEP, shown.get(Method.RESET))
    if reply is None:
        raise Unreadable("its game has not begun yet")
    return reply


def jpeg(shown: Mapping[Method, bytes], *, width: int | None) -> bytes:
    """The last frame, about ``width`` pixels wide when it was wider, or as it is; Unreadable when there is none."""
    from PIL import Image

    reply = last_reply(shown)
    height, full_width, channels = frame_shape(shown[Method.ENV_INIT])
    frame = frame_of(reply)
    if (
        channels not in (1, 3)
        or not 0 < height * full_width <= MOST_PIXELS
        or len(frame) != height * full_width * channels
    ):
        raise Unreadable(f"its frame has {len(frame)} bytes and should be {height}x{full_width}x{channels}")
    shrink = max(1, min(full_width // width, height)) if width else 1
    if shrink > 1:  # rows that will not be seen are not even looked at
        row = full_width * channels
        frame = memoryview(b"".join(frame[at * row : (at + 1) * row] for at in range(0, height, shrink)))
        height = (height + shrink - 1) // shrink
    image = Image.frombytes("L" if channels == 1 else "RGB", (full_width, height), bytes(frame))
    if shrink > 1:
        image = image.reduce((shrink, 1))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY if width else FULL_QUALITY)
    return out.getvalue()


def fight(shown: Mapping[Method, bytes]) -> Fight:
    """What the last reply tells of the fight, as far as it can be read."""
    try:
        limits, values = _limits(shown[Method.ENV_INIT]), _values(last_reply(shown))
    except (Unreadable, KeyError):
        return Fight()
    one, two = (values.get(side, {}) for side in _SIDES)
    return Fight(
        health=(_share(one, limits.get(_SIDES[0], {})), _share(two, limits.get(_SIDES[1], {}))),
        wins=(one.get(_WINS), two.get(_WINS)),
        stage=values.get(_COMMON, {}).get(_STAGE),
    )


def _share(values: Mapping[int, int], limits: Mapping[int, tuple[int, int]]) -> float | None:
    for state in _HEALTHS:
        if state in values and state in limits and limits[state][1] > limits[state][0]:
            low, high = limits[state]
            return round(min(1.0, max(0.0, (values[state] - low) / (high - low))), 3)
    return None


def _values(reply: bytes) -> dict[int, dict[int, int]]:
    """RAM states by category and name."""
    found = {}
    for number, observation in fields(reply):
        if number == _OBSERVATION and isinstance(observation, memoryview):
            for category, states in _entries(observation, _RAM):
                found[category] = {name: _number(entry) for name, entry in _entries(states, 1) or ()}
    return found


def _limits(env_init: bytes) -> dict[int, dict[int, tuple[int, int]]]:
    """The least and the most of RAM states, by category and name."""
    found = {}
    for category, states in _entries(memoryview(env_init), _INIT_RAM):
        limits = {}
        for name, entry in _entries(states, 1):
            numbers = {number: value for number, value in fields(entry) if isinstance(value, int)}
            limits[name] = _signed(numbers.get(2, 0)), _signed(numbers.get(3, 0))
        found[category] = limits
    return found


def _entries(message: memoryview, wanted: int) -> list[tuple[int, memoryview]]:
    """Key and value of each entry of a map from numbers to messages, or, where values are numbers, the entry itself."""
    found = []
    for number, entry in fields(message):
        if number != wanted or not isinstance(entry, memoryview):
            continue
        key, value = 0, entry
        for part, content in fields(entry):
            if part == 1 and isinstance(content, int):
                key = content
            elif part == 2 and isinstance(content, memoryview):
                value = content
        found.append((key, value))
    return found


def _number(entry: memoryview) -> int:
    for part, content in fields(entry):
        if part == 2 and isinstance(content, int):
            return _signed(content)
    return 0


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
