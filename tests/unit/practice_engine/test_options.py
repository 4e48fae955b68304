"""Options on the command line and in the environment."""

from pathlib import Path

import pytest

from practice_engine.games import all_games
from practice_engine.options import Options, parse


def test_the_official_arguments_are_taken() -> None:
    """What DIAMBRA's own command line passes to its engine starts this one too."""
    options = parse(["--randomSeed", "17", "--render", "--lockFps", "--sound"], {})
    assert options.random_seed == 17
    assert options.speed.frames_per_s(all_games()["umk3"]) == 60
    assert (options.host, options.port) == ("0.0.0.0", 50051)


def test_the_speed_is_the_published_one_unless_told_otherwise() -> None:
    """Without --fps each game runs at DIAMBRA's published frames/s; `unlimited` and numbers override it."""
    game = all_games()["soulclbr"]
    assert parse([], {}).speed.frames_per_s(game) == 60
    assert parse(["--fps", "unlimited"], {}).speed.frames_per_s(game) is None
    assert parse(["--fps", "12.5"], {}).speed.frames_per_s(game) == 12.5


def test_every_option_can_come_from_the_environment() -> None:
    """CORNERMAN_PRACTICE_* stands for each option, so that a container's arguments can stay the official ones."""
    environ = {
        "CORNERMAN_PRACTICE_RANDOM_SEED": "3",
        "CORNERMAN_PRACTICE_HOST": "127.0.0.1",
        "CORNERMAN_PRACTICE_PORT": "0",
        "CORNERMAN_PRACTICE_FPS": "unlimited",
        "CORNERMAN_PRACTICE_CANNED": "1",
        "CORNERMAN_PRACTICE_INIT_SECONDS": "1.5",
        "CORNERMAN_PRACTICE_RESET_SECONDS": "0.25",
        "CORNERMAN_PRACTICE_CREDENTIALS": "/c",
        "CORNERMAN_PRACTICE_REQUIRE_ROMS": "/r",
        "CORNERMAN_PRACTICE_CRASH_AFTER": "1",
        "CORNERMAN_PRACTICE_HANG_AFTER": "2",
        "CORNERMAN_PRACTICE_EAT_MEMORY_AFTER": "3",
        "CORNERMAN_PRACTICE_EXIT_ON_STDIN_EOF": "true",
        "CORNERMAN_PRACTICE_SOUND": "no",
    }
    options = parse([], environ)
    assert options == Options(
        host="127.0.0.1",
        port=0,
        random_seed=3,
        speed=options.speed,
        canned=True,
        init_seconds=1.5,
        reset_seconds=0.25,
        require_credentials=True,
        credentials=Path("/c"),
        roms=Path("/r"),
        crash_after=1,
        hang_after=2,
        eat_memory_after=3,
        exit_on_stdin_eof=True,
    )
    assert options.speed.choice == "unlimited"


def test_the_command_line_wins_over_the_environment() -> None:
    """An argument is stronger than its variable."""
    assert parse(["--port", "1234"], {"CORNERMAN_PRACTICE_PORT": "99"}).port == 1234


@pytest.mark.parametrize(
    ("arguments", "environ", "sentence"),
    [
        (["--fps", "fast"], {}, "say published, unlimited or frames per second"),
        (["--fps", "0"], {}, "say published, unlimited or frames per second"),
        (["--fps", "nan"], {}, "say published, unlimited or frames per second"),
        (["--port", "70000"], {}, "from 0 (any free one) to 65535"),
        (["--init-seconds", "-1"], {}, "give seconds, 0 or more"),
        (["--crash-after", "many"], {}, "give a whole number, 0 or more"),
        ([], {"CORNERMAN_PRACTICE_CANNED": "maybe"}, "is neither true nor false: say 1 or 0"),
        ([], {"CORNERMAN_PRACTICE_PORT": "x"}, "from 0 (any free one) to 65535"),
        (["--nonsense"], {}, "unrecognized arguments: --nonsense"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(
    arguments: list[str], environ: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option ends the engine at once with exit code 2 and says what would do."""
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environ)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
