"""The environment's proxy: one answer for everything that the SDK connects to."""

from __future__ import annotations

from urllib.parse import urlsplit

from requests.utils import get_environ_proxies

from client_sdk._url import is_loopback


def of_environment(url: str) -> str | None:
    """The URL of the proxy that ``url`` (http or https) is to be reached through, or None; this machine itself needs none."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or ""):
        return None
    found = get_environ_proxies(url, no_proxy=None)
    proxy = found.get(parts.scheme) or found.get("all")
    if not proxy:
        return None
    return str(proxy) if "://" in proxy else f"http://{proxy}"


def shown(proxy: str) -> str:
    """A proxy as messages may name it: without its login."""
    return urlsplit(proxy).netloc.rpartition("@")[2]
