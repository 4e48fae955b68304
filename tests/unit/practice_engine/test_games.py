"""The nine games' interfaces."""

import warnings

import pytest

from practice_engine.games import DATA_FILE, PUBLISHED_FPS, all_games
from practice_engine.games_from_arena import render

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # DIAMBRA's package leaves its file open
    from diambra.arena import available_games

    STOCK = available_games(print_out=False)


def test_the_data_file_says_what_the_stock_package_says() -> None:
    """games.json is exactly what its script makes of diambra-arena's own table, for all nine games."""
    assert DATA_FILE.read_text(encoding="utf-8") == render(STOCK)
    assert len(all_games()) == 9


@pytest.mark.parametrize("game_id", sorted(PUBLISHED_FPS))
def test_every_game_has_a_speed_and_whole_bounds(game_id: str) -> None:
    """Each game that DIAMBRA publishes a speed for is there, with the frame that belongs to it."""
    game = all_games()[game_id]
    assert game.published_fps == PUBLISHED_FPS[game_id]
    assert list(game.frame_shape) == STOCK[game_id]["frame_shape"]
    assert game.health_span > 0
    assert game.n_attacks >= game.n_attacks_no_comb > 1
    assert game.rom_name == f"{game_id}.zip"
