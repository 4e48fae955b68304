"""What cannot run on this machine is left out by name; in CI it fails instead."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def in_ci() -> bool:
    """Whether this is a CI run, in which nothing may be left out."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def leave_out(reason: str) -> NoReturn:
    """Skip the running test for ``reason``; fail it in CI."""
    if in_ci():
        pytest.fail(f"in CI nothing may be left out, but {reason}", pytrace=False)
    pytest.skip(reason)
