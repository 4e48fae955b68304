"""What is advised for a line, engines and a learner whose figures are given."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk._advice import Advice
from client_sdk._advice_model import (
    Line,
    Play,
    batch,
    enough_envs,
    enough_groups,
    explained,
    in_groups,
    shrinks,
)
from client_sdk._speed import rate_of

FAR = Line(round_trip_s=0.030, bit_per_s=100e6)
FULL = Play((480, 512, 3), 6, engine_s=(0.065,), wire_bytes=15_000, client_s=0.002)
SMALL = Play((128, 128, 1), 6, engine_s=(0.065,), wire_bytes=1_000, client_s=0.0005)
FAST = replace(SMALL, step_ratio=1, engine_s=(0.011,))

SECONDS = st.floats(1e-4, 1.0)
PLAYS = st.builds(
    Play,
    st.just((128, 128, 1)),
    st.just(6),
    st.lists(SECONDS, min_size=1, max_size=8).map(tuple),
    st.floats(100, 1e6),
    st.floats(1e-5, 0.02),
)
LINES = st.builds(Line, st.floats(0, 0.3), st.one_of(st.none(), st.floats(1e6, 1e10)))


@given(LINES, PLAYS, st.integers(1, 64), st.floats(0, 0.5))
def test_prediction_is_the_formula(line: Line, play: Play, envs: int, learner_s: float) -> None:
    """N / (T0 + R + 8*N*b/W), where T0 has what this machine does while the line is busy only once."""
    now = batch(line, play, envs=envs, learner_s=learner_s)
    on_line = 8 * play.wire_bytes / line.bit_per_s if line.bit_per_s else 0.0
    slowest = play.slowest_of(envs)
    assert min(play.engine_s) - 1e-9 <= slowest <= max(play.engine_s) + 1e-9
    one_behind_the_other = envs * max(on_line, play.client_s) + min(on_line, play.client_s)
    assert now.seconds == pytest.approx(line.round_trip_s + slowest + one_behind_the_other + learner_s, rel=1e-6)
    assert now.steps_per_s == pytest.approx(envs / now.seconds)


@given(LINES, PLAYS, st.integers(1, 64), SECONDS)
def test_what_the_parts_leave_unexplained_is_the_hosts(line: Line, play: Play, envs: int, more_s: float) -> None:
    """A batch that took longer than line, engines and this machine account for is predicted as it was measured; a shorter one is not."""
    known_s = batch(line, play, envs=envs).seconds
    slower = explained(line, play, envs=envs, batch_s=known_s + more_s)
    assert batch(line, slower, envs=envs).seconds == pytest.approx(known_s + more_s)
    assert explained(line, play, envs=envs, batch_s=0.5 * known_s) == play


@given(st.lists(SECONDS, min_size=2, max_size=4), st.integers(1, 4))
def test_slowest_of_several_is_the_mean_of_all_draws(engine_s: list[float], envs: int) -> None:
    """How long a batch waits for its engines is the mean maximum over all ways to draw their times."""
    draws = [max(draw) for draw in itertools.product(engine_s, repeat=envs)]
    play = replace(SMALL, engine_s=tuple(engine_s))
    assert play.slowest_of(envs) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(
    ("line", "play", "learner_s", "limit"),
    [
        (Line(0.150, 100e6), SMALL, 0.0, "latency"),
        (Line(0.030, 5e6), FULL, 0.0, "bandwidth"),
        (FAR, SMALL, 0.0, "engine"),
        (FAR, replace(FAST, carry_s=0.01), 0.0, "host"),
        (Line(0.0, 1e9), replace(FAST, client_s=0.01), 0.0, "client"),
        (FAR, SMALL, 0.5, "learner"),
    ],
)
def test_what_limits_is_said_in_words(line: Line, play: Play, learner_s: float, limit: str) -> None:
    """Report 37: what takes most of the time is named, and the sentence about it comes first."""
    advice = Advice(line, play, 12, learner_s=learner_s)
    words = {"engine": "engine CPU", "client": "this machine"}.get(limit, limit)
    assert advice.limit == limit
    assert f"Limit now: {words}." in str(advice)


def test_far_away_with_full_frames_smaller_ones_are_advised() -> None:
    """Report 37: full frames over 30 ms and a slow line; frame_shape comes with the speed that it leads to."""
    line = Line(0.030, 20e6)
    advice = Advice(line, FULL, 12, small=SMALL)
    change = next(change for change in advice.changes if "frame_shape=(128, 128, 1)" in change.text)
    assert change.steps_per_s == pytest.approx(batch(line, SMALL, envs=12).steps_per_s)
    assert f"{change.steps_per_s:.0f} steps/s  frame_shape" in str(advice)


def test_low_step_ratio_over_a_distance_is_named() -> None:
    """Report 37: at step_ratio 1 each frame pays for the distance; 6 brings more of the game in the same time."""
    (change,) = (change for change in Advice(FAR, FAST, 4).changes if "step_ratio=6" in change.text)
    assert "game frames a second instead of" in change.text
    near = Line(0.0, 1e9)
    assert not any("step_ratio" in change.text for change in Advice(near, FAST, 4).changes)


def test_enough_environments_hide_the_distance() -> None:
    """With as many in groups as advised, this machine is always at work; with one less, it is not."""
    enough = enough_envs(FAR, FAST, envs=4)
    busy = 1 / FAST.client_s
    assert in_groups(FAR, FAST, envs=enough, groups=enough) == pytest.approx(busy)
    assert in_groups(FAR, FAST, envs=enough - 2, groups=enough - 2) < busy
    assert f"hidden altogether by {enough} environments" in str(Advice(FAR, FAST, 4))


@given(LINES, PLAYS, st.integers(2, 32), st.floats(0, 0.5))
def test_advised_groups_are_nearly_as_good_as_any(line: Line, play: Play, envs: int, learner_s: float) -> None:
    """No other number of groups is more than a twentieth faster than environments that each go on by themselves would be."""
    groups = enough_groups(line, play, envs=envs, learner_s=learner_s)
    alone = in_groups(line, play, envs=envs, groups=envs, learner_s=learner_s)
    assert 2 <= groups <= envs
    assert in_groups(line, play, envs=envs, groups=groups, learner_s=learner_s) >= 0.95 * alone


def test_learner_that_thinks_long_is_told_to_use_groups() -> None:
    """While it thinks about one group the other plays: half of the time is won where both take as long."""
    thinking = batch(FAR, SMALL, envs=12).seconds
    advice = Advice(FAR, SMALL, 12, learner_s=thinking)
    assert any("groups" in change.text for change in advice.changes)
    assert advice.changes[0].steps_per_s > 1.5 * advice.predicted


def test_crowded_host_is_named() -> None:
    """Engines that are slower together than one alone say that the host is short of processors."""
    assert "short of processors" in str(Advice(FAR, replace(SMALL, alone_s=0.03), 12))
    assert "short of processors" not in str(Advice(FAR, replace(SMALL, alone_s=0.06), 12))


def test_crowded_host_is_given_no_more_engines() -> None:
    """Where engines lack processors no more of them are advised, and one engine by itself has nobody to be slower with."""

    def more(advice: Advice) -> bool:
        return any("environments stepped together" in change.text for change in advice.changes)

    assert more(Advice(FAR, replace(SMALL, alone_s=0.06), 4))
    assert not more(Advice(FAR, replace(SMALL, alone_s=0.03), 4))
    one = Advice(FAR, replace(SMALL, alone_s=0.03), 1)
    assert "slower together" not in str(one)
    assert "1 environment stepped together" in str(one)


def test_nothing_to_gain_is_said_too() -> None:
    """On the host itself, with small frames, nothing is advised that would bring next to nothing."""
    advice = Advice(Line(0.0001, 10e9), replace(SMALL, client_s=0.00001), 64, measured=950.0)
    assert advice.changes == ()
    assert "Nothing that could be changed" in str(advice)
    assert repr(advice) == str(advice)
    assert "(950 were reached just now)" in str(advice)
    assert advice.as_dict()["limit"] == "engine"
    assert "bandwidth not measured" in str(replace(advice, line=Line(0.01)))


def test_only_frames_that_are_larger_shrink() -> None:
    """Small frames are tried only where they would be smaller."""
    assert shrinks((480, 512, 3))
    assert not shrinks((128, 128, 1))
    assert not shrinks((84, 84, 1))


def test_speed_of_the_line_is_that_of_its_steady_part() -> None:
    """A slow start is not what the line can do; one chunk alone says nothing."""
    slow_start = [(0.5, 100_000), (1.0, 1_000_000), (1.1, 2_000_000), (1.2, 3_000_000)]
    assert rate_of(slow_start) == pytest.approx(80e6)
    assert rate_of([(1.0, 1000)]) is None
    assert rate_of([]) is None
