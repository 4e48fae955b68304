"""Seeds that are distinct for every environment and episode, and the same again for the same base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

# Numbers are walked through in steps modulo a prime, so none comes twice before all have come. What is added keeps them clear
# of -1, which asks the engine to choose, whatever rank DIAMBRA's client adds; an engine takes them up to 2**31.
_PRIME, _ABOVE = 2**30 + 3, 2000


class Seeds(Iterator[int]):
    """The seeds of one environment: an endless sequence that shares no number with its neighbours'."""

    def __init__(self, base: int | Sequence[int], index: int, count: int) -> None:
        words = np.random.SeedSequence(base).generate_state(2)
        self._step = int(words[0]) % (_PRIME - 1) + 1
        self._first = int(words[1]) % _PRIME
        self._next, self._count = index, count

    def __next__(self) -> int:
        number, self._next = self._next, self._next + self._count
        return _ABOVE + (self._first + self._step * number) % _PRIME


def any_base() -> int:
    """A base of chance."""
    return int(np.random.SeedSequence().generate_state(1)[0])
