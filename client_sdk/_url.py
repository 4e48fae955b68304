"""The connection string: where the host is, how it proves itself, and the token, which is never shown."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from pydantic import SecretStr

from client_sdk._errors import WrongConnectionString

ENVIRONMENT_NAME = "CORNERMAN_URL"
DEFAULT_PORT = 8443
_FORM = "cornerman://TOKEN@host:8443?ca=sha256:HEX"
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")


@dataclass(frozen=True)
class Target:
    """A host and how to be let in; ``ca_sha256`` is the SHA-256 of its CA's DER, None for the system's roots.

    ``known_as`` is the name by which others reach it, where that is not ``host``.
    """

    host: str
    port: int
    token: SecretStr = field(repr=False)
    ca_sha256: str | None = None
    tls: bool = True
    known_as: str | None = None

    @property
    def authority(self) -> str:
        """``host:port``, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """What the paths of the API are appended to."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def with_token(self, token: str) -> str:
        """The connection string that leads others here with another token; a secret."""
        scheme = "cornerman" if self.tls else "cornerman+http"
        ca = f"?ca=sha256:{self.ca_sha256}" if self.ca_sha256 else ""
        authority = replace(self, host=self.known_as or self.host).authority
        return f"{scheme}://{quote(token, safe='')}@{authority}{ca}"

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine itself."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a name or an address of this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_environment(url: str | None) -> Target:
    """The target that ``url`` names, or else the one in ``CORNERMAN_URL``."""
    text = os.environ.get(ENVIRONMENT_NAME, "") if url is None else url
    if not text.strip():
        raise WrongConnectionString(
            f"There is no connection string; pass it or set {ENVIRONMENT_NAME} to the one that "
            f"`cornerman init` or `cornerman token` printed on the host ({_FORM})."
        )
    return parse(text)


def parse(text: str) -> Target:
    """Read a connection string; errors never repeat it, because it holds the token."""
    parts = _split(text)
    if parts.scheme not in ("cornerman", "cornerman+http"):
        raise _wrong("it must begin with cornerman://")
    try:
        port = parts.port
    except ValueError:
        raise _wrong("its port is not a number from 1 to 65535") from None
    if port == 0:
        raise _wrong("its port is not a number from 1 to 65535")
    host, token = parts.hostname or "", unquote(parts.username or "")
    if not _HOST.fullmatch(host):
        raise _wrong("it names no host")
    if parts.password is not None or not _TOKEN.fullmatch(token):
        raise _wrong("it must hold one token, between cornerman:// and @")
    if parts.path not in ("", "/") or parts.fragment:
        raise _wrong("nothing but ?ca=... may follow the port")
    target = Target(host, port or DEFAULT_PORT, SecretStr(token), _ca(parts.query), tls=parts.scheme == "cornerman")
    if not target.tls and (target.ca_sha256 or not target.is_loopback):
        raise _wrong("cornerman+http:// is for a host on this machine only, without ca; use cornerman://")
    return target


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text.strip().strip("'\""))
    except ValueError:
        raise _wrong("its host cannot be read") from None


def _ca(query: str) -> str | None:
    values = parse_qsl(query, keep_blank_values=True)
    if not values:
        if query:
            raise _wrong("nothing but ?ca=... may follow the port")
        return None
    if len(values) > 1 or values[0][0] != "ca":
        raise _wrong("nothing but one ?ca=... may follow the port")
    match = re.fullmatch(r"sha256:([0-9a-fA-F]{64})", values[0][1])
    if match is None:
        raise _wrong("its ca is not sha256: and 64 hexadecimal digits; was it copied whole?")
    return match[1].lower()


def _wrong(what: str) -> WrongConnectionString:
    return WrongConnectionString(f"The connection string is wrong: {what} (its form is {_FORM}).")
