"""The last frame of a lane as a picture, read without protobuf."""

from __future__ import annotations

import base64
import io

import pytest
from diambra.engine import interface_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from client_sdk.wire import Method
from orchestrator.relay import picture
from orchestrator.relay.picture import Unreadable


def _replies(height: int, width: int, channels: int, frame: bytes) -> dict[Method, bytes]:
    init = pb.EnvInitResponse(frame_shape=pb.FrameShape(h=height, w=width, c=channels))
    init.available_actions.n_moves = 9
    step = pb.StepResetResponse(observation=pb.StepResetResponse.Observation(frame=frame), reward=3)
    return {Method.ENV_INIT: init.SerializeToString(), Method.STEP: step.SerializeToString()}


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_a_frame_becomes_a_picture(channels: int, mode: str) -> None:
    """Colours and grey frames have the size and the look of what the engine sent."""
    colour = (200, 30, 60)[:channels]
    answer = picture.answer(_replies(24, 40, channels, bytes(colour) * (24 * 40)))
    image = Image.open(io.BytesIO(base64.b64decode(answer["webp"])))
    assert image.size == (40, 24)
    seen = image.convert(mode).crop((20, 12, 21, 13)).tobytes()
    assert all(abs(a - b) < 12 for a, b in zip(seen, colour, strict=True))


def test_a_reset_shows_the_first_frame() -> None:
    """Before the first step the frame is that of the reset."""
    replies = _replies(8, 8, 1, bytes(64))
    replies[Method.RESET] = replies.pop(Method.STEP)
    assert "webp" in picture.answer(replies)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({Method.ENV_INIT: None}, "begun before the relay came"),
        ({Method.STEP: None}, "has not begun yet"),
        ({Method.STEP: b""}, "has no frame"),
        ({Method.STEP: b"\x0a\x7f"}, "cut short"),
        ({Method.STEP: b"\x0f"}, "not a message"),
        ({Method.ENV_INIT: b""}, "has no frame"),
    ],
)
def test_what_cannot_be_shown_has_a_reason(change: dict[Method, bytes | None], words: str) -> None:
    """No frame, a broken reply and an unknown shape are said in words."""
    replies = _replies(8, 8, 1, bytes(64))
    for method, value in change.items():
        if value is None:
            del replies[method]
        else:
            replies[method] = value
    assert words in picture.answer(replies)["why"]


@pytest.mark.parametrize("shape", [(8, 9, 1), (0, 0, 1), (8, 8, 2), (-1, -64, 1), (2**31 - 1, 2**31 - 1, 3)])
def test_a_frame_of_another_shape_is_not_shown(shape: tuple[int, int, int]) -> None:
    """A frame that does not fit what EnvInit told is refused, whatever memory it would take."""
    assert "should be" in picture.answer(_replies(*shape, bytes(64)))["why"]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_reply_breaks_it(init: bytes, step: bytes) -> None:
    """An engine's reply may be anything."""
    assert picture.answer({Method.ENV_INIT: init, Method.STEP: step}).keys() <= {"why", "webp"}


def test_fields_are_those_of_the_message() -> None:
    """What is read is what protobuf wrote."""
    reply = _replies(2, 2, 1, b"abcd")[Method.STEP]
    assert bytes(picture.frame_of(reply)) == b"abcd"
    assert dict(picture.fields(reply))[2] == 3
    with pytest.raises(Unreadable):
        list(picture.fields(b"\xff" * 20))
