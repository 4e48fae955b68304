"""Sockets of this machine, where ``public_host`` leads, and who answers there."""

from __future__ import annotations

import http.client
import socket
import ssl
from contextlib import closing
from pathlib import Path

import psutil

from orchestrator.config import Config
from orchestrator.doctor.gathering.certificates import shown_is_ours
from orchestrator.doctor.network import Met, NetworkFacts
from orchestrator.doctor.service import StateFacts

PATIENCE_S = 3.0
_METADATA, _METADATA_S = "169.254.169.254", 1.0
_VENDOR = Path("/sys/class/dmi/id/sys_vendor")


def network(config: Config, state: StateFacts, *, containers_ports: frozenset[int]) -> NetworkFacts:
    """What can be seen from here."""
    sockets = [
        (_plain(one.laddr[0]), int(one.laddr[1]), one.status) for one in psutil.net_connections("tcp") if one.laddr
    ]
    addresses = _addresses(config.server.public_host)
    return NetworkFacts(
        running=state.running,
        listening=frozenset((address, port) for address, port, status in sockets if status == psutil.CONN_LISTEN),
        held=frozenset(port for _, port, status in sockets if status != psutil.CONN_TIME_WAIT),
        engine_ports=state.engine_ports,
        containers_ports=containers_ports,
        own_addresses=frozenset(
            address.address.partition("%")[0] for group in psutil.net_if_addrs().values() for address in group
        ),
        addresses=addresses,
        met=_meet(config, config.server.public_host) if state.running and addresses else Met.UNTRIED,
        cloud_address=_cloud_address(),
    )


def _plain(address: str) -> str:
    """An IPv4 address as itself, also where an IPv6 socket has it."""
    return address.removeprefix("::ffff:")


def _addresses(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _meet(config: Config, host: str) -> Met:
    """Ask for /healthz at ``host``; with a certificate of ours, or by the answer where a proxy shows its own."""
    port = config.server.port
    try:
        if not config.server.tls:
            with closing(http.client.HTTPConnection(host, port, timeout=PATIENCE_S)) as plain:
                return _answer(plain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is only compared with our own
        with closing(http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)) as secret:
            secret.connect()
            shown = secret.sock.getpeercert(binary_form=True)
            return Met.OURS if shown and shown_is_ours(config, shown) else Met.STRANGER
    except (ssl.SSLError, http.client.HTTPException, ConnectionResetError):
        return Met.STRANGER
    except OSError:
        return Met.NOBODY


def _answer(connection: http.client.HTTPConnection) -> Met:
    connection.request("GET", "/healthz")
    return Met.OURS if connection.getresponse().headers.get("Cornerman-Version") else Met.STRANGER


def _cloud_address() -> str | None:
    """The public address of an EC2 instance, or None elsewhere."""
    try:
        if "amazon" not in _VENDOR.read_text("utf-8").lower():
            return None
        with closing(http.client.HTTPConnection(_METADATA, timeout=_METADATA_S)) as metadata:
            metadata.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
            token = metadata.getresponse().read().decode("ascii")
            metadata.request("GET", "/latest/meta-data/public-ipv4", headers={"X-aws-ec2-metadata-token": token})
            response = metadata.getresponse()
            address = response.read().decode("ascii").strip()
            return address if response.status == 200 and address else None
    except (OSError, UnicodeError, http.client.HTTPException):
        return None
