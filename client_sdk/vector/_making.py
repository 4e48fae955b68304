"""From a lease to its environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from client_sdk._errors import WrongArgument
from client_sdk._lease import Lease
from client_sdk.lanes import Lanes
from client_sdk.vector._batching import AutoresetMode
from client_sdk.vector._engine import LaneEngine
from client_sdk.vector._env import make_env
from client_sdk.vector._hub import Hub
from client_sdk.vector._parallel import LaneParallelEnv
from client_sdk.vector._seeds import Seeds, any_base
from client_sdk.vector._vector_env import LaneVectorEnv
from client_sdk.wire import Method

Wrap = Callable[[Any, int], Any]


def make_vec(
    lease: Lease | Lanes,
    game_id: str,
    env_settings: Any = None,
    wrappers_settings: Any = None,
    episode_recording_settings: Any = None,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    seed: int | None = None,
    render_mode: str | None = "rgb_array",
    deadlines_s: Mapping[str, float] | None = None,
    wrap: Wrap | None = None,
    spares: int = 0,
) -> LaneVectorEnv:
    """All engines of ``lease`` as one vector environment of ``game_id``, with the settings of ``diambra.arena.make``.

    ``seed`` makes all episodes of all environments reproducible; no two of them are the same. ``deadlines_s`` says how many
    seconds an ``env_init``, ``reset`` or ``step`` may take before its engine counts as hung. ``wrap(env, rank)`` is put around each one.
    As many engines as ``spares`` says do not play, but have the game ready for whoever loses theirs: that costs a Reset then, and no EnvInit.
    """
    lanes, owned = _lanes_of(lease, deadlines_s)
    settings = _settings(env_settings)

    def make(engine: LaneEngine, seeds: Seeds) -> Any:
        return make_env(
            game_id,
            settings,
            wrappers_settings,
            episode_recording_settings,
            engine=engine,
            seeds=seeds,
            render_mode=render_mode,
            wrap=wrap,
        )

    try:
        if not 0 <= spares < len(lanes.ranks):
            raise WrongArgument(
                f"spares={spares} of {len(lanes.ranks)} engines leaves none to play: lease more, or spare fewer."
            )
        base = _base(seed, settings)
        return LaneVectorEnv(lanes, make, autoreset_mode=autoreset_mode, seed=base, spares=spares, owns_lanes=owned)
    except BaseException:
        if owned:
            lanes.close()
        raise


def make_parallel(
    lease: Lease | Lanes,
    game_id: str,
    env_settings: Any = None,
    wrappers_settings: Any = None,
    *,
    rank: int = 0,
    seed: int | None = None,
    render_mode: str | None = "rgb_array",
    deadlines_s: Mapping[str, float] | None = None,
) -> LaneParallelEnv:
    """One engine of ``lease`` as PettingZoo's ``ParallelEnv`` of two players; give ``Lanes.of(lease)`` to make several."""
    from diambra.arena import EnvironmentSettingsMultiAgent

    settings = EnvironmentSettingsMultiAgent() if env_settings is None else env_settings
    if settings.n_players != 2:
        raise WrongArgument("make_parallel() is for two players: give it EnvironmentSettingsMultiAgent.")
    env = make_one(
        lease,
        game_id,
        settings,
        wrappers_settings,
        rank=rank,
        seed=seed,
        render_mode=render_mode,
        deadlines_s=deadlines_s,
    )
    return LaneParallelEnv(env)


def make_one(
    lease: Lease | Lanes,
    game_id: str,
    env_settings: Any = None,
    wrappers_settings: Any = None,
    episode_recording_settings: Any = None,
    *,
    rank: int = 0,
    seed: int | None = None,
    render_mode: str | None = "rgb_array",
    deadlines_s: Mapping[str, float] | None = None,
    wrap: Wrap | None = None,
) -> Any:
    """The environment of one engine by itself, whose calls block."""
    lanes, owned = _lanes_of(lease, deadlines_s)
    settings = _settings(env_settings)
    try:
        if rank not in lanes.ranks:
            raise WrongArgument(f"There is no rank {rank}: this lease has {lanes.ranks}.")
        base = _base(seed, settings)
        env = make_env(
            game_id,
            settings,
            wrappers_settings,
            episode_recording_settings,
            engine=LaneEngine(Hub(lanes), rank),
            seeds=Seeds(any_base() if base is None else base, rank, len(lanes.ranks)),
            render_mode=render_mode,
            wrap=wrap,
        )
    except BaseException:
        if owned:
            lanes.close()
        raise
    if owned:
        env.unwrapped.on_close = lanes.close
    return env


def _settings(given: Any) -> Any:
    from diambra.arena import EnvironmentSettings

    return EnvironmentSettings() if given is None else given


def _base(seed: int | None, settings: Any) -> int | None:
    return seed if seed is not None or settings.seed is None or settings.seed < 0 else int(settings.seed)


def _lanes_of(lease: Lease | Lanes, deadlines_s: Mapping[str, float] | None) -> tuple[Lanes, bool]:
    if isinstance(lease, Lanes):
        return lease, False
    try:
        deadlines = {Method[name.upper()]: float(seconds) for name, seconds in (deadlines_s or {}).items()}
    except KeyError as error:
        raise WrongArgument(f"There is no call {error}: deadlines are for env_init, reset, step and close.") from error
    if not all(seconds > 0 for seconds in deadlines.values()):
        raise WrongArgument("A deadline is a number of seconds above 0.")
    if not isinstance(lease, Lease):
        raise WrongArgument(f"A lease is what Cornerman().lease() returns, not {type(lease).__name__}.")
    return Lanes.of(lease, deadlines_s=deadlines), True
