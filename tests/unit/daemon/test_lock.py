"""One daemon owns a state folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.lock import AlreadyRunning, owning


def test_a_second_daemon_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    """While one daemon holds the lock another gets one sentence that names the first one's process."""
    with owning(tmp_path / "db"):
        with (
            pytest.raises(AlreadyRunning, match=rf"process {os.getpid()}\) runs .* already: stop it first"),
            owning(tmp_path / "db"),
        ):
            pass
        with owning(tmp_path / "other"):
            pass


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    """The next daemon gets the lock that the last one left."""
    for _ in range(2):
        with owning(tmp_path / "state" / "db"):
            assert (tmp_path / "state" / "db.lock").read_text() == f"{os.getpid()}\n"
