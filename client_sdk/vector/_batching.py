"""Many observations and infos as one, exactly as the installed gymnasium lays them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Infos of ``num_envs`` environments as one dictionary, by gymnasium's own method and, with 1.0 too, in the layout since 1.1."""

    _add_info = gymnasium.vector.VectorEnv._add_info

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.infos: dict[str, Any] = {}

    def add(self, info: dict[str, Any], place: int) -> None:
        """Add the info of one environment."""
        self.infos = self._add_info(self.infos, info, place)  # type: ignore[misc]

    def add_final(self, observation: Any, info: dict[str, Any], place: int) -> None:
        """Add what an episode ended with: the observation as an object by itself."""
        finals = self.infos.setdefault("final_obs", np.full(self.num_envs, None, object))
        given = self.infos.setdefault("_final_obs", np.zeros(self.num_envs, np.bool_))
        finals[place], given[place] = observation, True
        self.add({"final_info": info}, place)


def infos_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The infos of these, in this order."""
    columns = _columns(outcomes)
    if columns is not None:
        return columns
    batch = InfoBatch(len(outcomes))
    for place, outcome in enumerate(outcomes):
        if outcome.final is not None:
            batch.add_final(*outcome.final, place)
        batch.add(outcome.info, place)
    return batch.infos


def _columns(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """The same at a tenth of the cost for the common case: everybody has the same keys, with plain values. None otherwise."""
    if not outcomes:
        return {}
    rows, infos = [outcome.info for outcome in outcomes], dict[str, Any]()
    first, given = rows[0], np.ones(len(rows), np.bool_)
    keys = first.keys()
    for outcome in outcomes:
        if outcome.final is not None or outcome.info.keys() != keys:
            return None
    for key, value in first.items():
        kind = type(value)
        values = [row[key] for row in rows]
        if kind in (bool, int, float) and set(map(type, values)) == {kind}:
            infos[key] = np.array(values, kind)
        elif isinstance(value, (dict, np.ndarray, np.number, bool, int, float)) or key.startswith("final_"):
            return None
        else:
            infos[key] = column = np.empty(len(values), object)
            for place, one in enumerate(values):
                column[place] = one
        infos[f"_{key}"] = given.copy()
    return infos


Batched = Callable[[Sequence[Any]], Any]


def batcher(space: gymnasium.Space[Any]) -> Batched:
    """What makes one observation of several: arrays that are nobody else's, as gymnasium's ``concatenate`` has them."""
    if isinstance(space, gymnasium.spaces.Dict):
        parts = [(key, batcher(part)) for key, part in space.spaces.items()]
        return lambda items: {key: part([item[key] for item in items]) for key, part in parts}
    if isinstance(space, _ARRAYS):
        shape, dtype = space.shape, space.dtype
        assert shape is not None
        return lambda items: np.array(items, dtype).reshape(len(items), *shape)
    return lambda items: concatenate(space, tuple(items), create_empty_array(space, n=len(items)))


_ARRAYS = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)
