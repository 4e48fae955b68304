"""The units that systemd runs the daemon and its relay by, read by systemd's own tools."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.daemon import Exit
from orchestrator.idle_settings import POWEROFF_COMMAND
from tests.support.left_out import leave_out

UNITS = Path(__file__).resolve().parents[2] / "systemd"
DAEMON, RELAY = "cornerman.service", "cornerman-relay.service"
POWEROFF, PRUNE = "cornerman-poweroff.service", "cornerman-prune.service"
WATCHER, TIMER = "cornerman-poweroff.path", "cornerman-prune.timer"
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
    """The root of a machine that has systemd's own units, a program in the units' place, and the units."""
    shutil.copytree(SYSTEM_UNITS, tmp_path / "usr/lib/systemd/system", symlinks=True)
    program = tmp_path / "opt/cornerman/bin/cornerman"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    for name in (DAEMON, RELAY, POWEROFF, PRUNE, WATCHER, TIMER):
        shutil.copy(UNITS / name, tmp_path / "etc/systemd/system")
    return tmp_path


def _verify(analyze: str, root: Path, *units: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([analyze, "verify", f"--root={root}", *units], capture_output=True, text=True, timeout=60)


def _read(name: str, section: str = "Service") -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser[section]


def test_systemd_finds_nothing_wrong(analyze: str, root: Path) -> None:
    """systemd reads the units without a word."""
    for program in ("bin/rm", "bin/sh", "usr/bin/journalctl"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", root / program)
    verified = _verify(analyze, root, DAEMON, RELAY, POWEROFF, PRUNE, WATCHER, TIMER)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


@pytest.mark.parametrize("name", [DAEMON, RELAY])
def test_a_misspelt_setting_would_be_found(analyze: str, root: Path, name: str) -> None:
    """The check above is one that can fail: a setting that systemd does not know is named."""
    unit = root / "etc/systemd/system" / name
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchDogSec="))
    assert "WatchDogSec" in _verify(analyze, root, name).stderr


@pytest.mark.parametrize("name", [DAEMON, RELAY, POWEROFF, PRUNE])
def test_the_units_are_well_hardened(analyze: str, name: str) -> None:
    """systemd's own measure of what the services could do to their host stays low: below 3.0 of 10."""
    measured = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=30", "--no-pager", str(UNITS / name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert re.search(rf"Overall exposure level for {name}: [0-2]\.\d", measured.stdout)


@pytest.mark.parametrize("name", [DAEMON, RELAY])
def test_what_is_dead_or_hung_comes_back(name: str) -> None:
    """systemd restarts it always, when its loop hangs too, but not for a configuration that stays wrong."""
    service = _read(name)
    assert (service["Type"], service["Restart"]) == ("notify", "always")
    assert int(service["WatchdogSec"]) > 0
    assert service["RestartPreventExitStatus"] == str(int(Exit.CONFIG))


def test_it_runs_as_its_own_user_with_docker_and_its_state() -> None:
    """The daemon is nobody's user but its own, may talk to Docker, and has a private folder for its state."""
    service = _read(DAEMON)
    assert (service["User"], service["SupplementaryGroups"]) == ("cornerman", "docker")
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("cornerman", "0700")
    assert (
        service["ExecStart"] == "/opt/cornerman/bin/cornerman serve --no-relay --config /etc/cornerman/cornerman.toml"
    )


def test_the_relay_has_the_daemons_state_and_no_docker() -> None:
    """The relay runs as the same user on the same state, and cannot talk to Docker."""
    service = _read(RELAY)
    assert (service["User"], service.get("SupplementaryGroups", "")) == ("cornerman", "")
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("cornerman", "0700")
    assert service["ExecStart"] == "/opt/cornerman/bin/cornerman relay --config /etc/cornerman/cornerman.toml"


def test_neither_ends_the_other() -> None:
    """Starting the daemon starts the relay too, and the crash, stop or restart of one leaves the other alone."""
    daemon, relay = _read(DAEMON, "Unit"), _read(RELAY, "Unit")
    assert RELAY in daemon["Wants"]
    for unit, other in ((daemon, RELAY), (relay, DAEMON)):
        for tie in ("Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts"):
            assert other not in unit.get(tie, "")


def test_stopping_ends_the_daemons_processes_and_no_container() -> None:
    """The daemon gets the time to end its children, the rest of its unit is killed, and Docker's containers are no part of it."""
    service = _read(DAEMON)
    assert service["KillMode"] == "mixed"
    assert "docker.service" not in service.get("PartOf", "") + service.get("BindsTo", "")
    assert service["OOMPolicy"] == "continue"


def test_the_power_off_is_asked_for_by_a_file_of_the_daemon_alone() -> None:
    """Only the daemon's unit has the folder in which the file is watched for, closed to everybody else."""
    daemon, relay = _read(DAEMON), _read(RELAY)
    assert (daemon["RuntimeDirectory"], daemon["RuntimeDirectoryMode"]) == ("cornerman", "0700")
    assert (relay.get("RuntimeDirectory", ""), relay["ReadOnlyPaths"]) == ("", "/run")
    watched = _read(WATCHER, "Path")
    assert (watched["PathExists"], watched["Unit"]) == (POWEROFF_COMMAND.removeprefix("touch "), POWEROFF)
    assert _read(POWEROFF, "Unit")["SuccessAction"] == "poweroff"
    assert "Install" not in (UNITS / POWEROFF).read_text()
