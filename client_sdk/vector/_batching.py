"""Many observations and infos as one, exactly as the installed gymnasium lays them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import gymnasium.vector
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from client_sdk.vector._crew import Outcome

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode as AutoresetMode
elif hasattr(gymnasium.vector, "AutoresetMode"):
    AutoresetMode = gymnasium.vector.AutoresetMode
else:

    class AutoresetMode(Enum):
        """When an environment whose episode has ended begins the next one; as gymnasium has it from 1.1 on."""

        NEXT_STEP = "NextStep"
        SAME_STEP = "SameStep"
        DISABLED = "Disabled"


class InfoBatch:
    """Infos of ``num_envs`` environments as one dictionary, by gymnasium's own method."""

    _add_info = gymnasium.vector.VectorEnv._add_info

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.infos: dict[str, Any] = {}

    def add(self, info: dict[str, Any], place: int) -> None:
        """Add the info of one environment."""
        self.infos = self._add_info(self.infos, info, place)  # type: ignore[misc]


def infos_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The infos of these, in this order."""
    batch = InfoBatch(len(outcomes))
    for place, outcome in enumerate(outcomes):
        if outcome.final is not None:
            observation, info = outcome.final
            batch.add({"final_obs": observation, "final_info": info}, place)
        batch.add(outcome.info, place)
    return batch.infos


def observations_of(space: gymnasium.Space[Any], observations: Iterable[Any], count: int) -> Any:
    """Observations as arrays that are nobody else's."""
    batch = create_empty_array(space, n=count, fn=_empty)
    return concatenate(space, tuple(observations), batch) if count else batch


def _empty(shape: Any, dtype: Any = None, **_: Any) -> Any:
    return np.empty(shape, dtype)
