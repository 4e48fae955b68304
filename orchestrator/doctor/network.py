"""Checks of ports, and of the name by which clients reach this host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from orchestrator.config import Config
from orchestrator.doctor.findings import Finding, fault, ok, warning

_EVERY = ("0.0.0.0", "::", "*")  # noqa: S104 - what a listing shows, nothing is bound here
_SET_HOST = "set server.public_host to the name or address that notebooks use, then systemctl restart cornerman"


class Met(Enum):
    """Who answers at ``public_host`` and the API's port, seen from this machine."""

    OURS = "ours"
    STRANGER = "stranger"
    NOBODY = "nobody"
    UNTRIED = "untried"  # no daemon runs that could answer


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Sockets of this machine, and where ``public_host`` leads."""

    running: bool  # a daemon owns the state folder
    listening: frozenset[tuple[str, int]]
    held: frozenset[int]  # local ports of any socket
    engine_ports: frozenset[int]  # those that the daemon gave to engines
    containers_ports: frozenset[int]  # those of other containers, running or not
    own_addresses: frozenset[str]
    addresses: tuple[str, ...] = ()  # of public_host; none: it cannot be looked up
    met: Met = Met.UNTRIED
    cloud_address: str | None = None  # what a cloud says that this machine is reached by


def server_ports(config: Config, facts: NetworkFacts) -> Iterator[Finding]:
    """The daemon listens where it should, or could."""
    places = [("server", "API", config.server.bind, config.server.port)]
    if config.relay.enabled:
        places.append(("relay", "relay", config.relay_bind, config.relay.port))
    for section, name, bind, port in places:
        listens = _listens(facts, bind, port)
        if facts.running and not listens:
            unit = "cornerman" if section == "server" else "cornerman-relay"
            text = f"The daemon runs, but nothing listens on {bind}, port {port}, where its {name} should."
            yield fault("ports", text, f"systemctl restart {unit}; journalctl -u {unit} -n 50")
        elif listens and not facts.running:
            text = f"Port {port}, which is the {name}'s, is held by another program, and the daemon cannot start."
            yield fault(
                "ports", text, f"ss -ltnp 'sport = :{port}', then stop that program or set another {section}.port"
            )
        else:
            yield ok("ports", f"The {name}'s port {port} is {'served' if listens else 'free'}.")


def _listens(facts: NetworkFacts, bind: str, port: int) -> bool:
    here = {address for address, other in facts.listening if other == port}
    return bool(here) and (bind in _EVERY or bind in here or any(address in _EVERY for address in here))


def engine_ports(config: Config, facts: NetworkFacts) -> Iterator[Finding]:
    """Enough ports are left for all engines that there may be."""
    ports = range(config.first_port, config.last_port + 1)
    strangers = {port for port in ports if port in facts.held | facts.containers_ports} - facts.engine_ports
    most = sum(pool.max_engines for pool in config.pools.values())
    shown = ", ".join(map(str, sorted(strangers)[:5])) + (", ..." if len(strangers) > 5 else "")
    cure = f"ss -tanp | grep -E ':({'|'.join(map(str, sorted(strangers)[:5]))})\\b'; docker ps -a"
    if len(ports) - len(strangers) < most:
        text = f"Of {len(ports)} ports for engines {len(strangers)} are held by something else ({shown}), and {most} may be wanted."
        yield fault("engine-ports", text, cure)
    elif strangers:
        text = f"{len(strangers)} of the engines' ports are held by something else ({shown}); engines take others."
        yield warning("engine-ports", text, cure)
    else:
        yield ok("engine-ports", f"Ports {ports[0]}-{ports[-1]} are the engines' alone.")


def open_ports(config: Config, facts: NetworkFacts) -> Iterator[Finding]:
    """Report 6: nobody but this machine reaches an engine's own port, unless that was asked for."""
    direct = [name for name, pool in config.pools.items() if pool.expose == "direct" and not _is_loopback(pool.bind)]
    for name in direct:
        text = f"Engines of pool {name} are open to whoever reaches this host, without encryption or password."
        yield warning("open-ports", text, f'set pools.{name}.expose = "local", so that steps go through the relay')
    seen = sorted(
        {port for address, port in facts.listening if port in facts.engine_ports and not _is_loopback(address)}
    )
    if seen and not direct:
        text = f"Engine port {seen[0]} is open to other machines, though no pool is meant to be."
        yield fault("open-ports", text, "cornerman retire --now ENGINE, and look at docker ps")
    elif not direct:
        yield ok("open-ports", "Engines listen on this machine only.")


def public_host(config: Config, facts: NetworkFacts) -> Iterator[Finding]:
    """Report 40: clients are told an address that leads here."""
    host, port = config.server.public_host, config.server.port
    if not facts.addresses:
        yield fault("public-host", f"public_host {host} cannot be looked up, so no client finds this host.", _SET_HOST)
    elif all(_is_loopback(address) for address in facts.addresses):
        yield _loopback(config, host)
    elif _is_loopback(config.server.bind):
        text = f"The API listens on {config.server.bind} alone, and clients are told to come to {host}."
        yield fault("public-host", text, 'set server.bind = "0.0.0.0", or a proxy before it (deploy/nginx.conf)')
    elif facts.cloud_address is not None and facts.cloud_address not in facts.addresses and not _is_private(facts):
        text = f"public_host {host} leads to {facts.addresses[0]}, but this machine is reached as {facts.cloud_address} now."
        yield fault(
            "public-host", text, f'set server.public_host = "{facts.cloud_address}", then systemctl restart cornerman'
        )
    elif facts.met is Met.STRANGER:
        yield fault("public-host", f"Something else than this daemon answers at {host}:{port}.", _SET_HOST)
    elif _is_private(facts) and not set(facts.addresses) & facts.own_addresses:
        text = f"public_host {host} is the private address {facts.addresses[0]}, which is none of this machine's."
        yield fault("public-host", text, _SET_HOST)
    elif _is_private(facts):
        text = f"public_host {host} is a private address: only machines of that network, or a VPN into it, reach it."
        yield warning("public-host", text, _SET_HOST)
    elif facts.met is Met.NOBODY:
        text = (
            f"Nobody answers at {host}:{port}, seen from this machine: a firewall or security group may keep it closed."
        )
        yield warning("public-host", text, f"curl -k https://{host}:{port}/healthz from where you train")
    else:
        yield ok(
            "public-host", f"Clients are told to come to {host}" + (", which leads here." if _sure(facts) else ".")
        )


def _loopback(config: Config, host: str) -> Finding:
    if _is_loopback(config.server.bind):
        return ok("public-host", f"public_host {host} is this machine itself, which alone the API listens to.")
    text = f"public_host is {host}: connection strings and engine addresses lead every other machine to itself."
    return warning("public-host", text, _SET_HOST)


def _sure(facts: NetworkFacts) -> bool:
    return facts.met is Met.OURS


def _is_private(facts: NetworkFacts) -> bool:
    return all(ipaddress.ip_address(address.partition("%")[0]).is_private for address in facts.addresses)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
