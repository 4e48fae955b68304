"""Lossless compression of replies: one zstd stream per lane, so that the previous frames are the dictionary."""

from __future__ import annotations

import zstandard

from client_sdk.wire import MAX_WINDOW_LOG, Flags

LEVEL = 1
FRAMES_IN_WINDOW = 4  # with two, small scrolling scenes hardly shrink
MIN_WINDOW_LOG = 17
SMALL = 256  # below this a reply is not worth a stream


class Encoder:
    """The compressing end of one lane over one connection."""

    def __init__(self, *, level: int = LEVEL) -> None:
        self._level = level
        self._stream: zstandard.ZstdCompressionObj | None = None
        self._window_log = 0

    def restart(self) -> None:
        """Begin a new stream with the next reply."""
        self._stream = None

    def encode(self, reply: bytes) -> tuple[bytes, Flags]:
        """The reply as it goes on the wire; not to be called again before it has returned."""
        if len(reply) < SMALL:
            return reply, Flags.PLAIN
        flags = Flags(0)
        window_log = min(MAX_WINDOW_LOG, max(MIN_WINDOW_LOG, (FRAMES_IN_WINDOW * len(reply)).bit_length()))
        if self._stream is None or window_log > self._window_log:  # a window opened by small frames ruins large ones
            parameters = zstandard.ZstdCompressionParameters.from_level(
                self._level, window_log=window_log, write_content_size=0
            )
            self._stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
            self._window_log, flags = window_log, Flags.NEW_STREAM
        data = self._stream.compress(reply) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        return data, flags
