"""Draws a match into one reused frame: only what moved is drawn again."""

import cv2
import numpy as np
import numpy.typing as npt

from practice_engine.fighter import WORLD_WIDTH, Fighter, Stance
from practice_engine.game import FRAMES_PER_COUNT
from practice_engine.games import Game
from practice_engine.hud import WORLD_HEIGHT, Bars, Scale, draw_plate, names_of, text_sprite
from practice_engine.poses import POSES, pose_name
from practice_engine.rules import Match, seconds_left
from practice_engine.scenery import paint_stage
from practice_engine.sprites import Look, Sprite, draw_fighter, spark

Image = npt.NDArray[np.uint8]
_GROUND = 200  # the fighters' feet, in world units from the top
_SPARK_FRAMES = 7
_CALL_FRAMES = 45
_ARMED_GAMES = frozenset({"samsh5sp", "soulclbr"})
_KEPT_STAGES = 2
_SMALLEST_SIDE = 32  # smaller frames are drawn at this size and shrunk

# One engine has one core's worth of work; OpenCV's own threads would only fight with the other engines'.
cv2.setNumThreads(1)


class Renderer:
    """Draws one game's frames at one shape (height, width, channels), where one channel means grey."""

    def __init__(self, game: Game, shape: tuple[int, int, int]) -> None:
        channels = shape[2]
        height, width = max(_SMALLEST_SIDE, shape[0]), max(_SMALLEST_SIDE, shape[1])
        self._game, self._size = game, (shape[1], shape[0])
        self._scale = Scale(width / WORLD_WIDTH, height / WORLD_HEIGHT, grey=channels == 1)
        picture = (height, width) if channels == 1 else (height, width, channels)
        self._canvas: Image = np.zeros(picture, np.uint8)
        self._base: Image = np.zeros(picture, np.uint8)
        self._base_key: tuple[object, ...] = ()
        self._stages: dict[int, Image] = {}
        self._sprites: dict[tuple[int, int, str, int], Sprite] = {}
        self._bars = Bars(game, self._scale)
        self._touched: list[tuple[slice, slice]] = []
        self._sparks = [self._spark(blocked) for blocked in (False, True)]
        self._shadow = self._shadow_mask()
        self._round_frames = game.common_ram["timer"].high * FRAMES_PER_COUNT

    def draw(self, match: Match) -> memoryview:
        """The frame's bytes (height x width x channels, RGB or grey), valid until the next call."""
        self._restore(match)
        fight = match.fight
        order = (0, 1) if fight.two.stance == Stance.ATTACK else (1, 0)
        fighters = fight.sides
        for side in order:
            self._draw_shadow(fighters[side])
        for side in order:
            self._draw_fighter(match, side, fighters[side])
        for fighter in fighters:
            if fighter.stance in (Stance.HIT, Stance.DOWN, Stance.BLOCK) and fighter.clock < _SPARK_FRAMES:
                self._draw_spark(fighter)
        if self._round_frames - fight.frames_left < _CALL_FRAMES:
            self._blit(self._call(sum(match.wins) + 1), WORLD_WIDTH / 2, 84)
        self._bars.draw(self._canvas, match, seconds_left(match))
        frame = self._canvas
        if self._size != (frame.shape[1], frame.shape[0]):
            frame = np.asarray(cv2.resize(frame, self._size, interpolation=cv2.INTER_AREA), np.uint8)
        return frame.reshape(-1).data

    def _restore(self, match: Match) -> None:
        """Take away what the last frame drew over the base; make a new base when round or stage changed."""
        key = (match.stage, match.wins, match.teams, match.active)
        if key != self._base_key:
            self._base = self._stage(match.stage).copy()
            draw_plate(self._base, match, self._scale)
            self._canvas[:] = self._base
            self._base_key = key
        else:
            for box in self._touched:
                self._canvas[box] = self._base[box]
        self._touched.clear()

    def _stage(self, stage: int) -> Image:
        picture = self._stages.get(stage)
        if picture is None:
            height, width, _ = self._game.frame_shape
            painted = paint_stage(self._game, stage, width=width, height=height)
            size = (self._canvas.shape[1], self._canvas.shape[0])
            if size != (width, height):
                painted = np.asarray(cv2.resize(painted, size, interpolation=cv2.INTER_AREA), np.uint8)
            picture = np.asarray(cv2.cvtColor(painted, cv2.COLOR_RGB2GRAY), np.uint8) if self._scale.grey else painted
            if len(self._stages) >= _KEPT_STAGES:
                self._stages.pop(next(iter(self._stages)))
            self._stages[stage] = picture
        return picture

    def _draw_fighter(self, match: Match, side: int, fighter: Fighter) -> None:
        name = pose_name(match.fight.rules, fighter)
        key = (side, match.teams[side][match.active[side]], name, fighter.facing)
        sprite = self._sprites.get(key)
        if sprite is None:
            look = Look(names_of(match)[side], second_colour=side == 1, armed=self._game.game_id in _ARMED_GAMES)
            scale = self._scale
            sprite = draw_fighter(look, POSES[name], scale_x=scale.x, scale_y=scale.y, grey=scale.grey)
            if fighter.facing < 0:
                sprite = sprite.mirrored()
            self._sprites[key] = sprite
        self._blit(sprite, fighter.x, _GROUND - fighter.y)

    def _draw_spark(self, fighter: Fighter) -> None:
        height = 34 if fighter.crouching or fighter.stance == Stance.DOWN else 58
        sprite = self._sparks[fighter.stance == Stance.BLOCK]
        self._blit(sprite, fighter.x + 10 * fighter.facing, _GROUND - fighter.y - height)

    def _blit(self, sprite: Sprite, x: float, y: float) -> None:
        """Copy a sprite's opaque pixels so that its origin lies on (x, y) in world units."""
        mask, pixels = sprite.mask, sprite.pixels
        height, width = self._canvas.shape[:2]
        left, top = round(x * self._scale.x) - sprite.origin_x, round(y * self._scale.y) - sprite.origin_y
        right, bottom = left + mask.shape[1], top + mask.shape[0]
        if left < 0 or top < 0 or right > width or bottom > height:
            cut = (slice(max(0, -top), height - top), slice(max(0, -left), width - left))
            mask, pixels = mask[cut], pixels[cut]
            left, top, right, bottom = max(0, left), max(0, top), min(width, right), min(height, bottom)
            if not mask.size:
                return
        box = (slice(top, bottom), slice(left, right))
        cv2.copyTo(pixels, mask, self._canvas[box])
        self._touched.append(box)

    def _draw_shadow(self, fighter: Fighter) -> None:
        rows, columns = self._shadow.shape
        left, top = round(fighter.x * self._scale.x) - columns // 2, round((_GROUND + 1) * self._scale.y) - rows // 2
        left = min(max(0, left), self._canvas.shape[1] - columns)
        box = (slice(top, top + rows), slice(left, left + columns))
        part = self._canvas[box]
        cv2.copyTo(cv2.convertScaleAbs(part, alpha=0.5), self._shadow[: part.shape[0]], part)
        self._touched.append(box)

    def _shadow_mask(self) -> Image:
        width, height = max(3, round(46 * self._scale.x)), max(2, round(9 * self._scale.y))
        mask = np.zeros((height, width), np.uint8)
        cv2.ellipse(mask, (width // 2, height // 2), (width // 2, height // 2), 0, 0, 360, (255.0,), -1)
        return mask

    def _spark(self, blocked: bool) -> Sprite:
        return spark(round(13 * self._scale.x), round(13 * self._scale.y), blocked=blocked, grey=self._scale.grey)

    def _call(self, number: int) -> Sprite:
        width, height = round(110 * self._scale.x), round(26 * self._scale.y)
        return text_sprite(f"ROUND {number}", width=width, height=height, grey=self._scale.grey, colour=(255, 226, 90))
