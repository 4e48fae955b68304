"""What the calls of the API work with, built once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from flask import current_app, g

from orchestrator.administration import Administration
from orchestrator.api.lanes import Lanes, Place
from orchestrator.auth import RateLimit, Tokens
from orchestrator.config import Config
from orchestrator.interfaces import Now
from orchestrator.leasing import Leasing
from orchestrator.model import Caller, Policy
from orchestrator.store.database import Changes, Database


@dataclass(frozen=True)
class Services:
    """The daemon's parts as the API process has them."""

    config: Config
    database: Database
    policies: Mapping[str, Policy]
    leasing: Leasing
    administration: Administration
    tokens: Tokens
    rate: RateLimit
    changes: Changes
    lanes: Lanes
    relay_secret: bytes = field(repr=False)
    now: Now
    stopping: threading.Event

    def stop(self) -> None:
        """Let go of long polls and event streams, so that the server can end at once."""
        self.stopping.set()
        self.changes.close()


def services() -> Services:
    """Those of the app that serves this request."""
    found: Services = current_app.extensions["cornerman"]
    return found


def caller() -> Caller:
    """Who makes this request."""
    found: Caller = g.caller
    return found


def token_hash() -> str:
    """The hash of the token that this request came with."""
    return str(g.token_hash)


def place() -> Place:
    """What this request holds of the server's threads."""
    found: Place = g.place
    return found
