"""The parser that both ends share: whatever comes in, it gives whole frames or says what is wrong."""

from __future__ import annotations

import asyncio
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk import wire
from client_sdk._line import Line, Route
from client_sdk.wire import (
    FROM_CLIENT,
    FROM_RELAY,
    Flags,
    Frame,
    Hello,
    Kind,
    LaneInfo,
    Method,
    Welcome,
    WireError,
    answer_frame,
    answer_of,
    frame,
    frames,
    hello_of,
    json_frame,
    method_of,
    text_frame,
    welcome_of,
)

_numbers = st.integers(0, 2**32 - 1)
_headers = st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 2**16 - 1), _numbers, _numbers, _numbers)
# Noise, and headers that are nearly right in front of noise.
messages = st.lists(
    st.one_of(
        st.binary(max_size=64),
        st.builds(lambda header: wire.HEADER.pack(*header), _headers),
        st.builds(
            lambda kind, code, lane, body: frame(Kind(kind), body, code=code, lane=lane, generation=1, seq=1),
            st.integers(1, 8),
            st.integers(0, 8),
            st.integers(0, 5),
            st.binary(max_size=64),
        ),
    ),
    max_size=6,
).map(b"".join)


@settings(max_examples=500, deadline=None)
@given(messages, st.sampled_from([FROM_CLIENT, FROM_RELAY]))
def test_any_bytes_are_frames_or_a_reason(message: bytes, allowed: frozenset[Kind]) -> None:
    """What is given back is allowed, within its limits and inside the message; all else is a WireError."""
    total, reasons = 0, []
    try:
        for one in frames(message, allowed):
            total += wire.HEADER.size + len(one.body)
            assert one.kind in allowed
            assert one.lane < wire.MAX_LANES
            one.text()
            for parse in (hello_of, welcome_of, answer_of, method_of):
                try:
                    parse(one)
                except WireError as error:
                    reasons.append(str(error))
        assert total == len(message)
    except WireError as error:
        reasons.append(str(error))
    assert all(reason.endswith(".") for reason in reasons)
    assert total <= len(message)


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=4))
def test_nothing_that_a_relay_sends_breaks_a_client(messages: list[bytes]) -> None:
    """The client end takes any bytes after WELCOME: it goes on, or ends the connection with a reason."""

    async def feed() -> None:
        line = Line(Route("wss://127.0.0.1:1/v1/leases/l-1", "token"))
        lane = LaneInfo(lane=0, generation=1, ready=True, ran=0, fresh=False)
        line._welcome(Welcome(version=1, epoch="e", resumed=False, lanes=[lane]))
        for message in messages:
            try:
                for one in frames(message, FROM_RELAY - {Kind.WELCOME}):
                    line._handle(one)
            except (WireError, EOFError):
                return
            except Exception as error:
                if type(error).__name__ != "LineLost":
                    raise
                return

    asyncio.run(feed())


@given(st.binary(max_size=2000), st.integers(0, 999), _numbers, _numbers)
def test_a_frame_comes_out_as_it_went_in(body: bytes, lane: int, generation: int, seq: int) -> None:
    """Header and body survive, alone and behind other frames."""
    call = frame(Kind.CALL, body, code=Method.STEP, lane=lane, generation=generation, seq=seq)
    first, second = frames(call + call, FROM_CLIENT)
    assert first == second
    assert (first.lane, first.generation, first.seq, bytes(first.body)) == (lane, generation, seq, body)
    assert method_of(first) is Method.STEP


@given(st.binary(max_size=500), st.integers(0, 2**40), st.integers(0, 2**40))
def test_an_answer_comes_out_as_it_went_in(data: bytes, engine_us: int, queue_us: int) -> None:
    """Times beyond what fits are cut, never wrapped around."""
    sent = answer_frame(
        data, flags=Flags.PLAIN, lane=1, generation=2, seq=3, engine_us=engine_us, queue_us=queue_us, raw_size=len(data)
    )
    (found,) = frames(sent, FROM_RELAY)
    answer = answer_of(found)
    assert bytes(answer.data) == data
    assert (answer.engine_us, answer.queue_us) == (min(engine_us, 2**32 - 1), min(queue_us, 2**32 - 1))


def test_texts_are_cut_to_what_fits() -> None:
    """A reason may be as long as an engine's log: what does not fit is left out, and is text still."""
    (found,) = frames(text_frame(Kind.FAULT, "ü" * 10_000), FROM_RELAY)
    assert len(found.body) <= wire.MAX_TEXT_BYTES
    assert found.text().startswith("üüü")


@pytest.mark.parametrize("session", ["short", "x" * 65, "with space", "", "ümlaut-session"])
def test_a_session_has_a_form(session: str) -> None:
    """A session is a random name; what is not one is refused."""
    with pytest.raises(ValueError, match="session"):
        Hello(version=1, session=session)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_deadline_is_a_number(value: float) -> None:
    """NaN and infinity are no deadlines."""
    with pytest.raises(ValueError, match="finite"):
        Hello(version=1, session="session-1", deadlines_s={"step": value})


def test_hello_and_welcome_leave_room_for_newer_fields() -> None:
    """A newer end may say more than this one knows."""
    (hello,) = frames(frame(Kind.HELLO, b'{"version": 1, "session": "session-1", "colour": "red"}'), FROM_CLIENT)
    assert hello_of(hello).session == "session-1"
    welcome = Welcome(version=1, epoch="e", resumed=False, lanes=[])
    (found,) = frames(json_frame(Kind.WELCOME, welcome), FROM_RELAY)
    assert welcome_of(found) == welcome


def test_the_header_is_as_documented() -> None:
    """Sixteen bytes in network byte order, as another language would read them."""
    raw = frame(Kind.CALL, b"xy", code=Method.RESET, lane=3, generation=4, seq=5)
    assert raw == struct.pack("!BBHIII", 3, 2, 3, 4, 5, 2) + b"xy"
    assert Frame(Kind.CALL, 2, 3, 4, 5, b"xy").text() == "xy"
