"""Replies shrink, and come out bit by bit as they went in."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.wire import MAX_WINDOW_LOG, Flags
from orchestrator.relay.codec import SMALL_BYTES, Encoder
from practice_engine.games import all_games
from practice_engine.rules import Setup
from practice_engine.session import Session

GAMES = sorted(all_games())


class Decoder:
    """The other end."""

    def __init__(self) -> None:
        self._stream: zstandard.ZstdDecompressionObj | None = None

    def decode(self, data: bytes, flags: Flags) -> bytes:
        """The reply that ``data`` stands for."""
        if flags & Flags.PLAIN:
            return data
        if flags & Flags.NEW_STREAM:
            self._stream = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG).decompressobj()
        assert self._stream is not None
        return self._stream.decompress(data)


def fight(game_id: str, count: int, *, seed: int = 1, step_ratio: int = 6) -> Iterator[bytes]:
    """Replies to steps of a button masher on full frames."""
    game, chance = all_games()[game_id], random.Random(seed)
    session = Session(game, frame_shape=game.frame_shape, step_ratio=step_ratio)
    session.reset(Setup(seed=seed), steps=0)
    for number in range(count):
        yield bytes(session.step([(chance.randrange(game.n_moves), chance.randrange(game.n_attacks))], steps=number))


def _mixed(game_id: str, count: int, *, noise_every: int) -> Iterator[tuple[bytes, bool]]:
    """Fights with frames of noise in between."""
    noise = random.Random(game_id)
    for number, reply in enumerate(fight(game_id, count)):
        yield reply, False
        if number % noise_every == 0:
            yield noise.randbytes(len(reply)), True


@pytest.mark.parametrize("game_id", GAMES)
def test_full_frames_and_noise_come_out_as_they_went_in(game_id: str) -> None:
    """Fights of every game, mixed with frames of pure noise, are bit-exact, and noise grows by 0.1 % at most."""
    encoder, decoder, noise_raw, noise_wire = Encoder(), Decoder(), 0, 0
    for reply, is_noise in _mixed(game_id, 60, noise_every=10):
        data, flags = encoder.encode(reply)
        assert decoder.decode(data, flags) == reply
        if is_noise:
            noise_raw, noise_wire = noise_raw + len(reply), noise_wire + len(data)
    assert noise_wire <= noise_raw * 1.001


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_frames_of_all_games_come_out_as_they_went_in() -> None:
    """10,000 full frames of all nine games, mixed with noise on one lane, are bit-exact; noise grows by 0.1 % at most."""
    encoder, decoder, frames, noise_raw, noise_wire = Encoder(), Decoder(), 0, 0, 0
    for game_id in GAMES:
        encoder.restart()
        for reply, is_noise in _mixed(game_id, 1112, noise_every=20):
            data, flags = encoder.encode(reply)
            assert decoder.decode(data, flags) == reply
            frames += not is_noise
            if is_noise:
                noise_raw, noise_wire = noise_raw + len(reply), noise_wire + len(data)
    assert frames >= 10_000
    assert noise_wire <= noise_raw * 1.001


def test_fights_shrink_thirtyfold() -> None:
    """Full frames of doapp, the largest there are, are sent in a thirtieth of their size or less."""
    encoder, raw, wire = Encoder(), 0, 0
    for reply in fight("doapp", 200):
        raw, wire = raw + len(reply), wire + len(encoder.encode(reply)[0])
    assert raw / wire >= 30


def test_a_stream_that_began_with_small_replies_begins_anew_for_large_ones() -> None:
    """The window that small replies opened does not ruin the frames after them."""
    encoder, decoder, noise = Encoder(), Decoder(), random.Random(1)
    frame, wire = noise.randbytes(700_000), 0
    for reply in (b"x" * 500, b"y" * 500, frame, frame, frame):
        data, flags = encoder.encode(reply)
        assert decoder.decode(data, flags) == reply
        wire += len(data)
    assert wire < 1.1 * len(frame)


def test_small_replies_are_sent_as_they_are() -> None:
    """What is not worth a stream is no part of it."""
    encoder = Encoder()
    assert encoder.encode(b"") == (b"", Flags.PLAIN)
    assert encoder.encode(b"a" * (SMALL_BYTES - 1)) == (b"a" * (SMALL_BYTES - 1), Flags.PLAIN)
    assert encoder.encode(b"a" * SMALL_BYTES)[1] == Flags.NEW_STREAM


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(min_size=0, max_size=400), st.integers(min_value=1, max_value=400), st.booleans()),
        max_size=20,
    )
)
def test_any_replies_come_out_as_they_went_in(parts: list[tuple[bytes, int, bool]]) -> None:
    """Whatever the sizes and contents, and wherever a stream begins anew."""
    encoder, decoder = Encoder(), Decoder()
    for piece, times, restart in parts:
        if restart:
            encoder.restart()
        reply = piece * times
        assert decoder.decode(*encoder.encode(reply)) == reply
