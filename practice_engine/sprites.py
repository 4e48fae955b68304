"""Draws fighters: limbs as shaded capsules on a skeleton, in colours and builds that follow from a character's name."""

import colorsys
import math
import zlib
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

from practice_engine.poses import Point, Pose

Image = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

# The box, in world units, that holds every pose: behind, before, above and below the feet's middle.
LEFT, RIGHT, TOP, BOTTOM = 56, 84, 126, 8
_OUTLINE: Colour = (18, 14, 22)
_SHIN, _THIGH, _UPPER_ARM, _FOREARM = 24.0, 24.0, 17.0, 17.0
_DRAWN_PX_PER_UNIT = 4.0  # drawn at least this finely, then made smaller


@dataclass(frozen=True)
class Look:
    """How one character looks."""

    name: str
    second_colour: bool = False  # P2's colours
    armed: bool = False

    @cached_property
    def _bits(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def bulk(self) -> float:
        """Thickness of the limbs, 0.9 to 1.25."""
        return 0.9 + 0.05 * (self._bits >> 3 & 7)

    @property
    def hair_style(self) -> int:
        """0 short, 1 spiky, 2 ponytail, 3 headband, 4 hood."""
        return (self._bits >> 7) % 5

    @property
    def bare_arms(self) -> bool:
        """Whether arms show skin rather than sleeves."""
        return bool(self._bits >> 11 & 1)

    @property
    def skin(self) -> Colour:
        """RGB of the skin."""
        tones = ((244, 206, 170), (226, 178, 134), (190, 134, 92), (134, 90, 62))
        return tones[(self._bits >> 13) % 4]

    @property
    def cloth(self) -> Colour:
        """RGB of the main garment; bright on P1, dark and on the far side of the colour wheel on P2."""
        hue = (self._bits % 97) / 97 + (0.5 if self.second_colour else 0.0)
        return _rgb(hue, 0.6, 0.66) if self.second_colour else _rgb(hue, 0.45, 0.97)

    @property
    def trousers(self) -> Colour:
        """RGB of the legs."""
        hue = (self._bits % 97) / 97 + (0.58 if self.second_colour else 0.06)
        return _rgb(hue, 0.5, 0.5) if self.second_colour else _rgb(hue, 0.25, 0.86)

    @property
    def hair(self) -> Colour:
        """RGB of the hair."""
        return ((40, 30, 30), (92, 54, 30), (222, 184, 84), (170, 52, 40), (226, 226, 232))[(self._bits >> 17) % 5]

    @property
    def belt(self) -> Colour:
        """RGB of belt, headband and gloves."""
        return _rgb((self._bits % 97) / 97 + 0.33 + (0.3 if self.second_colour else 0.0), 0.85, 0.8)


def _rgb(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return int(red * 255), int(green * 255), int(blue * 255)


def _shade(colour: Colour, factor: float) -> Colour:
    red, green, blue = (min(255, int(part * factor)) for part in colour)
    return red, green, blue


@dataclass(frozen=True)
class Sprite:
    """Pixels (RGB or grey) and mask (0 or 255), with the pixel that lies on the fighter's feet."""

    pixels: Image
    mask: Image
    origin_x: int
    origin_y: int

    def mirrored(self) -> "Sprite":
        """The same sprite looking the other way."""
        width = self.pixels.shape[1]
        return Sprite(
            np.ascontiguousarray(self.pixels[:, ::-1]),
            np.ascontiguousarray(self.mask[:, ::-1]),
            width - 1 - self.origin_x,
            self.origin_y,
        )


def draw_fighter(look: Look, pose: Pose, *, scale_x: float, scale_y: float, grey: bool) -> Sprite:
    """A fighter in a pose, looking right, at so many pixels for each world unit across and up."""
    finer = max(2, math.ceil(_DRAWN_PX_PER_UNIT / scale_y))
    brush = _Brush(scale_x * finer, scale_y * finer)
    _paint(brush, look, pose)
    width, height = math.ceil((LEFT + RIGHT) * scale_x), math.ceil((TOP + BOTTOM) * scale_y)
    pixels = np.asarray(cv2.resize(brush.pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    mask = cv2.resize(brush.mask, (width, height), interpolation=cv2.INTER_AREA)
    # Edge pixels are mixed with the black around them; undo that, since the mask will be all or nothing.
    coverage = np.maximum(mask, 1).astype(np.float32)[..., None] / 255
    pixels = np.asarray(np.clip(pixels / coverage, 0, 255), np.uint8)
    opaque = np.where(mask > 110, 255, 0).astype(np.uint8)
    if grey:
        pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
    return _cropped(pixels, opaque, int(LEFT * scale_x), int(TOP * scale_y))


def _cropped(pixels: Image, mask: Image, origin_x: int, origin_y: int) -> Sprite:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    return Sprite(
        np.ascontiguousarray(pixels[box]),
        np.ascontiguousarray(mask[box]),
        origin_x - int(columns[0]),
        origin_y - int(rows[0]),
    )


class _Brush:
    """A canvas in world units with the origin between the feet."""

    def __init__(self, scale_x: float, scale_y: float) -> None:
        self._sx, self._sy = scale_x, scale_y
        height, width = math.ceil((TOP + BOTTOM) * scale_y), math.ceil((LEFT + RIGHT) * scale_x)
        self.pixels: Image = np.zeros((height, width, 3), np.uint8)
        self.mask: Image = np.zeros((height, width), np.uint8)

    def polygon(self, points: list[Point], colour: Colour) -> None:
        """Fill a polygon."""
        corners = np.array([[(x + LEFT) * self._sx, (TOP - y) * self._sy] for x, y in points]).round().astype(np.int32)
        cv2.fillPoly(self.pixels, [corners], colour, cv2.LINE_AA)
        cv2.fillPoly(self.mask, [corners], 255)

    def capsule(self, a: Point, b: Point, ra: float, rb: float, colour: Colour) -> None:
        """A limb from a to b, ra thick at a and rb at b: dark outline, base colour, a lighter side towards the light."""
        self.polygon(_capsule(a, b, ra + 1.6, rb + 1.6), _OUTLINE)
        self.polygon(_capsule(a, b, ra, rb), _shade(colour, 0.66))
        light_a, light_b = (a[0] - 0.22 * ra, a[1] + 0.26 * ra), (b[0] - 0.22 * rb, b[1] + 0.26 * rb)
        self.polygon(_capsule(light_a, light_b, ra * 0.72, rb * 0.72), colour)
        light_a, light_b = (a[0] - 0.36 * ra, a[1] + 0.42 * ra), (b[0] - 0.36 * rb, b[1] + 0.42 * rb)
        self.polygon(_capsule(light_a, light_b, ra * 0.3, rb * 0.3), _shade(colour, 1.25))


def _capsule(a: Point, b: Point, ra: float, rb: float) -> list[Point]:
    angle = math.atan2(b[1] - a[1], b[0] - a[0])
    ends = ((b, rb, angle - math.pi / 2), (a, ra, angle + math.pi / 2))
    return [
        (middle[0] + radius * math.cos(start + math.pi * i / 8), middle[1] + radius * math.sin(start + math.pi * i / 8))
        for middle, radius, start in ends
        for i in range(9)
    ]


def _joint(a: Point, b: Point, upper: float, lower: float, bend: float) -> Point:
    """The elbow or knee between a and b, bent to the side that `bend` (+1 or -1) says."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    reach = min(math.hypot(dx, dy), upper + lower - 0.5) or 0.1
    along = (upper**2 - lower**2 + reach**2) / (2 * reach)
    off = math.sqrt(max(0.0, upper**2 - along**2)) * bend
    ux, uy = dx / reach, dy / reach
    return a[0] + along * ux - off * uy, a[1] + along * uy + off * ux


def _paint(brush: _Brush, look: Look, pose: Pose) -> None:
    hip, chest = pose.hip, pose.chest
    near_shoulder, far_shoulder = (chest[0] - 3, chest[1]), (chest[0] + 5, chest[1] - 1)
    _arm(brush, look, far_shoulder, pose.far_hand, 0.72)
    _leg(brush, look, (hip[0] + 3, hip[1]), pose.far_foot, 0.72)
    _leg(brush, look, (hip[0] - 2, hip[1]), pose.near_foot, 1.0)
    bulk = look.bulk
    brush.capsule(hip, chest, 8.5 * bulk, 11.5 * bulk, look.cloth)
    lapel = _shade(look.belt, 0.9)
    brush.polygon([(chest[0] + 1, chest[1] + 8), (chest[0] + 9, chest[1] + 3), (hip[0] + 3, hip[1] + 8)], lapel)
    brush.capsule((hip[0] - 7 * bulk, hip[1] + 3), (hip[0] + 7 * bulk, hip[1] + 3), 2.4, 2.4, look.belt)
    _head(brush, look, chest, pose.tilt)
    if pose.swoosh:
        _swoosh(brush, near_shoulder if pose.swoosh == "hand" else hip, _striking(pose))
    if look.armed:
        _sword(brush, near_shoulder, pose.near_hand)
    _arm(brush, look, near_shoulder, pose.near_hand, 1.0)


def _striking(pose: Pose) -> Point:
    return pose.near_hand if pose.swoosh == "hand" else pose.near_foot


def _arm(brush: _Brush, look: Look, shoulder: Point, hand: Point, light: float) -> None:
    elbow = _joint(shoulder, hand, _UPPER_ARM, _FOREARM, -1)
    bulk = look.bulk
    brush.capsule(shoulder, elbow, 5.6 * bulk, 4.4 * bulk, _shade(look.cloth, light))
    brush.capsule(elbow, hand, 4.3 * bulk, 3.4 * bulk, _shade(look.skin if look.bare_arms else look.cloth, light))
    brush.capsule(hand, (hand[0] + 1.5, hand[1]), 4.6, 4.2, _shade(look.belt if look.bulk > 1.05 else look.skin, light))


def _leg(brush: _Brush, look: Look, hip: Point, foot: Point, light: float) -> None:
    ankle = (foot[0], foot[1] + 4)
    knee = _joint(hip, ankle, _THIGH, _SHIN, 1)
    bulk = look.bulk
    brush.capsule(hip, knee, 7.6 * bulk, 5.6 * bulk, _shade(look.trousers, light))
    brush.capsule(knee, ankle, 5.4 * bulk, 4.0 * bulk, _shade(look.trousers, light * 0.94))
    brush.capsule((foot[0] - 2, foot[1] + 3), (foot[0] + 6, foot[1] + 2.4), 3.4, 2.8, _shade(look.belt, 0.6 * light))


def _head(brush: _Brush, look: Look, chest: Point, tilt: float) -> None:
    x, y = chest[0] + 4 + tilt, chest[1] + 21
    brush.capsule((chest[0] + 2, chest[1] + 8), (x - 1, y - 6), 3.6, 3.6, _shade(look.skin, 0.85))
    if look.hair_style == 2:
        brush.capsule((x - 7, y + 4), (x - 19, y - 8), 3.4, 1.4, look.hair)
    brush.capsule((x, y - 2), (x, y + 2), 7.2, 8.0, look.skin)
    hair = look.cloth if look.hair_style == 4 else look.hair
    cap = [(x + 6.5, y + 5.5), (x + 3, y + 11), (x - 4, y + 11.5), (x - 9.4, y + 6), (x - 9.2, y - 3), (x - 5, y + 1.5)]
    if look.hair_style == 1:
        cap[1:4] = [(x + 8, y + 13), (x + 2, y + 11), (x, y + 17), (x - 5, y + 11.5), (x - 12, y + 13), (x - 10, y + 5)]
    brush.polygon([(px * 1.0 - 0.6, py + 0.9) for px, py in cap], _OUTLINE)
    brush.polygon(cap, hair)
    brush.polygon([(x + 3, y + 1.6), (x + 6.2, y + 1.6), (x + 6.2, y - 0.6), (x + 3, y - 0.2)], _OUTLINE)
    if look.hair_style == 3:
        brush.polygon([(x + 8, y + 4), (x + 8, y + 6.6), (x - 8.6, y + 6), (x - 8.6, y + 3.4)], look.belt)
        brush.polygon([(x - 8, y + 5.6), (x - 19, y + 1), (x - 18, y - 2), (x - 8, y + 3)], look.belt)


def _swoosh(brush: _Brush, pivot: Point, tip: Point) -> None:
    """A bright arc behind a striking fist or foot."""
    radius, end = math.hypot(tip[0] - pivot[0], tip[1] - pivot[1]), math.atan2(tip[1] - pivot[1], tip[0] - pivot[0])
    turn = -0.9 if end < 0.9 else 0.7
    outer: list[Point] = []
    inner: list[Point] = []
    for i in range(9):
        angle = end + turn * i / 8
        for ring, size in ((outer, radius + 4.5), (inner, radius + 4.0 - 10 * (1 - i / 8))):
            ring.append((pivot[0] + size * math.cos(angle), pivot[1] + size * math.sin(angle)))
    brush.polygon(outer + inner[::-1], (255, 244, 196))


def _sword(brush: _Brush, shoulder: Point, hand: Point) -> None:
    angle = math.atan2(hand[1] - shoulder[1], hand[0] - shoulder[0])
    angle += 0.0 if math.hypot(hand[0] - shoulder[0], hand[1] - shoulder[1]) > 36 else 1.1
    angle = min(angle, 2.4)
    dx, dy = math.cos(angle), math.sin(angle)
    length = min(
        34.0, (RIGHT - 2 - hand[0]) / dx if dx > 0.05 else 34.0, (TOP - 2 - hand[1]) / dy if dy > 0.05 else 34.0
    )
    tip = (hand[0] + length * dx, hand[1] + length * dy)
    brush.capsule((hand[0] - 6 * dx, hand[1] - 6 * dy), hand, 1.8, 1.8, (96, 60, 40))
    brush.capsule(hand, tip, 2.1, 0.9, (226, 232, 242))
    guard = (
        (hand[0] + 3 * dx - 4 * dy, hand[1] + 3 * dy + 4 * dx),
        (hand[0] + 3 * dx + 4 * dy, hand[1] + 3 * dy - 4 * dx),
    )
    brush.capsule(*guard, 1.4, 1.4, (214, 176, 72))


def spark(radius_x: int, radius_y: int, *, blocked: bool, grey: bool) -> Sprite:
    """The flash where a blow lands: a yellow star, or a blue ring when it was blocked."""
    height, width = 2 * radius_y + 1, 2 * radius_x + 1
    across = (np.arange(width) - radius_x) / max(1, radius_x)
    down = (np.arange(height) - radius_y) / max(1, radius_y)
    distance = np.hypot(across[None, :], down[:, None])
    angle = np.arctan2(down[:, None], across[None, :])
    if blocked:
        shape = (distance < 0.95) & (distance > 0.5)
        inner, outer = np.array((235, 250, 255.0)), np.array((80, 150, 255.0))
    else:
        shape = distance < 0.42 + 0.56 * np.abs(np.cos(angle * 4)) ** 3
        inner, outer = np.array((255, 255, 250.0)), np.array((255, 170, 30.0))
    mix = np.clip(distance, 0, 1)[..., None] ** 0.8
    pixels = (inner * (1 - mix) + outer * mix).astype(np.uint8)
    if grey:
        pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
    return Sprite(pixels, np.where(shape, 255, 0).astype(np.uint8), radius_x, radius_y)
