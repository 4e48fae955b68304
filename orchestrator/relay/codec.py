"""Lossless compression of replies: one zstd stream per lane, so that the previous frames are the dictionary."""

from __future__ import annotations

import zstandard

from client_sdk.wire import MAX_WINDOW_LOG, Flags

# Measured on fights of the practice engine. Poses and backgrounds come back, so a window of many frames pays: with 4 frames
# of 480x512x3 replies shrink 28-fold, with 11 (the largest window) 37-fold. Level 1 alone keeps too few places in mind for
# them (2-fold); a larger table cures that, and long-distance matching finds what is further away (23 -> 37), for a third
# more time. Small frames gain nothing from it.
LEVEL, MIN_MATCH = 1, 5
FRAMES_IN_WINDOW = 32
MIN_WINDOW_LOG = 17
HASH_LOG, LARGE_HASH_LOG = 16, 17
LARGE_BYTES = 64 * 1024
SMALL_BYTES = 128  # below this a reply is not worth a stream


class Encoder:
    """The compressing end of one lane over one connection."""

    def __init__(self) -> None:
        self._stream: zstandard.ZstdCompressionObj | None = None
        self._window_log = 0

    def restart(self) -> None:
        """Begin a new stream with the next reply."""
        self._stream = None

    def encode(self, reply: bytes) -> tuple[bytes, Flags]:
        """The reply as it goes on the wire; not to be called again before it has returned."""
        if len(reply) < SMALL_BYTES:
            return reply, Flags.PLAIN
        flags = Flags(0)
        window_log = min(MAX_WINDOW_LOG, max(MIN_WINDOW_LOG, (FRAMES_IN_WINDOW * len(reply)).bit_length()))
        if self._stream is None or window_log > self._window_log:  # a window opened by small frames ruins large ones
            self._stream = _stream(window_log, large=len(reply) > LARGE_BYTES)
            self._window_log, flags = window_log, Flags.NEW_STREAM
        return self._stream.compress(reply) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), flags


def _stream(window_log: int, *, large: bool) -> zstandard.ZstdCompressionObj:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        window_log=window_log,
        hash_log=LARGE_HASH_LOG if large else HASH_LOG,
        min_match=MIN_MATCH,
        enable_ldm=large,
        write_content_size=0,
        write_checksum=0,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj()
