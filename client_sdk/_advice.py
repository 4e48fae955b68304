"""What limits a training, and what to change, in words. It measures nothing; ``_tune`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client_sdk._advice_model import PARTS, Batch, Line, Play, batch, enough_envs, enough_groups, in_groups

WORTH_SAYING = 1.1  # a change that brings less than a tenth is not worth a line
MORE_IS_WORTH = 1.25
MOST_ENVS = 64  # more than that is for more than one host
STOCK_STEP_RATIO = 6
CROWDED = 1.5


@dataclass(frozen=True)
class Change:
    """One thing to change, and the steps a second that it leads to."""

    text: str
    steps_per_s: float


@dataclass(frozen=True, repr=False)
class Advice:
    """What limits a training now, and what to change. Its text says so; ``small`` is how it would play with small frames."""

    line: Line
    play: Play
    envs: int
    learner_s: float = 0.0
    small: Play | None = None
    measured: float | None = None  # steps a second that were reached meanwhile

    @property
    def now(self) -> Batch:
        """Where the time goes."""
        return batch(self.line, self.play, envs=self.envs, learner_s=self.learner_s)

    @property
    def predicted(self) -> float:
        """Steps a second of all environments, stepped together."""
        return self.now.steps_per_s

    @property
    def limit(self) -> str:
        """What takes most of the time, one of PARTS."""
        return self.now.limit

    @property
    def crowded(self) -> bool:
        """Whether the engines are much slower together than one alone: the host is short of processors."""
        play = self.play
        return self.envs > 1 and play.alone_s is not None and play.mean_engine_s >= CROWDED * play.alone_s

    @property
    def changes(self) -> tuple[Change, ...]:
        """What to change, the greatest gain first; empty when nothing here brings a tenth or more."""
        found = [
            *_smaller_frames(self),
            *_higher_ratio(self),
            *_groups(self),
            *_more_envs(self),
            *_faster_learner(self),
        ]
        return tuple(sorted(found, key=lambda change: -change.steps_per_s))

    def as_dict(self) -> dict[str, Any]:
        """The figures, for programs."""
        now = self.now
        return {
            "envs": self.envs,
            "round_trip_s": self.line.round_trip_s,
            "bit_per_s": self.line.bit_per_s,
            "engine_s": self.play.mean_engine_s,
            "wire_bytes": self.play.wire_bytes,
            "client_s": self.play.client_s,
            "batch_s": {part: getattr(now, part) for part in PARTS},
            "limit": self.limit,
            "predicted_steps_per_s": self.predicted,
            "measured_steps_per_s": self.measured,
            "changes": [{"text": change.text, "steps_per_s": change.steps_per_s} for change in self.changes],
        }

    def __repr__(self) -> str:
        return str(self)  # a notebook's last line shows it

    def __str__(self) -> str:
        lines = [
            _facts(self.line, self.play),
            _split(self),
            f"Limit now: {_LIMITS[self.limit]}",
            *_crowding(self),
            "What to change:" if self.changes else "Nothing that could be changed here brings a tenth or more.",
            *(f"  {change.steps_per_s:6.0f} steps/s  {change.text}" for change in self.changes),
            *_together(self),
        ]
        return "\n".join(lines)


_LIMITS = {
    "latency": "latency. Most of a batch's time is the way to the host and back.",
    "bandwidth": "bandwidth. Most of a batch's time the line is busy with frames.",
    "engine": "engine CPU. Most of a batch's time is spent in the engines, waiting for the slowest.",
    "host": "host. Most of a batch's time the host packs frames and passes them on: it is short of processors.",
    "client": "this machine. Most of a batch's time goes into unpacking frames and into wrappers.",
    "learner": "learner. Most of a batch's time the engines wait for the learner.",
}


def _smaller_frames(advice: Advice) -> list[Change]:
    if advice.small is None:
        return []
    rate = batch(advice.line, advice.small, envs=advice.envs, learner_s=advice.learner_s).steps_per_s
    shape = advice.small.frame_shape
    return _worth(advice, Change(f"frame_shape={shape}: the engine itself makes the frame small.", rate))


def _higher_ratio(advice: Advice) -> list[Change]:
    """Fewer steps for the same game: what counts is frames a second."""
    ratio = advice.play.step_ratio
    if ratio >= STOCK_STEP_RATIO or advice.limit == "engine":
        return []
    higher = batch(
        advice.line, advice.play.at_ratio(STOCK_STEP_RATIO), envs=advice.envs, learner_s=advice.learner_s
    ).steps_per_s
    if higher * STOCK_STEP_RATIO < WORTH_SAYING * advice.predicted * ratio:
        return []
    frames = f"{higher * STOCK_STEP_RATIO:.0f} game frames a second instead of {advice.predicted * ratio:.0f}"
    return [
        Change(f"step_ratio={STOCK_STEP_RATIO}: {frames}, because each way to the host carries more of them.", higher)
    ]


def _groups(advice: Advice) -> list[Change]:
    if advice.envs < 2:
        return []
    groups = enough_groups(advice.line, advice.play, envs=advice.envs, learner_s=advice.learner_s)
    rate = in_groups(advice.line, advice.play, envs=advice.envs, groups=groups, learner_s=advice.learner_s)
    text = f"{groups} groups with send() and recv(): some are under way while you see to the others."
    return _worth(advice, Change(text, rate))


def _more_envs(advice: Advice) -> list[Change]:
    """Twice as many, and again, for as long as that is of use; not where the host has no processors left for them."""
    if advice.crowded:
        return []
    envs, rate = advice.envs, advice.predicted
    while 2 * envs <= MOST_ENVS:
        more = batch(advice.line, advice.play, envs=2 * envs, learner_s=advice.learner_s).steps_per_s
        if more < MORE_IS_WORTH * rate:
            break
        envs, rate = 2 * envs, more
    text = f"{envs} environments stepped together, if the host has the processors for them."
    return _worth(advice, Change(text, rate)) if envs > advice.envs else []


def _faster_learner(advice: Advice) -> list[Change]:
    if advice.limit != "learner":
        return []
    rate = batch(advice.line, advice.play, envs=advice.envs).steps_per_s
    return _worth(advice, Change("a learner that takes no time: a smaller network, a GPU, or fewer decisions.", rate))


def _worth(advice: Advice, change: Change) -> list[Change]:
    return [change] if change.steps_per_s >= WORTH_SAYING * advice.predicted else []


def _facts(line: Line, play: Play) -> str:
    rate = f"{line.bit_per_s / 1e6:.0f} Mbit/s" if line.bit_per_s else "bandwidth not measured"
    height, width, channels = play.frame_shape
    return (
        f"Line: {1e3 * line.round_trip_s:.1f} ms there and back, {rate}. "
        f"Engine: {1e3 * play.mean_engine_s:.1f} ms a step at step_ratio {play.step_ratio}. "
        f"Frames of {height}x{width}x{channels}: {play.wire_bytes / 1000:.1f} kB a step on the line, "
        f"{1e3 * play.client_s:.2f} ms of this machine's processor."
    )


def _split(advice: Advice) -> str:
    now = advice.now
    reached = "" if advice.measured is None else f" ({advice.measured:.0f} were reached just now)"
    shares = {
        "distance": now.latency,
        "line": now.bandwidth,
        "engines": now.engine,
        "host": now.host,
        "this machine": now.client,
        "learner": now.learner,
    }
    parts = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in shares.items() if seconds >= 5e-5)
    return (
        f"{_environments(now.envs)} stepped together: {now.steps_per_s:.0f} steps/s predicted{reached}; "
        f"of {1e3 * now.seconds:.1f} ms a batch: {parts}."
    )


def _crowding(advice: Advice) -> Sequence[str]:
    play = advice.play
    if not advice.crowded or play.alone_s is None:
        return []
    return [
        f"The engines are slower together ({1e3 * play.mean_engine_s:.1f} ms a step) than one alone "
        f"({1e3 * play.alone_s:.1f} ms): the host is short of processors, so give it more or take fewer engines."
    ]


def _together(advice: Advice) -> Sequence[str]:
    """How many environments hide the distance, with the frames that are best."""
    best = advice.small or advice.play
    enough = enough_envs(advice.line, best, learner_s=advice.learner_s, envs=advice.envs)
    where = "" if best is advice.play else f" with frame_shape={best.frame_shape}"
    if enough <= 1:
        return []
    return [
        f"The distance would be hidden altogether by {enough} environments in groups{where}: each one more brings its share until then."
    ]


def _environments(count: int) -> str:
    return f"{count} environments" if count != 1 else "1 environment"
