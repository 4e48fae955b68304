"""What the practice engine can be told, on its command line or by CORNERMAN_PRACTICE_* variables."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from practice_engine.games import Game

PREFIX = "CORNERMAN_PRACTICE_"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


@dataclass(frozen=True)
class Speed:
    """How fast games run: "published", "unlimited" or frames/s."""

    choice: str

    def frames_per_s(self, game: Game) -> float | None:
        """Frames/s for a game; None means as fast as possible."""
        if self.choice == "published":
            return game.published_fps
        return None if self.choice == "unlimited" else float(self.choice)


@dataclass(frozen=True)
class Options:
    """The engine's settings."""

    host: str = "0.0.0.0"  # noqa: S104 - inside a container; the process runtime passes 127.0.0.1
    port: int = 50051
    random_seed: int = 0
    speed: Speed = Speed("published")
    canned: bool = False
    init_seconds: float = 0.0
    reset_seconds: float = 0.0
    require_credentials: bool = False
    credentials: Path = Path("/tmp/.diambra/credentials")  # noqa: S108 - where DIAMBRA's engine has it
    roms: Path | None = None
    crash_after: int | None = None
    hang_after: int | None = None
    eat_memory_after: int | None = None
    exit_on_stdin_eof: bool = False


def _speed(text: str) -> Speed:
    if text not in ("published", "unlimited"):
        try:
            valid = float(text) > 0
        except ValueError:
            valid = False
        if not valid:
            raise argparse.ArgumentTypeError(f"{text!r} is no speed: say published, unlimited or frames per second")
    return Speed(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, 0 or more")
    return value


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps: give a whole number, 0 or more")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 (any free one) to 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line; every default is None, so that the environment can fill in what was not said."""
    p = argparse.ArgumentParser(
        prog="practice_engine",
        description="A ROM-free engine that speaks DIAMBRA's EnvServer protocol.",
        epilog=f"Each option can also be given as {PREFIX}<NAME>, for example {PREFIX}FPS=unlimited; "
        "the command line wins.",
    )
    official = p.add_argument_group("as the official command line passes them")
    official.add_argument("--randomSeed", dest="random_seed", type=int, metavar="N", help="seed for seedless resets")
    official.add_argument("--render", action="store_true", help="accepted and ignored: there is no window")
    official.add_argument("--lockFps", action="store_true", help="60 frames per second, as the arcade machine")
    official.add_argument("--sound", action="store_true", help="accepted and ignored: there is no sound")
    p.add_argument("--host", help="address to listen on (default: 0.0.0.0)")
    p.add_argument("--port", type=_port, help="port to listen on (default: 50051; 0 takes a free one)")
    p.add_argument("--fps", dest="speed", type=_speed, metavar="published|unlimited|N", help="frames per second")
    p.add_argument("--canned", action="store_const", const=True, help="play pre-rendered frames, for benchmarks")
    p.add_argument("--init-seconds", type=_seconds, metavar="S", help="time that EnvInit takes")
    p.add_argument("--reset-seconds", type=_seconds, metavar="S", help="time that Reset takes")
    p.add_argument("--require-credentials", action="store_const", const=True, help="insist on a credentials file")
    p.add_argument("--credentials", type=Path, metavar="PATH", help="that file (implies --require-credentials)")
    p.add_argument("--require-roms", dest="roms", type=Path, metavar="DIR", help="EnvInit needs <game>.zip in here")
    p.add_argument("--crash-after", type=_count, metavar="N", help="die in the Step after the first N")
    p.add_argument("--hang-after", type=_count, metavar="N", help="never answer the Step after the first N")
    p.add_argument("--eat-memory-after", type=_count, metavar="N", help="swallow 32 MiB in each Step after the first N")
    p.add_argument("--exit-on-stdin-eof", action="store_const", const=True, help="end when standard input closes")
    return p


def _from_environment(p: argparse.ArgumentParser, environ: Mapping[str, str]) -> list[str]:
    """The arguments that CORNERMAN_PRACTICE_* variables stand for."""
    arguments: list[str] = []
    for action in p._actions:
        option = next((text for text in action.option_strings if text.startswith("--")), None)
        if option is None or option == "--help":
            continue
        name = "RANDOM_SEED" if option == "--randomSeed" else option[2:].replace("-", "_").upper()
        value = environ.get(PREFIX + name)
        if value is None:
            continue
        if action.nargs != 0:
            arguments += [f"{option}={value}"]
        elif value.lower() in _TRUE:
            arguments += [option]
        elif value.lower() not in _FALSE:
            p.error(f"{PREFIX}{name}={value!r} is neither true nor false: say 1 or 0")
    return arguments


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Options from command line and environment, the command line winning; exits with a sentence on nonsense."""
    p = parser()
    given = vars(p.parse_args([*_from_environment(p, environ), *arguments]))
    lock_fps = given.pop("lockFps")
    del given["render"], given["sound"]
    if lock_fps and given["speed"] is None:
        given["speed"] = Speed("60")
    if given["credentials"] is not None:
        given["require_credentials"] = True
    return Options(**{name: value for name, value in given.items() if value is not None})
