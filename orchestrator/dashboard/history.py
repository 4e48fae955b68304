"""The last hour, as the charts show it: samples in memory, because whoever wants to keep more has Prometheus."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import structlog

from orchestrator.api.services import Services
from orchestrator.api.views import RATE_LASTS_S
from orchestrator.model import EngineState, LeaseState
from orchestrator.store import engines, events, leases, meters, pools

log = structlog.get_logger("cornerman.dashboard")

EVERY_S, HOUR_S = 10.0, 3600.0
_STATES = (EngineState.READY, EngineState.LEASED, EngineState.STARTING, EngineState.FAILED, EngineState.RETIRING)
COLUMNS = ("at", "leases", "waiting", *(state.value for state in _STATES), "rate", "step_ms")


class History:
    """Takes a sample every few seconds, once it was started."""

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self._samples: deque[tuple[float | None, ...]] = deque(maxlen=int(HOUR_S / EVERY_S))
        self._before: tuple[float, float] | None = None  # steps and the seconds they took
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Sample until the services stop."""
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the last sample; the services have been stopped."""
        if self._thread is not None:
            self._thread.join(2.0)

    def _work(self) -> None:
        while not self._parts.stopping.is_set():
            try:
                self.sample()
            except Exception:  # the loop's edge: a chart with a gap is better than none
                log.exception("a sample for the charts could not be taken")
            self._parts.stopping.wait(EVERY_S)

    def sample(self) -> None:
        """Add how things are now."""
        now = self._parts.now()
        with self._parts.database.read() as db:
            names = [pool.name for pool in pools.all_of(db, self._parts.policies)]
            states = [engines.counts(db, name) for name in names]
            held = [leases.counts(db, name) for name in names]
            rate = meters.rate_of_active(db, after=now - RATE_LASTS_S)
            totals = events.counters(db)
        step_ms = self._step_ms(
            sum_of(totals, "relay_steps"), sum_of(totals, "relay_engine_seconds", "relay_queue_seconds")
        )
        self._samples.append(
            (
                round(now, 1),
                sum(one.get(LeaseState.ACTIVE, 0) for one in held),
                sum(one.get(LeaseState.PENDING, 0) for one in held),
                *(sum(one.get(state, 0) for one in states) for state in _STATES),
                round(rate, 1),
                step_ms,
            )
        )

    def _step_ms(self, steps: float, seconds: float) -> float | None:
        """What a step took since the sample before, in engine and relay; None when there was none."""
        before, self._before = self._before, (steps, seconds)
        if before is None or steps <= before[0]:
            return None
        return round(1000 * (seconds - before[1]) / (steps - before[0]), 3)

    def after(self, at: float) -> list[tuple[float | None, ...]]:
        """The samples taken later than that, oldest first; each has the ``COLUMNS``."""
        return [sample for sample in list(self._samples) if (sample[0] or 0.0) > at]


def sum_of(totals: dict[tuple[str, str], float], *names: str) -> float:
    """Counters of these names over all pools."""
    return sum(value for (name, _), value in totals.items() if name in names)


def as_event(samples: list[tuple[float | None, ...]]) -> dict[str, Any]:
    """Samples as the page gets them."""
    return {"columns": COLUMNS, "samples": samples}
