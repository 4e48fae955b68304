"""``cornerman`` on the command line: leasing from here, and on a host the commands that the daemon adds.

Those come from the entry points of the group ``cornerman.commands`` and are loaded only when they are asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from types import FrameType
from typing import Any

import click

from client_sdk import _admin_cli, _tables
from client_sdk._client import Cornerman
from client_sdk._errors import CornermanError
from client_sdk._lease import Lease
from client_sdk._running import Ended, Relay, find
from client_sdk._upgrade_cli import upgrade_image
from client_sdk._version import __version__
from client_sdk.ec2.cli import ec2
from client_sdk.models import DEFAULT_TTL_S

ENTRY_POINT_GROUP = "cornerman.commands"
HOST_COMMANDS = ("init", "serve", "relay", "doctor", "backup", "restore")
_OURS = ("client_sdk", "orchestrator", "practice_engine")
_OF_PLAYING = ("grpc", "greenlet", "gymnasium", "numpy", "tqdm")
_LABEL_FORM = "KEY=VALUE"


class Commands(click.Group):
    """Our own commands, and those that other parts of the distribution add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        with contextlib.suppress(ImportError):
            return sorted({*super().list_commands(ctx), *_added()})
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        try:
            added = _added().get(cmd_name)
        except ModuleNotFoundError as fault:
            if cmd_name not in HOST_COMMANDS:
                return None
            raise _needs_extra(cmd_name, fault) from fault
        if added is None and cmd_name in HOST_COMMANDS:
            raise _needs_extra(cmd_name, None)
        return added


def _added() -> dict[str, click.Command]:
    """The commands of other parts; a part offers one command, one group, or a list of them."""
    found: dict[str, click.Command] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        offered = entry.load()
        commands: Iterable[click.Command] = [offered] if isinstance(offered, click.Command) else offered
        found.update({command.name: command for command in commands if command.name})
    return found


def _needs_extra(command: str, fault: ModuleNotFoundError | None) -> Exception:
    if fault is not None and (fault.name or "").split(".")[0] in _OURS and fault.name != "orchestrator":
        return fault  # a fault of ours: nothing that installing would cure
    return CornermanError(
        f"`cornerman {command}` runs on a host; install it there: pip install 'cornerman[orchestrator]'."
    )


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cornerman")
def cli() -> None:
    """Lease DIAMBRA engines of the host that CORNERMAN_URL names."""


def _lease_options(command: Any) -> Any:
    for option in reversed(
        (
            click.option(
                "-n", "--envs", default=1, show_default=True, type=click.IntRange(1), help="Engines to lease."
            ),
            click.option("--pool", help="The pool to take them from; the host's default without."),
            click.option(
                "--ttl", "ttl_s", default=DEFAULT_TTL_S, show_default=True, help="Seconds a lease lives unheard."
            ),
            click.option(
                "--wait/--no-wait", default=True, show_default=True, help="Queue for them when they are taken."
            ),
            click.option("--timeout", "timeout_s", type=float, help="Leave the queue after so many seconds."),
            click.option("--label", "labels", multiple=True, metavar=_LABEL_FORM, help="A label; may be repeated."),
            click.option("--note", default="", help="A word for others who see the lease."),
            click.option(
                "--via",
                type=click.Choice(["tunnel", "direct"]),
                help="How steps travel: encrypted, or straight to the engines' ports (the default on the host itself).",
            ),
            click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
        )
    ):
        command = option(command)
    return command


def _ask(*, quiet: bool, labels: Sequence[str], **wishes: Any) -> Lease:
    pairs = dict(label.partition("=")[::2] for label in labels if "=" in label)
    if len(pairs) < len(labels):
        raise click.UsageError(f"A --label has the form {_LABEL_FORM}, each key once.")
    return Cornerman(quiet=quiet).lease(labels=pairs, **wishes)


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_lease_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(command: tuple[str, ...], **wishes: Any) -> None:
    """Run COMMAND with DIAMBRA_ENVS set, and pass its exit code on.

    \b
    cornerman run -n 4 -- python train.py
    """
    find(command[0])
    with Relay().listening() as relay:
        try:
            lease = _ask(**wishes)
            try:
                code = relay.run(command)
            finally:
                _give_back(lease)
        except Ended as end:
            code = end.exit_code
    sys.exit(code)


@cli.command("lease")
@_lease_options
@click.option("--json", "as_json", is_flag=True, help="Print the lease as one line of JSON.")
def hold(*, as_json: bool, **wishes: Any) -> None:
    """Hold a lease until Ctrl-C, and print its DIAMBRA_ENVS."""
    with _ending_by_signal():
        try:
            lease = _ask(**wishes)
        except Ended as end:
            sys.exit(end.exit_code)
        with contextlib.suppress(Ended), lease:
            click.echo(_as_json(lease) if as_json else f"export DIAMBRA_ENVS={shlex.quote(lease.diambra_envs)}")
            if not wishes["quiet"] and not as_json:
                click.echo(f"Lease {lease.id} is held until Ctrl-C.", err=True)
            while True:
                lease.check()
                threading.Event().wait(0.5)


def _as_json(lease: Lease) -> str:
    shown = lease.model.model_dump(mode="json", exclude={"relay"})
    return json.dumps({**shown, "diambra_envs": lease.diambra_envs})


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-a", "--all", "ended_too", is_flag=True, help="Ended leases too.")
def ps(*, as_json: bool, ended_too: bool) -> None:
    """Show your leases and their engines."""
    host = Cornerman()
    leases = [lease for lease in host.leases() if ended_too or lease.state.value in ("pending", "active")]
    engines = host.engines()
    if as_json:
        shown = [lease.model_dump(mode="json", exclude={"relay"}) for lease in leases]
        click.echo(json.dumps({"leases": shown, "engines": [engine.model_dump(mode="json") for engine in engines]}))
        return
    now = _tables.utc_now()
    click.echo(_tables.leases(leases, now=now) if leases else "No leases.")
    if engines:
        click.echo("\n" + _tables.engines(engines, now=now))


@cli.command()
@click.argument("lease_ids", nargs=-1, required=True, metavar="ID...")
def release(lease_ids: tuple[str, ...]) -> None:
    """Release leases by their ids."""
    host = Cornerman()
    for lease_id in lease_ids:
        host.release(lease_id)
        click.echo(f"Released {lease_id}.")


@cli.command()
@_lease_options
@click.option("--game", "game_id", default="doapp", show_default=True, help="The game to play.")
@click.option("--frame-shape", default="0x0x0", show_default=True, metavar="HxWxC", help="0x0x0: the game's own.")
@click.option("--step-ratio", default=6, show_default=True, type=click.IntRange(1, 6), help="Game frames in a step.")
@click.option(
    "--learner-ms",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="How long your learner thinks between two steps.",
)
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(0), help="How long to play.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def tune(
    *, game_id: str, frame_shape: str, step_ratio: int, learner_ms: float, seconds: float, as_json: bool, **wishes: Any
) -> None:
    """Play a little, and say what limits the speed and what to change."""
    from diambra.arena import EnvironmentSettings

    numbers = tuple(int(part) for part in frame_shape.split("x") if part.isdigit())
    if len(numbers) != 3:
        raise click.UsageError("A --frame-shape has the form HxWxC, such as 128x128x1.")
    settings = EnvironmentSettings(frame_shape=numbers, step_ratio=step_ratio)
    with _ending_by_signal():
        try:
            with _ask(**wishes) as lease:
                advice = lease.advise(game_id, settings, learner_s=learner_ms / 1e3, seconds=seconds)
        except Ended as end:
            sys.exit(end.exit_code)
    click.echo(json.dumps(advice.as_dict()) if as_json else str(advice))


for _command in (*_admin_cli.commands, upgrade_image, ec2):
    cli.add_command(_command)


def _give_back(lease: Lease) -> None:
    try:
        lease.release()
    except CornermanError as fault:
        click.echo(f"cornerman: Lease {lease.id} is not released yet; trying on in the background. {fault}", err=True)


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    def end(signum: int, frame: FrameType | None) -> None:
        raise Ended(signum)

    former = {signum: signal.signal(signum, end) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: every failure is one sentence, with exit code 1, or 2 for a wrong call."""
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="cornerman", standalone_mode=False
        )
    except click.ClickException as fault:
        fault.show()
        code = fault.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush complains
        code = 1
    except Exception as fault:
        if os.environ.get("CORNERMAN_DEBUG"):
            raise
        click.echo(f"Error: {_sentence(fault)}", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _sentence(fault: Exception) -> str:
    if any(kind.__name__ == "CornermanError" for kind in type(fault).__mro__):
        return str(fault)  # ours, or the daemon's
    if isinstance(fault, ModuleNotFoundError) and (fault.name or "").split(".")[0] not in _OURS:
        return f"This needs the module {fault.name}; install it: {_cure(fault)}."
    return f"{type(fault).__name__}: {fault} (set CORNERMAN_DEBUG=1 to see where)."


def _cure(fault: ModuleNotFoundError) -> str:
    """How what is missing gets here: what plays is one thing, a host is another."""
    name = (fault.name or "").split(".")[0]
    if name == "diambra":
        return "pip install 'cornerman[diambra]', and then pip install --no-deps diambra-arena diambra-engine"
    return f"pip install 'cornerman[{'diambra' if name in _OF_PLAYING else 'orchestrator'}]'"


if __name__ == "__main__":
    main()
