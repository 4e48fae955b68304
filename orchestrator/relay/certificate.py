"""The certificate the relay shows: the API's, read anew when it was renewed."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import structlog

from orchestrator import tls
from orchestrator.config import Config
from orchestrator.errors import ConfigError, CornermanError

log = structlog.get_logger(__name__)


class Certificate:
    """A TLS context whose certificate can change while connections go on; those made before keep theirs."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
