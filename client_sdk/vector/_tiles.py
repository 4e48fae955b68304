"""One picture of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def tiled(pictures: Sequence[NDArray[np.uint8] | None]) -> NDArray[np.uint8]:
    """RGB pictures of one size side by side in rows; missing ones are black."""
    there = [picture for picture in pictures if picture is not None]
    height, width = there[0].shape[:2] if there else (1, 1)
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    picture = np.zeros((rows * height, columns * width, 3), np.uint8)
    for place, one in enumerate(pictures):
        if one is not None:
            row, column = divmod(place, columns)
            picture[row * height : (row + 1) * height, column * width : (column + 1) * width] = one
    return picture


def pictures_of(envs: Sequence[Any]) -> list[NDArray[np.uint8] | None]:
    """The last frame of each environment as its engine sent it, as RGB; None before the first."""
    return [_rgb(env.unwrapped._frame) for env in envs]


def _rgb(frame: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
    return frame if frame is None or frame.shape[2] == 3 else np.repeat(frame, 3, axis=2)
