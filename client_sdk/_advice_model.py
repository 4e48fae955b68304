"""What steps over a distance cost: the time of a batch from its parts, and the speed that follows. Numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

Shape = tuple[int, int, int]
SMALL: Shape = (128, 128, 1)
PARTS = ("latency", "bandwidth", "engine", "host", "client", "learner")
NEARLY = 0.95


@dataclass(frozen=True)
class Line:
    """The way to the host: seconds there and back, and bit/s from there; None when it was not measured, and then no limit."""

    round_trip_s: float
    bit_per_s: float | None = None

    def seconds_for(self, wire_bytes: float) -> float:
        """How long so many bytes take."""
        return 8 * wire_bytes / self.bit_per_s if self.bit_per_s else 0.0


@dataclass(frozen=True)
class Play:
    """How one step of one environment went: seconds in the engine (all that were measured), bytes on the line, and seconds
    of this machine's processor. ``alone_s`` is the engine's time while the others rest, ``carry_s`` what else a step of all
    costs for each environment: the host, which packs and passes it on."""

    frame_shape: Shape
    step_ratio: int
    engine_s: tuple[float, ...]
    wire_bytes: float
    client_s: float
    alone_s: float | None = None
    carry_s: float = 0.0

    @property
    def mean_engine_s(self) -> float:
        """The engine's time of a step, on average."""
        return sum(self.engine_s) / len(self.engine_s)

    def slowest_of(self, envs: int) -> float:
        """How long the slowest of so many engines takes, on average: a batch waits for it."""
        ordered, count = sorted(self.engine_s), len(self.engine_s)
        shares = [((rank + 1) / count) ** envs - (rank / count) ** envs for rank in range(count)]
        return sum(share * seconds for share, seconds in zip(shares, ordered, strict=True))

    def at_ratio(self, step_ratio: int) -> Play:
        """The same with another step_ratio: an engine takes as long for each frame as before."""
        factor = step_ratio / self.step_ratio
        slower = tuple(factor * seconds for seconds in self.engine_s)
        return replace(self, step_ratio=step_ratio, engine_s=slower, alone_s=None)


def shrinks(shape: Shape) -> bool:
    """Whether small frames would be smaller than these."""
    return shape[0] * shape[1] * shape[2] > SMALL[0] * SMALL[1] * SMALL[2]


@dataclass(frozen=True)
class Batch:
    """Where the time of one step of all ``envs`` goes, in seconds.

    ``envs / seconds`` is the formula N / (T0 + R + 8*N*b/W): R is ``latency``, 8*N*b/W is ``bandwidth``, T0 the rest. Of this
    machine's work only that is counted which is not done while the line still brings the next answer.
    """

    envs: int
    latency: float
    bandwidth: float
    engine: float
    host: float
    client: float
    learner: float

    @property
    def seconds(self) -> float:
        """The whole."""
        return self.latency + self.bandwidth + self.engine + self.host + self.client + self.learner

    @property
    def steps_per_s(self) -> float:
        """Steps a second of all environments together."""
        return self.envs / self.seconds

    @property
    def limit(self) -> str:
        """The part that takes longest."""
        return max(PARTS, key=lambda name: float(getattr(self, name)))


def batch(line: Line, play: Play, *, envs: int, learner_s: float = 0.0) -> Batch:
    """One step of all environments at once, after which the learner thinks for ``learner_s``."""
    each = line.seconds_for(play.wire_bytes)
    hidden = (envs - 1) * min(each, play.client_s)
    return Batch(
        envs=envs,
        latency=line.round_trip_s,
        bandwidth=envs * each,
        engine=play.slowest_of(envs),
        host=envs * play.carry_s,
        client=envs * play.client_s - hidden,
        learner=learner_s,
    )


def explained(line: Line, play: Play, *, envs: int, batch_s: float) -> Play:
    """``play``, whose ``carry_s`` is what its parts leave unexplained of the ``batch_s`` that were measured."""
    known_s = batch(line, replace(play, carry_s=0.0), envs=envs).seconds
    return replace(play, carry_s=max(0.0, batch_s - known_s) / envs)


def in_groups(line: Line, play: Play, *, envs: int, groups: int, learner_s: float = 0.0) -> float:
    """Steps a second when each group goes on as soon as it can (``send`` / ``recv``): one is under way while others are seen to."""
    each = batch(line, play, envs=math.ceil(envs / groups), learner_s=learner_s / groups)
    return min(envs / each.seconds, 1 / _busy_s(line, play, envs=envs, learner_s=learner_s))


def enough_groups(line: Line, play: Play, *, envs: int, learner_s: float = 0.0) -> int:
    """The fewest groups that are nearly as fast as environments that each go on by themselves."""
    best = in_groups(line, play, envs=envs, groups=envs, learner_s=learner_s)
    rates = ((n, in_groups(line, play, envs=envs, groups=n, learner_s=learner_s)) for n in range(2, envs))
    return next((groups for groups, rate in rates if rate >= NEARLY * best), envs)


def enough_envs(line: Line, play: Play, *, learner_s: float = 0.0, envs: int) -> int:
    """With how many environments in groups the distance is hidden: the line or this machine is always at work then."""
    own_s = batch(line, play, envs=1).seconds
    return max(1, math.ceil(own_s / _busy_s(line, play, envs=envs, learner_s=learner_s)))


def _busy_s(line: Line, play: Play, *, envs: int, learner_s: float) -> float:
    """What a step costs whoever has to serve all environments one after the other."""
    return max(play.client_s + learner_s / envs, play.carry_s, line.seconds_for(play.wire_bytes), 1e-6)
