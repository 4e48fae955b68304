"""One environment: DIAMBRA's own classes and wrappers, whose engine is at the end of a lane and may be replaced in mid-episode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from diambra.arena import RecordingSettings, SpaceTypes, WrappersSettings, arena_gym
from diambra.arena.wrappers.episode_recording import EpisodeRecorder
from diambra.engine import model
from numpy.typing import NDArray

from client_sdk._errors import CornermanError
from client_sdk._progress import warn
from client_sdk.vector._engine import MOST_ENGINES, EngineLost, LaneEngine
from client_sdk.vector._reply import StepReply
from client_sdk.vector._stock import OnePlayer, TwoPlayers, env_wrapping, keep_chance_apart, with_names

_COMMON = model.RamStatesCategories.common
_STATES = {number: name for name, number in model.GameStates.items()}
_MOST_KEPT = 512

# What an observation has of one category: all its values, and those that are arrays, of which everybody gets copies.
_Part = tuple[dict[str, Any], list[tuple[str, NDArray[np.int64]]]]


class LaneBase(arena_gym.DiambraGymBase):  # type: ignore[misc]
    """DIAMBRA's base class on an engine that is there already; its answers are read without protobuf."""

    arena_engine: LaneEngine
    on_close: Callable[[], None] | None = None

    def __init__(self, env_settings: Any) -> None:
        self._last: StepReply | None = None
        engine = self.arena_engine
        stock = with_names(arena_gym.DiambraGymBase.__init__, DiambraEngine=lambda *_: engine)
        stock(self, env_settings)
        self._shape = tuple(getattr(self.env_info.frame_shape, side) for side in "hwc")
        self._categories = [
            (category, None if category == _COMMON else model.RamStatesCategories.Name(category))
            for category in self.env_info.ram_states_categories
        ]
        self._parts: dict[tuple[int, bytes | None], _Part] = {}

    def close(self) -> None:
        """End the game; no window is closed, because none was opened and a headless OpenCV has none."""
        self.arena_engine.close()
        if self.on_close is not None:
            self.on_close()

    def _get_obs(self, response: StepReply | None) -> dict[str, Any]:
        """The same as DIAMBRA's, from an answer that was read without protobuf."""
        if response is None:
            raise CornermanError("There was no reset() yet.")
        self._last = response
        frame = np.frombuffer(response.data, np.uint8, response.frame_end - response.frame_at, response.frame_at)
        self._frame = frame.reshape(self._shape)
        observation: dict[str, Any] = {"frame": self._frame}
        parts, found = self._parts, response.categories.get
        for category, name in self._categories:
            values, arrays = parts.get((category, found(category))) or self._new_part(category, response)
            if name is None:
                target = observation
                target.update(values)
            else:
                observation[name] = target = values.copy()
            for state, array in arrays:
                target[state] = array.copy()
        return observation

    def _new_part(self, category: int, response: StepReply) -> _Part:
        """What the observation has of one category; most often it is what it was before."""
        states, ram = self.env_info.ram_states_categories[category].ram_states, response.ram(category)
        values = {model.RamStates.Name(key): ram.get(key, 0) for key in states}
        boxes = [model.RamStates.Name(key) for key, info in states.items() if info.type == SpaceTypes.BOX]
        if len(self._parts) >= _MOST_KEPT:
            self._parts.clear()
        part = self._parts[category, response.categories.get(category)] = (
            values,
            [(name, np.array([values[name]])) for name in boxes],
        )
        return part

    def _get_info(self, response: StepReply) -> dict[str, Any]:
        info: dict[str, Any] = {_STATES[key]: value for key, value in response.game_states.items()}
        info["settings"] = self.env_settings.pb_model
        return info


class Healing:
    """What is put in front of DIAMBRA's class: seeds of its own, and that an engine may be lost."""

    arena_engine: LaneEngine
    env_settings: Any
    seeds: Iterator[int]  # of its episodes from the next one on
    _last: StepReply | None
    _get_obs: Callable[[StepReply | None], Any]

    def __init__(self, env_settings: Any, *, engine: LaneEngine, seeds: Iterator[int]) -> None:
        self.arena_engine, self.seeds = engine, seeds
        super().__init__(env_settings)  # type: ignore[call-arg]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with the next of its own seeds when none is given; on a fresh engine if that is needed."""
        rank = self.env_settings.rank
        seed = next(self.seeds) - rank if seed is None else int(seed)
        for attempt in range(MOST_ENGINES):
            try:
                if self.arena_engine.lost:
                    self.arena_engine.renew()
                return super().reset(seed=seed, options=dict(options or {}))  # type: ignore[misc,no-any-return]
            except EngineLost as lost:
                if attempt == MOST_ENGINES - 1:
                    raise CornermanError(
                        f"Rank {rank} could not begin an episode with {MOST_ENGINES} engines: {lost}"
                    ) from lost
        raise AssertionError("unreachable")

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        """Play one step; when the engine is lost over it, the episode is truncated where it was."""
        try:
            return super().step(action)  # type: ignore[misc,no-any-return]
        except EngineLost as lost:
            warn(f"Environment {self.env_settings.rank} has lost its engine, which truncates its episode. {lost}")
            info = {
                **dict.fromkeys(_STATES.values(), False),
                "settings": self.env_settings.pb_model,
                "engine_replaced": True,
            }
            return self._get_obs(self._last), 0, False, True, info


class _Env1P(Healing, OnePlayer, LaneBase):
    """One player against the game."""


class _Env2P(Healing, TwoPlayers, LaneBase):
    """Two players against each other."""


def make_env(
    game_id: str,
    env_settings: Any,
    wrappers_settings: Any = None,
    episode_recording_settings: Any = None,
    *,
    engine: LaneEngine,
    seeds: Iterator[int],
    render_mode: str | None = "rgb_array",
    wrap: Callable[[Any, int], Any] | None = None,
) -> Any:
    """As ``diambra.arena.make()``, but on ``engine``, and with a copy of the settings, which it would write into."""
    settings = copy.deepcopy(env_settings)
    wrappers = copy.copy(wrappers_settings) if wrappers_settings is not None else WrappersSettings()
    recording = episode_recording_settings if episode_recording_settings is not None else RecordingSettings()
    settings.game_id, settings.render_mode, settings.rank = game_id, render_mode, engine.rank
    settings.env_address, settings.splash_screen = f"lane:{engine.rank}", False
    if settings.seed is None:
        settings.seed = 0  # EnvInit sends none
    keep_chance_apart(settings)
    env = (_Env1P if settings.n_players == 1 else _Env2P)(settings, engine=engine, seeds=seeds)
    if recording.dataset_path is not None:
        recording.sanity_check()
        env = EpisodeRecorder(env, recording)
    wrappers.sanity_check()
    env = env_wrapping(env, wrappers)
    return env if wrap is None else wrap(env, engine.rank)
