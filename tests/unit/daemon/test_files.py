"""Files that are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator import files


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while a file is written leaves the file as it was."""
    path = tmp_path / "file"
    files.write_atomically(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_there_can_be_kept(tmp_path: Path) -> None:
    """Of two who make the same file only the first one does."""
    path = tmp_path / "file"
    files.write_atomically(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        files.write_atomically(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    """A file has exactly the mode asked for."""
    before = os.umask(0o777)
    try:
        files.write_atomically(tmp_path / "file", b"", mode=0o640)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
