"""What lies over the picture: health and energy bars, timer, names, won rounds and the call at a round's start."""

from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from practice_engine.fighter import FULL_ENERGY, WORLD_WIDTH
from practice_engine.games import Game
from practice_engine.rules import Match
from practice_engine.sprites import Sprite

Image = npt.NDArray[np.uint8]
WORLD_HEIGHT = 224
_BAR_INNER, _BAR_OUTER, _BAR_TOP, _BAR_BOTTOM = 20, 176, 12, 21  # from the middle, from the top
_ENERGY_INNER, _ENERGY_OUTER, _ENERGY_TOP, _ENERGY_BOTTOM = 86, 176, 211, 216
_EMPTY, _FULL, _LOW, _FRAME = (110, 24, 30), (250, 214, 60), (250, 120, 40), (240, 240, 244)
_ENERGY_EMPTY, _ENERGY = (20, 26, 48), (70, 190, 255)
_SMALLEST_TEXT_PX = 6


@dataclass(frozen=True)
class Scale:
    """Pixels for each world unit, and whether the picture is grey."""

    x: float
    y: float
    grey: bool

    def colour(self, rgb: tuple[int, int, int]) -> tuple[int, ...]:
        """The colour in this picture's channels."""
        red, green, blue = rgb
        return ((299 * red + 587 * green + 114 * blue) // 1000,) if self.grey else rgb

    def box(self, left: float, top: float, right: float, bottom: float) -> tuple[slice, slice]:
        """The pixels of an upright rectangle given in world units from the upper left; at least one each way."""
        y0, x0 = round(top * self.y), round(left * self.x)
        return slice(y0, max(y0 + 1, round(bottom * self.y))), slice(x0, max(x0 + 1, round(right * self.x)))


@cache
def text_sprite(text: str, *, width: int, height: int, grey: bool, colour: tuple[int, int, int]) -> Sprite:
    """Outlined text in so many pixels; the origin is its middle."""
    font, size, thick = cv2.FONT_HERSHEY_DUPLEX, 2.0, 5
    (w, h), baseline = cv2.getTextSize(text, font, size, thick)
    big = np.zeros((h + baseline, w + 16, 3), np.uint8)
    mask = np.zeros(big.shape[:2], np.uint8)
    for image, ink, width_px in ((mask, 255, thick + 9), (big, (12, 10, 20), thick + 9), (big, colour, thick)):
        cv2.putText(image, text, (8, h + 2), font, size, ink, width_px, cv2.LINE_AA)
    pixels = np.asarray(cv2.resize(big, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    mask = cv2.resize(mask, (width, height), interpolation=cv2.INTER_AREA)
    if grey:
        pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
    return Sprite(pixels, np.where(mask > 90, 255, 0).astype(np.uint8), width // 2, height // 2)


def names_of(match: Match) -> tuple[str, str]:
    """The characters that fight now."""
    game = match.game
    one, two = (game.characters[team[active]] for team, active in zip(match.teams, match.active, strict=True))
    return one, two


def draw_plate(picture: Image, match: Match, scale: Scale) -> None:
    """Draw what stays the same for a round: frames of the bars, names, won rounds, the stage."""
    middle, needed = WORLD_WIDTH / 2, match.game.rounds_per_stage
    for side in (-1, 1):
        for inner, outer, top, bottom in (
            (_BAR_INNER, _BAR_OUTER, _BAR_TOP, _BAR_BOTTOM),
            (_ENERGY_INNER, _ENERGY_OUTER, _ENERGY_TOP, _ENERGY_BOTTOM),
        ):
            left, right = sorted((middle + side * inner, middle + side * outer))
            picture[scale.box(left - 3, top - 3, right + 3, bottom + 3)] = scale.colour((14, 12, 24))
            picture[scale.box(left - 1.5, top - 1.5, right + 1.5, bottom + 1.5)] = scale.colour(_FRAME)
        wins = match.wins[0 if side < 0 else 1]
        for i in range(needed):
            x = middle + side * (_BAR_INNER + 5 + 10 * i)
            picture[scale.box(x - 4, 26, x + 4, 32)] = scale.colour((14, 12, 24))
            picture[scale.box(x - 3, 27, x + 3, 31)] = scale.colour((255, 96, 60) if i < wins else (70, 70, 84))
    picture[scale.box(middle - 15, 7, middle + 15, 29)] = scale.colour((14, 12, 24))
    if 7 * scale.y < _SMALLEST_TEXT_PX:
        return
    for side, name in zip((-1, 1), names_of(match), strict=True):
        width = 5.2 * len(name)
        x = middle + side * (_BAR_OUTER - width / 2)
        _put(picture, scale, name.upper(), x, 29.5, width, 9, (250, 250, 250))
    _put(picture, scale, f"STAGE {match.stage}", middle, 214, 46, 9, (220, 220, 230))


def _put(
    picture: Image,
    scale: Scale,
    text: str,
    x: float,
    y: float,
    width: float,
    height: float,
    colour: tuple[int, int, int],
) -> None:
    sprite = text_sprite(
        text, width=round(width * scale.x), height=round(height * scale.y), grey=scale.grey, colour=colour
    )
    top, left = max(0, round(y * scale.y) - sprite.origin_y), max(0, round(x * scale.x) - sprite.origin_x)
    part = picture[top : top + sprite.mask.shape[0], left : left + sprite.mask.shape[1]]
    rows, columns = part.shape[:2]
    cv2.copyTo(sprite.pixels[:rows, :columns], sprite.mask[:rows, :columns], part)


class Bars:
    """Health and energy bars and the timer, drawn anew for each frame."""

    def __init__(self, game: Game, scale: Scale) -> None:
        self._scale = scale
        self._low, self._high = game.health
        middle = WORLD_WIDTH / 2
        self._bars = []  # for health and energy of P1 and P2: rows, outer end, inner end in pixels
        for inner, outer, top, bottom in (
            (_BAR_INNER, _BAR_OUTER, _BAR_TOP, _BAR_BOTTOM),
            (_ENERGY_INNER, _ENERGY_OUTER, _ENERGY_TOP, _ENERGY_BOTTOM),
        ):
            for side in (-1, 1):
                left, right = sorted((middle + side * inner, middle + side * outer))
                rows, columns = scale.box(left, top, right, bottom)
                ends = (columns.start, columns.stop) if side < 0 else (columns.stop, columns.start)
                self._bars.append((rows, *ends))
        self._ink = {c: scale.colour(c) for c in (_EMPTY, _FULL, _LOW, _ENERGY_EMPTY, _ENERGY)}
        self._timer_box = scale.box(middle - 14, 8, middle + 14, 28)
        self._timer_tiles: dict[int, Image] = {}

    def draw(self, picture: Image, match: Match, seconds: int) -> None:
        """Draw all of them at their present values."""
        fight, span = match.fight, self._high - self._low
        for index, fighter in enumerate((fight.one, fight.two)):
            share = max(0, fighter.health - self._low) / span
            self._fill(picture, index, share, _EMPTY, _FULL if share > 0.3 else _LOW)
            self._fill(picture, 2 + index, fighter.energy / FULL_ENERGY, _ENERGY_EMPTY, _ENERGY)
        picture[self._timer_box] = self._timer(seconds)

    def _fill(
        self, picture: Image, index: int, share: float, empty: tuple[int, int, int], full: tuple[int, int, int]
    ) -> None:
        # What is left stays at the middle of the screen; it wanes from the outside.
        rows, outer, inner = self._bars[index]
        edge = round(inner + (outer - inner) * share)
        left, right = (outer, inner) if outer < inner else (inner, outer)
        picture[rows, left:right] = self._ink[empty]
        picture[rows, min(edge, inner) : max(edge, inner)] = self._ink[full]

    def _timer(self, seconds: int) -> Image:
        tile = self._timer_tiles.get(seconds)
        if tile is None:
            rows, columns = self._timer_box
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            sprite = text_sprite(
                f"{seconds:02d}"[-2:],
                width=shape[1],
                height=shape[0],
                grey=self._scale.grey,
                colour=(255, 236, 120) if seconds > 10 else (255, 96, 72),
            )
            tile = np.zeros((*shape, 1 if self._scale.grey else 3), np.uint8)
            tile[:] = self._scale.colour((44, 34, 66))
            if self._scale.grey:
                tile = tile[:, :, 0]
            cv2.copyTo(sprite.pixels, sprite.mask, tile)
            self._timer_tiles[seconds] = tile
        return tile
