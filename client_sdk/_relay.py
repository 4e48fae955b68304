"""From a lease's answer to its relay: which address, whom to trust, through which proxy."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from client_sdk import _proxy, _trust
from client_sdk._reach import Route
from client_sdk._url import Target
from client_sdk.models import Relay
from client_sdk.wire import Method

PATIENCE_AFTER_TTL_S = 60.0


def route_to(
    relay: Relay, target: Target, *, ca_pem: str | None, ttl_s: float, deadlines_s: Mapping[Method, float] | None = None
) -> Route:
    """The route to ``relay`` for whoever reaches its host's API as ``target``.

    Calls wait for a broken line about as long as the lease can outlive it.
    """
    url = reachable(relay.url, target)
    parts = urlsplit(url)
    tls = parts.scheme == "wss"
    pinned = target.ca_sha256 is not None
    return Route(
        url,
        relay.token,
        trusting=_trust.context(ca_pem if pinned else None) if tls else None,
        server_hostname=(_trust.INTERNAL_NAME if pinned else parts.hostname) if tls else None,
        proxy=_proxy.of_environment(urlunsplit(parts._replace(scheme="https" if tls else "http"))),
        deadlines_s=dict(deadlines_s or {}),
        patience_s=ttl_s + PATIENCE_AFTER_TTL_S,
    )


def reachable(url: str, target: Target) -> str:
    """The relay's URL, by the name that the API is reached by.

    What the host takes for its own address may lead to itself alone, or be the one that it had before it was turned off and on.
    """
    parts = urlsplit(url)
    name = f"[{target.host}]" if ":" in target.host else target.host
    netloc = name if parts.port is None else f"{name}:{parts.port}"
    return urlunsplit(parts._replace(netloc=netloc))
