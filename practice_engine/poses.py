"""The fighters' key poses: where hips, chest, hands and feet are, in world units, looking right, feet at height 0."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from practice_engine.attacks import Attack
from practice_engine.fighter import Fighter, Stance
from practice_engine.game import Ruleset

Point = tuple[float, float]


class Pose(NamedTuple):
    """One drawing; `near` limbs are those towards the spectator, `swoosh` follows a striking limb."""

    hip: Point
    chest: Point
    near_hand: Point
    far_hand: Point
    near_foot: Point
    far_foot: Point
    tilt: float = 0.0  # how far the head leans forward
    swoosh: str = ""  # "hand" or "foot"


POSES: Mapping[str, Pose] = MappingProxyType(
    {
        "stand0": Pose((0, 44), (3, 70), (22, 66), (29, 72), (-15, 0), (15, 0)),
        "stand1": Pose((0, 42), (4, 68), (23, 63), (30, 69), (-15, 0), (15, 0)),
        "walk0": Pose((0, 44), (4, 70), (20, 63), (28, 70), (-20, 0), (18, 0)),
        "walk1": Pose((0, 46), (4, 72), (22, 66), (27, 71), (-6, 4), (5, 0)),
        "walk2": Pose((0, 44), (4, 70), (25, 66), (24, 70), (18, 0), (-18, 0)),
        "walk3": Pose((0, 46), (4, 72), (23, 66), (26, 71), (3, 0), (-4, 5)),
        "crouch": Pose((-5, 22), (1, 46), (20, 46), (26, 52), (-20, 0), (14, 0), 4),
        "jump": Pose((0, 44), (3, 70), (20, 78), (-14, 62), (-8, 18), (12, 24)),
        "block": Pose((-3, 42), (-5, 67), (13, 76), (15, 62), (-18, 0), (12, 0), -3),
        "lowblock": Pose((-7, 22), (-6, 45), (13, 56), (15, 42), (-22, 0), (12, 0), -2),
        "hit": Pose((-4, 42), (-15, 64), (8, 52), (-2, 46), (-18, 0), (14, 0), -8),
        "fall": Pose((0, 34), (-22, 44), (-4, 66), (-28, 62), (24, 48), (18, 30), -10),
        "down": Pose((2, 8), (-24, 9), (-12, 3), (-34, 22), (38, 4), (32, 9), -12),
        "jab.wind": Pose((0, 43), (2, 69), (10, 66), (28, 70), (-15, 0), (15, 0)),
        "jab": Pose((3, 43), (9, 69), (52, 72), (18, 62), (-17, 0), (17, 0), 3, "hand"),
        "kick.wind": Pose((2, 44), (-4, 70), (12, 62), (20, 68), (20, 30), (-4, 0)),
        "kick": Pose((5, 46), (-10, 67), (6, 56), (14, 66), (66, 48), (-4, 0), -4, "foot"),
        "straight.wind": Pose((-4, 41), (-6, 66), (-20, 62), (20, 70), (-20, 0), (14, 0)),
        "straight": Pose((10, 40), (21, 63), (64, 66), (2, 54), (-26, 0), (26, 0), 5, "hand"),
        "sweep.wind": Pose((-6, 22), (-8, 46), (10, 40), (18, 48), (0, 8), (14, 0)),
        "sweep": Pose((-2, 20), (-18, 40), (-30, 14), (4, 46), (68, 3), (2, 0), -2, "foot"),
        "uppercut.wind": Pose((0, 26), (6, 48), (14, 22), (22, 50), (-16, 0), (16, 0), 4),
        "uppercut": Pose((6, 50), (10, 76), (26, 116), (4, 58), (-12, 6), (14, 0), -4, "hand"),
        "rush.wind": Pose((-6, 38), (-4, 63), (-14, 56), (14, 62), (-24, 0), (14, 0), 4),
        "rush": Pose((8, 38), (26, 56), (54, 52), (14, 44), (-30, 6), (24, 0), 8, "hand"),
        "throw.wind": Pose((2, 42), (6, 68), (20, 62), (24, 72), (-16, 0), (16, 0)),
        "throw": Pose((6, 41), (14, 66), (40, 64), (42, 72), (-18, 0), (20, 0), 3),
        "air.wind": Pose((0, 44), (4, 70), (20, 70), (-10, 64), (4, 22), (10, 24)),
        "air": Pose((0, 46), (-6, 71), (8, 64), (-18, 66), (52, 26), (4, 24), -2, "foot"),
    }
)


def pose_name(rules: Ruleset, me: Fighter) -> str:
    """Which drawing shows the fighter now."""
    match me.stance:
        case Stance.ATTACK:
            return _attack_pose(rules.attacks[me.attack], me)
        case Stance.WALK:
            return f"walk{me.clock // 7 % 4}"
        case Stance.JUMP:
            return "jump"
        case Stance.HIT:
            return "hit"
        case Stance.DOWN:
            return "fall" if me.y > 0 or me.clock < 5 else "down" if me.stun > 9 else "crouch"
        case Stance.BLOCK:
            return "lowblock" if me.crouching else "block"
        case Stance.CROUCH:
            return "crouch"
        case _:
            return f"stand{me.clock // 16 % 2}"


def _attack_pose(attack: Attack | None, me: Fighter) -> str:
    if attack is None:
        return "stand0"
    name = "air" if me.y > 0 else attack.pose
    striking = attack.startup < me.clock <= attack.startup + attack.active + 2
    return name if striking else f"{name}.wind"
