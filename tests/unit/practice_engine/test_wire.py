"""What goes over the wire, against DIAMBRA's own message definitions."""

import pytest
from diambra.engine import interface_pb2 as pb

from practice_engine import ram, wire
from practice_engine.games import all_games
from practice_engine.rules import Setup, advance, cumulative_reward_bounds, new_match
from practice_engine.session import Session, frame_shape_for

GAMES = sorted(all_games())
P1, P2 = pb.RamStatesCategories.Value("P1"), pb.RamStatesCategories.Value("P2")
COMMON = pb.RamStatesCategories.Value("common")


def test_a_step_is_the_message_protobuf_would_write() -> None:
    """The hand-joined answer parses, and serialises again to a message of the same content and size."""
    game = all_games()["sfiii3n"]
    session = Session(game, frame_shape=(64, 80, 3), step_ratio=2)
    session.reset(Setup(seed=3), steps=0)
    answer = session.step([(5, 1)], steps=41)
    message = pb.StepResetResponse.FromString(answer)
    assert message.observation.frame[:10] == answer[answer.index(message.observation.frame) :][:10]
    assert len(message.observation.frame) == 64 * 80 * 3
    again = message.SerializeToString()
    assert len(again) == len(answer)
    assert pb.StepResetResponse.FromString(again) == message


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_384, 737_280])
def test_frames_of_any_size_survive(length: int) -> None:
    """Length prefixes are right on both sides of every boundary of the wire format."""
    frame = bytes(i % 251 for i in range(length))
    rest = pb.StepResetResponse(reward=-7).SerializeToString()
    message = pb.StepResetResponse.FromString(wire.join(memoryview(frame), b"", rest))
    assert (message.observation.frame, message.reward) == (frame, -7)


@pytest.mark.parametrize("game_id", GAMES)
def test_env_init_describes_the_game(game_id: str) -> None:
    """The answer to EnvInit carries frame, actions, characters, difficulty, reward bounds and every RAM state."""
    game = all_games()[game_id]
    answer = pb.EnvInitResponse.FromString(wire.init_response(game, (128, 96, 1)))
    assert (answer.frame_shape.h, answer.frame_shape.w, answer.frame_shape.c) == (128, 96, 1)
    actions = answer.available_actions
    assert (len(actions.moves), len(actions.attacks)) == (actions.n_moves, actions.n_attacks)
    assert len({button.key for button in actions.attacks}) == game.n_attacks
    assert actions.n_attacks_no_comb == game.n_attacks_no_comb
    assert tuple(answer.characters_info.char_list) == game.characters
    assert answer.characters_info.chars_to_select == game.chars_to_select
    bounds = answer.cumulative_reward_bounds
    assert (bounds.min, bounds.max) == cumulative_reward_bounds(game)
    for category, spaces in ((COMMON, game.common_ram), (P1, game.player_ram), (P2, game.player_ram)):
        told = answer.ram_states_categories[category].ram_states
        assert {pb.RamStates.Name(key) for key in told} == set(spaces)
        for name, space in spaces.items():
            info = told[pb.RamStates.Value(name)]
            assert (pb.SpaceTypes.Name(info.type), info.min, info.max) == (space.kind, space.low, space.high)


@pytest.mark.parametrize("game_id", GAMES)
def test_every_ram_state_has_a_source(game_id: str) -> None:
    """No game has a RAM state that the engine does not know how to fill."""
    assert ram.state_names(all_games()[game_id]) <= set(ram.READERS)


def test_the_internal_category_counts_steps() -> None:
    """A test can read how many Steps the engine has run, where no client looks."""
    session = Session(all_games()["umk3"], frame_shape=(32, 32, 1), step_ratio=6)
    session.reset(Setup(seed=1), steps=0)
    message = pb.StepResetResponse.FromString(session.step([(0, 0)], steps=12))
    internal = message.observation.ram_states_categories[pb.RamStatesCategories.Value("internal")].ram_states
    assert internal[wire.STEPS_RUN] == 12
    assert internal[wire.ROUND_FRAMES] == 6


def test_side_says_who_stands_on_the_left() -> None:
    """`side` is 0 for the left fighter and 1 for the right one, and changes when they change places."""
    match = new_match(all_games()["doapp"], Setup(seed=1))
    assert [ram.player_states(match, side)["side"] for side in (0, 1)] == [0, 1]
    one, two = match.fight.sides
    turned = advance(match, [(0, 0)])
    turned = type(match)(**{**vars(turned), "fight": match.fight._replace(one=two, two=one)})
    assert [ram.player_states(turned, side)["side"] for side in (0, 1)] == [1, 0]


def test_what_a_reset_asks_for_is_read_in_full() -> None:
    """Seed, difficulty, continues, roles and characters of a Reset all arrive; a negative seed takes the engine's own."""
    game = all_games()["tektagt"]
    player = pb.EnvSettings.EpisodeSettings.PlayerSettings
    request = pb.EnvSettings.EpisodeSettings(
        random_seed=-1,
        difficulty=6,
        continue_game=-2.0,
        player_settings=[
            player(role=P2, characters=["Jin", "Law"], super_art=3),
            player(role=P1, characters=["Nina", "Paul"], super_art=1),
        ],
    )
    setup = wire.setup_of(game, request, n_players=2, spare_seed=77)
    assert (setup.seed, setup.difficulty, setup.continues) == (77, 6, 2)
    assert setup.roles == (1, 0)
    names = [[game.characters[index] for index in team] for team in setup.teams]
    assert names == [["Jin", "Law"], ["Nina", "Paul"]]
    match = new_match(game, setup)
    assert match.teams == (setup.teams[1], setup.teams[0])


def test_frame_shape_zero_means_the_games_own() -> None:
    """Zeros keep the native size and colours; one channel greys, at either size."""
    game = all_games()["doapp"]
    assert frame_shape_for(game, (0, 0, 0)) == (480, 512, 3)
    assert frame_shape_for(game, (128, 100, 0)) == (128, 100, 3)
    assert frame_shape_for(game, (0, 0, 1)) == (480, 512, 1)
    assert frame_shape_for(game, (84, 84, 1)) == (84, 84, 1)
