"""The fighting game itself: one round between two fighters, as a pure function of state and actions.

The world is 384 units wide with the ground at height 0; a frame is 1/60 s. Nothing here reads a clock, draws, or
knows about rounds: `rules` does that.
"""

from dataclasses import dataclass
from typing import NamedTuple

from practice_engine.attacks import Attack, Height
from practice_engine.fighter import BODY, EDGE, FULL_ENERGY, MOVE_X, MOVE_Y, WORLD_WIDTH, Action, Fighter, Stance

FRAMES_PER_COUNT = 60  # the timer's unit

_GRAVITY = 0.62
_JUMP_SPEED = 9.4
_JUMP_DRIFT = 3.0
_WALK_FORWARD = 2.6
_WALK_BACK = 2.1
_GET_UP_FRAMES = 34
_MISS_FRAMES = 6  # a blow into the air leaves one open for longer
_CHIP = 0.12  # share of the damage that gets through a block

# Module names for the hot loop: an IntEnum attribute look-up costs more than the comparison it serves.
_STAND, _WALK, _CROUCH, _JUMP, _ATTACK, _HIT, _BLOCK, _DOWN = Stance


@dataclass(frozen=True)
class Ruleset:
    """What one game's fights have in common: its attacks by index and its lowest health."""

    attacks: tuple[Attack | None, ...]
    lowest_health: int
    full_health: int


class Fight(NamedTuple):
    """A round under way: both fighters, P1 first, the frames left on the timer, and the rules they fight by."""

    one: Fighter
    two: Fighter
    frames_left: int
    rules: Ruleset

    @property
    def sides(self) -> tuple[Fighter, Fighter]:
        """P1 and P2."""
        return self.one, self.two


def new_fight(rules: Ruleset, *, seconds: int, jitter: int = 0, energies: tuple[int, int] = (0, 0)) -> Fight:
    """A round's beginning; `jitter` moves both fighters a little, so that rounds are not all the same."""
    middle = WORLD_WIDTH // 2
    return Fight(
        Fighter(x=float(middle - 62 + jitter), facing=1, health=rules.full_health, energy=energies[0]),
        Fighter(x=float(middle + 62 + jitter), facing=-1, health=rules.full_health, energy=energies[1]),
        seconds * FRAMES_PER_COUNT,
        rules,
    )


def is_over(fight: Fight) -> bool:
    """True once somebody is knocked out or the time is up."""
    lowest = fight.rules.lowest_health
    return fight.one.health <= lowest or fight.two.health <= lowest or fight.frames_left <= 0


def step(fight: Fight, actions: tuple[Action, Action]) -> Fight:
    """The fight one frame (1/60 s) later, when P1 and P2 hold these (move, attack) actions."""
    rules = fight.rules
    one = _move(rules, _control(rules, fight.one, fight.two, actions[0]))
    two = _move(rules, _control(rules, fight.two, fight.one, actions[1]))
    one, two = _apart(one, two)
    # Both blows are judged on the same instant, so that two attacks can trade.
    blow_one = _landing(rules, one, two)
    blow_two = _landing(rules, two, one)
    if blow_one is not None or blow_two is not None:
        one, two = (
            _after_blows(rules, one, two, dealt=blow_one, taken=blow_two),
            _after_blows(rules, two, one, dealt=blow_two, taken=blow_one),
        )
    return Fight(one, two, fight.frames_left - 1, rules)


def _control(rules: Ruleset, me: Fighter, other: Fighter, action: Action) -> Fighter:
    """The fighter after taking this frame's action, if free to act."""
    stance, (move, attack) = me.stance, action
    if stance >= _HIT:
        held = me.stun > 0 or me.y > 0
    elif stance == _ATTACK:
        held = me.y > 0 or me.clock < _duration(rules, me)
    elif stance == _JUMP:
        if attack and attack != me.pressed:
            return _begin(rules, me, attack)
        held = True
    else:
        held = False
    if not held:
        return _free(me, other, action) if not attack else _begin(rules, _ready(me, other, move), attack)
    return me if me.pressed == attack else me._replace(pressed=attack)


def _duration(rules: Ruleset, me: Fighter) -> int:
    attack = rules.attacks[me.attack]
    if attack is None:
        return 0
    return attack.duration if me.spent else attack.duration + _MISS_FRAMES


def _begin(rules: Ruleset, me: Fighter, index: int) -> Fighter:
    attack = rules.attacks[index]
    assert attack is not None
    if attack.cost > me.energy:
        index, cost = 1, 0
    else:
        cost = attack.cost
    return me._replace(
        stance=_ATTACK,
        clock=0,
        attack=index,
        spent=False,
        guarding=False,
        pressed=index,
        energy=me.energy - cost,
        vx=me.vx if me.y > 0 else 0.0,
    )


def _ready(me: Fighter, other: Fighter, move: int) -> Fighter:
    """The fighter turned to the opponent and low or upright, about to attack."""
    return me._replace(facing=1 if other.x > me.x else -1, crouching=MOVE_Y[move] < 0, combo=0)


def _free(me: Fighter, other: Fighter, action: Action) -> Fighter:
    """A fighter on the ground who moves, guards or stands."""
    facing = 1 if other.x > me.x else -1
    across, upward = MOVE_X[action[0]], MOVE_Y[action[0]]
    vx = vy = 0.0
    if upward > 0:
        stance, vx, vy = _JUMP, _JUMP_DRIFT * across, _JUMP_SPEED
    elif upward < 0:
        stance = _CROUCH
    elif across:
        stance = _WALK
        vx = _WALK_FORWARD * across if across == facing else _WALK_BACK * across
    else:
        stance = _STAND
    return Fighter(
        me.x,
        facing,
        me.health,
        0.0,
        vx,
        vy,
        stance,
        me.clock if stance == me.stance else 0,
        0,
        False,
        upward < 0,
        upward <= 0 and across == -facing,
        0,
        me.energy,
        0,
        0,
    )


def _move(rules: Ruleset, me: Fighter) -> Fighter:
    """The fighter one frame further along its way."""
    x, y, vx, vy, stance, clock = me.x, me.y, me.vx, me.vy, me.stance, me.clock + 1
    if stance == _ATTACK:
        attack = rules.attacks[me.attack]
        if attack is not None and attack.lunge and y <= 0:
            vx = attack.lunge * me.facing if clock <= attack.startup + attack.active else 0.0
    elif stance in (_HIT, _BLOCK, _DOWN):
        vx *= 0.86
    x += vx
    if y > 0 or vy > 0:
        y += vy
        vy -= _GRAVITY
        if y <= 0:
            y = vx = vy = 0.0
            if stance in (_JUMP, _ATTACK):
                stance, clock = _STAND, 0
    x = min(max(x, EDGE), WORLD_WIDTH - EDGE)
    return Fighter(
        x,
        me.facing,
        me.health,
        y,
        vx,
        vy,
        stance,
        clock,
        me.attack if stance == _ATTACK else 0,
        me.spent,
        me.crouching and stance != _JUMP,
        me.guarding,
        me.stun - 1 if me.stun > 0 else 0,
        me.energy,
        me.pressed,
        me.combo,
    )


def _apart(one: Fighter, two: Fighter) -> tuple[Fighter, Fighter]:
    """Both fighters pushed apart when they overlap on the same height."""
    gap = two.x - one.x
    overlap = 2 * BODY - abs(gap)
    if overlap <= 0 or abs(one.y - two.y) > 44:
        return one, two
    side = 1 if gap > 0 or (gap == 0 and one.facing > 0) else -1
    left, right = EDGE, WORLD_WIDTH - EDGE
    x1 = min(max(one.x - side * overlap / 2, left), right)
    x2 = min(max(two.x + side * overlap / 2, left), right)
    return one._replace(x=x1), two._replace(x=x2)


def _landing(rules: Ruleset, me: Fighter, other: Fighter) -> Attack | None:
    """The attack with which `me` strikes `other` in this very frame, or None."""
    if me.stance != _ATTACK or me.spent or other.stance == _DOWN:
        return None
    attack = rules.attacks[me.attack]
    if attack is None or not attack.startup < me.clock <= attack.startup + attack.active:
        return None
    distance = (other.x - me.x) * me.facing
    if not -BODY <= distance <= attack.reach + BODY:
        return None
    if me.y > 0:
        return attack if abs(me.y - other.y) < 72 and attack.height is not Height.THROW else None
    if other.y > attack.rise:
        return None
    if attack.height is Height.HIGH and other.crouching and other.y <= 0 and other.stance != _HIT:
        return None
    if attack.height is Height.THROW and (other.y > 0 or other.stance in (_HIT, _BLOCK)):
        return None
    return attack


def _after_blows(rules: Ruleset, me: Fighter, other: Fighter, *, dealt: Attack | None, taken: Attack | None) -> Fighter:
    """The fighter after landing one attack and taking another; either may be None."""
    if dealt is not None:
        me = me._replace(spent=True, energy=min(FULL_ENERGY, me.energy + 9))
    return me if taken is None else _struck(rules, me, taken, by=other)


def _blocks(me: Fighter, attack: Attack, by: Fighter) -> bool:
    if attack.height is Height.THROW or me.y > 0 or not (me.guarding or me.stance == _BLOCK):
        return False
    if by.y > 0:
        return not me.crouching
    return me.crouching or attack.height is not Height.LOW


def _struck(rules: Ruleset, me: Fighter, attack: Attack, *, by: Fighter) -> Fighter:
    """The fighter after being hit by the attack, or after blocking it, pushed away from the attacker."""
    damage = max(1, (rules.full_health - rules.lowest_health) * attack.damage // 1000)
    if _blocks(me, attack, by):
        return me._replace(
            health=max(rules.lowest_health + 1, me.health - int(damage * _CHIP)),
            stance=_BLOCK,
            clock=0,
            stun=attack.block_stun,
            vx=0.22 * attack.push * by.facing,
            energy=min(FULL_ENERGY, me.energy + 3),
        )
    knocked = attack.knockdown or me.y > 0 or me.combo >= 4
    return me._replace(
        health=max(rules.lowest_health, me.health - max(1, damage * 10 // (10 + 2 * me.combo))),
        stance=_DOWN if knocked else _HIT,
        clock=0,
        stun=_GET_UP_FRAMES if knocked else attack.hit_stun,
        vx=(0.32 if knocked else 0.2) * attack.push * by.facing,
        vy=4.5 if knocked else 0.0,
        attack=0,
        guarding=False,
        energy=min(FULL_ENERGY, me.energy + 5),
        combo=me.combo + 1,
    )
