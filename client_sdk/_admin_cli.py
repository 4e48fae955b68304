"""Commands that look after a host over its API: status, pool, token, logs, retire, events."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from client_sdk import _local, _tables, models
from client_sdk._admin_api import AdminApi
from client_sdk._api import Api
from client_sdk._errors import WrongArgument
from client_sdk._http import Session

FOLLOW_EVERY_S = 1.0


def _host_options(*, admin: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds --dir, and hands the command the session it leads to; no string is an argument, where others could read it."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--dir",
            "folder",
            type=click.Path(path_type=Path),
            help="The folder that was given to init.  [default: CORNERMAN_URL, else this machine's]",
        )
        @wraps(command)
        def run(*arguments: Any, folder: Path | None, **options: Any) -> None:
            session = Session(_local.target(folder, admin=admin))
            with contextlib.closing(session):
                command(session, *arguments, **options)

        return run

    return decorate


@click.command()
@_host_options(admin=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(session: Session, *, as_json: bool) -> None:
    """Show pools, engines and leases, and what is wrong."""
    host, pools, me = AdminApi(session).status(), AdminApi(session).pools(), Api(session)
    engines = me.engines()
    leases = [lease for lease in me.leases() if lease.state not in models.ENDED_LEASE_STATES]
    if as_json:
        shown = {
            "host": None if host is None else host.model_dump(mode="json"),
            "pools": [pool.model_dump(mode="json") for pool in pools],
            "engines": [engine.model_dump(mode="json") for engine in engines],
            "leases": [lease.model_dump(mode="json", exclude={"relay"}) for lease in leases],
        }
        click.echo(json.dumps(shown))
        return
    now = _tables.utc_now()
    click.echo(_pools(pools))
    if engines:
        click.echo("\n" + _tables.engines(engines, now=now))
    click.echo("\n" + (_tables.leases(leases, now=now) if leases else "No leases."))
    if host is not None and host.idle_stop is not None:
        click.echo("\n" + _idle(host.idle_stop, now))


@click.group()
def pool() -> None:
    """Show the pools, and change them while they run."""


@pool.command("list")
@_host_options(admin=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_pools(session: Session, *, as_json: bool) -> None:
    """Show the pools."""
    pools = AdminApi(session).pools()
    click.echo(json.dumps([found.model_dump(mode="json") for found in pools]) if as_json else _pools(pools))


@pool.command("set")
@_host_options(admin=True)
@click.argument("name")
@click.option("--min-ready", type=int, help="Engines kept ready in reserve.")
@click.option("--max-engines", type=int, help="The most engines there may be.")
@click.option("--image", help="One of the allowed images; leased engines keep theirs until they are released.")
@click.option("--pause/--resume", "paused", default=None, help="Give no engines to new leases, or give them again.")
def set_pool(session: Session, name: str, **changes: Any) -> None:
    """Change pool NAME; what is not named stays as it is."""
    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("Say what to change: --min-ready, --max-engines, --image, --pause or --resume.")
    click.echo(_pools([AdminApi(session).change_pool(name, _checked(models.PoolPatch, given))]))


@click.group()
def token() -> None:
    """Let people in, and keep them out."""


@token.command("create")
@_host_options(admin=True)
@click.argument("principal")
@click.option("--scope", type=click.Choice([scope.value for scope in models.Scope]), default="lease", show_default=True)
@click.option("--note", default="", help="What it is for.")
@click.option("--max-engines", type=int, help="The most engines that PRINCIPAL may hold.  [default: unchanged]")
@click.option("--max-pending", type=int, help="The most leases of PRINCIPAL that may wait.  [default: unchanged]")
def create_token(session: Session, principal: str, **wishes: Any) -> None:
    """Make a connection string for PRINCIPAL (a person or a program), and print it this once.

    The string alone goes to standard output.
    """
    given = {field: value for field, value in {**wishes, "principal": principal}.items() if value not in (None, "")}
    made = AdminApi(session).create_token(_checked(models.TokenRequest, given))
    click.echo(
        f"Token {made.id} of {made.principal}, scope {made.scope.value}; its connection string, shown once:", err=True
    )
    click.echo(session.target.with_token(made.token))


@token.command("list")
@_host_options(admin=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_tokens(session: Session, *, as_json: bool) -> None:
    """Show all tokens, without their values."""
    tokens = AdminApi(session).tokens()
    click.echo(json.dumps([found.model_dump(mode="json") for found in tokens]) if as_json else _tokens(tokens))


@token.command("revoke")
@_host_options(admin=True)
@click.argument("token_ids", nargs=-1, required=True, metavar="ID...")
def revoke_token(session: Session, token_ids: tuple[str, ...]) -> None:
    """End tokens; leases of their principals go on."""
    for token_id in token_ids:
        AdminApi(session).revoke_token(token_id)
        click.echo(f"Revoked {token_id}.")


@token.command("remove-principal")
@_host_options(admin=True)
@click.argument("principal")
def remove_principal(session: Session, principal: str) -> None:
    """Remove PRINCIPAL with all its tokens, and end all its leases."""
    AdminApi(session).remove_principal(principal)
    click.echo(f"Removed {principal}.")


@click.command()
@_host_options(admin=False)
@click.argument("engine_id", metavar="ENGINE")
@click.option("--tail", type=click.IntRange(1), default=200, show_default=True, help="How many lines from the end.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
def logs(session: Session, engine_id: str, *, tail: int, follow: bool) -> None:
    """Show the log of ENGINE."""
    api, seen = AdminApi(session), list[str]()
    for _ in _again() if follow else [None]:
        lines = api.logs(engine_id, tail)
        for line in _new_lines(seen, lines):
            click.echo(_printable(line))
        seen = lines


@click.command()
@_host_options(admin=True)
@click.argument("engine_ids", nargs=-1, required=True, metavar="ENGINE...")
@click.option("--now", "at_once", is_flag=True, help="Replace a leased engine at once instead of after its lease.")
def retire(session: Session, engine_ids: tuple[str, ...], *, at_once: bool) -> None:
    """Let engines go, and fresh ones take their places."""
    for engine_id in engine_ids:
        AdminApi(session).retire(engine_id, at_once=at_once)
        click.echo(f"{engine_id} goes{'' if at_once else ', with its lease if it has one'}.")


@click.command()
@_host_options(admin=True)
@click.option("--after", type=click.IntRange(min=0), default=0, help="Begin after the event of that number.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
def events(session: Session, *, after: int, follow: bool, as_json: bool) -> None:
    """Show what happened."""
    api = AdminApi(session)
    for _ in _again() if follow else [None]:
        while (page := api.events(after)).events:
            for event in page.events:
                click.echo(event.model_dump_json() if as_json else _event(event))
            after = page.next


def _again() -> Iterator[None]:
    while True:
        yield
        time.sleep(FOLLOW_EVERY_S)


def _new_lines(seen: Sequence[str], lines: Sequence[str]) -> Sequence[str]:
    """What of ``lines`` comes after ``seen``: both are the end of one log, at different times."""
    for overlap in range(min(len(seen), len(lines)), 0, -1):
        if list(seen[-overlap:]) == list(lines[:overlap]):
            return lines[overlap:]
    return lines


def _checked(kind: type[Any], fields: dict[str, object]) -> Any:
    try:
        return kind.model_validate(fields)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WrongArgument(f"{place} cannot be {first['input']!r}: {first['msg']}.") from None


def _pools(pools: Sequence[models.Pool]) -> str:
    """One line for each pool, and one for what is wrong with it."""
    lines = [
        _tables.table(
            ["POOL", "STATE", "READY", "LEASED", "STARTING", "WANTED", "MIN READY", "MAX", "QUEUE", "IMAGE"],
            [
                [
                    found.name,
                    "paused" if found.paused else "degraded" if found.degraded else "ok",
                    *(str(found.counts.get(state, 0)) for state in _SHOWN),
                    str(found.wanted),
                    str(found.min_ready),
                    str(found.max_engines),
                    str(found.pending_leases),
                    found.image,
                ]
                for found in pools
            ],
        )
    ]
    lines += [f"{found.name}: {_printable(found.fault)}" for found in pools if found.fault]
    return "\n".join(lines)


_SHOWN = (models.EngineState.READY, models.EngineState.LEASED, models.EngineState.STARTING)


def _idle(stop: models.IdleStop, now: datetime) -> str:
    left = max(0, round((stop.stops_at - now).total_seconds() / 60))
    return f"Unused since {stop.since:%H:%M} UTC: this host stops in {left} min, unless somebody leases before."


def _tokens(tokens: Sequence[models.Token]) -> str:
    return _tables.table(
        ["TOKEN", "PRINCIPAL", "SCOPE", "MADE", "LAST USED", "NOTE"],
        [
            [
                found.id,
                found.principal,
                found.scope.value,
                f"{found.created_at:%Y-%m-%d}",
                f"{found.last_used_at:%Y-%m-%d %H:%M}" if found.last_used_at else "never",
                found.note,
            ]
            for found in tokens
        ],
    )


def _event(event: models.Event) -> str:
    return f"{event.at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}  {event.kind:<24}  {_printable(event.text)}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() or character == "\t" else " " for character in text)


commands: list[click.Command] = [status, pool, token, logs, retire, events]
