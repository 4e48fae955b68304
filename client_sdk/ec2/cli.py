"""``cornerman ec2``: a host on EC2 in one command; boto3 (the extra ``ec2``) is loaded when one of them runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import requests

from client_sdk._errors import CornermanError
from client_sdk._progress import Progress
from client_sdk.ec2 import choices
from client_sdk.ec2.connecting import connect as connect_to
from client_sdk.ec2.connecting import existing
from client_sdk.ec2.faults import CloudFault, plainly
from client_sdk.ec2.source import checked
from client_sdk.ec2.stack import WELL, Stack

OWN_ADDRESS = "https://checkip.amazonaws.com"
LEASE_WITHIN_S = 900.0
LARGEST_CREDENTIALS = 4096  # a standard parameter's most
_NAME = r"[A-Za-z][A-Za-z0-9-]{0,62}"


def _stack(*, name: str, region: str | None, profile: str | None, quiet: bool) -> Stack:
    try:
        import boto3
    except ModuleNotFoundError as fault:
        raise CornermanError("`cornerman ec2` needs boto3; install it: pip install 'cornerman[ec2]'.") from fault
    with plainly():
        session = boto3.Session(region_name=region, profile_name=profile)
    return Stack(session, name, progress=Progress(quiet=quiet))


def _with_stack(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say which host is meant, and hands the command its stack."""

    @click.option("--name", default="cornerman", show_default=True, callback=_named, help="Name of the host's stack.")
    @click.option("--region", help="AWS region.  [default: that of your AWS configuration]")
    @click.option("--profile", help="Profile of your AWS configuration.")
    @click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
    @wraps(command)
    def run(*, name: str, region: str | None, profile: str | None, quiet: bool, **options: Any) -> None:
        stack = _stack(name=name, region=region, profile=profile, quiet=quiet)
        stack.check_login()
        command(stack, **options)

    return run


def _named(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    import re

    if not re.fullmatch(_NAME, value):
        raise click.BadParameter("letters, digits and hyphens, the first a letter.")
    return value


_waiting = click.option(
    "--timeout",
    "lease_within_s",
    type=click.FloatRange(min=0),
    default=LEASE_WITHIN_S,
    show_default=True,
    help="Seconds to wait until the host can lease; 0: not at all.",
)


@click.group()
def ec2() -> None:
    """Have a host on EC2: one command, two open ports, and it stops when nobody uses it."""


@ec2.command()
@_with_stack
@click.option("--allow-from", help="Addresses that may reach the host, e.g. 203.0.113.0/24.  [default: yours of now]")
@click.option("--source", help="Where the instance gets Cornerman from.  [default: where this one came from]")
@click.option("--type", "InstanceType", default="c6i.xlarge", show_default=True, help="Instance type.")
@click.option("--spot", "Spot", is_flag=True, help="A persistent spot instance: cheaper, and AWS may stop it.")
@click.option(
    "--volume", "VolumeGiB", type=click.IntRange(12, 1024), default=30, show_default=True, help="GiB of disk."
)
@click.option(
    "--fixed-address", "FixedAddress", is_flag=True, help="Keep the address through stops (costs when stopped)."
)
@click.option("--idle-after", "IdleAfter", default="45m", show_default=True, help="Stop when unused for so long.")
@click.option(
    "--min-ready", "MinReady", type=click.IntRange(min=0), default=2, show_default=True, help="Engines in reserve."
)
@click.option(
    "--max-engines", "MaxEngines", type=click.IntRange(min=1), default=4, show_default=True, help="The most engines."
)
@click.option("--image", "EngineImage", help="Image of the engines.  [default: diambra/engine:latest]")
@click.option("--roms", "RomsUri", help="s3://BUCKET/FOLDER of your ROM archives.")
@click.option("--credentials", type=click.Path(path_type=Path), help="File that 'diambra user login' wrote.")
@click.option(
    "--image-id", "ImageId", help="Path in Parameter Store of the machine image's id.  [default: Ubuntu 24.04]"
)
@click.option("--root-device", "RootDevice", help="That image's name for its first volume.  [default: /dev/sda1]")
@click.option("--vpc", "VpcId", help="Network.  [default: the region's own]")
@click.option("--subnet", "SubnetId", help="Subnet in that network.")
@click.option("--key-name", "KeyName", help="Key pair for SSH, with --ssh-from.")
@click.option("--ssh-from", "SshCidr", help="Addresses that may use SSH.  [default: nobody]")
@_waiting
def up(
    stack: Stack,
    *,
    allow_from: str | None,
    source: str | None,
    credentials: Path | None,
    lease_within_s: float,
    **chosen: Any,
) -> None:
    """Make a host, or turn it on, and print its connection string when it can lease.

    The string alone goes to standard output. When the host cannot be made, nothing is left that costs money.
    """
    state = stack.state()
    if state is not None and state not in WELL:
        if state.endswith("_IN_PROGRESS"):
            raise CloudFault(
                f"The host {stack.name} is being made or removed just now ({state}): wait, then try again."
            )
        stack.progress.tell(f"Removing what a failure left of {stack.name} ({state}).")
        stack.delete()
        state = None
    if state is None:
        secret = None if credentials is None else _read_credentials(credentials)
        parameters = {
            **choices.parameters(chosen),
            "Source": checked(source),
            "WithCredentials": "no" if secret is None else "yes",
            "AllowedCidr": choices.addresses(allow_from, "--allow-from") if allow_from else _own_address(),
        }
        stack.progress.tell(f"Making the host {stack.name} in {stack.region}, for {parameters['AllowedCidr']}.")
        stack.create(parameters, credentials=secret)
    else:
        stack.progress.tell(f"The host {stack.name} is there already; it is left as it is, and turned on.")
    try:
        url = connect_to(stack, lease_within_s=lease_within_s)
    except CloudFault as fault:
        raise CloudFault(
            f"{fault} The host is there and is kept, so that you can look at it; `cornerman ec2 down` removes it."
        ) from fault
    click.echo(url)


@ec2.command()
@_with_stack
@_waiting
def connect(stack: Stack, *, lease_within_s: float) -> None:
    """Turn the host on if it has stopped, and print its connection string when it can lease.

    \b
    export CORNERMAN_URL="$(cornerman ec2 connect)"
    """
    click.echo(connect_to(stack, lease_within_s=lease_within_s))


@ec2.command()
@_with_stack
@click.argument("ranges", nargs=-1)
def allow(stack: Stack, *, ranges: tuple[str, ...]) -> None:
    """Let RANGES of addresses reach the host, and no others; by default your address of now, where that has changed."""
    existing(stack)
    wanted = [choices.addresses(one, "RANGES") for one in ranges] or [_own_address()]
    if not stack.machines.allow(wanted):
        raise CloudFault(f"The security group of {stack.name} is not found: change it in the AWS console.")
    click.echo(f"Ports 8443 and 8444 of {stack.name} are open to {', '.join(wanted)}.")


@ec2.command()
@_with_stack
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(stack: Stack, *, as_json: bool) -> None:
    """Show how the host stands, and what costs money."""
    view = existing(stack)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(view)))
        return
    click.echo(f"{view.name} in {stack.region}: {view.state}")
    click.echo(f"machine    {view.instance or 'none'} {view.type}{', spot' if view.spot else ''}: {view.power}")
    click.echo(f"address    {view.address or 'none while it is off'}{' (fixed)' if view.fixed_address else ''}")
    click.echo(f"open to    {view.allowed}, ports 8443 and 8444")
    costs = ["the disk"] if view.power not in ("none", "terminated") else []
    costs += ["the machine"] if view.power in ("pending", "running") else []
    costs += ["the address"] if view.fixed_address or view.power in ("pending", "running") else []
    click.echo(f"costs now  {', '.join(costs) or 'nothing'}")


@ec2.command()
@_with_stack
@click.option("--yes", is_flag=True, help="Do not ask.")
def down(stack: Stack, *, yes: bool) -> None:
    """Remove the host and everything that was made for it, with its disk."""
    if not yes:
        click.confirm(
            f"Remove the host {stack.name} in {stack.region} with its disk, ROMs and logs on it?", abort=True, err=True
        )
    there = stack.state() is not None
    stack.delete()
    click.echo(
        f"{stack.name} is removed."
        if there
        else f"There is no host {stack.name} in {stack.region}; nothing is left of one."
    )


def _read_credentials(path: Path) -> str:
    try:
        text = path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise CloudFault(
            f"{path} cannot be read as DIAMBRA's credentials: name the file that 'diambra user login' wrote."
        ) from fault
    if not text.strip() or len(text.encode()) > LARGEST_CREDENTIALS:
        raise CloudFault(
            f"{path} is empty or too large to be DIAMBRA's credentials: name the file that 'diambra user login' wrote."
        )
    return text


def _own_address() -> str:
    """This machine's address as AWS sees it, as a range of one."""
    try:
        answer = requests.get(OWN_ADDRESS, timeout=10)
        answer.raise_for_status()
        return choices.addresses(answer.text, "The answer")  # of a café's log-in page it would be its text
    except (requests.RequestException, CloudFault) as fault:
        raise CloudFault(
            "Your own address cannot be found out: name the addresses to let in with --allow-from."
        ) from fault
