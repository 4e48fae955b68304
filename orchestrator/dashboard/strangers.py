"""Where somebody comes from who has shown no token yet, so that one place cannot keep the others out."""

from __future__ import annotations

import ipaddress

from flask import Request

_OF_ONE_PERSON = 64
"""Bits of an IPv6 address that a provider gives to a customer as a whole."""


def place(request: Request) -> str:
    """An IPv4 address or IPv6 network; behind a proxy on this machine, what the proxy says (X-Forwarded-For)."""
    peer = _address(request.remote_addr or "")
    if peer is None:
        return ""
    if peer.is_loopback:
        # The last one is the proxy's own word; what is before it came from outside.
        told = _address(request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip())
        peer = peer if told is None else told
    if isinstance(peer, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((peer, _OF_ONE_PERSON), strict=False))
    return str(peer)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
