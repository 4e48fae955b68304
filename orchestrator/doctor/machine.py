"""Checks of the machine itself: memory, cores, disks, the kernel's ports, the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.config import Config, PoolConfig
from orchestrator.doctor.findings import Finding, fault, ok, warning

GIB = 2**30
ENGINE_BYTES = GIB
"""What an engine takes in practice; its limit (``memory_mb``) is above that."""
STATE_BYTES, LEAST_STATE_BYTES = GIB, 200 * 2**20
IMAGE_BYTES = 4 * GIB
"""Room for a pull beside what is there."""
RELEASED = 1_764_547_200.0  # 2025-12-01: no clock is right that shows an earlier time

PortRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder, what it is for, and how much its disk has left."""

    what: str
    path: str
    free_bytes: int
    for_docker: bool = False


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What the machine has; None where it does not say."""

    memory_bytes: int
    cores: int
    disks: tuple[Disk, ...]
    outgoing_ports: PortRange | None  # what the kernel hands to outgoing connections
    reserved_ports: tuple[PortRange, ...]
    clock_in_step: bool | None
    now: float
    newest_event: float | None = None  # the time of the last thing the daemon wrote down


def memory(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    """Engines that are all in use at once must fit into the memory."""
    ready, most = _sizes(config)
    name, pool = _largest(config)
    has = f"{facts.memory_bytes / GIB:.1f} GiB of memory"
    if ready * ENGINE_BYTES > facts.memory_bytes:
        text = f"{ready} engines are kept ready, which takes some {ready} GiB, and this machine has {has}."
        fits = max(0, facts.memory_bytes // ENGINE_BYTES - (ready - pool.min_ready))
        yield fault("memory", text, f"cornerman pool set {name} --min-ready {min(fits, pool.min_ready)}")
    elif most * ENGINE_BYTES > facts.memory_bytes:
        text = f"The pools may hold {most} engines, which take some {most} GiB, and this machine has {has}."
        yield warning("memory", text, _smaller(config, facts.memory_bytes // ENGINE_BYTES))
    else:
        yield ok("memory", f"{has} for at most {most} engines.")


def cores(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    """An engine that plays at full speed takes about one core."""
    _, most = _sizes(config)
    if most > 4 * facts.cores:
        text = (
            f"The pools may hold {most} engines on {facts.cores} cores, so that games run at a fraction of their speed."
        )
        yield warning("cores", text, _smaller(config, 2 * facts.cores))
    else:
        yield ok("cores", f"{facts.cores} cores for at most {most} engines.")


def _smaller(config: Config, engines: int) -> str:
    """The command after which all pools together hold at most ``engines``, as far as the largest of them can see to it."""
    name, pool = _largest(config)
    fits = max(1, pool.min_ready, engines - (_sizes(config)[1] - pool.max_engines))
    return f"cornerman pool set {name} --max-engines {fits}"


def _largest(config: Config) -> tuple[str, PoolConfig]:
    return max(config.pools.items(), key=lambda item: item[1].max_engines)


def _sizes(config: Config) -> tuple[int, int]:
    """Engines kept ready, and the most there may be, of pools that really run something."""
    real = [pool for pool in config.pools.values() if pool.runtime != "fake"]
    return sum(pool.min_ready for pool in real), sum(pool.max_engines for pool in real)


def disk(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    """State needs little and must have it; Docker needs room for images and for the engines' logs."""
    logs = sum(2 * pool.docker.log_max_mb * pool.max_engines for pool in config.pools.values()) * 2**20
    for place in facts.disks:
        free = f"{place.free_bytes / GIB:.1f} GiB free for {place.what} ({place.path})"
        wanted, least = (IMAGE_BYTES + logs, GIB) if place.for_docker else (STATE_BYTES, LEAST_STATE_BYTES)
        cure = "docker system prune" if place.for_docker else f"du -xh {place.path} | sort -h | tail"
        if place.free_bytes < least:
            yield fault("disk", f"Only {free}.", cure)
        elif place.free_bytes < wanted:
            yield warning("disk", f"{free}, and up to {wanted / GIB:.1f} GiB may be wanted.", cure)
        else:
            yield ok("disk", f"{free}.")


def kernel_ports(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    """Report 4: a port of ours that the kernel gives to an outgoing connection is one that no engine gets."""
    first, last = config.first_port, config.last_port
    if facts.outgoing_ports is None:
        return
    low, high = max(first, facts.outgoing_ports[0]), min(last, facts.outgoing_ports[1])
    if low > high or _covered((low, high), facts.reserved_ports):
        yield ok("kernel-ports", f"The kernel keeps {first}-{last} for engines.")
        return
    text = f"The kernel may give ports {low}-{high} of {first}-{last} to outgoing connections, and engines then go without."
    wanted = ",".join([f"{first}-{last}", *(_told(kept) for kept in facts.reserved_ports)])
    setting = f"net.ipv4.ip_local_reserved_ports={wanted}"
    yield warning(
        "kernel-ports",
        text,
        f"echo '{setting}' >>/etc/sysctl.d/60-cornerman.conf && sysctl -p /etc/sysctl.d/60-cornerman.conf",
    )


def _told(ports: PortRange) -> str:
    return str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


def _covered(wanted: PortRange, ranges: Sequence[PortRange]) -> bool:
    reached = wanted[0] - 1
    for first, last in sorted(ranges):
        if first <= reached + 1:
            reached = max(reached, last)
    return reached >= wanted[1]


def parse_ports(text: str) -> tuple[PortRange, ...]:
    """``32000-32999,40000`` as the kernel writes its lists of ports."""
    found = []
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.append((int(first), int(last or first)))
    return tuple(found)


def clock(facts: MachineFacts) -> Iterator[Finding]:
    """Certificates and leases go by the wall clock."""
    cure = "timedatectl set-ntp true || apt-get install -y chrony"
    if facts.now < RELEASED:
        yield fault("clock", "The clock shows a time before this version was made, so certificates are refused.", cure)
    elif facts.newest_event is not None and facts.newest_event > facts.now + 60:
        behind = facts.newest_event - facts.now
        yield warning(
            "clock", f"The clock is {behind:.0f} s behind what the daemon last wrote down: it was set back.", cure
        )
    elif facts.clock_in_step is False:
        yield warning("clock", "No time server keeps this machine's clock in step.", cure)
    else:
        yield ok("clock", "The clock is kept in step." if facts.clock_in_step else "The clock shows a likely time.")
