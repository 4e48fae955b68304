"""The certificate the relay shows: the API's, read anew when it was renewed."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import structlog

from orchestrator import tls
from orchestrator.config import Config
from orchestrator.errors import ConfigError, CornermanError

log = structlog.get_logger(__name__)


_PLAIN = b"This port speaks TLS only: reach it by wss:// (or https://).\n"
_PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_PLAIN), _PLAIN)
)


class _Tls(ssl.SSLObject):
    """Tells a peer that speaks HTTP without TLS what to do instead of breaking off; it is let go by the handshake's deadline."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if error.reason != "HTTP_REQUEST":
                raise
            self.outgoing.write(_PLAIN_ANSWER)
            raise ssl.SSLWantReadError from error


class _Context(ssl.SSLContext):
    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *more, **named)
        if isinstance(made, _Tls):
            made.outgoing = outgoing
        return made


class Certificate:
    """A TLS context whose certificate can change while connections go on; those made before keep theirs."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.context: ssl.SSLContext = _Context(ssl.PROTOCOL_TLS_SERVER)
        self.context.sslobject_class = _Tls
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._seen: tuple[tuple[int, int, int], ...] = ()
        self._load()

    def refresh(self) -> bool:
        """Read the files again if they have changed; True when they were read. What is broken keeps the old ones in use."""
        try:
            return self._load()
        except CornermanError as error:
            log.warning("the certificate cannot be read anew", fault=str(error))
            return False

    def _load(self) -> bool:
        certificate, key = tls.serving(self._config)
        seen = tuple(map(_mark, (certificate, key)))
        if seen == self._seen:
            return False
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                certificate, key
            )  # a trial: half a change breaks both
            self.context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"{certificate} and {key} cannot be used ({error}): they must belong together."
            ) from error
        self._seen = seen
        return True


def _mark(file: Path) -> tuple[int, int, int]:
    about = os.stat(file)
    return about.st_ino, about.st_mtime_ns, about.st_size
