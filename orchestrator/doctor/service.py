"""Checks of the service: its units, its state, and what it says of its pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.config import Config
from orchestrator.doctor.findings import Finding, fault, ok, warning

UNITS = ("cornerman.service", "cornerman-relay.service")
POWEROFF_UNIT = "cornerman-poweroff.path"


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What systemd has of a unit, in its own words."""

    name: str
    load: str  # "loaded", "not-found", "masked", ...
    active: str  # "active", "inactive", "failed", ...
    enabled: str  # "enabled", "disabled", ...
    needs_reload: bool = False


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What the daemon wrote down of a pool."""

    image: str
    pinned: str | None
    fault: str | None
    paused: bool


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The state folder and its database, only read; ``fault`` when it cannot be."""

    path: str
    exists: bool
    running: bool  # a daemon owns it
    mode: int = 0o700
    fault: str | None = None
    schema: int = 0
    known_schema: int = 0
    host_fault: str = ""
    newest_event: float | None = None
    engine_ports: frozenset[int] = frozenset()
    pools: dict[str, PoolFacts] = field(default_factory=dict)


def units(config: Config, facts: tuple[UnitFacts, ...] | None, state: StateFacts) -> Iterator[Finding]:
    """The units are there, on, and as they are on the disk; None: not a host that systemd looks after."""
    if facts is None:
        text = "No systemd looks after this daemon" + (", which runs." if state.running else ", which does not run.")
        yield ok("service", text) if state.running else warning("service", text, "cornerman serve")
        return
    for unit in facts:
        if unit.name == POWEROFF_UNIT:
            yield from _poweroff(config, unit)
        elif unit.name != UNITS[1] or config.relay.enabled:
            yield from _unit(unit)


def _unit(unit: UnitFacts) -> Iterator[Finding]:
    name = unit.name
    if unit.load == "masked":
        yield fault("service", f"{name} is masked, so that it cannot start.", f"systemctl unmask {name}")
    elif unit.load != "loaded":
        text = f"{name} is not installed ({unit.load}), so that nothing starts it again."
        yield warning("service", text, "deploy/install.sh")
    elif unit.active == "failed":
        cure = f"journalctl -u {name} -n 50; systemctl reset-failed {name}; systemctl start {name}"
        yield fault("service", f"{name} has failed and is not started again.", cure)
    elif unit.active not in ("active", "activating", "reloading"):
        yield fault("service", f"{name} is {unit.active}.", f"systemctl enable --now {name}")
    elif unit.needs_reload:
        text = f"{name} was changed on the disk, and what runs is the one before."
        yield warning("service", text, f"systemctl daemon-reload && systemctl restart {name}")
    elif unit.enabled not in ("enabled", "enabled-runtime", "static", "alias"):
        yield warning(
            "service", f"{name} runs, but is {unit.enabled}: after a boot it does not.", f"systemctl enable {name}"
        )
    else:
        yield ok("service", f"{name} is {unit.active} and starts at boot.")


def _poweroff(config: Config, unit: UnitFacts) -> Iterator[Finding]:
    if config.idle.after is None or not config.idle.is_default:
        return
    if unit.active == "active":
        yield ok("idle-stop", f"This machine powers off after {config.idle.after:g} s without leases.")
    else:
        text = f"The idle stop is on, but {unit.name} is {unit.active or unit.load}, so that the machine never powers off and goes on costing."
        yield fault("idle-stop", text, f"systemctl enable --now {unit.name}")


def state(facts: StateFacts) -> Iterator[Finding]:
    """The state is there, whole, this version's, and for its owner only."""
    if not facts.exists:
        yield fault(
            "state", f"There is no database in {facts.path}.", "cornerman init, or cornerman restore FILE with a backup"
        )
    elif facts.fault is not None:
        yield fault("state", f"The database in {facts.path} cannot be read: {facts.fault}.", "sudo cornerman doctor")
    elif facts.schema > facts.known_schema:
        text = f"The database is of a newer Cornerman (schema {facts.schema}, this one knows {facts.known_schema})."
        yield fault("state", text, "upgrade Cornerman, or restore the backup that was made before the upgrade")
    elif facts.mode & 0o077:
        text = f"{facts.path} holds keys, and others than its owner may look in."
        yield fault("state", text, f"chmod 0700 {facts.path}")
    elif facts.schema < facts.known_schema:
        yield ok("state", f"The database has schema {facts.schema} and becomes {facts.known_schema} at the next start.")
    else:
        yield ok("state", f"The database in {facts.path} is whole.")


def pools(config: Config, facts: StateFacts) -> Iterator[Finding]:
    """What the daemon itself says is wrong."""
    if facts.host_fault and facts.running:
        yield fault("pools", _sentence(facts.host_fault), "systemctl status docker")
    for name, pool in facts.pools.items():
        if name not in config.pools:
            continue
        if pool.fault:
            text = _sentence(f"Pool {name} cannot start engines: {pool.fault}")
            yield fault("pools", text, "cornerman status; cornerman events")
        elif pool.paused:
            yield warning("pools", f"Pool {name} is paused: new leases wait.", f"cornerman pool set {name} --resume")
        else:
            yield ok("pools", f"Nothing is known to be wrong with pool {name}.")


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
