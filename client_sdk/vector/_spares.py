"""Engines of a lease that have the game ready before anybody needs them, so that a loss costs a Reset and no EnvInit."""

from __future__ import annotations

from collections.abc import Sequence

from client_sdk.lanes import Lanes, Pending, Reply
from client_sdk.wire import Method


class Spares:
    """The engines at ``ranks``, which nobody plays until another one is lost; that rank is a spare from then on."""

    def __init__(self, lanes: Lanes, ranks: Sequence[int]) -> None:
        self._lanes = lanes
        self._preparing: dict[int, Pending | None] = dict.fromkeys(ranks)
        self._generations: dict[int, int] = {}  # which engine it was that had the game ready

    @property
    def ready(self) -> list[int]:
        """The ranks whose engines have the game ready now."""
        return [rank for rank, pending in self._preparing.items() if pending and self._is_ready(rank, pending)]

    def look_after(self, request: bytes) -> None:
        """Send EnvInit, as ``request`` has it, to those that are not ready and not about to be."""
        for rank, pending in self._preparing.items():
            if pending is None or (pending.done and not self._is_ready(rank, pending)):
                self._prepare(rank, request)

    def swap(self, lost: int, request: bytes) -> int | None:
        """A rank whose engine is ready, in whose place ``lost`` is made ready again; None when there is none."""
        rank = next(iter(self.ready), None)
        if rank is not None:
            del self._preparing[rank]
            self._generations.pop(rank, None)
            self._prepare(lost, request)
        return rank

    def _prepare(self, rank: int, request: bytes) -> None:
        (self._preparing[rank],) = self._lanes.begin([(rank, Method.ENV_INIT, request)])
        self._generations.pop(rank, None)

    def _is_ready(self, rank: int, pending: Pending) -> bool:
        """Whether EnvInit went well, on the engine that is still there."""
        if not isinstance(pending.outcome, Reply):
            return False
        now = self._lanes.generation(rank)
        return self._generations.setdefault(rank, now) == now
