"""The bridge network of the engines: they reach the internet (to be authorised there), not each other."""

from __future__ import annotations

import threading
from typing import Any

from docker import APIClient
from docker.errors import APIError

from orchestrator.errors import FaultKind, RuntimeFault

NAME = "cornerman"
_ICC = "com.docker.network.bridge.enable_icc"


class EngineNetwork:
    """Finds or makes the one network of that name, whoever else is making it at the same moment."""

    def __init__(self, name: str = NAME) -> None:
        self._name = name
        self._id: str | None = None
        self._lock = threading.Lock()

    def ensure(self, api: APIClient) -> str:
        """The network's id; RuntimeFault(BAD_SPEC) when a network of that name lets engines talk to each other."""
        with self._lock:
            if self._id is None:
                self._id = self._find(api) or self._make(api)
            return self._id

    def forget(self) -> None:
        """Look for it anew at the next use: it turned out to be gone."""
        with self._lock:
            self._id = None

    def _make(self, api: APIClient) -> str:
        made: str | None = None
        try:
            made = api.create_network(self._name, driver="bridge", check_duplicate=True, options={_ICC: "false"})["Id"]
        except APIError as error:
            if error.status_code != 409:  # somebody made it first: as good as ours
                raise
        chosen = self._find(api)
        if chosen is None:
            raise RuntimeFault(
                FaultKind.OTHER,
                f"The network {self._name!r} was made and is gone again: see who removes Docker's networks.",
            )
        if made is not None and made != chosen:
            api.remove_network(made)
        return chosen

    def _find(self, api: APIClient) -> str | None:
        # Docker lets two creators that race both have the name: all take the oldest.
        same: list[dict[str, Any]] = [net for net in api.networks(names=[self._name]) if net["Name"] == self._name]
        if not same:
            return None
        oldest = min(same, key=lambda net: (net["Created"], net["Id"]))
        if oldest["Driver"] != "bridge" or (oldest.get("Options") or {}).get(_ICC) != "false":
            raise RuntimeFault(
                FaultKind.BAD_SPEC,
                f"The Docker network {self._name!r} lets engines reach each other: remove it with "
                f"'docker network rm {self._name}', or name another one as the pool's docker.network.",
            )
        return str(oldest["Id"])
