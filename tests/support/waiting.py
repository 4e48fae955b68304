"""Waiting with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout_s: float, *, what: str = "", poll_s: float = 0.02) -> T:
    """Return the first true value of ``predicate``, asked every ``poll_s``; AssertionError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            name = what or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"{name} did not come true within {timeout_s:g} s (last value: {value!r})")
        time.sleep(poll_s)
