"""Paints the stages' backgrounds: a place for each game, its hour and weather for each stage."""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import cv2
import numpy as np
import numpy.typing as npt

from practice_engine.games import Game
from practice_engine.painter import Colour, Painter, Palette, dark, mix

Image = npt.NDArray[np.uint8]
HORIZON = 0.66  # share of the height above the floor


DAWN = Palette((88, 96, 168), (250, 196, 158), (255, 240, 205), (120, 98, 140), (158, 128, 104))
NOON = Palette((64, 132, 214), (196, 228, 246), (255, 255, 235), (104, 140, 152), (186, 164, 122))
DUSK = Palette((52, 30, 88), (240, 120, 72), (255, 214, 140), (84, 48, 92), (132, 92, 84))
NIGHT = Palette((14, 20, 56), (74, 84, 142), (236, 240, 255), (50, 56, 100), (118, 118, 148))
STORM = Palette((36, 42, 54), (126, 134, 138), (214, 220, 220), (62, 70, 78), (104, 100, 96))
HELL = Palette((24, 6, 16), (150, 40, 24), (255, 140, 70), (70, 24, 32), (128, 90, 84))
HOURS = (DAWN, NOON, DUSK, NIGHT, STORM, HELL)


def _sky(p: Painter) -> None:
    depth = np.clip(np.linspace(0, 1 / HORIZON, p.height, dtype=np.float32), 0, 1)[:, None, None]
    p.canvas[:] = np.array(p.palette.top, np.float32) * (1 - depth) + np.array(p.palette.low, np.float32) * depth
    orb_x = 0.2 + 0.6 * float(p.random.random())
    p.glow(orb_x, 0.3, 0.34, p.palette.orb, 0.65)
    p.disc(orb_x, 0.3, 0.07, p.palette.orb)
    clouds = p.noise(7, 9) * 0.6 + p.noise(22, 26) * 0.4
    p.blend(np.clip((clouds - 0.5) * 2.2, 0, 0.55), mix(p.palette.low, (255, 255, 255), 0.35))


def _ridge(p: Painter, base: float, rise: float, bumps: int, colour: Colour) -> None:
    """A chain of hills."""
    line = cv2.resize(p.random.random((1, bumps), dtype=np.float32), (p.width, 1), interpolation=cv2.INTER_CUBIC)[0]
    rough = cv2.resize(p.random.random((1, bumps * 6), dtype=np.float32), (p.width, 1))[0]
    top = (base - rise * (0.8 * line + 0.2 * rough)) * p.height
    rows = np.arange(p.height, dtype=np.float32)[:, None]
    p.blend(np.clip(rows - top[None, :], 0, 1), colour)


def _floor(p: Painter, *, tiles: float, grain: float) -> None:
    """A floor in perspective; `tiles` across (0 for bare ground), with a coarse or fine grain."""
    start = round(HORIZON * p.height)
    rows = np.arange(start, p.height, dtype=np.float32)
    depth = (rows - start + p.height * 0.09) / p.height
    across = (np.arange(p.width, dtype=np.float32)[None, :] / p.width - 0.5) / (depth[:, None] * 2.2)
    along = 0.06 / depth[:, None]
    light = 0.62 + 0.5 * ((rows - start) / (p.height - start))[:, None] + 0 * across
    if tiles:
        u, v = across * tiles, along * tiles * 4 + 0 * across
        odd = (np.floor(u) + np.floor(v)) % 2
        seams = np.minimum(np.abs(u - np.round(u)), np.abs(v - np.round(v))) < 0.045
        light = light * (0.9 + 0.16 * odd) * np.where(seams, 0.66, 1.0)
    speckle = p.noise(round(90 * grain), round(120 * grain))[start:] - 0.5
    light = light * (1 + 0.35 * speckle + 0.12 * (p.random.random(light.shape, dtype=np.float32) - 0.5))
    p.canvas[start:] = np.array(p.palette.floor, np.float32) * light[..., None]
    shade = np.clip(1 - (rows - start) / (0.05 * p.height), 0, 1)[:, None, None]
    p.canvas[start:] *= 1 - 0.5 * shade


def _skyline(p: Painter) -> None:
    """Towers with lit windows."""
    for distance, tone in ((0.0, 0.75), (1.0, 0.45)):
        x = -0.05
        while x < 1.0:
            width = 0.05 + 0.07 * float(p.random.random())
            top = 0.16 + 0.12 * distance + 0.26 * float(p.random.random())
            colour = dark(mix(p.palette.far, p.palette.low, 0.25 * (1 - distance)), tone + 0.2)
            p.box(x, top, width, HORIZON - top, colour)
            for row in np.arange(top + 0.03, HORIZON - 0.03, 0.035):
                for column in np.arange(x + 0.008, x + width - 0.012, 0.016):
                    if p.random.random() < 0.32:
                        p.box(column, row, 0.008, 0.017, mix(colour, (255, 226, 140), 0.8))
            x += width + 0.01 * float(p.random.random())


def _columns(p: Painter) -> None:
    """A hall open to the sky: stone columns under a lintel, with torches."""
    stone = mix(p.palette.far, (190, 184, 176), 0.45)
    p.box(0, 0.1, 1, 0.07, dark(stone, 0.8))
    p.box(0, 0.17, 1, 0.018, dark(stone, 0.5))
    for x in (0.04, 0.27, 0.5, 0.73, 0.96):
        for i in range(8):
            tone = 0.5 + 0.5 * math.sin(math.pi * (i + 1.5) / 10)
            p.box(x - 0.03 + i * 0.0075, 0.17, 0.0078, HORIZON - 0.17, dark(stone, tone))
        p.box(x - 0.042, 0.17, 0.084, 0.03, dark(stone, 0.9))
        p.box(x - 0.042, HORIZON - 0.04, 0.084, 0.04, dark(stone, 0.7))
    for x in (0.155, 0.385, 0.615, 0.845):
        p.glow(x, 0.4, 0.14, (255, 150, 50), 0.75)
        p.box(x - 0.004, 0.42, 0.008, 0.08, (60, 44, 36))
        p.polygon([(x - 0.012, 0.42), (x, 0.33), (x + 0.012, 0.42)], (255, 214, 110))


def _torii(p: Painter) -> None:
    """A red gate before the sea and a mountain."""
    sea = round(0.53 * p.height)
    p.canvas[sea : round(HORIZON * p.height)] = mix(p.palette.top, (40, 90, 130), 0.5)
    for _ in range(150):
        x, y = float(p.random.random()), 0.54 + 0.11 * float(p.random.random())
        p.box(x, y, 0.03, 0.004, mix(p.palette.low, (255, 255, 255), 0.2))
    p.polygon([(0.04, 0.53), (0.2, 0.25), (0.24, 0.25), (0.44, 0.53)], mix(p.palette.far, (80, 90, 140), 0.3))
    p.polygon(
        [(0.161, 0.32), (0.2, 0.25), (0.24, 0.25), (0.287, 0.32), (0.25, 0.3), (0.22, 0.33), (0.19, 0.3)],
        (244, 246, 250),
    )
    red = (196, 52, 40)
    for x in (0.58, 0.82):
        p.polygon([(x - 0.018, HORIZON), (x - 0.012, 0.24), (x + 0.012, 0.24), (x + 0.018, HORIZON)], dark(red, 0.8))
        p.box(x - 0.012, 0.24, 0.008, HORIZON - 0.24, red)
    p.box(0.55, 0.31, 0.3, 0.028, dark(red, 0.85))
    p.polygon([(0.51, 0.2), (0.7, 0.222), (0.89, 0.2), (0.88, 0.255), (0.7, 0.265), (0.52, 0.255)], red)
    p.polygon([(0.5, 0.185), (0.7, 0.207), (0.9, 0.185), (0.89, 0.212), (0.7, 0.228), (0.51, 0.212)], (52, 36, 40))


def _stadium(p: Painter) -> None:
    """Rows of spectators behind a rail, under floodlights."""
    for row in range(12):
        y = 0.22 + row * 0.032
        p.box(0, y, 1, 0.034, dark(p.palette.far, 0.5 + 0.03 * row))
        for x in np.arange(0.004 + 0.008 * (row % 2), 1, 0.0165):
            if p.random.random() < 0.9:
                shirt = tuple(int(c) for c in p.random.integers(60, 230, 3))
                p.box(float(x) - 0.006, y + 0.012, 0.012, 0.024, dark((shirt[0], shirt[1], shirt[2]), 0.5 + 0.03 * row))
                p.disc(float(x), y + 0.006, 0.009, dark((232, 190, 150), 0.55 + 0.03 * row))
    p.box(0, 0.6, 1, 0.06, (40, 48, 110))
    for i in range(10):
        p.box(0.03 + i * 0.1, 0.612, 0.06, 0.036, ((240, 200, 60), (230, 80, 70), (240, 240, 240))[i % 3])
    for x in (0.12, 0.88):
        p.glow(x, 0.12, 0.3, (255, 255, 240), 0.8)
        p.box(x - 0.05, 0.09, 0.1, 0.05, (250, 252, 255))


def _ruins(p: Painter) -> None:
    """A stepped pyramid in the jungle."""
    stone = mix((150, 140, 104), p.palette.low, 0.25)
    for i in range(6):
        half, y = 0.34 - 0.05 * i, HORIZON - 0.075 * (i + 1)
        p.box(0.5 - half, y, 2 * half, 0.076, dark(stone, 0.72 + 0.05 * i))
        p.box(0.5 - half, y, 2 * half, 0.012, dark(stone, 1.0))
        p.box(0.47, y, 0.06, 0.076, dark(stone, 0.5))
    for side, count in ((0, 9), (1, 9)):
        for i in range(count):
            x = (0.02 + 0.028 * i) if side == 0 else (0.98 - 0.028 * i)
            _palm(p, x, 0.3 + 0.2 * float(p.random.random()))


def _palm(p: Painter, x: float, top: float) -> None:
    p.polygon(
        [(x - 0.005, HORIZON + 0.02), (x - 0.003, top), (x + 0.003, top), (x + 0.006, HORIZON + 0.02)], (70, 52, 34)
    )
    for angle in np.linspace(-0.4, math.pi + 0.4, 8):
        tip = (x + 0.06 * math.cos(angle), top - 0.06 * math.sin(angle) + 0.035)
        side = (x + 0.034 * math.cos(angle), top - 0.085 * math.sin(angle) - 0.012)
        green = (34 + int(30 * p.random.random()), 96 + int(40 * p.random.random()), 50)
        p.polygon([(x, top), side, tip], mix(green, p.palette.far, 0.25))


def _dojo(p: Painter) -> None:
    """A wooden hall with paper walls and hanging lanterns."""
    wood = mix((112, 70, 42), p.palette.far, 0.2)
    p.box(0, 0, 1, HORIZON, dark(wood, 0.7))
    for i in range(6):
        x = 0.02 + i * 0.165
        p.box(x, 0.2, 0.135, 0.4, mix((246, 232, 196), p.palette.low, 0.3))
        for j in range(1, 4):
            p.box(x + j * 0.034, 0.2, 0.004, 0.4, wood)
        for j in range(1, 6):
            p.box(x, 0.2 + j * 0.067, 0.135, 0.006, wood)
    p.box(0, 0.14, 1, 0.05, dark(wood, 1.1))
    for x in (0.01, 0.34, 0.66, 0.99):
        p.box(x - 0.016, 0, 0.032, HORIZON, dark(wood, 0.9))
        p.box(x - 0.016, 0, 0.008, HORIZON, dark(wood, 1.3))
    for x in (0.175, 0.5, 0.825):
        p.glow(x, 0.25, 0.16, (255, 170, 80), 0.7)
        p.disc(x, 0.25, 0.046, (238, 92, 52))
        p.box(x - 0.014, 0.2, 0.028, 0.014, (60, 30, 24))
        p.box(x - 0.014, 0.287, 0.028, 0.014, (60, 30, 24))


def _airship(p: Painter) -> None:
    """A steel deck above the clouds, with girders and warning lights."""
    for _ in range(26):
        x, y = float(p.random.random()), 0.4 + 0.26 * float(p.random.random())
        p.glow(x, y, 0.05 + 0.05 * float(p.random.random()), mix(p.palette.low, (255, 255, 255), 0.6), 0.5)
    steel = mix((120, 130, 146), p.palette.far, 0.3)
    for x in (0.0, 0.3, 0.6, 0.9):
        p.polygon([(x, HORIZON), (x + 0.05, 0.14), (x + 0.07, 0.14), (x + 0.03, HORIZON)], steel)
        p.polygon([(x + 0.13, HORIZON), (x + 0.05, 0.14), (x + 0.07, 0.14), (x + 0.16, HORIZON)], dark(steel, 0.7))
        for i in range(5):
            y, reach = 0.22 + 0.09 * i, 0.012 * (i + 1)
            p.box(x + 0.055 - reach, y, 2 * reach + 0.02, 0.012, dark(steel, 0.85))
        p.glow(x + 0.06, 0.13, 0.06, (255, 60, 50), 0.9)
    for i in range(20):
        p.box(i * 0.05, 0.615, 0.025, 0.045, (236, 190, 40))
        p.box(i * 0.05 + 0.025, 0.615, 0.025, 0.045, (36, 36, 40))


def _castle(p: Painter) -> None:
    """Battlements with banners."""
    stone = mix((136, 132, 140), p.palette.far, 0.4)
    for x, top, width in ((0.0, 0.12, 0.18), (0.82, 0.12, 0.18), (0.18, 0.34, 0.64)):
        p.box(x, top, width, HORIZON - top, dark(stone, 0.8 if width > 0.3 else 0.95))
        for i in range(round(width / 0.04)):
            p.box(x + i * 0.04, top - 0.04, 0.024, 0.042, dark(stone, 0.8 if width > 0.3 else 0.95))
        for row in range(round((HORIZON - top) / 0.045)):
            for column in range(round(width / 0.045)):
                if p.random.random() < 0.5:
                    p.box(x + column * 0.045 + 0.022 * (row % 2), top + row * 0.045, 0.04, 0.004, dark(stone, 0.6))
    for x in (0.07, 0.31, 0.66, 0.89):
        cloth = (168, 32, 48) if x < 0.5 else (40, 62, 150)
        p.polygon([(x, 0.36), (x + 0.05, 0.36), (x + 0.05, 0.56), (x + 0.025, 0.52), (x, 0.56)], cloth)
        p.polygon([(x + 0.015, 0.42), (x + 0.025, 0.39), (x + 0.035, 0.42), (x + 0.025, 0.46)], (236, 200, 96))


@dataclass(frozen=True)
class _Place:
    paint: Callable[[Painter], None]
    first_hour: int
    tiles: float
    grain: float


_PLACES: Mapping[str, _Place] = MappingProxyType(
    {
        "doapp": _Place(_skyline, 3, 7, 0.6),
        "sfiii3n": _Place(_skyline, 2, 5, 1.0),
        "tektagt": _Place(_ruins, 1, 0, 1.0),
        "umk3": _Place(_columns, 5, 6, 0.8),
        "samsh5sp": _Place(_torii, 0, 0, 1.2),
        "kof98umh": _Place(_stadium, 3, 9, 0.4),
        "mvsc": _Place(_airship, 1, 8, 0.3),
        "xmvsf": _Place(_dojo, 2, 4, 0.7),
        "soulclbr": _Place(_castle, 0, 6, 1.0),
    }
)


def paint_stage(game: Game, stage: int, *, width: int, height: int) -> Image:
    """The background (height x width x 3, RGB) of a game's stage."""
    place = _PLACES[game.game_id]
    palette = HOURS[(place.first_hour + stage - 1) % len(HOURS)]
    p = Painter(width, height, palette, zlib.crc32(f"{game.game_id} {stage}".encode()))
    _sky(p)
    _ridge(p, HORIZON, 0.34, 6, mix(palette.far, palette.low, 0.55))
    _ridge(p, HORIZON, 0.2, 9, mix(palette.far, palette.low, 0.2))
    place.paint(p)
    _floor(p, tiles=place.tiles, grain=place.grain)
    p.canvas *= 1 + 0.05 * (p.random.random((height, width, 1), dtype=np.float32) - 0.5)
    rows, columns = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    p.canvas *= (1 - 0.22 * np.clip(rows**2 * 0.6 + columns**2 * 0.7 - 0.2, 0, 1))[..., None]
    return np.clip(p.canvas, 0, 255).astype(np.uint8)
