"""The checks of doctor: what each finds in given facts, and that every finding but a good one names its cure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import Config, build
from orchestrator.doctor import certificates, engine_host, findings, machine, network, service
from orchestrator.doctor.certificates import CertificateFacts
from orchestrator.doctor.engine_host import DockerFacts, ImageFacts
from orchestrator.doctor.findings import Finding, Level
from orchestrator.doctor.machine import GIB, Disk, MachineFacts
from orchestrator.doctor.network import Met, NetworkFacts
from orchestrator.doctor.service import PoolFacts, StateFacts, UnitFacts

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
PUBLIC = "198.51.100.20"  # of a documentation network, which Python counts among the private ones
ROUTED = "8.8.4.4"
MACHINE = MachineFacts(
    memory_bytes=16 * GIB,
    cores=8,
    disks=(Disk("the state", "/s", 50 * GIB), Disk("Docker", "/d", 50 * GIB, for_docker=True)),
    outgoing_ports=(32768, 60999),
    reserved_ports=((32000, 32999),),
    clock_in_step=True,
    now=NOW.timestamp(),
)
NETWORK = NetworkFacts(
    running=True,
    listening=frozenset({("0.0.0.0", 8443), ("0.0.0.0", 8444), ("127.0.0.1", 32000)}),
    held=frozenset({8443, 8444, 32000}),
    engine_ports=frozenset({32000}),
    containers_ports=frozenset(),
    own_addresses=frozenset({"127.0.0.1", "10.0.0.5"}),
    addresses=(ROUTED,),
    met=Met.OURS,
)
STATE = StateFacts("/s", exists=True, running=True, schema=1, known_schema=1)
DOCKER = DockerFacts("unix:///docker.sock", version="20.10.24+dfsg1", architecture="x86_64", root="/d")
IMAGE = ImageFacts("main", "engine:1", pull=True, there="sha256:" + "a" * 64, architecture="amd64")


def _config(*, server: dict[str, Any] | None = None, pool: dict[str, Any] | None = None, **more: Any) -> Config:
    main = {"image": "engine:1", "min_ready": 2, "max_engines": 8, **(pool or {})}
    return build(
        {"state_dir": "/s", "server": {"public_host": ROUTED, **(server or {})}, "pools": {"main": main}, **more}
    )


def _worst(found: Iterable[Finding]) -> Finding:
    """The worst of them; all must be sentences, and those that are not good must name a cure."""
    listed = list(found)
    for finding in listed:
        assert finding.text.endswith("."), finding
        assert (
            finding.text[0].isupper()
            or finding.text[0] in "/0123456789"
            or finding.text.startswith(("public_host", "credentials_path", "roms_path", "cornerman"))
        ), finding
        assert (finding.cure is None) == (finding.level is Level.OK), finding
    return max(listed, key=lambda finding: findings.EXIT_CODES[finding.level])


# ---------------------------------------------------------------- the machine


def test_a_machine_that_suits_its_pools_is_well() -> None:
    """Nothing is found to be wrong where nothing is."""
    for check in (machine.memory, machine.cores, machine.disk, machine.kernel_ports):
        assert _worst(check(_config(), MACHINE)).level is Level.OK
    assert _worst(machine.clock(MACHINE)).level is Level.OK


def test_a_pool_larger_than_the_memory_is_told_with_the_size_that_fits() -> None:
    """More engines than fit is a warning, more that are kept ready is a fault, and the cure names a number that fits."""
    small = replace(MACHINE, memory_bytes=4 * GIB)
    found = _worst(machine.memory(_config(), small))
    assert (found.level, found.cure) == (Level.WARNING, "cornerman pool set main --max-engines 4")
    found = _worst(machine.memory(_config(pool={"min_ready": 6}), small))
    assert (found.level, found.cure) == (Level.FAULT, "cornerman pool set main --min-ready 4")


def test_engines_without_cores_are_a_warning() -> None:
    """Sixteen engines on two cores run, but slowly."""
    found = _worst(machine.cores(_config(pool={"max_engines": 16}), replace(MACHINE, cores=2)))
    assert (found.level, found.cure) == (Level.WARNING, "cornerman pool set main --max-engines 4")


@pytest.mark.parametrize(
    ("free", "level"), [(100 * 2**20, Level.FAULT), (700 * 2**20, Level.WARNING), (9 * GIB, Level.OK)]
)
def test_a_full_disk_is_found_before_it_is_full(free: int, level: Level) -> None:
    """The state's disk has limits of its own."""
    assert _worst(machine.disk(_config(), replace(MACHINE, disks=(Disk("the state", "/s", free),)))).level is level


def test_ports_that_the_kernel_hands_out_are_a_warning_with_the_setting() -> None:
    """Report 4: the warning names the sysctl, and what was reserved before stays in it."""
    found = _worst(machine.kernel_ports(_config(), replace(MACHINE, reserved_ports=((8080, 8080),))))
    assert found.level is Level.WARNING
    assert "32768-32999" in found.text
    assert found.cure is not None
    assert "net.ipv4.ip_local_reserved_ports=32000-32999,8080" in found.cure


@pytest.mark.parametrize(
    ("first", "last", "reserved", "level"),
    [
        (32000, 32767, "", Level.OK),  # the kernel never hands those out
        (32000, 32999, "32768-32999", Level.OK),
        (32000, 32999, "32500-32800,32801-33000", Level.OK),
        (32000, 32999, "32768-32998", Level.WARNING),
        (50000, 50100, "32000-32999", Level.WARNING),
    ],
)
def test_only_what_the_kernel_may_take_must_be_reserved(first: int, last: int, reserved: str, level: Level) -> None:
    """Ports below the kernel's range need no reservation, and several ranges may cover the rest together."""
    facts = replace(MACHINE, reserved_ports=machine.parse_ports(reserved))
    assert _worst(machine.kernel_ports(_config(first_port=first, last_port=last), facts)).level is level


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"clock_in_step": False}, Level.WARNING),
        ({"clock_in_step": None}, Level.OK),
        ({"newest_event": NOW.timestamp() + 4000}, Level.WARNING),
        ({"now": 1_000_000.0}, Level.FAULT),
    ],
)
def test_a_wrong_clock_is_found(changes: dict[str, Any], level: Level) -> None:
    """A clock that nobody sets, that went back, or that is years behind."""
    assert _worst(machine.clock(replace(MACHINE, **changes))).level is level


# ---------------------------------------------------------------- Docker


@pytest.mark.parametrize(
    ("facts", "level", "cure"),
    [
        (DOCKER, Level.OK, None),
        (replace(DOCKER, version="19.03.15"), Level.WARNING, "apt-get install --only-upgrade docker.io"),
        (replace(DOCKER, fault="Docker does not answer."), Level.FAULT, "systemctl enable --now docker"),
        (replace(DOCKER, fault="This user may not use Docker."), Level.FAULT, "sudo cornerman doctor"),
    ],
)
def test_docker_is_there_and_not_too_old(facts: DockerFacts, level: Level, cure: str | None) -> None:
    """No answer is a fault, an untried old version a warning."""
    found = _worst(engine_host.docker(facts))
    assert (found.level, found.cure) == (level, cure)


@pytest.mark.parametrize(
    ("facts", "level", "cure"),
    [
        (IMAGE, Level.OK, None),
        (replace(IMAGE, there=None), Level.WARNING, "docker pull engine:1"),
        (replace(IMAGE, there=None, pull=False), Level.FAULT, "docker pull engine:1"),
        (replace(IMAGE, pinned="sha256:" + "b" * 64), Level.WARNING, "cornerman upgrade-image main"),
        (replace(IMAGE, pinned=IMAGE.there), Level.OK, None),
        (replace(IMAGE, architecture="arm64"), Level.FAULT, None),
    ],
)
def test_an_image_is_there_and_the_one_in_use(facts: ImageFacts, level: Level, cure: str | None) -> None:
    """Absent, of another processor, or newer than the one that engines are started from."""
    found = _worst(engine_host.images(DOCKER, [facts]))
    assert found.level is level
    assert cure is None or found.cure == cure


# ---------------------------------------------------------------- TLS

GOOD = CertificateFacts(
    "/tls/server.pem",
    NOW,
    not_before=NOW - timedelta(days=1),
    not_after=NOW + timedelta(days=400),
    names=("cornerman.internal", "localhost", ROUTED),
    ca_not_after=NOW + timedelta(days=3000),
)


@pytest.mark.parametrize(
    ("facts", "level", "word"),
    [
        (GOOD, Level.OK, "good until 2028-01-04"),
        (None, Level.OK, "TLS is off"),
        (replace(GOOD, not_after=NOW - timedelta(days=1)), Level.FAULT, "ended on"),
        (replace(GOOD, not_after=NOW + timedelta(days=9)), Level.WARNING, "ends on"),
        (replace(GOOD, not_before=NOW + timedelta(days=2)), Level.FAULT, "clock"),
        (replace(GOOD, fits_key=False), Level.FAULT, "do not belong together"),
        (replace(GOOD, signed_by_ca=False), Level.FAULT, "not signed by this host's CA"),
        (replace(GOOD, names=("cornerman.internal",)), Level.WARNING, "does not name"),
        (replace(GOOD, ca_not_after=NOW + timedelta(days=100)), Level.WARNING, "all connection strings"),
        (
            replace(GOOD, fault="/tls/server.pem cannot be read (No such file or directory)."),
            Level.FAULT,
            "cannot be read",
        ),
    ],
)
def test_a_certificate_is_good_for_a_while_and_for_its_name(
    facts: CertificateFacts | None, level: Level, word: str
) -> None:
    """Dates, key, CA and names."""
    found = _worst(certificates.certificate(_config(), facts))
    assert found.level is level
    assert word in found.text


def test_a_brought_certificate_must_name_the_host() -> None:
    """Clients check the name of one that others signed; a star stands for one level."""
    config = _config(server={"certificate": "/c", "key": "/k", "public_host": "gpu.example.org"})
    assert _worst(certificates.certificate(config, replace(GOOD, names=("*.example.org",)))).level is Level.OK
    assert _worst(certificates.certificate(config, replace(GOOD, names=("example.org",)))).level is Level.FAULT


# ---------------------------------------------------------------- the network


def test_ports_that_are_served_or_free_are_well() -> None:
    """A daemon that runs listens; where none runs the ports are free."""
    assert _worst(network.server_ports(_config(), NETWORK)).level is Level.OK
    idle = replace(NETWORK, running=False, listening=frozenset())
    assert _worst(network.server_ports(_config(), idle)).level is Level.OK


def test_a_port_of_somebody_else_and_a_silent_relay_are_faults() -> None:
    """Port 8443 taken before the start, and a relay that has gone."""
    taken = _worst(network.server_ports(_config(), replace(NETWORK, running=False)))
    assert taken.level is Level.FAULT
    assert "8443" in str(taken.cure)
    silent = _worst(network.server_ports(_config(), replace(NETWORK, listening=frozenset({("0.0.0.0", 8443)}))))
    assert (silent.level, "cornerman-relay" in str(silent.cure)) == (Level.FAULT, True)
    assert _worst(network.server_ports(_config(relay={"enabled": False}), NETWORK)).level is Level.OK


def test_engine_ports_held_by_others_are_counted() -> None:
    """A few are a warning; when too few are left it is a fault. Those of our own engines do not count."""
    assert _worst(network.engine_ports(_config(), NETWORK)).level is Level.OK
    few = replace(NETWORK, held=NETWORK.held | {32001, 32002})
    found = _worst(network.engine_ports(_config(), few))
    assert (found.level, "32001, 32002" in found.text) == (Level.WARNING, True)
    many = replace(NETWORK, containers_ports=frozenset(range(32000, 32995)))
    assert _worst(network.engine_ports(_config(), many)).level is Level.FAULT


def test_engines_open_to_others_are_found() -> None:
    """Report 6: asked for it is a warning, not asked for a fault."""
    assert _worst(network.open_ports(_config(), NETWORK)).level is Level.OK
    assert _worst(network.open_ports(_config(pool={"expose": "direct"}), NETWORK)).level is Level.WARNING
    leaky = replace(NETWORK, listening=NETWORK.listening | {("0.0.0.0", 32000)})
    assert _worst(network.open_ports(_config(), leaky)).level is Level.FAULT


@pytest.mark.parametrize(
    ("host", "changes", "level", "word"),
    [
        (ROUTED, {}, Level.OK, "leads here"),
        ("127.0.0.1", {"addresses": ("127.0.0.1",)}, Level.WARNING, "to itself"),
        ("localhost", {"addresses": ("::1", "127.0.0.1")}, Level.WARNING, "to itself"),
        ("10.0.0.5", {"addresses": ("10.0.0.5",)}, Level.WARNING, "only machines of that network"),
        ("10.9.9.9", {"addresses": ("10.9.9.9",), "met": Met.NOBODY}, Level.FAULT, "none of this machine's"),
        ("nowhere.invalid", {"addresses": ()}, Level.FAULT, "cannot be looked up"),
        (ROUTED, {"met": Met.STRANGER}, Level.FAULT, "Something else"),
        (ROUTED, {"met": Met.NOBODY}, Level.WARNING, "firewall or security group"),
        (ROUTED, {"met": Met.UNTRIED}, Level.OK, "told to come to"),
        (ROUTED, {"cloud_address": "9.9.9.9"}, Level.FAULT, "is reached as 9.9.9.9 now"),
        (ROUTED, {"cloud_address": ROUTED}, Level.OK, "leads here"),
    ],
)
def test_a_public_host_that_clients_cannot_reach_is_found(
    host: str, changes: dict[str, Any], level: Level, word: str
) -> None:
    """Report 40: this machine itself, a private address, another's, one from before the instance was stopped."""
    found = _worst(network.public_host(_config(server={"public_host": host}), replace(NETWORK, **changes)))
    assert found.level is level
    assert word in found.text


def test_a_host_for_itself_alone_is_well_when_it_says_so() -> None:
    """Report 40: public_host 127.0.0.1 is right where the API listens on 127.0.0.1 only, and a public one is then wrong."""
    alone = _config(server={"public_host": "127.0.0.1", "bind": "127.0.0.1"})
    assert _worst(network.public_host(alone, replace(NETWORK, addresses=("127.0.0.1",)))).level is Level.OK
    wrong = _config(server={"bind": "127.0.0.1"})
    assert _worst(network.public_host(wrong, NETWORK)).level is Level.FAULT


# ---------------------------------------------------------------- the service

UNIT = UnitFacts("cornerman.service", "loaded", "active", "enabled")


@pytest.mark.parametrize(
    ("changes", "level", "cure"),
    [
        ({}, Level.OK, None),
        ({"active": "inactive"}, Level.FAULT, "systemctl enable --now cornerman.service"),
        ({"active": "failed"}, Level.FAULT, None),
        ({"enabled": "disabled"}, Level.WARNING, "systemctl enable cornerman.service"),
        ({"load": "not-found", "active": "inactive"}, Level.WARNING, "deploy/install.sh"),
        ({"load": "masked"}, Level.FAULT, "systemctl unmask cornerman.service"),
        ({"needs_reload": True}, Level.WARNING, "systemctl daemon-reload && systemctl restart cornerman.service"),
    ],
)
def test_the_unit_in_force_is_the_one_on_the_disk(changes: dict[str, Any], level: Level, cure: str | None) -> None:
    """Installed, on, started, and not changed since."""
    found = _worst(service.units(_config(), (replace(UNIT, **changes),), STATE))
    assert found.level is level
    assert cure is None or found.cure == cure


def test_a_daemon_without_systemd_is_well_while_it_runs() -> None:
    """Where no systemd is, a daemon that runs is all there can be."""
    assert _worst(service.units(_config(), None, STATE)).level is Level.OK
    assert _worst(service.units(_config(), None, replace(STATE, running=False))).level is Level.WARNING


def test_an_idle_stop_that_nobody_hears_is_a_fault() -> None:
    """With [idle] on and the unit that powers off not on, the machine would go on costing money for ever."""
    unit = UnitFacts(service.POWEROFF_UNIT, "not-found", "inactive", "not installed")
    on, other = _config(idle={"after": "45m"}), _config(idle={"after": "45m", "command": "true"})
    assert _worst(service.units(on, (unit,), STATE)).level is Level.FAULT
    assert _worst(service.units(on, (replace(unit, load="loaded", active="active"),), STATE)).level is Level.OK
    assert list(service.units(_config(), (unit,), STATE)) == list(service.units(other, (unit,), STATE)) == []


@pytest.mark.parametrize(
    ("changes", "level", "word"),
    [
        ({}, Level.OK, "whole"),
        ({"exists": False}, Level.FAULT, "no database"),
        ({"fault": "Permission denied"}, Level.FAULT, "Permission denied"),
        ({"schema": 2}, Level.FAULT, "newer Cornerman"),
        ({"known_schema": 2}, Level.OK, "becomes 2"),
        ({"mode": 0o755}, Level.FAULT, "others than its owner"),
    ],
)
def test_the_state_is_there_and_for_its_owner(changes: dict[str, Any], level: Level, word: str) -> None:
    """Absent, unreadable, of a newer version, or open to others."""
    found = _worst(service.state(replace(STATE, **changes)))
    assert found.level is level
    assert word in found.text


def test_what_the_daemon_knows_to_be_wrong_is_among_the_findings() -> None:
    """A degraded pool, a paused one, and an engine host that does not answer; a pool that is configured no more is not."""
    broken, paused = PoolFacts("i", None, "image missing: check it", False), PoolFacts("i", None, None, True)
    assert "image missing" in _worst(service.pools(_config(), replace(STATE, pools={"main": broken}))).text
    assert _worst(service.pools(_config(), replace(STATE, pools={"main": paused}))).level is Level.WARNING
    assert list(service.pools(_config(), replace(STATE, pools={"old": broken}))) == []
    assert _worst(service.pools(_config(), replace(STATE, host_fault="Docker is down"))).text == "Docker is down."


# ---------------------------------------------------------------- findings


def test_the_exit_code_tells_how_bad_it_is() -> None:
    """0 for all well, 1 with a warning, 2 with a fault; the worst comes last, nearest to the prompt."""
    good, poor, bad = findings.ok("a", "A."), findings.warning("b", "B.", "cure"), findings.fault("c", "C.", "cure")
    assert [findings.exit_code(found) for found in ([], [good], [poor, good], [good, bad, poor])] == [0, 0, 1, 2]
    lines = findings.as_text([bad, good, poor]).splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "warning", "->", "fault", "->", "1"]
    assert lines[-1] == "1 fault, 1 warning."
    assert findings.as_text([good]).endswith("All is well.")


def test_control_characters_do_not_reach_the_terminal() -> None:
    """A path or a log line with an escape sequence in it is shown without."""
    assert "\x1b" not in findings.as_text([findings.fault("a", f"{Path('/x')}\x1b[2J.", "rm \x1b")])
