"""The nine games' interfaces, as DIAMBRA publishes them: frames, actions, characters, difficulty, RAM states."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

DATA_FILE = Path(__file__).with_name("games.json")

# Frames/s that DIAMBRA publishes for its engine at step_ratio 1 with 128x128x1 frames.
PUBLISHED_FPS: Mapping[str, int] = MappingProxyType(
    {
        "doapp": 92,
        "sfiii3n": 164,
        "tektagt": 72,
        "umk3": 158,
        "samsh5sp": 168,
        "kof98umh": 92,
        "mvsc": 190,
        "xmvsf": 190,
        "soulclbr": 60,
    }
)


@dataclass(frozen=True)
class RamState:
    """One RAM state's space ("BOX", "DISCRETE" or "BINARY") and its inclusive bounds."""

    kind: str
    low: int
    high: int

    def clamp(self, value: float) -> int:
        """The nearest whole number inside the bounds."""
        return max(self.low, min(self.high, int(value)))


@dataclass(frozen=True, eq=False)  # there is one object for each game: identity compares and hashes it
class Game:
    """One game's interface; `frame_shape` is height, width and channels, `health` its lowest and full value."""

    game_id: str
    name: str
    sha256: str
    characters: tuple[str, ...]
    forbidden: tuple[str, ...]
    homonymy: Mapping[str, str]
    partners: tuple[str, ...]
    difficulty: tuple[int, int]
    clusters: Mapping[int, str]
    rounds_per_stage: int
    stages: int
    chars_per_round: int
    chars_to_select: int
    n_moves: int
    n_attacks: int
    n_attacks_no_comb: int
    health: tuple[int, int]
    frame_shape: tuple[int, int, int]
    common_ram: Mapping[str, RamState]
    player_ram: Mapping[str, RamState]
    published_fps: int

    @property
    def health_span(self) -> int:
        """What one round's full health is worth in reward."""
        return self.health[1] - self.health[0]

    @property
    def rom_name(self) -> str:
        """The file that the engine looks for in its ROM folder."""
        return f"{self.game_id}.zip"


def _ram_states(states: Mapping[str, list[Any]]) -> Mapping[str, RamState]:
    return MappingProxyType({name: RamState(kind, low, high) for name, (kind, low, high) in states.items()})


def _parse(game_id: str, data: Mapping[str, Any]) -> Game:
    moves, attacks, attacks_no_comb = data["n_actions"]
    height, width, channels = data["frame_shape"]
    return Game(
        game_id=game_id,
        name=data["name"],
        sha256=data["sha256"],
        characters=tuple(data["char_list"]),
        forbidden=tuple(data["char_forbidden_list"]),
        homonymy=MappingProxyType(dict(data["char_homonymy_map"])),
        partners=tuple(data.get("partner_list", ())),
        difficulty=(data["difficulty"][0], data["difficulty"][1]),
        clusters=MappingProxyType({int(level): name for level, name in data["difficulty_to_cluster_map"].items()}),
        rounds_per_stage=data["rounds_per_stage"],
        stages=data["stages_per_game"],
        chars_per_round=data["number_of_chars_per_round"],
        chars_to_select=data["number_of_chars_to_select"],
        n_moves=moves,
        n_attacks=attacks,
        n_attacks_no_comb=attacks_no_comb,
        health=(data["health"][0], data["health"][1]),
        frame_shape=(height, width, channels),
        common_ram=_ram_states(data["ram_states"]["common"]),
        player_ram=_ram_states(data["ram_states"]["Px"]),
        published_fps=PUBLISHED_FPS[game_id],
    )


@cache
def all_games() -> Mapping[str, Game]:
    """Every game by its id."""
    data = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    return MappingProxyType({game_id: _parse(game_id, fields) for game_id, fields in data.items()})
