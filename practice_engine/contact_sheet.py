"""One picture of all nine games at a lively moment: `python -m practice_engine.contact_sheet FILE`."""

import random
import sys

import cv2
import numpy as np
import numpy.typing as npt

from practice_engine.fighter import Stance
from practice_engine.games import Game, all_games
from practice_engine.render import Renderer
from practice_engine.rules import Match, Setup, advance, new_match

Image = npt.NDArray[np.uint8]
_CELL = (512, 360)  # width, height
_COLUMNS = 3
_LIVELY = (Stance.ATTACK, Stance.HIT, Stance.BLOCK)


def lively_moment(game: Game, seed: int) -> Match:
    """A moment some seconds into a match in which blows are exchanged at arm's length."""
    chance = random.Random(seed)  # noqa: S311 - a fight to look at, no secret
    team = (seed * 5 % len(game.characters), (seed * 7 + 1) % len(game.characters))
    match = new_match(game, Setup(seed=seed, difficulty=game.difficulty[1], teams=(team,)))
    for frame in range(900):
        if frame % 8 == 0:
            action = (chance.choice((0, 5, 5, 1, 4, 8)), chance.randrange(game.n_attacks))
        match = advance(match, [action])
        one, two = match.fight.sides
        busy = all(fighter.stance in _LIVELY and 2 < fighter.clock < 12 for fighter in (one, two))
        if frame > 240 and busy and 44 < abs(one.x - two.x) < 90:
            break
    return match


def contact_sheet(seed: int = 1) -> Image:
    """The nine games in three rows, RGB."""
    cells = []
    for number, game in enumerate(all_games().values()):
        frame = Renderer(game, game.frame_shape).draw(lively_moment(game, seed + number))
        picture = np.frombuffer(frame, np.uint8).reshape(game.frame_shape)
        cells.append(cv2.resize(picture, _CELL, interpolation=cv2.INTER_AREA))
    rows = [np.hstack(cells[start : start + _COLUMNS]) for start in range(0, len(cells), _COLUMNS)]
    return np.asarray(np.vstack(rows), np.uint8)


def main() -> int:
    """Write the sheet to the file named on the command line."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m practice_engine.contact_sheet FILE.jpg\n")
        return 2
    cv2.imwrite(sys.argv[1], np.ascontiguousarray(contact_sheet()[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 80])
    return 0


if __name__ == "__main__":
    sys.exit(main())
