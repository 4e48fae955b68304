"""The engine's protobuf messages, made with DIAMBRA's own generated code.

A Step's answer is mostly its frame. Protobuf would copy the frame three times on its way out, so the frame's part of
the message is put together here, by the wire format's rules, and everything else by protobuf.
"""

from collections.abc import Mapping, Sequence

from diambra.engine import interface_pb2 as pb

from practice_engine import ram
from practice_engine.fighter import Action
from practice_engine.games import Game, RamState
from practice_engine.rules import Match, Setup, cumulative_reward_bounds

# The category that no client reads holds what only tests and tools want to know.
STEPS_RUN = pb.RamStates.Value("test_mode")
ROUND_FRAMES = pb.RamStates.Value("round_time_elaps")

_MOVES = (
    ("NoMove", " "),
    ("Left", "←"),
    ("UpLeft", "↖"),
    ("Up", "↑"),
    ("UpRight", "↗"),
    ("Right", "→"),
    ("DownRight", "↘"),
    ("Down", "↓"),
    ("DownLeft", "↙"),
)
_LENGTH_DELIMITED_1 = b"\x0a"  # field 1, wire type 2: both `observation` and, inside it, `frame`
_CATEGORIES = (pb.RamStatesCategories.Value("P1"), pb.RamStatesCategories.Value("P2"))
_COMMON = pb.RamStatesCategories.Value("common")
_INTERNAL = pb.RamStatesCategories.Value("internal")
_GAME_STATES = tuple(pb.GameStates.Value(f"{name}_done") for name in ("round", "stage", "game", "episode", "env"))


def _button_keys(game: Game) -> list[str]:
    """Names of the attacks: single buttons first, then combinations, numbered as DIAMBRA's mock does."""
    single = [f"But{i}" for i in range(game.n_attacks_no_comb)]
    combined = [f"But{i}But{i + 1}" for i in range(1, game.n_attacks - game.n_attacks_no_comb + 1)]
    return single + combined


def _describe(target: object, spaces: Mapping[str, RamState]) -> None:
    for name, space in spaces.items():
        info = target.ram_states[pb.RamStates.Value(name)]  # type: ignore[attr-defined]
        info.type = pb.SpaceTypes.Value(space.kind)
        info.min, info.max = space.low, space.high


def init_response(game: Game, frame_shape: tuple[int, int, int]) -> bytes:
    """The answer to EnvInit: everything from which the client builds its spaces."""
    response = pb.EnvInitResponse()
    response.frame_shape.h, response.frame_shape.w, response.frame_shape.c = frame_shape
    actions = response.available_actions
    actions.n_moves, actions.n_attacks = game.n_moves, game.n_attacks
    actions.n_attacks_no_comb = game.n_attacks_no_comb
    for key, label in _MOVES[: game.n_moves]:
        actions.moves.add(key=key, label=label)
    for index, key in enumerate(_button_keys(game)):
        actions.attacks.add(key=key, label=f"Attack{index}" if index else " ")
    low, high = cumulative_reward_bounds(game)
    response.cumulative_reward_bounds.min, response.cumulative_reward_bounds.max = low, high
    characters = response.characters_info
    characters.char_list.extend(game.characters)
    characters.char_forbidden_list.extend(game.forbidden)
    characters.char_homonymy_map.update(game.homonymy)
    characters.partner_list.extend(game.partners)
    characters.chars_per_round = game.chars_per_round
    characters.chars_to_select = game.chars_to_select
    response.difficulty_bounds.min, response.difficulty_bounds.max = game.difficulty
    _describe(response.ram_states_categories[_COMMON], game.common_ram)
    for category in _CATEGORIES:
        _describe(response.ram_states_categories[category], game.player_ram)
    return bytes(response.SerializeToString())


def actions_of(request: pb.Actions) -> list[Action]:
    """The (move, attack) of each agent."""
    return [(action.move, action.attack) for action in request.actions]


def setup_of(game: Game, episode: pb.EnvSettings.EpisodeSettings, *, n_players: int, spare_seed: int) -> Setup:
    """What a Reset asks for; a negative seed leaves the choice to the engine, which takes `spare_seed`."""
    players = episode.player_settings[: max(1, n_players)]
    roles = tuple(max(0, player.role - _CATEGORIES[0]) for player in players) or (0,)
    if n_players > 1 and len(set(roles)) < 2:
        roles = (0, 1)
    return Setup(
        seed=episode.random_seed if episode.random_seed >= 0 else spare_seed,
        roles=roles,
        difficulty=episode.difficulty,
        continue_game=episode.continue_game,
        teams=tuple(_team(game, player.characters) for player in players) or ((0,),),
        styles=tuple(max(1, player.super_art) for player in players) or (1,),
    )


def _team(game: Game, names: Sequence[str]) -> tuple[int, ...]:
    team = tuple(game.characters.index(name) for name in names if name in game.characters)
    return team[: game.chars_to_select] or (0,)


class StepEncoder:
    """Turns a match and its frame into the bytes of a StepResetResponse, reusing its messages from Step to Step."""

    def __init__(self, game: Game) -> None:
        self._observation = pb.StepResetResponse.Observation()
        self._rest = pb.StepResetResponse()
        categories = self._observation.ram_states_categories
        self._common = categories[_COMMON].ram_states
        self._players = tuple(categories[category].ram_states for category in _CATEGORIES)
        self._internal = categories[_INTERNAL].ram_states
        self._ids = {name: pb.RamStates.Value(name) for name in ram.state_names(game)}
        self._round_frames = game.common_ram["timer"].high * 60

    def encode(self, match: Match, frame: memoryview, *, steps: int) -> bytes:
        """The message for this moment of the match; `frame` is contiguous, `steps` what the engine has run so far."""
        ids = self._ids
        for name, value in ram.common_states(match).items():
            self._common[ids[name]] = value
        for side, states in enumerate(self._players):
            for name, value in ram.player_states(match, side).items():
                states[ids[name]] = value
        self._internal[STEPS_RUN] = steps
        self._internal[ROUND_FRAMES] = self._round_frames - match.fight.frames_left
        self._rest.reward = match.reward
        game_states, dones = self._rest.info.game_states, match.dones
        for key, done in zip(
            _GAME_STATES, (dones.round, dones.stage, dones.game, dones.episode, dones.env), strict=True
        ):
            game_states[key] = done
        return join(frame, self._observation.SerializeToString(), self._rest.SerializeToString())


def join(frame: memoryview, ram_states: bytes, rest: bytes) -> bytes:
    """A StepResetResponse from its frame, its serialised RAM states, and its serialised reward and info."""
    frame_head = _LENGTH_DELIMITED_1 + _varint(frame.nbytes)
    inside = len(frame_head) + frame.nbytes + len(ram_states)
    return b"".join((_LENGTH_DELIMITED_1, _varint(inside), frame_head, frame, ram_states, rest))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
