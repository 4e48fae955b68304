"""Rounds, stages, continues, dones and rewards."""

import random
from dataclasses import replace

import pytest

from practice_engine.games import Game, all_games
from practice_engine.rules import (
    Dones,
    Match,
    Setup,
    advance,
    cumulative_reward_bounds,
    new_match,
    seconds_left,
    skill_of,
)

STAND = (0, 0)
DOAPP = all_games()["doapp"]
GAMES = sorted(all_games())


def last_frame(match: Match, *, agent_health: int, other_health: int) -> Match:
    """The match one frame before the time is up, with these healths."""
    healths = (agent_health, other_health) if match.agent == 0 else (other_health, agent_health)
    one, two = match.fight.sides
    fight = match.fight._replace(
        # Far apart, so that nothing happens in that frame.
        one=one._replace(health=healths[0], x=40.0),
        two=two._replace(health=healths[1], x=340.0),
        frames_left=1,
    )
    return replace(match, fight=fight)


def won(match: Match) -> Match:
    """The match after its agent has won the round."""
    low, high = match.game.health
    return advance(last_frame(match, agent_health=high, other_health=(low + high) // 2), [STAND, STAND])


def lost(match: Match) -> Match:
    """The match after its agent has lost the round."""
    low, high = match.game.health
    return advance(last_frame(match, agent_health=(low + high) // 2, other_health=high), [STAND, STAND])


@pytest.mark.parametrize("agent", [0, 1])
def test_the_reward_is_health_taken_minus_health_lost(agent: int) -> None:
    """Over any stretch of a round, rewards add up to the opponent's lost health minus the agent's own."""
    match = new_match(DOAPP, Setup(seed=5, roles=(agent,), difficulty=3))
    chance, total = random.Random(1), 0
    for _ in range(120):
        match = advance(match, [(chance.randrange(9), chance.randrange(8))], 6)
        total += match.reward
        if match.dones.round:
            break
        healths = [fighter.health for fighter in match.fight.sides]
        assert total == healths[agent] - healths[1 - agent]


def test_running_out_of_time_gives_the_round_to_the_healthier() -> None:
    """At the end of time the weaker fighter counts as knocked out, and the reward says so."""
    match = new_match(DOAPP, Setup(seed=1))
    after = advance(last_frame(match, agent_health=150, other_health=100), [STAND])
    assert after.dones == Dones(round=True)
    assert after.wins == (1, 0)
    assert after.reward == 100


def test_a_draw_is_lost() -> None:
    """Equal healths at the end of time count against the agent."""
    after = advance(last_frame(new_match(DOAPP, Setup(seed=1)), agent_health=90, other_health=90), [STAND])
    assert after.wins == (0, 1)
    assert after.reward == -90


def test_a_new_round_begins_afresh() -> None:
    """The observation that ends a round already shows the next: full health, full time, fighters apart."""
    after = won(new_match(DOAPP, Setup(seed=1)))
    assert [fighter.health for fighter in after.fight.sides] == [208, 208]
    assert seconds_left(after) == 40
    assert not advance(after, [STAND]).dones.round


def test_rounds_make_a_stage_and_bring_the_next_opponent() -> None:
    """After enough rounds the stage is won, wins start at zero, and another opponent is there."""
    match = new_match(DOAPP, Setup(seed=1))
    first = match.teams[1]
    match = won(won(match))
    assert match.dones == Dones(round=True, stage=True)
    assert (match.stage, match.wins) == (2, (0, 0))
    assert match.teams[1] != first


@pytest.mark.parametrize("game_id", GAMES)
def test_an_undefeated_agent_finishes_the_game(game_id: str) -> None:
    """Winning every round completes the game on reaching its last stage, within the reward's bounds."""
    game = all_games()[game_id]
    match, total, rounds = new_match(game, Setup(seed=2)), 0, 0
    while not match.dones.env:
        match = won(match)
        total, rounds = total + match.reward, rounds + 1
    assert match.dones == Dones(round=True, stage=True, game=True, episode=True, env=True)
    assert rounds == game.rounds_per_stage * (game.stages - 1)
    assert match.stage == game.stages
    assert 0 < total <= cumulative_reward_bounds(game)[1]


@pytest.mark.parametrize("game_id", GAMES)
def test_losing_the_rounds_of_a_stage_ends_the_episode(game_id: str) -> None:
    """Without continues a lost stage ends game, episode and environment, but the stage is not done."""
    game = all_games()[game_id]
    match = new_match(game, Setup(seed=2))
    for _ in range(game.rounds_per_stage):
        assert not match.dones.game
        match = lost(match)
    assert match.dones == Dones(round=True, game=True, episode=True, env=True)


@pytest.mark.parametrize(("setting", "games"), [(0.0, 1), (0.1, 2), (0.35, 4), (1.0, 11), (-1.0, 2), (-2.0, 3)])
def test_continue_game_says_how_many_games_an_episode_has(setting: float, games: int) -> None:
    """-n allows n continues, a fraction f ten times f of them; the stage stays, wins start at zero."""
    match, ended = new_match(DOAPP, Setup(seed=1, continue_game=setting)), 0
    while not match.dones.episode:
        match = lost(match)
        ended += match.dones.game
        if match.dones.game and not match.dones.episode:
            assert (match.stage, match.wins) == (1, (0, 0))
    assert ended == games


@pytest.mark.parametrize("roles", [(0, 1), (1, 0)])
def test_two_players_end_with_one_stage(roles: tuple[int, int]) -> None:
    """With two players the game is done as soon as either has won its rounds; rewards are the first agent's."""
    start = new_match(DOAPP, Setup(seed=1, roles=roles, teams=((0,), (1,))))
    assert won(won(start)).dones == Dones(round=True, stage=True, game=True, episode=True, env=True)
    assert won(start).reward > 0
    after = lost(lost(start))
    assert after.dones == Dones(round=True, game=True, episode=True, env=True)
    assert after.reward < 0


def test_two_players_move_their_own_fighters() -> None:
    """Each agent's action moves the fighter of its role, whatever the order of roles."""
    for roles, moved in (((0, 1), 0), ((1, 0), 1)):
        match = new_match(DOAPP, Setup(seed=1, roles=roles, teams=((0,), (1,))))
        after = advance(match, [(0, 1), STAND], 3)
        assert [fighter.attack for fighter in after.fight.sides] == [1 - moved, moved]


def test_after_the_episode_every_step_says_so() -> None:
    """A Step after the end changes nothing, rewards nothing and repeats that the episode is done."""
    match = lost(lost(new_match(DOAPP, Setup(seed=1))))
    after = advance(match, [(0, 1)], 6)
    assert after == replace(match, reward=0)


def test_a_step_plays_as_many_frames_as_the_step_ratio() -> None:
    """One Step of six frames is six Steps of one frame with the same action, rewards added up."""
    match = new_match(DOAPP, Setup(seed=4, difficulty=4))
    long, short, total = match, match, 0
    for action in [(5, 0)] * 10 + [(0, 2)] * 10:
        long = advance(long, [action], 6)
        total = 0
        for _ in range(6):
            short = advance(short, [action], 1)
            total += short.reward
        assert (long.fight, long.mind, long.reward) == (short.fight, short.mind, total)


def transcript(game: Game, seed: int, steps: int = 300) -> list[Match]:
    """A match played by a button masher whose presses are always the same."""
    match, chance, seen = new_match(game, Setup(seed=seed, difficulty=2)), random.Random(0), []
    for _ in range(steps):
        match = advance(match, [(chance.randrange(9), chance.randrange(game.n_attacks))], 6)
        seen.append(match)
    return seen


def test_games_follow_from_their_seed() -> None:
    """The same seed and actions give the same match to the last detail; another seed gives another match."""
    assert transcript(DOAPP, 7) == transcript(DOAPP, 7)
    assert [m.fight for m in transcript(DOAPP, 7)] != [m.fight for m in transcript(DOAPP, 8)]


@pytest.mark.parametrize("game_id", GAMES)
def test_skill_follows_the_difficulty(game_id: str) -> None:
    """Each step of difficulty, and each stage, makes the opponent better, up to a limit."""
    game = all_games()[game_id]
    low, high = game.difficulty
    skills = [skill_of(new_match(game, Setup(seed=1, difficulty=level))) for level in range(low, high + 1)]
    assert skills == sorted(set(skills))
    start = new_match(game, Setup(seed=1, difficulty=low))
    assert skill_of(replace(start, stage=2)) > skill_of(start)
    assert skills[-1] <= 1


def masher_reward(difficulty: int) -> float:
    """The mean reward a round of somebody who presses attacks at random."""
    chance, total, rounds = random.Random(3), 0, 0
    for seed in range(6):
        match = new_match(DOAPP, Setup(seed=seed, difficulty=difficulty, continue_game=-5, roles=(seed % 2,)))
        for _ in range(700):
            match = advance(match, [(chance.randrange(9), chance.randrange(8))], 6)
            total, rounds = total + match.reward, rounds + match.dones.round
            if match.dones.env:
                break
    return total / rounds / DOAPP.health_span


def test_a_harder_opponent_wins_more() -> None:
    """Random play does worse at the highest difficulty than at the lowest, by a third of a round's health at least."""
    assert masher_reward(1) - masher_reward(4) > 0.33


def careful_reward(difficulty: int) -> float:
    """The mean reward a round of somebody who walks up, guards when attacked, and kicks in reach."""
    total, rounds = 0, 0
    for seed in range(4):
        match = new_match(DOAPP, Setup(seed=seed, difficulty=difficulty, continue_game=-5))
        for _ in range(700):
            me, other = match.fight.sides
            ahead, low_guard = (5, 8) if other.x > me.x else (1, 6)
            distance = abs(me.x - other.x)
            if other.attack and not other.spent and distance < 90:
                action = (low_guard, 0)
            else:
                action = (ahead, 0) if distance > 68 else (0, 2)
            match = advance(match, [action], 6)
            total, rounds = total + match.reward, rounds + match.dones.round
            if match.dones.env:
                break
    return total / rounds / DOAPP.health_span


@pytest.mark.parametrize("difficulty", [1, 4])
def test_playing_well_pays(difficulty: int) -> None:
    """There is something to learn at every difficulty: simple good play earns far more than random play."""
    assert careful_reward(difficulty) - masher_reward(difficulty) > 0.3
    assert careful_reward(difficulty) > 0


def test_a_team_sends_its_next_fighter_after_a_lost_round() -> None:
    """Where a team has three fighters, whoever loses a round brings the next one."""
    match = new_match(all_games()["kof98umh"], Setup(seed=1, teams=((3, 5, 9),)))
    assert match.active == (0, 0)
    assert lost(match).active == (1, 0)
    assert won(lost(match)).active == (1, 1)
