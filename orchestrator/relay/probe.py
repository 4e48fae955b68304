"""Bytes for a client that measures how fast the line is: as random as compressed frames are."""

from __future__ import annotations

import os
from functools import lru_cache

from websockets.datastructures import Headers
from websockets.http11 import Response

SIZE_BYTES = 4 << 20
_BLOCK_BYTES = 64 << 10


def response() -> Response:
    """So many bytes at once; whoever has seen enough closes the connection."""
    headers = Headers()
    headers["Content-Type"] = "application/octet-stream"
    headers["Content-Length"] = str(SIZE_BYTES)
    headers["Connection"] = "close"
    return Response(200, "OK", headers, _body())


@lru_cache(maxsize=1)
def _body() -> bytes:
    return os.urandom(_BLOCK_BYTES) * (SIZE_BYTES // _BLOCK_BYTES)
