"""Whom a connection trusts: the one CA that the connection string names, or the system's roots."""

from __future__ import annotations

import hashlib
import re
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any

import certifi
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from client_sdk._errors import ConnectionFault, UntrustedHost
from client_sdk._url import Target

# The name in every certificate that a host's own CA signs: what is verified is this, and not the address, so that a
# host whose address changes, or that is reached through a tunnel, still proves itself.
INTERNAL_NAME = "cornerman.internal"
_MAX_PEM_BYTES = 64 * 1024
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def fetch_ca(target: Target, *, proxies: Mapping[str, str], timeout_s: float = 10.0) -> str:
    """The CA certificate of ``target`` as PEM: fetched without proof and without token, then held against its hash."""
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler(dict(proxies)), urllib.request.HTTPSHandler(context=unverified)
    )
    try:
        with opener.open(f"{target.base_url}/ca.pem", timeout=timeout_s) as answer:
            text = answer.read(_MAX_PEM_BYTES).decode("ascii", "replace")
    except (OSError, ValueError) as fault:  # URLError and HTTPError are OSErrors
        raise ConnectionFault(f"{target.authority} did not hand out its certificate: {fault_text(fault)}.") from fault
    for pem in _CERTIFICATE.findall(text):
        if _fingerprint(pem) == target.ca_sha256:
            return str(pem)
    raise UntrustedHost(
        f"The certificate of {target.authority} is not the one in the connection string: either its CA was made anew, "
        "then get a new string on the host, or somebody stands between you and it."
    )


def _fingerprint(pem: str) -> str | None:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError:
        return None


def context(ca_pem: str | None) -> ssl.SSLContext:
    """A TLS context that trusts ``ca_pem`` alone or, without it, the system's and certifi's roots."""
    if ca_pem is not None:
        return ssl.create_default_context(cadata=ca_pem)
    trusting = ssl.create_default_context()
    trusting.load_verify_locations(certifi.where())
    return trusting


def fault_text(fault: BaseException) -> str:
    """The innermost words of a fault, without the objects that libraries wrap around them."""
    seen: list[BaseException] = []
    inner: Any = fault
    while isinstance(inner, BaseException) and inner not in seen:
        seen.append(inner)
        inner = getattr(inner, "reason", None) or inner.__cause__ or next(iter(inner.args), None)
    last = seen[-1]
    text = (last.strerror if isinstance(last, OSError) else None) or str(last) or type(last).__name__
    return text.rstrip(".")


class Adapter(HTTPAdapter):
    """A requests adapter that trusts what its context trusts, whatever certificate bundle the environment names."""

    def __init__(self, trusting: ssl.SSLContext | None, *, server_hostname: str | None, retries: Retry) -> None:
        self._tls: dict[str, Any] = {}
        if trusting is not None:
            self._tls["ssl_context"] = trusting
        if server_hostname is not None:
            self._tls["server_hostname"] = server_hostname
        super().__init__(max_retries=retries)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **pool_kwargs: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **pool_kwargs, **self._tls)

    def proxy_manager_for(self, proxy: str, **proxy_kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, **proxy_kwargs, **self._tls)

    def cert_verify(self, conn: Any, url: str, verify: object, cert: object) -> None:
        conn.cert_reqs = "CERT_REQUIRED"  # and no ca_certs: those would be added to what the context trusts
