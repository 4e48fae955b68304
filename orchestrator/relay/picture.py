"""The last frame of a lane as a picture. The few fields it needs are read directly: the relay depends on no protobuf version."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from typing import Any

from client_sdk.wire import Method

QUALITY = 80
MOST_PIXELS = 4096 * 4096
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FRAME_SHAPE = 2  # in EnvInitResponse; its fields are height, width and channels
_OBSERVATION, _FRAME = 1, 1  # of StepResetResponse, and inside it


class Unreadable(ValueError):
    """A reply is not what it should be."""


def answer(shown: Mapping[Method, bytes]) -> dict[str, Any]:
    """What to say to who asks for a frame: {webp: base64}, or {why: there is none}; ``shown`` are a lane's last replies."""
    if Method.ENV_INIT not in shown:
        return {"why": "its game was begun before the relay came, and its frames' shape is not known"}
    reply = shown.get(Method.STEP, shown.get(Method.RESET))
    if reply is None:
        return {"why": "its game has not begun yet"}
    try:
        return {"webp": base64.b64encode(webp(shown[Method.ENV_INIT], reply)).decode()}
    except Unreadable as fault:
        return {"why": str(fault)}


def webp(env_init: bytes, reply: bytes) -> bytes:
    """The frame in ``reply`` (of a Reset or a Step) as WebP; Unreadable when there is none of the shape that EnvInit told."""
    from PIL import Image

    height, width, channels = frame_shape(env_init)
    frame = frame_of(reply)
    if channels not in (1, 3) or not 0 < height * width <= MOST_PIXELS or len(frame) != height * width * channels:
        raise Unreadable(f"its frame has {len(frame)} bytes and should be {height}x{width}x{channels}")
    image = Image.frombytes("L" if channels == 1 else "RGB", (width, height), bytes(frame))
    out = io.BytesIO()
    image.save(out, "WEBP", quality=QUALITY, method=2)
    return out.getvalue()


def frame_shape(env_init: bytes) -> tuple[int, int, int]:
    """Height, width and channels, as the engine answered to EnvInit."""
    values = {number: value for number, value in fields(_field(env_init, _FRAME_SHAPE)) if isinstance(value, int)}
    return values.get(1, 0), values.get(2, 0), values.get(3, 0)


def frame_of(reply: bytes) -> memoryview:
    """The bytes of the frame in a StepResetResponse."""
    return _field(_field(reply, _OBSERVATION), _FRAME)


def _field(message: bytes | memoryview, wanted: int) -> memoryview:
    for number, value in fields(message):
        if number == wanted and isinstance(value, memoryview):
            return value
    raise Unreadable("its last reply has no frame")


def fields(message: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a protobuf message: an int, or the bytes of what has a length."""
    view, at = memoryview(message), 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(view, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _varint(view, at)
            if size > len(view) - at:
                raise Unreadable("its last reply is cut short")
            yield number, view[at : at + size]
            at += size
        elif kind in (_FIXED_64, _FIXED_32):
            at += 8 if kind == _FIXED_64 else 4
        else:
            raise Unreadable("its last reply is not a message")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise Unreadable("its last reply is cut short")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
