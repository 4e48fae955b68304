"""Lossless compression of replies: one zstd stream per lane, so that the previous frames are the dictionary."""

from __future__ import annotations

from collections.abc import Callable

import zstandard

from client_sdk.wire import MAX_WINDOW_LOG, Flags

# Measured on fights of the practice engine (docs/decisions/0023). Poses and backgrounds come back, so a window of many
# frames pays: with 4 frames of 480x512x3 replies shrink 28-fold, with 11 (the largest window) 37-fold. zstd's own settings
# for level 1 keep too few places in mind (2-fold). Long-distance matching finds what is further away (27 -> 37-fold) for
# twice the time, so it is for clients at a distance, where the line is the limit. Small frames gain nothing from it.
LEVEL, MIN_MATCH = 1, 5
FRAMES_IN_WINDOW = 32
MIN_WINDOW_LOG = 17
LARGE_BYTES = 64 * 1024
SMALL_BYTES = 128  # below this a reply is not worth a stream
_SMALL_HASH_LOG = 16  # at most; for the smallest a sixteenth of the window's bytes keeps what there is to keep, and stays in the cache
_LARGE_FAR = {"hash_log": 17, "enable_ldm": True}
_LARGE_NEAR = {"hash_log": 18, "chain_log": 15, "strategy": zstandard.STRATEGY_DFAST}


_NONE = Flags(0)


def _always() -> bool:
    return True


class Encoder:
    """The compressing end of one lane over one connection; ``is_far`` is asked whenever a stream begins."""

    def __init__(self, is_far: Callable[[], bool] = _always) -> None:
        self._is_far = is_far
        self._stream: zstandard.ZstdCompressionObj | None = None
        self._window_log = 0

    def restart(self) -> None:
        """Begin a new stream with the next reply."""
        self._stream = None

    def encode(self, reply: bytes) -> tuple[bytes, Flags]:
        """The reply as it goes on the wire; not to be called again before it has returned."""
        if len(reply) < SMALL_BYTES:
            return reply, Flags.PLAIN
        flags = _NONE
        window_log = min(MAX_WINDOW_LOG, max(MIN_WINDOW_LOG, (FRAMES_IN_WINDOW * len(reply)).bit_length()))
        if self._stream is None or window_log > self._window_log:  # a window opened by small frames ruins large ones
            self._stream = self._begun(window_log, large=len(reply) > LARGE_BYTES)
            self._window_log, flags = window_log, Flags.NEW_STREAM
        return self._stream.compress(reply) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), flags

    def _begun(self, window_log: int, *, large: bool) -> zstandard.ZstdCompressionObj:
        how: dict[str, int] = {"hash_log": min(_SMALL_HASH_LOG, window_log - 4)}
        if large:
            how = _LARGE_FAR if self._is_far() else _LARGE_NEAR
        parameters = zstandard.ZstdCompressionParameters.from_level(
            LEVEL, window_log=window_log, min_match=MIN_MATCH, write_content_size=0, write_checksum=0, **how
        )
        return zstandard.ZstdCompressor(compression_params=parameters).compressobj()
