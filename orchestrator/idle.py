"""When a host that nobody uses stops: what was seen and a time in, what to do out. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

NOTICE_S = 300.0
"""So long before it the stop is announced, or half of ``after`` if that is less."""
AGAIN_S = 600.0
"""So long after a command that failed it is run again, if the host is still unused."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store says of the host's use.

    ``quiet_s`` is for how long no engine of a live lease was called: 0 when there are calls that nobody sees, None when
    there is no live lease.
    """

    queued: int
    newest_lease: int
    quiet_s: float | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """Since when, in monotonic seconds, the host is unused, and when its stop was announced."""

    since: float
    newest_lease: int | None = None  # None: nothing was seen yet
    announced_at: float | None = None

    def stops_at(self, after_s: float) -> float:
        """When it stops unless somebody comes; the notice is always a whole one."""
        at = self.since + after_s
        return at if self.announced_at is None else max(at, self.announced_at + notice_s(after_s))


class Step(Enum):
    """What there is to do."""

    NOTHING = "nothing"
    ANNOUNCE = "announce"
    CALL_OFF = "call-off"  # it was announced, and somebody came
    STOP = "stop"


def notice_s(after_s: float) -> float:
    """How long before it a stop is announced."""
    return min(NOTICE_S, after_s / 2)


def decide(before: Idle, seen: Seen, *, after_s: float, now: float) -> tuple[Idle, Step]:
    """How idle the host is now, and what to do; a lease that came and went between two looks is seen by its number."""
    came = before.newest_lease is not None and seen.newest_lease > before.newest_lease
    used_at = before.since
    if seen.queued or came:
        used_at = now
    elif seen.quiet_s is not None:
        used_at = max(used_at, now - max(0.0, seen.quiet_s))
    if used_at > before.since:
        step = Step.NOTHING if before.announced_at is None else Step.CALL_OFF
        return Idle(used_at, seen.newest_lease), step
    idle = replace(before, newest_lease=seen.newest_lease)
    if idle.announced_at is None:
        if now >= idle.since + after_s - notice_s(after_s):
            return replace(idle, announced_at=now), Step.ANNOUNCE
    elif now >= idle.stops_at(after_s):
        return idle, Step.STOP
    return idle, Step.NOTHING


def after_command(idle: Idle, *, succeeded: bool, after_s: float, now: float) -> Idle:
    """Nothing for a while: the machine is going down, or the command is tried again later."""
    wait = after_s if succeeded else min(after_s, AGAIN_S)
    return Idle(now - after_s + wait, idle.newest_lease)
