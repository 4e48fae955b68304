"""The ways to step twelve environments: DIAMBRA's own client over one connection or another, and lanes in process."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from diambra.arena import EnvironmentSettings, SpaceTypes
from diambra.arena.arena_gym import DiambraGym1P
from diambra.engine import Client, model

from client_sdk.lanes import Lanes, Method

FULL, SMALL = (0, 0, 0), (128, 128, 1)
Step = Callable[[], None]


class Stock:
    """Environments of DIAMBRA's client, stepped as a batch by a thread each. What they are connected to can be changed."""

    def __init__(self, addresses: Sequence[str], *, frame_shape: tuple[int, int, int], step_ratio: int) -> None:
        self._threads = ThreadPoolExecutor(len(addresses), thread_name_prefix="env")
        self._chance = random.Random(1)
        settings = [
            EnvironmentSettings(
                game_id="doapp",
                frame_shape=frame_shape,
                step_ratio=step_ratio,
                action_space=SpaceTypes.MULTI_DISCRETE,
                splash_screen=False,
                env_address=address,
                rank=rank,
                seed=1,
            )
            for rank, address in enumerate(addresses)
        ]
        # As diambra.arena.make() does, which takes addresses from DIAMBRA_ENVS: here there is more than one list of them.
        self.envs: list[Any] = list(self._threads.map(DiambraGym1P, settings))
        self._own = [env.arena_engine.client for env in self.envs]
        self.reset()

    def reset(self) -> None:
        """Begin an episode in every environment."""
        list(self._threads.map(lambda env: env.reset(), self.envs))

    def play_at(self, step_ratio: int) -> None:
        """Begin anew with another step_ratio."""

        def begin(env: Any, own: Client) -> None:
            env.arena_engine.client = own
            env.env_settings.step_ratio = step_ratio
            env.arena_engine.env_init(env.env_settings.get_pb_request(init=True))

        list(self._threads.map(begin, self.envs, self._own))
        self.reset()

    def actions(self) -> list[list[int]]:
        """One for each environment."""
        return [[self._chance.randrange(9), self._chance.randrange(8)] for _ in self.envs]

    def way(self, addresses: Sequence[str]) -> Step:
        """Steps all environments, over connections to ``addresses``."""
        clients = list(self._threads.map(Client, addresses))

        def step() -> None:
            for env, client in zip(self.envs, clients, strict=True):
                env.arena_engine.client = client
            list(self._threads.map(lambda env, action: env.step(action), self.envs, self.actions()))

        return step

    def way_by_lanes(self, lanes: Lanes) -> Step:
        """Steps all environments by lanes, in one thread: whoever has its answer is stepped while the others' are under way."""
        held = [_Held() for _ in self.envs]

        def step() -> None:
            actions = self.actions()
            for env, answer in zip(self.envs, held, strict=True):
                env.arena_engine.client = answer
            calls = lanes.begin(
                (rank, Method.STEP, _request(action)) for rank, action in zip(lanes.ranks, actions, strict=True)
            )
            left = list(range(len(calls)))
            while left:
                lanes.wait([calls[rank] for rank in left], count=1)
                ready = [rank for rank in left if calls[rank].done]
                left = [rank for rank in left if rank not in ready]
                for rank in ready:
                    held[rank].response = model.StepResetResponse.FromString(calls[rank].result().data)
                    self.envs[rank].step(actions[rank])

        return step

    def close(self) -> None:
        """Let go of the threads; the engines end with their lease."""
        self._threads.shutdown()


class _Held:
    """Stands where the stock client has its gRPC stub, and gives it the answer that has come already."""

    response: Any = None

    def Step(self, actions: Any) -> Any:
        return self.response


def _request(action: Sequence[int]) -> bytes:
    return bytes(model.Actions(actions=[model.Actions.Action(move=action[0], attack=action[1])]).SerializeToString())
