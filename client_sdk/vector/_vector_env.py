"""gymnasium's ``VectorEnv`` over the lanes of one lease."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from client_sdk._errors import CornermanError, WrongArgument
from client_sdk.lanes import Lanes
from client_sdk.vector._batching import AutoresetMode, batcher, infos_of
from client_sdk.vector._crew import Crew, Make, Outcome
from client_sdk.vector._seeds import any_base
from client_sdk.vector._tiles import pictures_of, tiled

Batch = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class LaneVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments of one lease, stepped together by ``step``, or whoever is ready by ``send`` and ``recv``.

    It belongs to one process and to one thread. Made by ``client_sdk.make_vec``.
    """

    copy = True  # as gymnasium's own have it: the arrays that are returned are nobody else's

    def __init__(
        self,
        lanes: Lanes,
        make: Make,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        seed: int | None = None,
        spares: int = 0,
        owns_lanes: bool = True,
    ) -> None:
        self.closed = True  # until all is well
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._lanes, self._owns_lanes = lanes, owns_lanes
        playing, spare = lanes.ranks[: len(lanes.ranks) - spares], lanes.ranks[len(lanes.ranks) - spares :]
        base = any_base() if seed is None else seed
        self._crew = Crew(lanes, make, base_seed=base, ranks=playing, spare_ranks=spare)
        first = self._crew.envs[0]
        self.num_envs = len(self._crew.envs)
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._batched = batcher(self.single_observation_space)
        self.closed = False

    @property
    def envs(self) -> Sequence[Any]:
        """The wrapped environments, by rank."""
        return self._crew.envs

    @property
    def spares_ready(self) -> int:
        """How many engines have the game ready for whoever loses theirs."""
        return len(self._crew.spares.ready)

    # ------------------------------------------------------------ all together

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode everywhere, or where ``options["reset_mask"]`` is true; what was under way is dropped.

        Without a seed each environment takes the next of its own. A seed also begins those of later episodes anew.
        """
        self._crew.forget()
        options = dict(options) if options is not None else None
        mask = self._mask(options)
        self._begin_resets(np.flatnonzero(mask).tolist(), seed, options)
        outcomes = self._crew.collect(self.num_envs)
        observations = self._crew.observations
        infos = infos_of([outcomes[i] if i in outcomes else _silent(observations[i]) for i in self._all])
        return self._batched(observations), infos

    def step(self, actions: Any) -> Batch:
        """Play one step everywhere; one round trip, whoever is slowest."""
        self._crew.check_idle(self._all)
        self._begin_steps(self._all, list(iterate(self.action_space, actions)))
        return self._batch(self.collect_all())

    # ------------------------------------------------------------ whoever is ready

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Begin a step in the environments of ``env_ids`` (all without), with an action for each of them."""
        indices = self._indices(env_ids)
        self._crew.check_idle(indices)
        self._begin_steps(indices, list(iterate(self.action_space, actions)))

    def async_reset(
        self,
        env_ids: Sequence[int] | NDArray[Any] | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin an episode in the environments of ``env_ids`` (all without); ``recv`` gives the first observations."""
        indices = self._indices(env_ids)
        self._crew.check_idle(indices)
        self._begin_resets(indices, seed, dict(options) if options is not None else None)

    def recv(self, min_envs: int = 1, timeout: float | None = None) -> Batch:
        """What came of ``send`` and ``async_reset`` in at least ``min_envs`` environments, and in all others that are ready.

        Fewer, even none, after ``timeout`` seconds. ``infos["env_id"]`` says whose row is whose.
        """
        if min_envs > len(self._crew.busy):
            raise WrongArgument(
                f"Only {len(self._crew.busy)} environments are at work: recv() cannot wait for {min_envs}."
            )
        outcomes = self._crew.collect(min_envs, timeout_s=timeout)
        observations, rewards, terminations, truncations, infos = self._batch(list(outcomes.values()))
        infos["env_id"] = np.fromiter(outcomes, np.int64, len(outcomes))
        return observations, rewards, terminations, truncations, infos

    # ------------------------------------------------------------ for other faces

    def reset_each(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]] | None
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Begin an episode everywhere, with a seed and options for each: observations, and an info for each."""
        self._check_open()
        self._crew.forget()
        self._crew.resets(dict(enumerate(seeds)), options)
        outcomes = self.collect_all()
        return self.observations_of(outcomes), [outcome.info for outcome in outcomes]

    def settle(self) -> None:
        """Wait for whatever is under way, if anything is, and drop what comes of it: after a step that was interrupted."""
        self._crew.forget()

    def collect_all(self) -> list[Outcome]:
        """What came of all environments, which are all at work."""
        outcomes = self._crew.collect(self.num_envs)
        return [outcomes[index] for index in self._all]

    def observations_of(self, outcomes: Sequence[Outcome]) -> Any:
        """Their observations as one."""
        return self._batched([outcome.observation for outcome in outcomes])

    # ------------------------------------------------------------ each of them

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What each environment's method ``name`` returns, or its attribute of that name is."""

        def ask(env: Any) -> Any:
            found = env.get_wrapper_attr(name)
            return found(*args, **kwargs) if callable(found) else found

        return tuple(self._crew.ask(ask))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Each environment's attribute ``name``."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set each environment's attribute ``name``: to its own of a list or tuple, or to the one value."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"There are {len(values)} values for {self.num_envs} environments: give one for each.")
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def render(self) -> Any:
        """One RGB picture of all environments as their engines sent them, in rows; None without a render mode."""
        return None if self.render_mode is None else tiled(pictures_of(self.envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Say goodbye to the engines, which stay with the lease."""
        try:
            self._crew.close()
        finally:
            if self._owns_lanes:
                self._lanes.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self._crew.drop()
                if self._owns_lanes:
                    self._lanes.close()

    # ------------------------------------------------------------ how

    @property
    def _all(self) -> range:
        return range(self.num_envs)

    def _indices(self, env_ids: Sequence[int] | NDArray[Any] | None) -> list[int]:
        indices = list(self._all) if env_ids is None else [int(index) for index in env_ids]
        if len(set(indices)) < len(indices) or not set(indices) <= set(self._all):
            raise WrongArgument(f"These are not environments 0 to {self.num_envs - 1}, each once: {indices}.")
        return indices

    def _mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        mask = options.pop("reset_mask", None) if options is not None else None
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            raise WrongArgument(
                f'options["reset_mask"] must be a NumPy array of {self.num_envs} bools, at least one of them true.'
            )
        if any(self._crew.observations[index] is None for index in np.flatnonzero(~mask)):
            raise WrongArgument("The first reset() has to be one of all environments.")
        return mask

    def _begin_resets(
        self, indices: list[int], seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> None:
        self._check_open()
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = [int(seed) + index for index in self._all]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise WrongArgument(f"There are {len(seeds)} seeds for {self.num_envs} environments: give one for each.")
        self._crew.resets({index: seeds[index] for index in indices}, options)

    def _begin_steps(self, indices: Sequence[int], actions: Sequence[Any]) -> None:
        self._check_open()
        if len(actions) != len(indices):
            raise WrongArgument(f"There are {len(actions)} actions for {len(indices)} environments: give one for each.")
        over = [index for index in indices if self._crew.over[index]]
        if over:
            self._check_begun(over)
        acting = {i: action for i, action in zip(indices, actions, strict=True) if not self._crew.over[i]}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._crew.steps(acting, resets=over, reset_at_end=same_step)

    def _check_begun(self, over: Sequence[int]) -> None:
        if any(self._crew.observations[index] is None for index in over):
            raise CornermanError("There was no reset() yet: it begins the first episodes.")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise CornermanError(
                f'The episodes of environments {over} are over: reset(options={{"reset_mask": ...}}) them.'
            )

    def _check_open(self) -> None:
        if self.closed:
            raise CornermanError("This vector environment is closed: make another one with make_vec().")

    def _batch(self, outcomes: Sequence[Outcome]) -> Batch:
        return (
            self.observations_of(outcomes),
            np.array([outcome.reward for outcome in outcomes], np.float64),
            np.array([outcome.terminated for outcome in outcomes], np.bool_),
            np.array([outcome.truncated for outcome in outcomes], np.bool_),
            infos_of(outcomes),
        )


def _silent(observation: Any) -> Outcome:
    return Outcome(observation, 0.0, False, False, {})
