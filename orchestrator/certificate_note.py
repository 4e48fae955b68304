"""Until when the certificate that is shown is good, written down for the metrics: who serves them cannot read certificates."""

from __future__ import annotations

from contextlib import suppress

from orchestrator import tls
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.store import meta
from orchestrator.store.database import Database

KEY = "certificate_until"


def note(database: Database, config: Config) -> None:
    """Write it down; nothing without TLS, or when the certificate cannot be read."""
    until = ""
    if config.server.tls:
        with suppress(ConfigError):
            until = repr(tls.valid_until(tls.serving(config)[0]).timestamp())
    with database.write() as db:
        meta.put(db, KEY, until)
