"""DIAMBRA's own functions with a name or two in them meaning something else: here, and not for other users of its package."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from diambra.arena import arena_gym
from diambra.arena.wrappers import arena_wrappers, observation
from diambra.engine import model


def with_names(function: Any, **names: object) -> Callable[..., Any]:
    """``function``, in whose body these global ``names`` mean the given things."""
    return FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def _multi_binary(count: Any) -> gymnasium.spaces.MultiBinary:
    """As DIAMBRA asks for it, with a NumPy integer, which gymnasium from 1.2 on refuses."""
    return gymnasium.spaces.MultiBinary(int(count))


class NormalizeObservation(observation.NormalizeObservation):  # type: ignore[misc]
    """DIAMBRA's wrapper of that name, on every gymnasium."""

    _obs_space_normalization_func = with_names(
        observation.NormalizeObservation._obs_space_normalization_func,
        gym=SimpleNamespace(spaces=SimpleNamespace(**{**vars(gymnasium.spaces), "MultiBinary": _multi_binary})),
    )


class NoopReset(arena_wrappers.NoopReset):  # type: ignore[misc]
    """DIAMBRA's wrapper of that name, for ``no_op_max``: how many steps an episode begins with is drawn from its seed."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with one to ``no_op_max`` steps in which nothing is done."""
        observation, info = self.env.reset(**arguments)
        chance = np.random.default_rng(self.unwrapped.env_settings.pb_model.episode_settings.random_seed)
        for _ in range(self.override_num_no_ops or chance.integers(1, self.no_op_max, endpoint=True)):
            observation, _, terminated, truncated, info = self.env.step(self.unwrapped.get_no_op_action())
            if terminated or truncated:
                observation, info = self.env.reset()
        return observation, info


class StickyActions(arena_wrappers.StickyActions):  # type: ignore[misc]
    """DIAMBRA's wrapper of that name, for ``repeat_action``."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do the same several times, or until a round is over; the rewards are added up."""
        total = 0
        for _ in range(self.sticky_actions):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += reward
            if terminated or truncated or info["round_done"]:
                break
        return observation, total, terminated, truncated, info


env_wrapping = with_names(
    arena_wrappers.env_wrapping,
    NoopReset=NoopReset,
    NormalizeObservation=NormalizeObservation,
    StickyActions=StickyActions,
)


def _step(stock: Any) -> Callable[..., Any]:
    """A ``step`` of DIAMBRA's that looks game states up in a plain namespace: protobuf's own fails first, with a text, and then finds them."""
    states = model.GameStates
    plain = SimpleNamespace(**dict(states.items()), Name=states.Name, Value=states.Value)
    return with_names(stock, model=SimpleNamespace(**{**vars(model), "GameStates": plain}))


class OnePlayer(arena_gym.DiambraGym1P):  # type: ignore[misc]
    """DIAMBRA's class of that kind."""

    step = _step(arena_gym.DiambraGym1P.step)


class TwoPlayers(arena_gym.DiambraGym2P):  # type: ignore[misc]
    """DIAMBRA's class of that kind."""

    step = _step(arena_gym.DiambraGym2P.step)


def keep_chance_apart(settings: Any) -> None:
    """Let these settings of one environment draw characters and the like from their seed alone.

    DIAMBRA's class seeds the random generators of the whole process, which the learner uses too, does not when a seed comes
    twice in a row, and shuffles a list that the next draw begins with.
    """
    stock = settings.get_pb_request

    def get_pb_request(init: bool = False) -> Any:
        ours = random.getstate(), np.random.get_state()
        settings._last_seed = None
        if settings.env_info is not None:
            characters = settings.env_info.characters_info
            settings.valid_characters = [
                one for one in characters.char_list if one not in characters.char_forbidden_list
            ]
        try:
            return stock(init=init)
        finally:
            random.setstate(ours[0])
            np.random.set_state(ours[1])

    settings.get_pb_request = get_pb_request
    update = settings.update_episode_settings

    def update_episode_settings(options: Any = None) -> Any:
        """DIAMBRA's class would keep what it drew for one episode for all that follow, if it was interrupted meanwhile."""
        given = {name: getattr(settings, name) for name in settings.episode_settings}
        try:
            return update(options)
        except BaseException:
            for name, value in given.items():
                setattr(settings, name, value)
            raise

    settings.update_episode_settings = update_episode_settings
