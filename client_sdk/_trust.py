"""Whom a connection trusts: the one CA that the connection string names, or the system's roots."""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

import certifi
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from client_sdk import _proxy
from client_sdk._errors import ConnectionFault, UntrustedHost
from client_sdk._url import Target

# The name in every certificate that a host's own CA signs: what is verified is this, and not the address, so that a
# host whose address changes, or that is reached through a tunnel, still proves itself.
INTERNAL_NAME = "cornerman.internal"
_MAX_PEM_BYTES = 64 * 1024
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def fetch_ca(target: Target, *, proxy: str | None, timeout_s: float = 10.0) -> str:
    """The CA certificate of ``target`` as PEM: fetched without proof and without token, then held against its hash."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one takes 40 ms to load CAs that are not asked
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    through = {} if proxy is None else {"http": proxy, "https": proxy}
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler(through), urllib.request.HTTPSHandler(context=unverified)
    )
    text = _read(opener, target, proxy, timeout_s)
    for pem in _CERTIFICATE.findall(text):
        if _fingerprint(pem) == target.ca_sha256:
            return str(pem)
    raise UntrustedHost(
        f"The certificate of {target.authority} is not the one in the connection string: either its CA was made anew, "
        "then get a new string on the host, or somebody stands between you and it."
    )


def _read(opener: urllib.request.OpenerDirector, target: Target, proxy: str | None, timeout_s: float) -> str:
    """The host's certificates, at most 64 KB of it; tried again a few times, as every other call is."""
    for pause_s in (0.5, 1.0, 2.0, None):
        try:
            with opener.open(f"{target.base_url}/ca.pem", timeout=timeout_s) as answer:
                return str(answer.read(_MAX_PEM_BYTES).decode("ascii", "replace"))
        except urllib.error.HTTPError as fault:
            with fault:
                raise ConnectionFault(
                    f"What answers at {target.authority} hands out no certificate (HTTP {fault.code}); "
                    "check host and port in the connection string."
                ) from fault
        except (OSError, http.client.HTTPException) as fault:
            if pause_s is None:
                raise not_reached(target, fault, proxy) from fault
            time.sleep(pause_s)
    raise AssertionError("unreachable")


def not_reached(target: Target, fault: BaseException, proxy: str | None) -> ConnectionFault:
    """The sentence for a host that does not answer."""
    if proxy is not None:
        return ConnectionFault(
            f"{target.authority} was not reached through the environment's proxy {_proxy.shown(proxy)} ({fault_text(fault)}); "
            "is that the right one, and does it let you through to that port? If none is needed, name the host in no_proxy."
        )
    return ConnectionFault(
        f"{target.authority} was not reached ({fault_text(fault)}); is the daemon running, and the port open to you?"
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


def innermost(fault: BaseException) -> BaseException:
    """The fault that libraries wrapped their own around."""
    seen: list[BaseException] = []
    inner: Any = fault
    while isinstance(inner, BaseException) and inner not in seen:
        seen.append(inner)
        inner = getattr(inner, "reason", None) or inner.__cause__ or next(iter(inner.args), None)
    return seen[-1]


def fault_text(fault: BaseException) -> str:
    """The innermost words of a fault, without the objects that libraries wrap around them."""
    last = innermost(fault)
    text = (last.strerror if isinstance(last, OSError) else None) or str(last) or type(last).__name__
    return text.rstrip(".")


def broke(fault: BaseException) -> bool:
    """Whether a fault of TLS is only a connection that ended in the middle, as when a daemon dies: that proves nothing."""
    return isinstance(innermost(fault), ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def untrusted(fault: BaseException) -> bool:
    """Whether a fault of TLS says who answered is not who should; any other says that TLS was not spoken at all."""
    return isinstance(innermost(fault), ssl.SSLCertVerificationError)


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
