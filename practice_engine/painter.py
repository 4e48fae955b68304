"""A canvas to paint backgrounds on, with light that belongs together."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Canvas = npt.NDArray[np.float32]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Palette:
    """The light of an hour: sky at the top and at the horizon, sun or moon, far things, floor."""

    top: Colour
    low: Colour
    orb: Colour
    far: Colour
    floor: Colour


class Painter:
    """A canvas with coordinates from 0 to 1, and the random numbers of one stage."""

    def __init__(self, width: int, height: int, palette: Palette, seed: int) -> None:
        self.width, self.height, self.palette = width, height, palette
        self.random = np.random.default_rng(seed)
        self.canvas: Canvas = np.zeros((height, width, 3), np.float32)

    def noise(self, columns: int, rows: int) -> Canvas:
        """Smooth noise from 0 to 1 with so many blobs across and down."""
        grid = self.random.random((rows + 2, columns + 2), dtype=np.float32)
        smooth = cv2.resize(grid, (self.width, self.height), interpolation=cv2.INTER_CUBIC)
        return np.clip(smooth, 0, 1).astype(np.float32)

    def blend(self, mask: Canvas, colour: Colour) -> None:
        """Mix a colour in where the mask (0 to 1) says."""
        self.canvas += mask[..., None] * (np.array(colour, np.float32) - self.canvas)

    def polygon(self, points: list[tuple[float, float]], colour: Colour) -> None:
        """Fill a polygon."""
        corners = np.array([[x * self.width, y * self.height] for x, y in points]).round().astype(np.int32)
        cv2.fillPoly(self.canvas, [corners], colour, cv2.LINE_AA)

    def box(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """Fill an upright rectangle, x and y being its upper left corner."""
        self.polygon([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], colour)

    def glow(self, x: float, y: float, radius: float, colour: Colour, strength: float = 0.8) -> None:
        """A soft light around a point; the radius is a share of the height."""
        rows, columns = np.mgrid[0 : self.height, 0 : self.width].astype(np.float32)
        distance = np.hypot(columns - x * self.width, rows - y * self.height) / (radius * self.height)
        self.blend((strength * np.exp(-2.5 * distance**2)).astype(np.float32), colour)

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A filled circle; the radius is a share of the height."""
        centre = (round(x * self.width), round(y * self.height))
        cv2.circle(self.canvas, centre, round(radius * self.height), colour, -1, cv2.LINE_AA)


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """The colour that lies a share of the way from a to b."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b, strict=True))
    return red, green, blue


def dark(colour: Colour, factor: float) -> Colour:
    """The colour in so much of its light."""
    return mix((0, 0, 0), colour, factor)
