"""An engine's answers are read as protobuf reads them."""

from __future__ import annotations

import contextlib
import timeit
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk import CornermanError
from client_sdk.vector._reply import read

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diambra.engine import interface_pb2 as pb

INT32 = st.integers(-(2**31), 2**31 - 1)
MAPS = st.dictionaries(st.one_of(st.integers(0, 200), INT32), st.one_of(st.integers(0, 300), INT32), max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    frame=st.binary(max_size=400),
    categories=st.dictionaries(st.integers(0, 5), MAPS, max_size=4),
    reward=INT32,
    states=st.dictionaries(st.integers(0, 9), st.booleans(), max_size=6),
)
def test_as_protobuf_does(
    frame: bytes, categories: dict[int, dict[int, int]], reward: int, states: dict[int, bool]
) -> None:
    """Frame, RAM states, reward and game states of any answer are what protobuf finds in it."""
    message = pb.StepResetResponse(reward=reward)
    message.observation.frame = frame
    for number, values in categories.items():
        message.observation.ram_states_categories[number].ram_states.update(values)
    message.info.game_states.update(states)
    data = message.SerializeToString()
    found, theirs = read(data), pb.StepResetResponse.FromString(data)
    assert data[found.frame_at : found.frame_end] == theirs.observation.frame
    assert {number: found.ram(number) for number in found.categories} == {
        number: dict(category.ram_states) for number, category in theirs.observation.ram_states_categories.items()
    }
    assert found.reward == theirs.reward
    assert dict(found.info.game_states) == dict(theirs.info.game_states)
    assert found.info.game_states[77] is False
    assert found.ram(77) == {}


@given(st.binary(max_size=60))
def test_nonsense(data: bytes) -> None:
    """Bytes that are no answer are refused in a sentence, or hold nothing that could be taken for one."""
    with contextlib.suppress(CornermanError):
        found = read(data)
        assert 0 <= found.frame_at <= found.frame_end <= len(data)


def test_unknown_fields() -> None:
    """Fields of a newer engine are passed over."""
    data = pb.StepResetResponse(reward=-3).SerializeToString()
    newer = b"\xfa\x01\x02hi" + b"\x31" + bytes(8) + b"\x3d" + bytes(4) + b"\x80\x02\x05" + data
    assert read(newer).reward == -3
    with pytest.raises(CornermanError):
        read(data + b"\x0b")


def test_fast() -> None:
    """Reading an answer of the common kind takes microseconds, not the half millisecond of protobuf in pure Python."""
    message = pb.StepResetResponse(reward=1)
    message.observation.frame = bytes(128 * 128)
    for number in (1, 2, 3):
        message.observation.ram_states_categories[number].ram_states.update({key: key * 3 for key in range(12)})
    message.info.game_states.update(dict.fromkeys(range(5), False))
    data = message.SerializeToString()
    assert min(timeit.repeat(lambda: read(data), number=100, repeat=10)) / 100 < 100e-6
