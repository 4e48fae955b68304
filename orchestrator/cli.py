"""The commands of a host: ``cornerman init``, ``serve``, ``relay`` and ``doctor``. What they need is loaded when they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--dir", "folder", type=_FOLDER, help="Put everything below this folder instead of the usual places.")
@click.option(
    "--public-host", default="127.0.0.1", show_default=True, help="Name or address that notebooks reach this host by."
)
@click.option("--port", type=click.IntRange(1, 65535), default=8443, show_default=True, help="Port of the API.")
@click.option("--relay-port", type=click.IntRange(1, 65535), help="Port of the relay.  [default: the API's plus 1]")
@click.option(
    "--runtime", type=click.Choice(["docker", "process"]), default="docker", show_default=True, help="How engines run."
)
@click.option("--image", help="Image of the engines.  [default: diambra/engine:latest]")
@click.option("--pool", default="default", show_default=True, help="Name of the pool.")
@click.option(
    "--min-ready", type=click.IntRange(min=0), default=1, show_default=True, help="Engines kept ready in reserve."
)
@click.option(
    "--max-engines",
    "--envs",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="The most engines there may be.",
)
@click.option(
    "--expose",
    type=click.Choice(["local", "direct"]),
    default="local",
    show_default=True,
    help="Engines listen on this host only, or directly to clients, without encryption.",
)
@click.option("--credentials", type=_FILE, help="File that 'diambra user login' wrote.")
@click.option("--roms", type=_FILE, help="Folder of the ROM archives.")
@click.option(
    "--idle-after", help="Stop this machine when nobody has leased for so long, for example 45m.  [default: never]"
)
@click.option("--renew-certificate", is_flag=True, help="Only make a new certificate; connection strings stay valid.")
@click.option(
    "--renew-admin", is_flag=True, help="Only make a new administrator's connection string; the old one ends."
)
def init(folder: Path | None, renew_certificate: bool, renew_admin: bool, **chosen: Any) -> None:
    """Set up this host, and print the connection string for a notebook.

    The string alone goes to standard output: export CORNERMAN_URL="$(cornerman init)"
    """
    import datetime
    import os

    from orchestrator import config, setup
    from orchestrator.errors import CornermanError
    from orchestrator.places import CONFIG_NAME, places

    os.umask(0o077)  # what is made here is for its owner, unless said otherwise
    now = datetime.datetime.now(datetime.timezone.utc)
    where = places(folder)
    try:
        if renew_certificate:
            until = setup.renew_certificate(config.load(where.folder / CONFIG_NAME), now=now)
            click.echo(f"The new certificate is good until {until:%Y-%m-%d}: restart the daemon to use it.", err=True)
        if renew_admin:
            admin_file = setup.renew_admin(where, config.load(where.folder / CONFIG_NAME), now=now)
            click.echo(f"The administrator's new connection string: {admin_file} (a secret).", err=True)
        if renew_certificate or renew_admin:
            return
        made = setup.init(where, setup.Choices(**chosen), now=now)
    except CornermanError as error:
        raise click.ClickException(str(error)) from error
    serve_command = "cornerman serve" if folder is None else f"cornerman serve --config {made.config}"
    click.echo(
        f"Configuration: {made.config}\n"
        f"State: {made.state_dir}\n"
        f"The administrator's connection string: {made.admin_url} (a secret)\n"
        f"Start the daemon with: {serve_command}\n"
        + (
            _LOCAL_ONLY
            if setup.is_loopback(chosen["public_host"])
            else f"Notebooks must reach ports {made.port} (API) and {made.relay_port} (relay) of this host.\n"
        )
        + (_OPEN if chosen["expose"] == "direct" and not setup.is_loopback(chosen["public_host"]) else "")
        + "A notebook's connection string, as secret as a password:",
        err=True,
    )
    click.echo(made.url)


_LOCAL_ONLY = "Only this machine itself can use it: with --public-host others can.\n"
_OPEN = (
    "Engines will be open to whoever reaches this host, without encryption or password: let only your notebooks through "
    "its firewall.\n"
)


def _where(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --config and --dir, and hands the command the configuration file they lead to."""

    @click.option(
        "--config",
        "config_file",
        type=_FILE,
        envvar="CORNERMAN_CONFIG",
        help="The configuration file.  [default: init's]",
    )
    @click.option("--dir", "folder", type=_FOLDER, help="The folder given to init, instead of --config.")
    @wraps(command)
    def run(*, config_file: Path | None, folder: Path | None, **options: Any) -> None:
        from orchestrator.places import CONFIG_NAME, default_config

        if folder is not None:
            config_file = folder / CONFIG_NAME
        command((config_file or default_config()).absolute(), **options)

    return run


@click.command()
@_where
@click.option("--no-relay", is_flag=True, help="Leave the relay to a service of its own ('cornerman relay').")
def serve(config_file: Path, *, no_relay: bool) -> None:
    """Run the daemon until Ctrl-C or SIGTERM; games in Docker go on without it.

    Exit codes: 0 stopped, 69 port taken, 70 fault of the daemon, 74 state folder unusable, 75 a daemon runs already,
    78 configuration wrong.
    """
    import threading

    from orchestrator.daemon import serve as run

    code = run(config_file, relay=not no_relay)
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        os._exit(code)  # a thread still waits for an engine host that does not answer; everything is settled
    sys.exit(code)


@click.command()
@_where
def relay(config_file: Path) -> None:
    """Run the relay as a service of its own, beside 'cornerman serve --no-relay'.

    It ends by Ctrl-C or SIGTERM, after the calls in flight. Exit codes: 0 stopped, 69 port taken, 70 fault of the relay,
    74 state folder unusable, 78 configuration wrong.
    """
    from orchestrator.relay.process import serve as run

    sys.exit(run(config_file))


@click.command()
@_where
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(config_file: Path, *, as_json: bool) -> None:
    """Look for what is wrong with this host, and say what cures it; nothing is changed.

    Exit codes: 0 all is well, 1 with warnings, 2 with a fault.
    """
    from orchestrator.doctor import findings
    from orchestrator.doctor.examine import examine

    found = examine(config_file)
    click.echo(findings.as_json(found) if as_json else findings.as_text(found))
    sys.exit(findings.exit_code(found))


@click.command()
@_where
@click.argument("target", metavar="FILE", type=_FILE)
def backup(config_file: Path, *, target: Path) -> None:
    """Write the whole state of this host to FILE, while the daemon runs or not.

    Keys, certificates, tokens, configuration: whoever has the file has the host, so keep it as a secret.
    """
    import datetime

    from orchestrator import config
    from orchestrator.backup import back_up
    from orchestrator.errors import CornermanError

    try:
        kept = back_up(config.load(config_file), config_file, target, now=datetime.datetime.now(datetime.timezone.utc))
    except CornermanError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{target}: Cornerman {kept.version}, schema {kept.schema}. It is a secret.")


@click.command()
@click.option("--dir", "folder", type=_FOLDER, help="The folder given to init, instead of the usual places.")
@click.option("--replace", is_flag=True, help="Put a state that is there aside.")
@click.argument("source", metavar="FILE", type=_FILE)
def restore(folder: Path | None, replace: bool, source: Path) -> None:
    """Put the state that 'cornerman backup' wrote to FILE in place; daemon and relay must be stopped.

    Connection strings are valid again, and leases that were live then have a whole TTL to come back. A configuration that is
    there stays as it is.
    """
    import datetime

    from orchestrator import config, setup
    from orchestrator.backup import restore as run
    from orchestrator.errors import CornermanError
    from orchestrator.places import CONFIG_NAME, places

    os.umask(0o077)
    where, now = places(folder), datetime.datetime.now(datetime.timezone.utc)
    config_file = where.folder / CONFIG_NAME
    try:
        state_dir = config.load(config_file).state_dir if config_file.exists() else where.state_dir
        kept, aside = run(source, config_file, state_dir, replace=replace, now=now)
        setup.hand_over_all(config_file, state_dir)
    except CornermanError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Restored the state of {kept.made_at} (Cornerman {kept.version}, schema {kept.schema}) to {state_dir}.")
    if aside is not None:
        click.echo(f"What was there is in {aside}.")


commands: list[click.Command] = [init, serve, relay, doctor, backup, restore]
