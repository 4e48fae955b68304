"""The unit that systemd runs the daemon by, read by systemd's own tools."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.daemon import Exit
from tests.support.left_out import leave_out

UNIT = Path(__file__).resolve().parents[2] / "systemd" / "cornerman.service"
SYSTEM_UNITS = Path("/usr/lib/systemd/system")


@pytest.fixture(scope="module")
def analyze() -> str:
    """The command systemd-analyze."""
    found = shutil.which("systemd-analyze")
    if found is None:
        leave_out("there is no systemd-analyze here to read the unit with")
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a machine that has systemd's own units, a program in the unit's place, and the unit."""
    shutil.copytree(SYSTEM_UNITS, tmp_path / "usr/lib/systemd/system", symlinks=True)
    program = tmp_path / "opt/cornerman/bin/cornerman"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    shutil.copy(UNIT, tmp_path / "etc/systemd/system")
    return tmp_path


def _verify(analyze: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, "verify", f"--root={root}", "cornerman.service"], capture_output=True, text=True, timeout=60
    )


def _service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_finds_nothing_wrong(analyze: str, root: Path) -> None:
    """systemd reads the unit without a word."""
    verified = _verify(analyze, root)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_a_misspelt_setting_would_be_found(analyze: str, root: Path) -> None:
    """The check above is one that can fail: a setting that systemd does not know is named."""
    unit = root / "etc/systemd/system/cornerman.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchDogSec="))
    assert "WatchDogSec" in _verify(analyze, root).stderr


def test_the_unit_is_well_hardened(analyze: str) -> None:
    """systemd's own measure of what the daemon could do to its host stays low: 3.0 or less of 10."""
    measured = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=30", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert re.search(r"Overall exposure level for cornerman.service: [0-2]\.\d", measured.stdout)


def test_a_dead_or_hung_daemon_comes_back() -> None:
    """systemd restarts it always, when the pool's loop hangs too, but not for a configuration that stays wrong."""
    service = _service()
    assert (service["Type"], service["Restart"]) == ("notify", "always")
    assert int(service["WatchdogSec"]) > 0
    assert service["RestartPreventExitStatus"] == str(int(Exit.CONFIG))


def test_it_runs_as_its_own_user_with_docker_and_its_state() -> None:
    """The daemon is nobody's user but its own, may talk to Docker, and has a private folder for its state."""
    service = _service()
    assert (service["User"], service["SupplementaryGroups"]) == ("cornerman", "docker")
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("cornerman", "0700")
    assert service["ExecStart"] == "/opt/cornerman/bin/cornerman serve --config /etc/cornerman/cornerman.toml"


def test_stopping_ends_the_daemons_processes_and_no_container() -> None:
    """The daemon gets the time to end its children, the rest of its unit is killed, and Docker's containers are no part of it."""
    service = _service()
    assert service["KillMode"] == "mixed"
    assert "docker.service" not in service.get("PartOf", "") + service.get("BindsTo", "")
    assert service["OOMPolicy"] == "continue"
