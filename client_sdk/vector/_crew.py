"""The environments of one lease at work: what each was asked to do, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from client_sdk._errors import CornermanError
from client_sdk.lanes import Lanes
from client_sdk.vector._engine import LaneEngine
from client_sdk.vector._hub import Hub, Task
from client_sdk.vector._seeds import Seeds
from client_sdk.vector._spares import Spares

CLOSE_WITHIN_S = 3.0


class Outcome(NamedTuple):
    """What an environment came to; ``final`` is the last observation and info of an episode that was reset in the same step."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    final: tuple[Any, dict[str, Any]] | None = None

    @property
    def over(self) -> bool:
        """Whether the episode has ended and not begun again."""
        return self.terminated or self.truncated


Make = Callable[[LaneEngine, Seeds], Any]


class Crew:
    """Environments by index, each of which does one thing at a time. It belongs to one thread."""

    def __init__(
        self, lanes: Lanes, make: Make, *, base_seed: int, ranks: Sequence[int], spare_ranks: Sequence[int] = ()
    ) -> None:
        self._hub = Hub(lanes)
        self.spares = Spares(lanes, spare_ranks)
        self._tasks: dict[int, Task] = {}
        self.envs: list[Any] = []
        count = len(ranks)
        self.over = [True] * count  # who has to begin an episode before the next step
        self.observations: list[Any] = [None] * count  # the last of each
        self.envs = self._together(
            {
                index: partial(make, LaneEngine(self._hub, rank, self.spares), Seeds(base_seed, index, count))
                for index, rank in enumerate(ranks)
            }
        )

    # ------------------------------------------------------------ what they are asked to do

    def resets(
        self, seeds: Mapping[int, int | None], options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Let several begin an episode, by index, with a seed or None for the next of its own.

        A seed also begins those of its later episodes anew. ``options`` are for all, or a list with those of each.
        """
        base = [0 if seed is None else seed for seed in seeds.values()]
        for index, seed in seeds.items():
            if seed is not None:
                self.envs[index].unwrapped.seeds = Seeds(base, index, len(self.envs))
        own = options if isinstance(options, Sequence) else [options] * len(self.envs)
        self.work({index: partial(self._reset, index, seed, own[index]) for index, seed in seeds.items()})

    def steps(self, actions: Mapping[int, Any], *, resets: Iterable[int] = (), reset_at_end: bool = False) -> None:
        """Let several play a step, by index, and others begin an episode; ``reset_at_end`` does so in the step that ends one."""
        play = self._step_and_reset if reset_at_end else self._step
        begin = {index: partial(self._reset, index, None, None) for index in resets}
        self.work({**begin, **{index: partial(play, index, action) for index, action in actions.items()}})

    def work(self, jobs: Mapping[int, Callable[[], Any]]) -> None:
        """Let several do anything that ends in an Outcome."""
        self.check_idle(jobs)
        tasks = [Task(index, job) for index, job in jobs.items()]
        self._tasks.update((task.index, task) for task in tasks)  # first, because an interrupt may come at any moment
        self._hub.start(tasks)

    def _reset(self, index: int, seed: int | None, options: Mapping[str, Any] | None) -> Outcome:
        self.over[index] = True  # until all is well
        observation, info = self.envs[index].reset(seed=seed, options=None if options is None else dict(options))
        self.observations[index], self.over[index] = observation, False
        return Outcome(observation, 0.0, False, False, info)

    def _step(self, index: int, action: Any) -> Outcome:
        outcome = Outcome(*self.envs[index].step(action))
        self.observations[index], self.over[index] = outcome.observation, outcome.over
        return outcome

    def _step_and_reset(self, index: int, action: Any) -> Outcome:
        outcome = self._step(index, action)
        if not outcome.over:
            return outcome
        begun = self._reset(index, None, None)
        return outcome._replace(
            observation=begun.observation, info=begun.info, final=(outcome.observation, outcome.info)
        )

    # ------------------------------------------------------------ what came of it

    @property
    def busy(self) -> Collection[int]:
        """The indices of those whose outcome was not collected yet."""
        return self._tasks.keys()

    def collect(self, count: int, *, timeout_s: float | None = None) -> dict[int, Outcome]:
        """The outcomes of at least ``count``, or of fewer after ``timeout_s``; the first error if there was one."""
        count = min(count, len(self._tasks))
        self._hub.wait([*self._tasks.values()], count=count, timeout_s=timeout_s)
        done = [index for index in sorted(self._tasks) if self._tasks[index].done]
        if len(done) < count and timeout_s is None:
            raise CornermanError("This was interrupted in the middle of a call: reset() all.")
        tasks = {index: self._tasks.pop(index) for index in done}
        return {index: task.result() for index, task in tasks.items()}

    def forget(self) -> None:
        """Wait for whatever is under way, and drop what comes of it."""
        self._hub.wait([*self._tasks.values()], count=len(self._tasks))
        self.drop()

    def drop(self) -> None:
        """Wait for nothing that is under way."""
        self._hub.drop(self._tasks.values())
        self._tasks.clear()

    def ask(self, question: Callable[[Any], Any]) -> list[Any]:
        """The answer of every environment; what needs its engine is done side by side."""
        self.check_idle(range(len(self.envs)))
        return self._together({index: partial(question, env) for index, env in enumerate(self.envs)})

    def check_idle(self, indices: Iterable[int]) -> None:
        """CornermanError if one of these has something to do already."""
        busy = [index for index in indices if index in self._tasks]
        if busy:
            raise CornermanError(
                f"Environments {busy} are at work still (a step that was interrupted too): recv() them first, or reset() all."
            )

    def close(self) -> None:
        """Say goodbye to the engines, for a few seconds at most."""
        with contextlib.suppress(CornermanError):
            tasks = [Task(i, env.close) for i, env in enumerate(self.envs) if i not in self._tasks]
            self._hub.start(tasks)
            self._hub.wait(tasks, count=len(tasks), timeout_s=CLOSE_WITHIN_S)
            self._hub.drop(tasks)
        self.drop()

    def _together(self, jobs: Mapping[int, Callable[[], Any]]) -> list[Any]:
        tasks = [Task(index, job) for index, job in jobs.items()]
        self._hub.start(tasks)
        self._hub.wait(tasks, count=len(tasks))
        return [task.result() for task in tasks]
