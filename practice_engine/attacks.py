"""What each attack button and combination does: the game's frame data."""

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

from practice_engine.games import Game


class Height(IntEnum):
    """Where an attack lands, which decides who it misses and who may block it."""

    HIGH = 0  # misses a crouching fighter
    MID = 1  # hits everybody on the ground
    LOW = 2  # only a crouching fighter can block it
    THROW = 3  # cannot be blocked, only left


@dataclass(frozen=True)
class Attack:
    """One attack; times in frames of 1/60 s, distances in world units, damage in thousandths of full health."""

    pose: str
    startup: int
    active: int
    recovery: int
    reach: int
    damage: int
    height: Height = Height.MID
    hit_stun: int = 16
    block_stun: int = 10
    push: int = 10
    rise: int = 40  # how high above the ground an opponent is still hit
    lunge: float = 0.0  # forward speed until the attack has been active
    knockdown: bool = False
    cost: int = 0  # energy it takes; without it the first attack comes out

    @property
    def duration(self) -> int:
        """Frames from pressing the button to being free again."""
        return self.startup + self.active + self.recovery


JAB = Attack("jab", startup=4, active=3, recovery=5, reach=40, damage=40, height=Height.HIGH)
KICK = Attack("kick", startup=6, active=4, recovery=7, reach=56, damage=65, push=14)
STRAIGHT = Attack("straight", startup=9, active=4, recovery=10, reach=52, damage=110, height=Height.HIGH, push=20)
SWEEP = Attack("sweep", startup=8, active=4, recovery=12, reach=58, damage=80, height=Height.LOW, knockdown=True)
UPPERCUT = Attack("uppercut", startup=5, active=6, recovery=17, reach=36, damage=120, rise=110, knockdown=True)
RUSH = Attack("rush", startup=10, active=6, recovery=11, reach=46, damage=95, lunge=4.0, push=22)
THROW = Attack("throw", startup=4, active=2, recovery=14, reach=24, damage=120, height=Height.THROW, knockdown=True)

BASIC = (JAB, KICK, STRAIGHT, SWEEP, UPPERCUT, RUSH)
COMBINED = (
    THROW,
    replace(RUSH, startup=9, lunge=5.0, damage=105),
    replace(STRAIGHT, startup=16, damage=150, reach=60, height=Height.MID, block_stun=18, knockdown=True),
    replace(UPPERCUT, startup=6, reach=46, damage=190, cost=50),
    replace(SWEEP, reach=72, startup=12, damage=95),
    replace(RUSH, startup=7, lunge=6.5, damage=230, cost=80, knockdown=True),
)


@cache
def attacks_of(game: Game) -> tuple[Attack | None, ...]:
    """The game's attacks by index; index 0 is "no attack". Single buttons come first, then combinations of two."""
    single = [_variant(BASIC, i) for i in range(game.n_attacks_no_comb - 1)]
    combined = [_variant(COMBINED, i) for i in range(game.n_attacks - game.n_attacks_no_comb)]
    return (None, *single, *combined)


def _variant(kinds: tuple[Attack, ...], index: int) -> Attack:
    # Games with more combinations than kinds repeat them: slower, longer and harder each time round.
    kind, turn = kinds[index % len(kinds)], index // len(kinds)
    if turn == 0:
        return kind
    return replace(
        kind,
        startup=kind.startup + 3 * turn,
        recovery=kind.recovery + 2 * turn,
        reach=kind.reach + 6 * turn,
        damage=kind.damage + 25 * turn,
    )
