"""Looking after a running daemon as its administrator does, from inside a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from client_sdk._admin_api import AdminApi
from client_sdk._api import Api
from client_sdk._http import Session
from client_sdk._url import parse
from tests.support.daemon import Daemon


@contextlib.contextmanager
def administering(daemon: Daemon) -> Iterator[tuple[AdminApi, Api]]:
    """The calls of its API with the administrator's token."""
    with contextlib.closing(Session(parse(daemon.admin_url))) as session:
        yield AdminApi(session), Api(session)


def api_pids(daemon: Daemon) -> set[int]:
    """The living processes of its API."""
    return {pid for pid, line in daemon.family().items() if "orchestrator.api.server" in line}
