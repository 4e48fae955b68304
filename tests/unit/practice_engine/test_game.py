"""The fighting game: one frame after another, from state and actions alone."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practice_engine.attacks import JAB, SWEEP, THROW, UPPERCUT, Attack, attacks_of
from practice_engine.fighter import BODY, EDGE, WORLD_WIDTH, Action, Stance
from practice_engine.game import Fight, Ruleset, is_over, new_fight, step
from practice_engine.games import all_games

NONE, LEFT, UP, RIGHT, DOWN, DOWN_RIGHT = 0, 1, 3, 5, 7, 6
JAB_BUTTON, SWEEP_BUTTON, UPPERCUT_BUTTON, THROW_BUTTON = 1, 2, 3, 4
RULES = Ruleset((None, JAB, SWEEP, UPPERCUT, THROW), lowest_health=0, full_health=200)


def fight_at(distance: float, rules: Ruleset = RULES) -> Fight:
    """Both fighters so far apart, P1 on the left."""
    fight = new_fight(rules, seconds=40)
    middle = WORLD_WIDTH / 2
    return fight._replace(
        one=fight.one._replace(x=middle - distance / 2), two=fight.two._replace(x=middle + distance / 2)
    )


def play(fight: Fight, one: Action, two: Action = (NONE, 0), frames: int = 1) -> Fight:
    """The fight after so many frames of the same two actions."""
    for _ in range(frames):
        fight = step(fight, (one, two))
    return fight


def test_walking_moves_and_faces_the_opponent() -> None:
    """Left and right walk, and a fighter keeps looking at the opponent even when walking away."""
    fight = fight_at(100)
    ahead, back = play(fight, (RIGHT, 0), frames=10), play(fight, (LEFT, 0), frames=10)
    assert ahead.one.x > fight.one.x > back.one.x
    assert ahead.one.facing == back.one.facing == 1
    assert ahead.one.stance == Stance.WALK


def test_a_jump_goes_up_and_comes_down() -> None:
    """Up leaves the ground and lands by itself within a second."""
    fight, heights = fight_at(200), []
    for frame in range(60):
        fight = play(fight, (UP if frame == 0 else NONE, 0))
        heights.append(fight.one.y)
    assert max(heights) > 50
    assert fight.one.y == 0
    assert fight.one.stance == Stance.STAND


def test_fighters_do_not_walk_through_each_other() -> None:
    """On the ground two fighters keep their distance."""
    fight = play(fight_at(60), (RIGHT, 0), (LEFT, 0), frames=60)
    assert fight.two.x - fight.one.x >= 2 * BODY - 1


def test_a_jump_can_change_sides() -> None:
    """Jumping over the opponent turns both fighters round."""
    fight = play(fight_at(50), (4, 0), frames=1)
    fight = play(fight, (NONE, 0), frames=50)
    assert fight.one.x > fight.two.x
    assert (fight.one.facing, fight.two.facing) == (-1, 1)


@pytest.mark.parametrize(("distance", "hurt"), [(JAB.reach + BODY - 4, True), (JAB.reach + BODY + 12, False)])
def test_attacks_have_a_range(distance: float, hurt: bool) -> None:
    """A blow lands within its reach and misses beyond it."""
    fight = play(fight_at(distance), (NONE, JAB_BUTTON), frames=JAB.duration)
    assert (fight.two.health < RULES.full_health) is hurt


def test_attacks_take_time_to_come_out_and_to_recover_from() -> None:
    """Nothing is hit during the start-up, and whoever missed cannot walk until the recovery is over."""
    fight = play(fight_at(45), (NONE, JAB_BUTTON), frames=JAB.startup)
    assert fight.two.health == RULES.full_health
    missed = play(fight_at(200), (NONE, JAB_BUTTON))
    held = play(missed, (LEFT, 0), frames=JAB.duration - 2)
    assert held.one.x == missed.one.x
    assert play(held, (LEFT, 0), frames=20).one.x < missed.one.x


def test_one_blow_hits_once() -> None:
    """An attack that stays out for several frames does its damage once."""
    fight = play(fight_at(45), (NONE, JAB_BUTTON), frames=JAB.duration)
    assert fight.two.health == RULES.full_health - RULES.full_health * JAB.damage // 1000


def test_holding_away_blocks() -> None:
    """Whoever holds the direction away from the opponent takes a fraction of the damage and cannot die of it."""
    fight = fight_at(45)
    open_, guarded = (play(fight, (NONE, JAB_BUTTON), (move, 0), frames=JAB.startup + 2) for move in (NONE, RIGHT))
    lost = [RULES.full_health - f.two.health for f in (open_, guarded)]
    assert lost[1] < lost[0] / 4
    assert guarded.two.stance == Stance.BLOCK
    weak = fight._replace(two=fight.two._replace(health=1))
    assert play(weak, (NONE, UPPERCUT_BUTTON), (RIGHT, 0), frames=12).two.health == 1


def test_a_sweep_is_blocked_low_only() -> None:
    """A low attack goes through an upright guard and is stopped by a crouching one."""
    frames = SWEEP.startup + SWEEP.active
    fight = fight_at(50)
    upright = play(fight, (NONE, SWEEP_BUTTON), (RIGHT, 0), frames=frames)
    low = play(fight, (NONE, SWEEP_BUTTON), (DOWN_RIGHT, 0), frames=frames)
    assert upright.two.stance == Stance.DOWN
    assert low.two.stance == Stance.BLOCK


def test_a_jab_goes_over_a_crouching_fighter() -> None:
    """High attacks miss whoever crouches."""
    assert play(fight_at(45), (NONE, JAB_BUTTON), (DOWN, 0), frames=JAB.duration).two.health == RULES.full_health


def test_a_throw_beats_the_guard() -> None:
    """A throw cannot be blocked, and misses whoever is in the air."""
    fight = fight_at(2 * BODY + 2)
    wall = WORLD_WIDTH - EDGE
    cornered = fight._replace(two=fight.two._replace(x=wall), one=fight.one._replace(x=wall - 2 * BODY - 2))
    assert play(cornered, (NONE, THROW_BUTTON), (RIGHT, 0), frames=8).two.stance == Stance.DOWN
    airborne = fight._replace(two=fight.two._replace(y=30.0, vy=2.0, stance=Stance.JUMP))
    assert play(airborne, (NONE, THROW_BUTTON), frames=8).two.health == RULES.full_health


def test_an_uppercut_reaches_the_air() -> None:
    """Attacks differ: a jumping fighter is safe from a jab and not from an uppercut."""
    fight = fight_at(36)
    jumper = fight._replace(two=fight.two._replace(y=60.0, vy=1.0, stance=Stance.JUMP))
    assert play(jumper, (NONE, JAB_BUTTON), frames=JAB.startup + 2).two.health == RULES.full_health
    assert play(jumper, (NONE, UPPERCUT_BUTTON), frames=UPPERCUT.startup + 4).two.health < RULES.full_health


def test_blows_at_the_same_instant_trade() -> None:
    """Two jabs in the same frame hurt both fighters: neither side of the screen is favoured."""
    fight = play(fight_at(45), (NONE, JAB_BUTTON), (NONE, JAB_BUTTON), frames=JAB.duration)
    assert fight.one.health == fight.two.health < RULES.full_health


def test_a_special_attack_costs_energy() -> None:
    """A costly attack comes out only with the energy for it; without, it is the first attack."""
    rules = replace(RULES, attacks=(None, JAB, replace(UPPERCUT, cost=50)))
    fight = fight_at(100, rules)
    assert play(fight, (NONE, 2)).one.attack == 1
    charged = fight._replace(one=fight.one._replace(energy=60))
    after = play(charged, (NONE, 2))
    assert (after.one.attack, after.one.energy) == (2, 10)


def test_the_fight_ends_with_a_knock_out_or_the_time() -> None:
    """A fight is over when a health reaches the game's lowest or the timer runs out, and not before."""
    fight = fight_at(45)
    assert not is_over(fight)
    assert is_over(fight._replace(frames_left=0))
    weak = fight._replace(two=fight.two._replace(health=1))
    assert is_over(play(weak, (NONE, JAB_BUTTON), frames=JAB.duration))


@pytest.mark.parametrize("game_id", sorted(all_games()))
def test_every_button_of_every_game_is_an_attack(game_id: str) -> None:
    """Each attack index of the action space does something, and no two single buttons do the same."""
    game = all_games()[game_id]
    attacks = attacks_of(game)
    assert len(attacks) == game.n_attacks
    assert attacks[0] is None
    single = [a for a in attacks[1 : game.n_attacks_no_comb] if isinstance(a, Attack)]
    assert len(set(single)) == game.n_attacks_no_comb - 1


@settings(deadline=None, max_examples=40)  # a busy machine is no failure
@given(seed=st.integers(0, 10_000), frames=st.integers(1, 400))
def test_any_play_keeps_the_world_whole(seed: int, frames: int) -> None:
    """Whatever is pressed: nobody leaves the screen, sinks into the ground, heals, or leaves the health's bounds."""
    game = all_games()["mvsc"]
    rules = Ruleset(attacks_of(game), lowest_health=game.health[0], full_health=game.health[1])
    fight, chance = new_fight(rules, seconds=99), random.Random(seed)
    for frame in range(frames):
        actions = tuple((chance.randrange(game.n_moves), chance.randrange(game.n_attacks)) for _ in range(2))
        after = step(fight, (actions[0], actions[1]))
        for old, new in zip(fight.sides, after.sides, strict=True):
            assert EDGE <= new.x <= WORLD_WIDTH - EDGE
            assert new.y >= 0
            assert rules.lowest_health <= new.health <= old.health
            assert 0 <= new.energy <= 100
        fight = after
        assert fight.frames_left == 99 * 60 - frame - 1


def test_a_frame_follows_from_state_and_actions_alone() -> None:
    """The same state and actions give the same next state, and the old state is left as it was."""
    fight = fight_at(45)
    before = fight
    assert step(fight, ((NONE, 1), (NONE, 2))) == step(fight, ((NONE, 1), (NONE, 2)))
    assert fight == before
