"""One game being played: from EnvInit on, turns each Reset and Step into the bytes of its answer."""

from collections.abc import Sequence

from practice_engine.fighter import Action
from practice_engine.games import Game
from practice_engine.render import Renderer
from practice_engine.rules import Match, Setup, advance, new_match
from practice_engine.wire import StepEncoder


class Session:
    """The match under way with what draws and encodes it; not thread-safe."""

    def __init__(self, game: Game, *, frame_shape: tuple[int, int, int], step_ratio: int) -> None:
        self._game, self._step_ratio = game, step_ratio
        self._renderer = Renderer(game, frame_shape)
        self._encoder = StepEncoder(game)
        self._match: Match | None = None

    @property
    def started(self) -> bool:
        """True once a Reset has begun a match."""
        return self._match is not None

    def reset(self, setup: Setup, *, steps: int) -> bytes:
        """Begin a new match; `steps` is the engine's count of Steps so far."""
        self._match = new_match(self._game, setup)
        return self._answer(self._match, steps)

    def step(self, actions: Sequence[Action], *, steps: int) -> bytes:
        """Play one Step of the match."""
        assert self._match is not None
        self._match = advance(self._match, actions, self._step_ratio)
        return self._answer(self._match, steps)

    def _answer(self, match: Match, steps: int) -> bytes:
        return self._encoder.encode(match, self._renderer.draw(match), steps=steps)


def frame_shape_for(game: Game, asked: tuple[int, int, int]) -> tuple[int, int, int]:
    """The frame's shape for what a client asks: zeros mean the game's own size, one channel means grey."""
    height, width, channels = game.frame_shape
    if asked[0] > 0 and asked[1] > 0:
        height, width = asked[0], asked[1]
    return height, width, 1 if asked[2] == 1 else channels
