"""DIAMBRA's own functions with a name or two in them meaning something else: here, and not for other users of its package."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from diambra.arena.wrappers import arena_wrappers, observation


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


env_wrapping = with_names(arena_wrappers.env_wrapping, NormalizeObservation=NormalizeObservation)


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
