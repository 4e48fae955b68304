"""What doctor says of credentials and ROMs that lie on a real disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from orchestrator.config import Config, build
from orchestrator.doctor import files, roms
from orchestrator.doctor.examine import examine
from orchestrator.doctor.findings import Finding, Level
from orchestrator.doctor.gathering import files as gathering
from orchestrator.doctor.roms import RomList

CONTENT = b"what somebody bought"
LISTED = RomList(
    {"doapp.zip": hashlib.sha256(CONTENT).hexdigest(), "umk3r10.zip": "0" * 64}, "diambra-arena 9.9", installed=True
)


def _config(folder: Path, image: str = "diambra/engine:latest", **docker: Any) -> Config:
    return build({"state_dir": str(folder), "pools": {"main": {"image": image, "docker": docker}}})


def _credentials(config: Config) -> list[Finding]:
    return list(files.credentials(gathering.credentials(config)))


def _roms(folder: Path, listed: RomList = LISTED) -> list[Finding]:
    return list(files.roms(gathering.rom_folders(_config(folder, roms_path=str(folder)), listed), listed))


def _only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_who_may_not_look_is_told_to_be_root(tmp_path: Path) -> None:
    """Somebody else's configuration is no traceback and no advice to set up anew."""
    folder = tmp_path / "etc"
    folder.mkdir()
    folder.chmod(0)
    before = os.geteuid()
    os.seteuid(65534 if before == 0 else before)
    try:
        found = _only(examine(folder / "cornerman.toml"))
    finally:
        os.seteuid(before)
        folder.chmod(0o700)
    assert (found.level, found.cure) == (Level.FAULT, "sudo cornerman doctor")


# ---------------------------------------------------------------- credentials


def test_a_folder_at_the_credentials_path_is_a_fault_with_its_cure(tmp_path: Path) -> None:
    """Report 33: Docker makes a folder of a missing file; doctor says so, and how to get the file."""
    (tmp_path / "credentials").mkdir()
    found = _only(_credentials(_config(tmp_path, credentials_path=str(tmp_path / "credentials"))))
    assert found.level is Level.FAULT
    assert "is a folder: Docker makes one" in found.text
    assert str(found.cure).startswith(f"rmdir {tmp_path / 'credentials'} && ")


def test_credentials_that_are_missing_empty_or_locked_are_faults(tmp_path: Path) -> None:
    """Report 33: each is told apart before an engine waits in vain for somebody to log in."""
    path = tmp_path / "credentials"
    config = _config(tmp_path, credentials_path=str(path), user="4711:4711")
    assert "does not exist" in _only(_credentials(config)).text
    path.touch()
    assert "is empty" in _only(_credentials(config)).text
    path.write_text("token")
    path.chmod(0o600)
    assert "cannot be read by user 4711:4711" in _only(_credentials(config)).text
    path.chmod(0o644)
    assert _only(_credentials(config)).level is Level.OK


def test_the_group_of_an_engine_may_read_its_credentials(tmp_path: Path) -> None:
    """0640 with the engine's group is enough; the rights of a group that is not the engine's do not count."""
    path = tmp_path / "credentials"
    path.write_text("token")
    path.chmod(0o640)
    for gid, level in ((os.getegid(), Level.OK), (4711, Level.FAULT)):
        config = _config(tmp_path, credentials_path=str(path), user=f"4711:{gid}")
        assert _only(_credentials(config)).level is level


def test_only_diambras_image_needs_credentials(tmp_path: Path) -> None:
    """Without credentials_path DIAMBRA's engine cannot come up, and the practice engine can."""
    assert _only(_credentials(_config(tmp_path))).level is Level.FAULT
    assert _credentials(_config(tmp_path, image="cornerman/practice-engine:latest")) == []


# ---------------------------------------------------------------- ROMs


def test_a_rom_as_it_was_downloaded_is_well(tmp_path: Path) -> None:
    """The archive under its name, in the folder itself, with the SHA-256 that DIAMBRA lists."""
    (tmp_path / "doapp.zip").write_bytes(CONTENT)
    found = _only(_roms(tmp_path))
    assert found.level is Level.OK
    assert "doapp.zip, as diambra-arena 9.9 lists" in found.text


def test_a_rom_of_another_version_is_told_with_both_hashes(tmp_path: Path) -> None:
    """Report 34: which file, its SHA-256, and the one that DIAMBRA lists."""
    (tmp_path / "doapp.zip").write_bytes(b"another")
    found = _only(_roms(tmp_path))
    assert found.level is Level.FAULT
    assert str(tmp_path / "doapp.zip") in found.text
    assert hashlib.sha256(b"another").hexdigest() in found.text
    assert LISTED.listed["doapp.zip"] in found.text


def test_no_rom_at_all_is_a_fault(tmp_path: Path) -> None:
    """Report 34: an empty folder, and one with the files of an archive but not the archive."""
    assert "There is nothing in roms_path" in _only(_roms(tmp_path)).text
    (tmp_path / "chip.bin").touch()
    found = _only(_roms(tmp_path))
    assert (found.level, "not unzipped" in found.text) == (Level.FAULT, True)


def test_an_unzipped_rom_is_found(tmp_path: Path) -> None:
    """Report 34: a folder where the archive should be."""
    (tmp_path / "doapp").mkdir()
    (tmp_path / "doapp" / "chip.bin").touch()
    found = _only(_roms(tmp_path))
    assert (found.level, "unpacked archive" in found.text) == (Level.FAULT, True)


def test_a_rom_in_the_wrong_folder_is_found(tmp_path: Path) -> None:
    """Report 34: an archive one level too deep, and the command that moves it."""
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "doapp.zip").write_bytes(CONTENT)
    found = _only(_roms(tmp_path))
    assert (found.level, "wrong folder" in found.text) == (Level.FAULT, True)
    assert found.cure == f"mv {tmp_path}/games/doapp.zip {tmp_path}/doapp.zip"


def test_a_rom_under_another_name_is_found(tmp_path: Path) -> None:
    """Report 34: the right content under the name that a web site gave it."""
    (tmp_path / "Dead or Alive (1).zip").write_bytes(CONTENT)
    found = _only(_roms(tmp_path))
    assert found.level is Level.FAULT
    assert found.cure == f"mv '{tmp_path}/Dead or Alive (1).zip' {tmp_path}/doapp.zip"


def test_an_archive_that_nobody_lists_is_a_warning(tmp_path: Path) -> None:
    """It may be of a newer list; the good ones beside it still count."""
    (tmp_path / "doapp.zip").write_bytes(CONTENT)
    (tmp_path / "other.zip").write_bytes(b"x")
    assert {finding.level for finding in _roms(tmp_path)} == {Level.OK, Level.WARNING}


def test_a_missing_rom_folder_is_a_fault(tmp_path: Path) -> None:
    """Report 34: named, but not there; or not named at all, with DIAMBRA's image."""
    assert "cannot be looked into" in _only(_roms(tmp_path / "absent")).text
    config = _config(tmp_path)
    assert _only(list(files.roms(gathering.rom_folders(config, LISTED), LISTED))).level is Level.FAULT


def test_the_list_kept_here_is_diambras() -> None:
    """A host without DIAMBRA's client compares with the same names and hashes, and says where they are from."""
    assert roms.known() == RomList(roms.LISTED, roms.LISTED_BY, installed=True)


def test_without_diambras_client_doctor_says_whose_list_it_is(tmp_path: Path) -> None:
    """Nobody takes the list kept here for the newest."""
    (tmp_path / "doapp.zip").write_bytes(CONTENT)
    kept = RomList(LISTED.listed, "diambra-arena 9.9", installed=False)
    assert "is not installed beside the daemon" in _roms(tmp_path, kept)[-1].text
