"""What an engine wrote, made fit to be read by people and matched by ``orchestrator.diagnosis``."""

from __future__ import annotations

import re
import threading

MAX_LINE = 500  # characters kept of one line

# Terminal control: CSI (colours, cursor), OSC (titles), two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def tidy(data: bytes, tail: int) -> list[str]:
    """The last ``tail`` lines of raw output, oldest first: no escapes, nothing overwritten, none too long."""
    if tail <= 0:
        return []
    lines = data.decode("utf-8", errors="replace").split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    return [_tidy_line(line) for line in lines[-tail:]]


def _tidy_line(line: str) -> str:
    # A terminal shows what was written last after a carriage return (progress bars).
    shown = next((part for part in reversed(line.split("\r")) if part), "")
    text = _CONTROLS.sub("", _ESCAPES.sub("", shown)).rstrip()
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


class LogRing:
    """The end of an endless log, in memory: at most ``limit_bytes`` are kept."""

    def __init__(self, limit_bytes: int = 256 * 1024) -> None:
        self._limit = limit_bytes
        self._data = bytearray()
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Add what was written, and let go of the oldest."""
        with self._lock:
            self._data += data
            del self._data[: -self._limit]

    def lines(self, tail: int) -> list[str]:
        """The last ``tail`` lines, tidied, oldest first."""
        with self._lock:
            data = bytes(self._data)
        return tidy(data, tail)
