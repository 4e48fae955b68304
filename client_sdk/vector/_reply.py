"""An engine's answer to Reset or Step, read field by field from its bytes.

DIAMBRA's client takes it from protobuf, which copies the frame and is slow wherever protobuf is pure Python. The names of the
fields and what they mean are protobuf's own, in ``diambra.engine.interface_pb2``: StepResetResponse.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from client_sdk._errors import CornermanError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN, _ROUND = 1 << 63, 1 << 64


class _States(dict[int, bool]):
    """A map as protobuf has it: what was not sent is false."""

    def __missing__(self, key: int) -> bool:
        return False


class StepReply(NamedTuple):
    """What is in it: the frame lies in ``data[frame_at:frame_end]``, RAM states are by category, all are by protobuf's numbers."""

    data: bytes
    frame_at: int
    frame_end: int
    ram: dict[int, dict[int, int]]
    reward: int
    game_states: _States

    @property
    def info(self) -> StepReply:
        """Where protobuf has ``game_states``."""
        return self


def read(data: bytes) -> StepReply:
    """The fields of a StepResetResponse."""
    frame_at = frame_end = reward = 0
    ram: dict[int, dict[int, int]] = {}
    states = _States()
    try:
        for field, value, end in _fields(data, 0, len(data)):
            if field == 1:
                for inner, at, inner_end in _fields(data, value, end):
                    if inner == 1:
                        frame_at, frame_end = at, inner_end
                    elif inner == 2:
                        _category(data, at, inner_end, ram)
            elif field == 2:
                reward = value - _ROUND if value >= _SIGN else value
            elif field == 3:
                for inner, at, inner_end in _fields(data, value, end):
                    if inner == 1:
                        key, state = _entry(data[at:inner_end])
                        states[key] = bool(state)
    except (IndexError, ValueError) as error:
        raise CornermanError("The engine's answer is no StepResetResponse: is it DIAMBRA's engine?") from error
    return StepReply(data, frame_at, frame_end, ram, reward, states)


def _category(data: bytes, at: int, end: int, ram: dict[int, dict[int, int]]) -> None:
    """One entry of the map of categories: its number, and the map of its RAM states."""
    number, states = 0, {}
    for field, value, value_end in _fields(data, at, end):
        if field == 1:
            number = value
        elif field == 2:
            at = value
            while at < value_end:  # nearly always entries below 128 bytes of field 1
                if data[at] == 0x0A and data[at + 1] < 0x80:
                    after = at + 2 + data[at + 1]
                    key, state = _entry(data[at + 2 : after])
                    states[key] = state
                    at = after
                else:
                    for inner, inner_at, inner_end in _fields(data, at, value_end):
                        if inner == 1:
                            key, state = _entry(data[inner_at:inner_end])
                            states[key] = state
                    break
    ram[number] = states


@lru_cache(maxsize=16384)
def _entry(data: bytes) -> tuple[int, int]:
    """An entry of a map of numbers; few different ones ever come."""
    key = value = 0
    for field, number, _ in _fields(data, 0, len(data)):
        if field == 1:
            key = number
        elif field == 2:
            value = number - _ROUND if number >= _SIGN else number
    return key, value


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number of each field, with its value and 0, or with where it begins and ends."""
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value, 0
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("cut short")
            yield tag >> 3, at, at + size
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number without an end")
