"""The pictures."""

import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from practice_engine.attacks import Attack
from practice_engine.fighter import Stance
from practice_engine.games import all_games
from practice_engine.poses import POSES, pose_name
from practice_engine.render import Renderer
from practice_engine.rules import Match, Setup, advance, new_match

Picture = npt.NDArray[np.uint8]
GAMES = sorted(all_games())
SHAPES = [(128, 128, 1), (84, 84, 3), (1, 1, 1), (512, 512, 1), (33, 200, 3)]


def picture(renderer: Renderer, match: Match, shape: tuple[int, int, int]) -> Picture:
    """A copy of the match's frame."""
    frame: Picture = np.frombuffer(renderer.draw(match), np.uint8).reshape(shape)
    return np.array(frame, np.uint8)


def played(game_id: str, steps: int, seed: int = 1) -> list[Match]:
    """Some moments of a match between a button masher and the engine."""
    game = all_games()[game_id]
    match, chance = new_match(game, Setup(seed=seed, difficulty=game.difficulty[1])), random.Random(seed)
    matches = [match]
    for _ in range(steps):
        match = advance(match, [(chance.randrange(9), chance.randrange(game.n_attacks))], 5)
        matches.append(match)
    return matches


@pytest.mark.parametrize("game_id", GAMES)
def test_native_frames_are_pictures(game_id: str) -> None:
    """Each game's frame is a real picture: many colours, textured everywhere, unlike any other game's."""
    game = all_games()[game_id]
    frame = picture(Renderer(game, game.frame_shape), played(game_id, 20)[-1], game.frame_shape)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 2000
    rows = frame.astype(float).std(axis=(1, 2))
    assert rows.min() > 3


def test_every_game_has_its_own_place() -> None:
    """No two games share a background."""
    frames = [
        picture(Renderer(all_games()[game_id], (64, 64, 3)), played(game_id, 0)[0], (64, 64, 3)) for game_id in GAMES
    ]
    for index, one in enumerate(frames):
        for other in frames[:index]:
            assert np.abs(one[16:56].astype(int) - other[16:56]).mean() > 8


def test_stages_look_different() -> None:
    """The next stage has another light."""
    match = played("doapp", 0)[0]
    renderer = Renderer(match.game, (64, 64, 3))
    one, two = (picture(renderer, replace(match, stage=stage), (64, 64, 3)) for stage in (1, 2))
    assert np.abs(one.astype(int) - two).mean() > 5


@pytest.mark.parametrize("shape", SHAPES)
def test_drawing_only_what_moved_leaves_no_traces(shape: tuple[int, int, int]) -> None:
    """A frame drawn over many others is the frame that a fresh renderer draws, at any shape."""
    matches = played("soulclbr", 60, seed=4)
    used = Renderer(matches[0].game, shape)
    for match in matches:
        last = picture(used, match, shape)
    assert np.array_equal(last, picture(Renderer(matches[0].game, shape), matches[-1], shape))


def test_fighters_are_seen_moving() -> None:
    """A fighter who walks changes the picture where it stands, even at 84x84 in grey."""
    match = new_match(all_games()["doapp"], Setup(seed=1))
    renderer = Renderer(match.game, (84, 84, 1))
    before = picture(renderer, match, (84, 84, 1)).astype(int)
    after = picture(renderer, advance(match, [(5, 0)], 8), (84, 84, 1)).astype(int)
    assert (np.abs(before - after)[30:80] > 12).sum() > 20


@pytest.mark.parametrize("side", [0, 1])
def test_the_health_bar_shows_the_health(side: int) -> None:
    """A bar at half health is bright for half its length, on its owner's half of the screen."""
    match = played("doapp", 0)[0]
    low, high = match.game.health
    fighters = list(match.fight.sides)
    fighters[side] = fighters[side]._replace(health=(low + high) // 2)
    hurt = replace(match, fight=match.fight._replace(one=fighters[0], two=fighters[1]))
    renderer = Renderer(match.game, (224, 384, 1))
    full, half = (picture(renderer, m, (224, 384, 1))[16, :, 0].astype(int) for m in (match, hurt))
    darker = np.flatnonzero(full - half > 60)
    assert 0.4 < len(darker) / 156 < 0.6
    assert (darker < 192).all() if side == 0 else (darker >= 192).all()


@pytest.mark.parametrize("stance", list(Stance))
def test_every_stance_and_attack_has_a_pose(stance: Stance) -> None:
    """No moment of any game lacks a drawing."""
    for game_id in GAMES:
        match = played(game_id, 0)[0]
        for index, attack in enumerate(match.fight.rules.attacks):
            duration = attack.duration if isinstance(attack, Attack) else 1
            for clock in range(duration + 2):
                for y in (0.0, 30.0):
                    fighter = match.fight.one._replace(stance=stance, attack=index, clock=clock, y=y, stun=clock)
                    assert pose_name(match.fight.rules, fighter) in POSES


def test_the_same_match_gives_the_same_pictures() -> None:
    """Backgrounds and fighters follow from the match alone, in every process."""
    match = played("mvsc", 30)[-1]
    one, two = (picture(Renderer(match.game, (128, 128, 3)), match, (128, 128, 3)) for _ in range(2))
    assert np.array_equal(one, two)
