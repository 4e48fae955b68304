"""Stands where DIAMBRA's client has its gRPC connection: the same four calls, over a lane."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from diambra.engine import model

from client_sdk._errors import CornermanError, LeaseLost
from client_sdk.lanes import CallFault, Pending
from client_sdk.vector._hub import Hub
from client_sdk.vector._reply import StepReply, read
from client_sdk.vector._spares import Spares
from client_sdk.wire import Method, Status

MOST_ENGINES = 5  # that may fail one after the other before somebody has to look
_LOST = frozenset(
    {Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.FAILED_PRECONDITION, Status.INTERNAL, Status.UNKNOWN}
)
_ADVICE = re.compile(r"[.:;]? *call make\(\) again.*", re.IGNORECASE)  # is for those who do not heal by themselves


class EngineLost(Exception):
    """The engine is gone and its game with it; a fresh one is on its way."""


class LaneEngine:
    """The engine of one rank, which may be another one from call to call: after EngineLost comes ``renew``.

    With ``spares`` the next one is that of another rank, if it has the game ready.
    """

    def __init__(self, hub: Hub, rank: int, spares: Spares | None = None) -> None:
        self._hub, self.rank, self._spares = hub, rank, spares
        self._init_request = b""
        self._renewing: Pending | None = None

    # ------------------------------------------------------------ as DIAMBRA's own class has them

    def env_init(self, settings: Any) -> Any:
        """EnvInit: what the engine says of the game."""
        self._init_request = settings.SerializeToString()
        self._begin_renewal()
        return self._renewed()

    def reset(self, episode_settings: Any) -> StepReply:
        """Reset: the first answer of an episode."""
        if self._spares is not None:
            self._spares.look_after(self._init_request)
        return self._played(Method.RESET, episode_settings.SerializeToString())

    def step(self, actions: Sequence[Sequence[int]]) -> StepReply:
        """Step with the move and the attack of each player."""
        request = b"".join([_action(int(move), int(attack)) for move, attack in actions])
        return self._played(Method.STEP, request)

    def close(self) -> None:
        """Close, as far as there is anything to close."""
        try:
            self._hub.call(self.rank, Method.CLOSE, b"")
        except (CallFault, CornermanError):
            return

    # ------------------------------------------------------------ what heals it

    @property
    def lost(self) -> bool:
        """Whether it has to be renewed before it can play again."""
        return self._renewing is not None

    def renew(self) -> None:
        """Wait until a fresh engine has the game ready; CornermanError if none comes."""
        self._renewed()

    def _played(self, method: Method, request: bytes) -> StepReply:
        try:
            return read(self._hub.call(self.rank, method, request).data)
        except CallFault as fault:
            self._check(method, fault)
            if fault.status in (Status.INTERNAL, Status.UNKNOWN):
                self._hub.lanes.give_up(self.rank, f"{_name(method)} failed: {fault.text}")
            self._take_another()
            raise EngineLost(_ADVICE.sub("", fault.text).rstrip(".:") + ".") from fault

    def _take_another(self) -> None:
        spare = self._spares.swap(self.rank, self._init_request) if self._spares is not None else None
        if spare is None:
            self._begin_renewal()
        else:
            self.rank = spare

    def _begin_renewal(self) -> None:
        """Ask for EnvInit at once: the lane holds it until there is an engine that can take it."""
        (self._renewing,) = self._hub.lanes.begin([(self.rank, Method.ENV_INIT, self._init_request)])

    def _renewed(self) -> Any:
        for attempt in range(MOST_ENGINES):
            assert self._renewing is not None
            try:
                reply = self._hub.wait_for(self._renewing)
            except CallFault as fault:
                self._check(Method.ENV_INIT, fault)
                if fault.status in (Status.INTERNAL, Status.UNKNOWN) or attempt == MOST_ENGINES - 1:
                    raise CornermanError(f"EnvInit of rank {self.rank} failed: {fault.text}") from fault
                self._begin_renewal()
            else:
                self._renewing = None
                return model.EnvInitResponse.FromString(reply.data)
        raise AssertionError("unreachable")

    def _check(self, method: Method, fault: CallFault) -> None:
        """Raise unless a fresh engine can cure it."""
        lanes = self._hub.lanes
        if lanes.taken_over:
            raise CornermanError(
                "This environment's lease is used by another one now (was make_vec() called again?): go on with that, or make a new one."
            ) from fault
        if lanes.lost is not None:
            raise LeaseLost("of this vector environment", lanes.lost) from fault
        if lanes.out_of_reach is not None:
            raise CornermanError(lanes.out_of_reach) from fault
        if fault.status not in _LOST:
            raise CornermanError(f"{_name(method)} of rank {self.rank} failed: {fault.text}") from fault


def _name(method: Method) -> str:
    """As the engine's service has it."""
    return method.path.rpartition("/")[2]


@lru_cache(maxsize=4096)
def _action(move: int, attack: int) -> bytes:
    """One player's part of a Step's request."""
    return bytes(model.Actions(actions=[model.Actions.Action(move=move, attack=attack)]).SerializeToString())
