"""RAM states: what a client reads beside the frame, drawn from the match and kept inside DIAMBRA's bounds."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from practice_engine.fighter import FULL_ENERGY, Stance
from practice_engine.games import Game, RamState
from practice_engine.rules import Match, seconds_left

# A reader gets the match, the side (0 = P1, 1 = P2) and the state's space.
Reader = Callable[[Match, int, RamState], float]


def _energy(match: Match, side: int, space: RamState) -> float:
    return space.low + (space.high - space.low) * match.fight.sides[side].energy / FULL_ENERGY


def _charges(match: Match, side: int, space: RamState) -> float:
    return match.fight.sides[side].energy * space.high // FULL_ENERGY


def _member(index: int) -> Reader:
    return lambda match, side, _: match.teams[side][index % len(match.teams[side])]


def _character(match: Match, side: int, _: RamState) -> float:
    return match.teams[side][match.active[side]]


def _side(match: Match, side: int, _: RamState) -> float:
    """0 on the left of the opponent, 1 on the right; P1 counts as left when both stand on one spot."""
    mine, other = match.fight.sides[side].x, match.fight.sides[1 - side].x
    return side if mine == other else int(mine > other)


def _style(match: Match, side: int, _: RamState) -> float:
    styles = match.setup.styles
    owner = match.setup.roles.index(side) if side in match.setup.roles else -1
    return styles[owner] - 1 if 0 <= owner < len(styles) else 0


def _stunned(match: Match, side: int, _: RamState) -> float:
    return match.fight.sides[side].stance in (Stance.HIT, Stance.DOWN)


def _lowest(_match: Match, _side: int, space: RamState) -> float:
    return space.low


# A team shares one health, as in the mock; what has no counterpart in this game stays at its lowest value.
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "stage": lambda match, _side, _space: match.stage,
        "timer": lambda match, _side, _space: seconds_left(match),
        "side": _side,
        "wins": lambda match, side, _space: match.wins[side],
        "character": _character,
        "character_1": _member(0),
        "character_2": _member(1),
        "character_3": _member(2),
        "active_character": lambda match, side, _space: match.active[side],
        "health": lambda match, side, _space: match.fight.sides[side].health,
        "health_1": lambda match, side, _space: match.fight.sides[side].health,
        "health_2": lambda match, side, _space: match.fight.sides[side].health,
        "super_bar": _energy,
        "power_bar": _energy,
        "rage_bar": _energy,
        "aggressor_bar": _energy,
        "weapon_bar": lambda _match, _side, space: space.high,
        "weapon_fight": lambda _match, _side, space: space.high,
        "super_count": _charges,
        "special_attacks": _charges,
        "partner_attacks": _charges,
        "super_max_count": lambda _match, _side, space: space.high,
        "super_type": _style,
        "bar_type": _style,
        "stun_bar": lambda match, side, space: space.high * min(match.fight.sides[side].combo, 5) / 5,
        "stunned": _stunned,
        "rage_on": lambda match, side, _space: match.fight.sides[side].energy >= FULL_ENERGY,
        "rage_used": _lowest,
        "weapon_lost": _lowest,
        "bar_status": _lowest,
        "partner": lambda match, side, _space: match.teams[side][0],
    }
)


def common_states(match: Match) -> dict[str, int]:
    """The states that belong to nobody, by name."""
    return {name: space.clamp(READERS[name](match, 0, space)) for name, space in match.game.common_ram.items()}


def player_states(match: Match, side: int) -> dict[str, int]:
    """The states of P1 (side 0) or P2 (side 1), by name."""
    return {name: space.clamp(READERS[name](match, side, space)) for name, space in match.game.player_ram.items()}


def state_names(game: Game) -> set[str]:
    """Every RAM state the game has."""
    return {*game.common_ram, *game.player_ram}
