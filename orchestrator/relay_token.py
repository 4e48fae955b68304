"""What opens a lease's lanes: an HMAC of the lease's id under this host's secret. Made anew when it is asked for, and never stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.files import write_atomically

SECRET_BYTES = 32
KEY_NAME = "relay.key"


def ensure_secret(state_dir: Path) -> bytes:
    """This host's secret, made when there is none; ConfigError when its file is broken."""
    path = state_dir / KEY_NAME
    with suppress(FileExistsError):  # made by another process just now
        if not path.exists():
            write_atomically(path, secrets.token_bytes(SECRET_BYTES), replace=False)
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): run as the user who owns it.") from error
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"{path} is not a key that Cornerman made: delete it, and leases get new relay tokens.")
    return secret


def relay_token(secret: bytes, lease_id: str) -> str:
    """The token of a lease (base64url): it opens this lease's lanes and nothing else."""
    digest = hmac.new(secret, lease_id.encode("utf-8", "replace"), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
