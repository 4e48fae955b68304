"""The administrator's connection string that ``cornerman init`` left on this machine, for whoever may read it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import platformdirs

from client_sdk._errors import WrongConnectionString
from client_sdk._url import ENVIRONMENT_NAME, Target, from_environment, parse

ADMIN_URL_NAME = "admin.url"
SYSTEM_FOLDER = Path("/etc/cornerman")
LOOPBACK = "127.0.0.1"


def target(folder: Path | None, *, admin: bool) -> Target:
    """The host to talk to: ``CORNERMAN_URL``, or the one set up on this machine (below ``folder``).

    When ``CORNERMAN_URL`` names the host of this machine, an ``admin`` command takes the administrator's string all the same.
    """
    local = _local(folder)
    if folder is not None:
        if local is None:
            raise WrongConnectionString(
                f"{folder / ADMIN_URL_NAME} is not there or not yours to read; name the folder given to `cornerman init`."
            )
        return local
    if not os.environ.get(ENVIRONMENT_NAME, "").strip():
        return local if local is not None else from_environment(None)
    named = from_environment(None)
    return local if admin and local is not None and _same_host(local, named) else named


def _local(folder: Path | None) -> Target | None:
    for place in [folder] if folder is not None else [platformdirs.user_config_path("cornerman"), SYSTEM_FOLDER]:
        try:
            named = parse((place / ADMIN_URL_NAME).read_text("utf-8"))
        except OSError:
            continue
        return _at_home(named)
    return None


def _at_home(named: Target) -> Target:
    """This machine's host by its own loopback address: the public one may be an old one, or let in others alone.

    Only with a CA of the host's own, which proves it by any address.
    """
    if named.ca_sha256 is None or named.is_loopback:
        return named
    try:
        socket.create_connection((LOOPBACK, named.port), timeout=1).close()
    except OSError:
        return named
    return replace(named, host=LOOPBACK, known_as=named.host)


def _same_host(one: Target, other: Target) -> bool:
    if one.ca_sha256 is not None:
        return one.ca_sha256 == other.ca_sha256 and one.port == other.port
    return one.authority == other.authority
