"""Playing on an engine call by call, without the stock client's environment: for tests that count."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import grpc

from client_sdk.wire import Method

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import diambra.engine.interface_pb2 as pb
    from diambra.arena import EnvironmentSettings

Send = Callable[[Method, bytes], bytes]


def over_grpc(address: str) -> Send:
    """Calls to an EnvServer at ``address``, as the stock client makes them."""
    channel = grpc.insecure_channel(address)
    stubs = {method: channel.unary_unary(method.path) for method in Method}
    return lambda method, request: bytes(stubs[method](request, timeout=120))


class Game:
    """One environment; ``steps`` is how many its player has made, ``run`` how many the engine says it has run."""

    def __init__(self, send: Send, *, game_id: str = "doapp", frame_shape: tuple[int, int, int] = (64, 64, 1)) -> None:
        self._send = send
        self._settings = EnvironmentSettings()
        self._settings.splash_screen = False
        self._settings.game_id = game_id
        self._settings.frame_shape = frame_shape
        self.steps = 0
        self.run = 0

    def make(self) -> None:
        """EnvInit: another game, whose engine may be another one."""
        request = self._settings.get_pb_request(init=True).SerializeToString()
        self._settings.finalize_init(pb.EnvInitResponse.FromString(self._send(Method.ENV_INIT, request)))
        self._settings._sanity_check()
        self._settings.seed = 7
        self.steps = 0

    def reset(self) -> None:
        """Reset."""
        reply = self._send(Method.RESET, self._settings.get_pb_request().SerializeToString())
        self.run = self._run(reply)

    @staticmethod
    def step_request(move: int = 1, attack: int = 0) -> bytes:
        """A Step's request."""
        return bytes(pb.Actions(actions=[pb.Actions.Action(move=move, attack=attack)]).SerializeToString())

    def step(self) -> bytes:
        """One step; its reply."""
        reply = self._send(Method.STEP, self.step_request(move=self.steps % 9))
        self.steps += 1
        self.run = self._run(reply)
        return reply

    def close(self) -> None:
        """Close."""
        self._send(Method.CLOSE, b"")

    @staticmethod
    def _run(reply: bytes) -> int:
        states: Any = pb.StepResetResponse.FromString(reply).observation.ram_states_categories
        internal = states[pb.RamStatesCategories.Value("internal")].ram_states
        return int(internal[pb.RamStates.Value("test_mode")])
