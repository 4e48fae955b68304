"""The progress bar: how far a collection is, steps a second, and the mean reward of the episodes so far."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

EVERY_S = 0.5


class Bar:
    """A tqdm bar over ``total`` episodes or steps; nothing at all when it is not wanted."""

    def __init__(self, total: int, unit: str, *, shown: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._unit = now, unit
        self._began_at = self._said_at = now()
        self._steps, self._episodes, self._reward = 0, 0, 0.0
        self._bar: Any = _tqdm()(total=total, unit=f" {unit}", mininterval=EVERY_S) if shown else None

    def advance(self, steps: int, rewards: Sequence[float]) -> None:
        """So many more steps were taken, and episodes with these total ``rewards`` ended."""
        self._steps += steps
        self._episodes += len(rewards)
        self._reward += sum(rewards)
        if self._bar is not None:
            self._bar.update(steps if self._unit == "steps" else len(rewards))
            if self._now() - self._said_at >= EVERY_S:
                self._say()

    def summary(self) -> dict[str, str]:
        """What stands behind the bar."""
        rate = self._steps / max(1e-9, self._now() - self._began_at)
        mean = f"{self._reward / self._episodes:.3g}" if self._episodes else "none yet"
        return {"steps/s": f"{rate:.0f}", "mean reward": mean}

    def _say(self) -> None:
        self._said_at = self._now()
        self._bar.set_postfix(self.summary())

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._say()
            self._bar.close()


def _tqdm() -> Any:
    """The notebook's bar where there is one, the terminal's elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns in notebooks without ipywidgets, and then shows the terminal's
        from tqdm.auto import tqdm
    return tqdm
