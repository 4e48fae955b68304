"""A session that plays pre-rendered Steps in a circle, so that a benchmark measures everything but the engine."""

import random
from collections.abc import Sequence
from itertools import cycle

from practice_engine.fighter import Action
from practice_engine.games import Game
from practice_engine.rules import Setup
from practice_engine.session import Session

_MEMORY_BYTES = 24 << 20
_MOST_STEPS = 128


class CannedSession:
    """Answers every Step with the next of a few dozen answers made in advance; rounds never end in them."""

    def __init__(self, game: Game, *, frame_shape: tuple[int, int, int], step_ratio: int, n_players: int) -> None:
        height, width, channels = frame_shape
        count = max(8, min(_MOST_STEPS, _MEMORY_BYTES // (height * width * channels)))
        session = Session(game, frame_shape=frame_shape, step_ratio=step_ratio)
        setup = Setup(seed=1, roles=(0, 1)[:n_players], difficulty=game.difficulty[0])
        self._first = session.reset(setup, steps=0)
        chance = random.Random(1)  # noqa: S311 - a fight to look at, no secret
        answers = []
        for _ in range(count):
            actions = [(chance.randrange(game.n_moves), 0) for _ in range(n_players)]
            answers.append(session.step(actions, steps=0))
        self._answers = cycle(answers)
        self.started = False

    def reset(self, setup: Setup, *, steps: int) -> bytes:
        """The fight's first frame, whatever is asked for."""
        del setup, steps
        self.started = True
        return self._first

    def step(self, actions: Sequence[Action], *, steps: int) -> bytes:
        """The next answer, whatever the actions."""
        del actions, steps
        return next(self._answers)
