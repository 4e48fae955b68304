"""Rounds, stages, continues, dones and rewards, as DIAMBRA's in-process mock keeps them.

A match is pure too: `advance(match, actions)` gives the next match and what a client is told about the Step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from practice_engine.attacks import attacks_of
from practice_engine.fighter import Action
from practice_engine.game import FRAMES_PER_COUNT, Fight, Ruleset, is_over, new_fight, step
from practice_engine.games import Game
from practice_engine.opponent import Mind, new_mind, think

_SKILL = {"Easy": 0.4, "Medium": 0.65, "Hard": 0.85}
_SKILL_PER_STAGE = 0.03
NO_ACTION: Action = (0, 0)


@dataclass(frozen=True)
class Setup:
    """What a Reset asks for; `roles` holds the side (0 = P1, 1 = P2) of each of the client's agents."""

    seed: int
    roles: tuple[int, ...] = (0,)
    difficulty: int = 1
    continue_game: float = 0.0
    teams: tuple[tuple[int, ...], ...] = ((0,),)  # character indices for each agent
    styles: tuple[int, ...] = (1,)  # super art, fighting style or the like, from 1

    @property
    def continues(self) -> int:
        """Games that may be lost before the episode ends: -n means n, a fraction f means ten times f."""
        value = self.continue_game
        return -int(value) if value < 0 else int(value * 10)


@dataclass(frozen=True)
class Dones:
    """The five ends that a Step reports."""

    round: bool = False
    stage: bool = False
    game: bool = False
    episode: bool = False
    env: bool = False


NOTHING_DONE = Dones()


@dataclass(frozen=True)
class Match:
    """One episode under way."""

    game: Game
    setup: Setup
    fight: Fight
    mind: Mind
    teams: tuple[tuple[int, ...], tuple[int, ...]]
    stage: int = 1
    wins: tuple[int, int] = (0, 0)
    continued: int = 0
    dones: Dones = NOTHING_DONE
    reward: int = 0
    active: tuple[int, int] = (0, 0)  # which team member fights

    @property
    def agent(self) -> int:
        """The side (0 or 1) whose rewards the client gets."""
        return self.setup.roles[0]

    @property
    def two_players(self) -> bool:
        """True when both sides are the client's."""
        return len(self.setup.roles) > 1


def new_match(game: Game, setup: Setup) -> Match:
    """The first frame of an episode."""
    low, high = game.health
    rules = Ruleset(attacks_of(game), lowest_health=low, full_health=high)
    mind = new_mind(setup.seed)
    size = game.chars_to_select
    mine = _whole_team(setup.teams[0], size)
    other = _whole_team(setup.teams[1], size) if len(setup.teams) > 1 else _rivals(game, setup.seed, 1)
    teams = (mine, other) if setup.roles[0] == 0 else (other, mine)
    return Match(game, setup, _round(game, rules, mind), mind, teams)


def _whole_team(team: Sequence[int], size: int) -> tuple[int, ...]:
    return tuple(team[i % len(team)] for i in range(size))


def _rivals(game: Game, seed: int, stage: int) -> tuple[int, ...]:
    """The built-in opponents of a stage: other ones at every stage, in an order that follows from the seed."""
    count = len(game.characters)
    first = new_mind(seed).random % count + stage * game.chars_to_select
    return tuple((first + i) % count for i in range(game.chars_to_select))


def _round(game: Game, rules: Ruleset, mind: Mind, energies: tuple[int, int] = (0, 0)) -> Fight:
    jitter = (mind.random >> 20) % 49 - 24
    return new_fight(rules, seconds=game.common_ram["timer"].high, jitter=jitter, energies=energies)


def skill_of(match: Match) -> float:
    """How well the built-in opponent fights now, from 0 to 1: it follows the difficulty and rises with the stages."""
    game, (low, high) = match.game, match.game.difficulty
    difficulty = min(max(match.setup.difficulty or low, low), high)
    within = (difficulty - low) / max(1, high - low)
    return min(1.0, _SKILL[game.clusters[difficulty]] + 0.08 * within + _SKILL_PER_STAGE * (match.stage - 1))


def advance(match: Match, actions: Sequence[Action], frames: int = 1) -> Match:
    """The match after one Step of `frames` game frames with one (move, attack) for each agent, in the agents' order.

    A Step ends early with the round: the next observation is then the first of the next round. After the end of the
    episode nothing moves any more and every Step says so again.
    """
    if match.dones.env:
        return replace(match, reward=0)
    fight, mind = match.fight, match.mind
    skill = skill_of(match)
    before = (fight.one.health, fight.two.health)
    rules, agent = fight.rules, match.agent
    mine = actions[0] if actions else NO_ACTION
    theirs = actions[1] if len(actions) > 1 else NO_ACTION
    for _ in range(frames):
        if not match.two_players:
            me, other = (fight.two, fight.one) if agent == 0 else (fight.one, fight.two)
            mind = think(rules, mind, me, other, skill)
            theirs = mind.action
        fight = step(fight, (mine, theirs) if agent == 0 else (theirs, mine))
        if is_over(fight):
            return _end_round(replace(match, fight=fight, mind=mind), before)
    reward = _reward(agent, before, (fight.one.health, fight.two.health))
    return replace(match, fight=fight, mind=mind, reward=reward, dones=NOTHING_DONE)


def _reward(agent: int, before: tuple[int, int], after: tuple[int, int]) -> int:
    """Health the opponent lost minus health the agent lost."""
    lost = (before[0] - after[0], before[1] - after[1])
    return lost[1 - agent] - lost[agent]


def _end_round(match: Match, before: tuple[int, int]) -> Match:
    """The next round, stage, game or the end, after a knock-out or time-out; a draw is lost."""
    agent, low = match.agent, match.fight.rules.lowest_health
    after = [match.fight.one.health, match.fight.two.health]
    winner = agent if after[agent] > after[1 - agent] else 1 - agent
    after[1 - winner] = low
    wins = [match.wins[0], match.wins[1]]
    wins[winner] += 1
    reward = _reward(agent, before, (after[0], after[1]))
    stage, continued, dones = match.stage, match.continued, Dones(round=True)
    needed = match.game.rounds_per_stage
    if wins[agent] == needed:
        stage, wins = stage + 1, [0, 0]
        # The mock calls the game completed on reaching the last stage, not on winning it.
        done = match.two_players or stage >= match.game.stages
        dones = Dones(round=True, stage=True, game=done, episode=done, env=done)
    elif wins[1 - agent] == needed:
        ended = continued >= match.setup.continues
        dones = Dones(round=True, game=True, episode=ended, env=ended)
        if not ended:
            continued, wins = continued + 1, [0, 0]
    return _next_round(
        replace(match, stage=stage, continued=continued, dones=dones, reward=reward, wins=(wins[0], wins[1])),
        new_stage=stage != match.stage,
    )


def _next_round(match: Match, *, new_stage: bool) -> Match:
    fight, game = match.fight, match.game
    mind = new_mind(match.mind.random)
    energies = (fight.one.energy, fight.two.energy)
    teams = match.teams
    if new_stage and not match.two_players:
        rivals = _rivals(game, match.setup.seed, match.stage)
        teams = (teams[0], rivals) if match.agent == 0 else (rivals, teams[1])
    return replace(
        match,
        fight=_round(game, fight.rules, mind, energies),
        mind=mind,
        teams=teams,
        active=_members(match),
    )


def _members(match: Match) -> tuple[int, int]:
    """Who fights next: where a team sends one fighter a round, the loser's next one comes in."""
    if match.game.chars_to_select < 3:
        return match.active
    size = match.game.chars_to_select
    return (match.wins[1] % size, match.wins[0] % size)


def seconds_left(match: Match) -> int:
    """What the timer shows."""
    return max(0, math.ceil(match.fight.frames_left / FRAMES_PER_COUNT))


def cumulative_reward_bounds(game: Game) -> tuple[int, int]:
    """The lowest and highest sum of rewards of an episode without continues."""
    rounds, stages, span = game.rounds_per_stage, game.stages, game.health_span
    return -((rounds - 1) * (stages - 1) + rounds) * span, rounds * stages * span
