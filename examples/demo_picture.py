"""One picture of all environments: their last frames, tiled, each with a caption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

TILE = (400, 300)
CAPTION = 24
GAP = 8
INK, PAPER = (232, 232, 232), (24, 24, 28)


def save_picture(frames: Sequence[tuple[Any, str]], path: Path) -> Path:
    """Write ``frames`` (height x width x 1 or 3, uint8, each with its caption) to ``path`` as one PNG."""
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    cell = (TILE[0] + GAP, TILE[1] + CAPTION + GAP)
    picture = Image.new("RGB", (columns * cell[0] + GAP, rows * cell[1] + GAP), PAPER)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=15)
    for place, (frame, caption) in enumerate(frames):
        left, top = GAP + place % columns * cell[0], GAP + place // columns * cell[1]
        draw.text((left + 2, top + 2), caption, fill=INK, font=font)
        image = Image.fromarray(frame.squeeze()).convert("RGB").resize(TILE, Image.Resampling.LANCZOS)
        picture.paste(image, (left, top + CAPTION))
    path.parent.mkdir(parents=True, exist_ok=True)
    # 256 colours are plenty, and make the file a third of the size.
    picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    return path
