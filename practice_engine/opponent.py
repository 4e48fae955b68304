"""The built-in opponent: a player with reflexes, manners and a will that grow with the difficulty."""

from typing import NamedTuple

from practice_engine.fighter import BODY, Action, Fighter, Stance
from practice_engine.game import Ruleset

_MASK = (1 << 64) - 1
# Moves as DIAMBRA numbers them, for a fighter who looks right; `_toward` mirrors them.
_NONE, _BACK, _UP, _FORWARD, _UP_FORWARD, _DOWN_BACK = 0, 1, 3, 5, 4, 8
_MIRROR = (0, 5, 4, 3, 2, 1, 8, 7, 6)


class Mind(NamedTuple):
    """What the opponent remembers: its random numbers, the action it holds, and for how many frames."""

    random: int
    action: Action = (0, 0)
    frames: int = 0


def new_mind(seed: int) -> Mind:
    """A mind whose every decision follows from the seed."""
    return Mind(_scramble((seed * 0x9E3779B97F4A7C15 + 0x1234567) & _MASK))


def _scramble(value: int) -> int:
    # splitmix64 (Steele, Lea, Flood 2014): whole-number state, so that a match can be copied and compared.
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def think(rules: Ruleset, mind: Mind, me: Fighter, other: Fighter, skill: float) -> Mind:
    """The mind one frame later, with the action it now holds; `skill` runs from 0 (asleep) to 1 (master)."""
    if mind.frames > 0 and not _startles(rules, other):
        return Mind(mind.random, mind.action, mind.frames - 1)
    number = _scramble(mind.random)
    will, choice = (number & 0xFFFF) / 65536, ((number >> 16) & 0xFFFF) / 65536
    move, attack = _decide(rules, me, other, skill, will, choice)
    # A button is tapped; a direction is held for a while, the longer the slower the wits.
    frames = 4 if attack else int(5 + 14 * (1 - skill)) + (number >> 32) % 6
    return Mind(number, (_MIRROR[move] if me.facing < 0 else move, attack), frames)


def _startles(rules: Ruleset, other: Fighter) -> bool:
    """True in the frames that make a player think again: an attack becomes visible, or has just missed."""
    if other.stance != Stance.ATTACK:
        return False
    attack = rules.attacks[other.attack]
    return other.clock == 3 or (attack is not None and other.clock == attack.startup + attack.active + 1)


def _decide(rules: Ruleset, me: Fighter, other: Fighter, skill: float, will: float, choice: float) -> Action:
    distance = abs(other.x - me.x) - BODY
    if me.y > 0:
        return (_FORWARD, 2 if distance < 60 and will < skill else 0)
    if other.stance == Stance.ATTACK and not other.spent:
        return _answer(rules, other, distance, skill, will, choice)
    if other.stance == Stance.DOWN:
        return (_BACK if distance < 40 else _FORWARD, 0)
    if distance > 130:
        return (_UP_FORWARD if choice < 0.15 else _FORWARD, 0) if will < 0.5 + 0.5 * skill else (_NONE, 0)
    if distance > 52:
        if will < 0.45 + 0.4 * skill:
            return (_UP_FORWARD if choice < 0.1 else _FORWARD, 0)
        return (_BACK if choice < 0.3 else _NONE, 0)
    if will < 0.2 + 0.7 * skill:
        return (_NONE, _pick_attack(rules, me, distance, skill, choice))
    return ((_BACK, _DOWN_BACK, _NONE, _FORWARD)[int(choice * 4)], 0)


def _answer(rules: Ruleset, other: Fighter, distance: float, skill: float, will: float, choice: float) -> Action:
    """What to do about an attack under way: guard against it, keep out of its reach, or strike when it has missed."""
    attack = rules.attacks[other.attack]
    if attack is None:
        return (_NONE, 0)
    if other.clock > attack.startup + attack.active:
        if will > 0.2 + 0.75 * skill:
            return (_NONE, 0)
        return (_NONE, _longest(rules)) if distance <= 62 else (_FORWARD, 0)
    if distance > attack.reach + 12:
        return (_FORWARD if choice < skill else _NONE, 0)
    if will < 0.2 + 0.65 * skill:
        return (_BACK if other.y > 0 or choice < 0.3 else _DOWN_BACK, 0)
    return (_NONE, 0)


def _longest(rules: Ruleset) -> int:
    """The quickest of the attacks with a long reach."""
    return min(
        (index for index, attack in enumerate(rules.attacks) if attack is not None and attack.reach >= 50),
        key=lambda index: rules.attacks[index].startup,  # type: ignore[union-attr]
    )


def _pick_attack(rules: Ruleset, me: Fighter, distance: float, skill: float, choice: float) -> int:
    """An attack that reaches: any of them, or, the more skill, one of the three that hurt most for their slowness."""
    fitting = [
        (attack.damage / (attack.startup + 4), index)
        for index, attack in enumerate(rules.attacks)
        if attack is not None and attack.cost <= me.energy and attack.reach >= distance
    ]
    if not fitting:
        return _longest(rules)
    fitting.sort(reverse=True)
    best = fitting[: max(3, int(len(fitting) * (1 - skill)))]
    return best[int(choice * len(best))][1]
