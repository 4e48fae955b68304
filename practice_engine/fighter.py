"""A fighter, what it can be doing, and DIAMBRA's numbering of moves."""

from enum import IntEnum
from typing import NamedTuple

WORLD_WIDTH = 384
EDGE = 30  # how near a fighter's middle may come to the edge
BODY = 17  # half a fighter's width
FULL_ENERGY = 100

# DIAMBRA's nine moves: none, left, up-left, up, up-right, right, down-right, down, down-left.
MOVE_X = (0, -1, -1, 0, 1, 1, 1, 0, -1)
MOVE_Y = (0, 0, 1, 1, 1, 0, -1, -1, -1)


class Stance(IntEnum):
    """What a fighter is doing; each ends by itself or by the next action."""

    STAND = 0
    WALK = 1
    CROUCH = 2
    JUMP = 3
    ATTACK = 4
    HIT = 5
    BLOCK = 6
    DOWN = 7


Action = tuple[int, int]  # (move, attack)


class Fighter(NamedTuple):
    """One fighter; a tuple rather than a dataclass, because 12 of them are made for each Step."""

    x: float
    facing: int  # +1 looks right, -1 left
    health: int
    y: float = 0.0  # height above the ground
    vx: float = 0.0
    vy: float = 0.0
    stance: Stance = Stance.STAND
    clock: int = 0  # frames in this stance
    attack: int = 0  # index of the attack under way
    spent: bool = False  # that attack has landed and hits no more
    crouching: bool = False
    guarding: bool = False  # holds the direction away from the opponent
    stun: int = 0  # frames until a hit, blocking or lying fighter is free
    energy: int = 0
    pressed: int = 0  # attack button held in the last frame
    combo: int = 0  # hits taken in a row
