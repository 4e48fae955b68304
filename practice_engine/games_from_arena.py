"""Write games.json from the installed diambra-arena package: `python -m practice_engine.games_from_arena`."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from practice_engine.games import DATA_FILE

# What an engine tells its client; the rest of DIAMBRA's table (search words, button settings) stays there.
FIELDS = (
    "name",
    "original_rom_name",
    "sha256",
    "char_list",
    "char_forbidden_list",
    "char_homonymy_map",
    "partner_list",
    "difficulty",
    "difficulty_to_cluster_map",
    "rounds_per_stage",
    "stages_per_game",
    "number_of_chars_per_round",
    "number_of_chars_to_select",
    "n_actions",
    "health",
    "frame_shape",
    "ram_states",
)


def selected(games: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fields of `available_games(print_out=False)` that the practice engine needs, by game id."""
    return {game_id: {key: game[key] for key in FIELDS if key in game} for game_id, game in games.items()}


def render(games: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of games.json: one line for each field, so that a change upstream reads well in a diff."""
    blocks = []
    for game_id, fields in selected(games).items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        blocks.append(f"{json.dumps(game_id)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> int:
    """Write the data file from what the installed diambra-arena says."""
    from diambra.arena import available_games

    DATA_FILE.write_text(render(available_games(print_out=False)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
