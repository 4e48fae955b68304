"""Checks of the certificate that API and relay show."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.config import Config
from orchestrator.doctor.findings import Finding, fault, ok, warning

SOON = timedelta(days=30)
CA_SOON = timedelta(days=365)
_RENEW = "cornerman init --renew-certificate && systemctl restart cornerman cornerman-relay"


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """A certificate as it lies on the disk; ``fault`` when it cannot be used at all."""

    path: str
    now: datetime
    fault: str | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    names: tuple[str, ...] = ()
    fits_key: bool = True
    signed_by_ca: bool = True  # of a brought one nothing is known: True
    ca_not_after: datetime | None = None


def certificate(config: Config, facts: CertificateFacts | None) -> Iterator[Finding]:
    """It is good now, for a while yet, with its key, and for the name that clients use; None: there is no TLS."""
    if facts is None:
        yield ok("tls", "TLS is off, and the API listens on this machine only.")
        return
    brought = config.server.certificate is not None
    cure = f"renew {facts.path} where it came from" if brought else _RENEW
    if facts.fault is not None or facts.not_after is None or facts.not_before is None:
        missing = "cornerman init" if not brought else "set server.certificate to a readable PEM file"
        yield fault("tls", facts.fault or f"{facts.path} cannot be used.", missing)
        return
    until = f"{facts.not_after:%Y-%m-%d}"
    if not facts.fits_key:
        yield fault("tls", f"{facts.path} and its key do not belong together.", cure)
    elif not facts.signed_by_ca:
        yield fault("tls", f"{facts.path} is not signed by this host's CA, so that no connection string fits it.", cure)
    elif facts.not_before > facts.now:
        text = f"{facts.path} is good from {facts.not_before:%Y-%m-%d} on only: this machine's clock is behind."
        yield fault("tls", text, "timedatectl")
    elif facts.not_after <= facts.now:
        yield fault("tls", f"{facts.path} ended on {until}, and clients refuse it.", cure)
    elif facts.not_after - facts.now < SOON:
        yield warning("tls", f"{facts.path} ends on {until}.", cure)
    else:
        yield ok("tls", f"{facts.path} is good until {until}.")
    yield from _named(config, facts, cure)
    if facts.ca_not_after is not None and facts.ca_not_after - facts.now < CA_SOON:
        text = f"This host's CA ends on {facts.ca_not_after:%Y-%m-%d}, and all connection strings with it."
        yield warning("tls", text, "see docs/security.md, 'When something leaked', for a new CA")


def _named(config: Config, facts: CertificateFacts, cure: str) -> Iterator[Finding]:
    host = config.server.public_host
    if any(_is_named(name, host) for name in facts.names):
        return
    text = f"{facts.path} does not name {host}, the public_host"
    if config.server.certificate is not None:
        yield fault("tls", f"{text}, so that clients refuse it.", cure)
    else:
        yield warning("tls", f"{text}: clients with a connection string accept it, browsers do not.", cure)


def _is_named(name: str, host: str) -> bool:
    """Whether a name of a certificate, which may begin with a star, stands for ``host``."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return name == host
