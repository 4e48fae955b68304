"""Keeping to a speed."""

from practice_engine.pacing import Pacer


class LateSleeper:
    """A clock whose sleep always takes a little longer than asked."""

    def __init__(self, late_s: float) -> None:
        self.now_s, self.slept_s, self._late_s = 0.0, 0.0, late_s

    def now(self) -> float:
        """The time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass, and a bit more."""
        self.slept_s += seconds
        self.now_s += seconds + self._late_s


def run(pacer: Pacer, clock: LateSleeper, *, steps: int, frames: int, work_s: float) -> float:
    """Seconds that so many Steps take."""
    started = clock.now_s
    for _ in range(steps):
        begun = pacer.start()
        clock.now_s += work_s
        pacer.finish(begun, frames)
    return clock.now_s - started


def test_a_step_takes_as_long_as_its_frames() -> None:
    """100 Steps of 6 frames at 60 frames/s take 10 s, although every sleep is late."""
    clock = LateSleeper(late_s=0.0007)
    pacer = Pacer(60, now=clock.now, sleep=clock.sleep)
    assert abs(run(pacer, clock, steps=100, frames=6, work_s=0.001) - 10) < 0.01


def test_slow_steps_are_not_slowed_further_nor_made_up_for() -> None:
    """A Step that took longer than its frames does not sleep, and the next one keeps its full time."""
    clock = LateSleeper(late_s=0)
    pacer = Pacer(100, now=clock.now, sleep=clock.sleep)
    assert run(pacer, clock, steps=1, frames=1, work_s=0.5) == 0.5
    assert abs(run(pacer, clock, steps=1, frames=1, work_s=0.0) - 0.01) < 1e-9


def test_unlimited_never_sleeps() -> None:
    """Without a rate the engine runs as fast as it can."""
    clock = LateSleeper(late_s=1)
    run(Pacer(None, now=clock.now, sleep=clock.sleep), clock, steps=5, frames=6, work_s=0.1)
    assert clock.slept_s == 0
