"""An engine's answer to Reset or Step, read field by field from its bytes.

DIAMBRA's client takes it from protobuf, which copies the frame and is slow wherever protobuf is pure Python. The names of the
fields and what they mean are protobuf's own, in ``diambra.engine.interface_pb2``: StepResetResponse.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from client_sdk._errors import CornermanError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN, _ROUND = 1 << 63, 1 << 64
# Tags: the number of a field and how it is written.
_OBSERVATION, _REWARD, _INFO = 1 << 3 | _BYTES, 2 << 3 | _VARINT, 3 << 3 | _BYTES
_FRAME, _CATEGORY = 1 << 3 | _BYTES, 2 << 3 | _BYTES
_ENTRY, _KEY, _VALUE, _MESSAGE = 1 << 3 | _BYTES, 1 << 3 | _VARINT, 2 << 3 | _VARINT, 2 << 3 | _BYTES


class _States(dict[int, bool]):
    """A map as protobuf has it: what was not sent is false."""

    def __missing__(self, key: int) -> bool:
        return False


class StepReply(NamedTuple):
    """What is in it: the frame lies in ``data[frame_at:frame_end]``, categories of RAM states are as they came, all are by protobuf's numbers."""

    data: bytes
    frame_at: int
    frame_end: int
    categories: dict[int, bytes]
    reward: int
    game_states: _States

    def ram(self, category: int) -> dict[int, int]:
        """The RAM states of one category, not to be written to; categories that nobody asks for are not read."""
        found = self.categories.get(category)
        return {} if found is None else _category(found)[1]

    @property
    def info(self) -> StepReply:
        """Where protobuf has ``game_states``."""
        return self


def read(data: bytes) -> StepReply:
    """The fields of a StepResetResponse."""
    frame_at = frame_end = reward = at = 0
    categories: dict[int, bytes] = {}
    states = _States()
    try:
        while at < len(data):
            tag, value, at = _field(data, at)
            if tag == _OBSERVATION:
                frame_at, frame_end = _observation(data, value, at, categories) or (frame_at, frame_end)
            elif tag == _REWARD:
                reward = _signed(value)
            elif tag == _INFO:
                states = _game_states(data[value:at])
    except (IndexError, ValueError) as error:
        raise CornermanError("The engine's answer is no StepResetResponse: is it DIAMBRA's engine?") from error
    return StepReply(data, frame_at, frame_end, categories, reward, states)


def _observation(data: bytes, at: int, end: int, categories: dict[int, bytes]) -> tuple[int, int] | None:
    """Where the frame lies if there is one; the categories are put in with the others."""
    frame: tuple[int, int] | None = None
    while at < end:
        tag, size = data[at], data[at + 1]
        if tag == _CATEGORY and size < 0x80:  # as all but the frame are: a call for each would be a third of the time
            begin = at + 2
            at = begin + size
            if at > len(data):
                raise ValueError("cut short")
        else:
            tag, begin, at = _field(data, at)
        if tag == _FRAME:
            frame = begin, at
        elif tag == _CATEGORY:
            category = data[begin:at]
            known = data[begin] == _KEY and data[begin + 1] < 0x80
            categories[data[begin + 1] if known else _category(category)[0]] = category
    return frame


# What is in these changes little from step to step, so most of it has been read before; the results are not to be written to.
@lru_cache(maxsize=4096)
def _category(data: bytes) -> tuple[int, dict[int, int]]:
    """An entry of the map of categories: its number, and its RAM states."""
    number, at, states = 0, 0, dict[int, int]()
    while at < len(data):
        tag, value, at = _field(data, at)
        if tag == _KEY:
            number = value
        elif tag == _MESSAGE:
            states = _numbers(data[value:at])
    return number, states


@lru_cache(maxsize=256)
def _game_states(data: bytes) -> _States:
    return _States({key: bool(value) for key, value in _numbers(data).items()})


def _numbers(data: bytes) -> dict[int, int]:
    """A message that is one map of numbers, in field 1."""
    at, numbers = 0, dict[int, int]()
    while at < len(data):
        tag, inside, at = _field(data, at)
        if tag == _ENTRY:
            key = number = 0
            while inside < at:
                inner, value, inside = _field(data, inside)
                if inner == _KEY:
                    key = _signed(value)
                elif inner == _VALUE:
                    number = _signed(value)
            numbers[key] = number
    return numbers


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """A field's tag; its value, or where its bytes begin; and where it ends."""
    tag, at = data[at], at + 1
    if tag >= 0x80:
        tag, at = _varint(data, at - 1)
    kind = tag & 7
    if kind in (_VARINT, _BYTES):
        value, at = data[at], at + 1
        if value >= 0x80:
            more = data[at]
            if more < 0x80:  # two bytes, as a small frame's length has
                value, at = value & 0x7F | more << 7, at + 1
            else:
                value, at = _varint(data, at - 1)
        if kind == _VARINT:
            return tag, value, at
        if at + value > len(data):
            raise ValueError("cut short")
        return tag, at, at + value
    if kind in (_FIXED64, _FIXED32):
        return tag, 0, at + (8 if kind == _FIXED64 else 4)
    raise ValueError(f"wire type {kind}")


def _signed(value: int) -> int:
    return value - _ROUND if value >= _SIGN else value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number without an end")
