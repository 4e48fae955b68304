"""Misbehaviour on request, for tests of whoever looks after engines."""

import os
import threading
from dataclasses import dataclass, field

_CHUNK_BYTES = 32 << 20


@dataclass
class Faults:
    """What goes wrong after how many Steps; None means never."""

    crash_after: int | None = None
    hang_after: int | None = None
    eat_memory_after: int | None = None
    _eaten: list[bytearray] = field(default_factory=list)

    def strike(self, steps: int) -> None:
        """Called once a Step with the number of Steps so far: die, never return, or swallow 32 MiB, as was asked."""
        if self.crash_after is not None and steps > self.crash_after:
            os._exit(139)
        if self.hang_after is not None and steps > self.hang_after:
            threading.Event().wait()
        if self.eat_memory_after is not None and steps > self.eat_memory_after:
            chunk = bytearray(_CHUNK_BYTES)
            chunk[::4096] = b"\1" * (_CHUNK_BYTES // 4096)  # touched, or the kernel would not hand the pages out
            self._eaten.append(chunk)
