"""Plays a little on a lease's lanes and times the parts of it: what ``lease.advise()`` and ``cornerman tune`` do."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from client_sdk._advice import Advice
from client_sdk._advice_model import SMALL, Line, Play, explained, shrinks
from client_sdk._errors import WrongArgument
from client_sdk._relay import route_to
from client_sdk._speed import bit_per_s
from client_sdk.lanes import Lanes, Method, Pending, Reply

if TYPE_CHECKING:
    from client_sdk._lease import Lease

WARM_UP, ALONE, FEWEST_BATCHES = 3, 15, 8


class WatchedLanes(Lanes):
    """Lanes that remember the calls that were begun, to be looked at afterwards."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._begun: list[Pending] = []

    def begin(self, calls: Iterable[tuple[int, Method, bytes]]) -> list[Pending]:
        """As Lanes does it."""
        begun = super().begin(calls)
        self._begun += begun
        return begun

    def steps(self) -> list[Reply] | None:
        """The replies since this was asked last; None if there was anything but steps."""
        begun, self._begun = self._begun, []
        if any(one.method is not Method.STEP or not isinstance(one.outcome, Reply) for one in begun):
            return None
        return [one.result() for one in begun]


@dataclass(frozen=True)
class Timing:
    """A way to play, timed: its parts, seconds of a batch, and of a step of one environment less what engine and machine took."""

    play: Play
    batch_s: float
    way_s: float


def advise(
    lease: Lease, game_id: str, env_settings: Any, wrappers_settings: Any, *, learner_s: float, seconds: float
) -> Advice:
    """Measure and advise, see ``Lease.advise``."""
    with _lanes_of(lease) as lanes:
        speed = line_speed(lease)
        return measured(
            lanes, game_id, env_settings, wrappers_settings, speed=speed, learner_s=learner_s, seconds=seconds
        )


def measured(
    lanes: WatchedLanes,
    game_id: str,
    env_settings: Any,
    wrappers_settings: Any = None,
    *,
    speed: float | None,
    learner_s: float = 0.0,
    seconds: float,
) -> Advice:
    """Advice from playing on ``lanes``, with these settings and then with small frames, over a line of that ``speed`` in bit/s."""
    from diambra.arena import EnvironmentSettings

    settings = copy.deepcopy(env_settings) if env_settings is not None else EnvironmentSettings()
    timing = played(lanes, game_id, settings, wrappers_settings, seconds=seconds)
    small = None
    if shrinks(timing.play.frame_shape):
        settings.frame_shape = SMALL
        small = played(lanes, game_id, settings, wrappers_settings, seconds=seconds)
    envs = len(lanes.ranks)
    line = Line(round_trip(small or timing, speed), speed)

    def whole(timing: Timing) -> Play:
        return explained(line, timing.play, envs=envs, batch_s=timing.batch_s)

    return Advice(
        line,
        whole(timing),
        envs,
        learner_s=learner_s,
        small=None if small is None else whole(small),
        measured=envs / (timing.batch_s + learner_s),
    )


def line_speed(lease: Lease) -> float | None:
    """Bit/s from the relay of ``lease``; None where that cannot be measured."""
    relay, session = lease.model.relay, lease._api.session
    if relay is None:
        return None
    return bit_per_s(route_to(relay, session.target, ca_pem=session.ca_pem, ttl_s=lease.model.ttl_s))


def round_trip(timing: Timing, speed: float | None) -> float:
    """Seconds there and back: what is left of a lone step when the bytes have taken their time too."""
    return max(0.0, timing.way_s - Line(0.0, speed).seconds_for(timing.play.wire_bytes))


def played(lanes: WatchedLanes, game_id: str, settings: Any, wrappers: Any, *, seconds: float) -> Timing:
    """Play for so long, one environment alone and then all together."""
    from client_sdk.vector import make_vec

    vec = make_vec(lanes, game_id, settings, wrappers, seed=1)
    try:
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(vec.action_space.sample())
        alone = [*_lone_steps(vec, lanes)]
        replies, batch_s, client_s = _batches(vec, lanes, seconds)
        shape = vec.envs[0].unwrapped.env_info.frame_shape
    finally:
        vec.close()
    play = Play(
        frame_shape=(shape.h, shape.w, shape.c),
        step_ratio=settings.step_ratio,
        engine_s=tuple(reply.engine_s for reply in replies),
        wire_bytes=statistics.fmean(reply.wire_bytes for reply in replies),
        client_s=client_s,
        alone_s=statistics.median(reply.engine_s for _, reply in alone),
    )
    return Timing(play, batch_s, statistics.median(way_s for way_s, _ in alone))


def _lone_steps(vec: Any, lanes: WatchedLanes) -> Iterator[tuple[float, Reply]]:
    """Steps of the first environment while the others rest: seconds on the way, and what came."""
    found = 0
    lanes.steps()
    for _ in range(10 * ALONE):
        spent, began = time.process_time(), time.perf_counter()
        vec.send([vec.single_action_space.sample()], [0])
        vec.recv(1)
        took, spent = time.perf_counter() - began, time.process_time() - spent
        replies = lanes.steps()
        if replies is not None:  # else its episode began anew
            (reply,) = replies
            yield took - spent - reply.engine_s - reply.queue_s, reply
            found += 1
        if found == ALONE:
            return
    raise WrongArgument("The episodes of this game are too short to be timed.")


def _batches(vec: Any, lanes: WatchedLanes, seconds: float) -> tuple[list[Reply], float, float]:
    """Steps of all environments: what came, the seconds of a batch, and of this machine's processor for a step."""
    replies: list[Reply] = []
    took: list[float] = []
    spent: list[float] = []
    ends_at = time.perf_counter() + seconds
    lanes.steps()
    while len(took) < FEWEST_BATCHES or time.perf_counter() < ends_at:
        actions = vec.action_space.sample()
        used, began = time.process_time(), time.perf_counter()
        vec.step(actions)
        ended, used = time.perf_counter(), time.process_time() - used
        came = lanes.steps()
        if came is not None:
            replies += came
            took.append(ended - began)
            spent.append(used / vec.num_envs)
    return replies, statistics.fmean(took), statistics.fmean(spent)


@contextmanager
def _lanes_of(lease: Lease) -> Iterator[WatchedLanes]:
    """The lanes of ``lease``, which listens for the stock client again afterwards if it did before."""
    if lease._taken:
        raise WrongArgument(
            "The lanes of this lease are in use: close the environments first, or ask for advice on another lease."
        )
    lanes = cast(WatchedLanes, WatchedLanes.of(lease))
    with lanes:
        yield lanes
