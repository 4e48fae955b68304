"""What doctor says of units, by the answers of a systemd that really runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.config import build
from orchestrator.doctor.findings import Finding, Level
from orchestrator.doctor.gathering.service import parse_unit, show
from orchestrator.doctor.service import StateFacts, units
from tests.support import roots
from tests.support.waiting import wait_until

NAME = "cornerman.service"
FILE = f"/etc/systemd/system/{NAME}"
UNIT = "[Unit]\nDescription=x\n[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture(scope="module")
def machine() -> Iterator[roots.Machine]:
    """A clean Debian 12 that runs."""
    with roots.machine(roots.base("debian-12")) as machine:
        machine.boot()
        yield machine


def _found(machine: roots.Machine) -> Finding:
    facts = parse_unit(NAME, machine.run("systemctl", *show(NAME)).stdout)
    config = build({"state_dir": "/s", "pools": {"main": {"runtime": "fake"}}})
    (finding,) = units(config, (facts,), StateFacts("/s", exists=True, running=True))
    return finding


def test_each_state_of_a_unit_is_told_and_its_cure_cures(machine: roots.Machine) -> None:
    """Not installed, off, on for now only, changed on the disk, failed, masked: each cure but the first leads to a unit that is well."""
    assert (_found(machine).level, _found(machine).cure) == (Level.WARNING, "deploy/install.sh")
    machine.write(FILE, UNIT)
    machine.run("systemctl", "daemon-reload")

    def cured(level: Level, word: str) -> None:
        finding = _found(machine)
        assert (finding.level, word in finding.text) == (level, True), finding
        assert finding.cure is not None
        machine.run("sh", "-c", finding.cure)
        assert _found(machine).level is Level.OK, _found(machine)

    cured(Level.FAULT, "inactive")
    machine.run("systemctl", "disable", NAME)
    cured(Level.WARNING, "after a boot it does not")
    machine.write(FILE, UNIT.replace("1000", "2000"))
    cured(Level.WARNING, "changed on the disk")
    machine.run("systemctl", "kill", "--signal=SIGKILL", NAME)
    wait_until(lambda: "has failed" in _found(machine).text, 10)
    cured(Level.FAULT, "has failed")
    machine.run("systemctl", "stop", NAME)
    machine.run("sh", "-c", f"mv {FILE} /srv/unit && systemctl mask {NAME}")
    assert "masked" in _found(machine).text
