"""Where the certificates are: apart from what makes them, because those who only serve need not load cryptography."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import Config
from orchestrator.errors import ConfigError


@dataclass(frozen=True)
class Files:
    """Where the CA and the server's certificate are, each with its key."""

    ca: Path
    ca_key: Path
    certificate: Path
    key: Path


def files(state_dir: Path) -> Files:
    """Their places below the state folder."""
    folder = state_dir / "tls"
    return Files(folder / "ca.pem", folder / "ca.key", folder / "server.pem", folder / "server.key")


def serving(config: Config) -> tuple[Path, Path]:
    """The certificate and key to serve with: those brought, else those made by 'cornerman init'; ConfigError without."""
    if config.server.certificate is not None and config.server.key is not None:
        return config.server.certificate, config.server.key
    where = files(config.state_dir)
    for file in (where.certificate, where.key):
        if not (file.is_file() and os.access(file, os.R_OK)):
            raise ConfigError(f"{file} is missing or cannot be read: make the certificate with 'cornerman init'.")
    return where.certificate, where.key
