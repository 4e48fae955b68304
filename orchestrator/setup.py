"""What ``cornerman init`` does: configuration, CA and certificate, first tokens.

The configuration is written last and never overwritten: as long as it is absent, init may be run again and goes on where it
was interrupted, with the same CA.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import pwd
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from string import Template
from typing import Literal

from client_sdk.models import Scope
from orchestrator import config as configuration
from orchestrator import tls
from orchestrator.auth import make_token
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.files import write_atomically
from orchestrator.places import ADMIN_URL_NAME, CONFIG_NAME, Places
from orchestrator.relay_token import ensure_secret
from orchestrator.store import events, meta, principals
from orchestrator.store.database import Database

SERVICE_USER = "cornerman"
PRACTICE_IMAGE = "practice"
ADMIN, HOLDER = "admin", "notebook"  # the first principals
NOTE = "made by 'cornerman init'"
ON_HOST = "(this host)"  # who did it, in the event log: no principal can have that name
LAST_PORT = 65535
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*\.?")

_POOL = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


@dataclass(frozen=True)
class Choices:
    """What whoever sets up a host may choose; everything else is in the configuration file."""

    public_host: str = "127.0.0.1"
    port: int = 8443
    relay_port: int | None = None  # None: the one after ``port``
    pool: str = "default"
    runtime: Literal["docker", "process", "fake"] = "docker"
    image: str | None = None  # None: DIAMBRA's engine, or the practice engine
    min_ready: int = 1
    max_engines: int = 16
    expose: Literal["local", "direct"] = "local"
    credentials: Path | None = None
    roms: Path | None = None
    idle_after: str | None = None  # None: an unused host goes on running


@dataclass(frozen=True)
class Made:
    """What init made; ``url`` is the connection string of lease scope, a secret."""

    config: Path
    state_dir: Path
    admin_url: Path
    url: str
    port: int
    relay_port: int


def init(places: Places, choices: Choices, *, now: datetime.datetime) -> Made:
    """Set up a host; ConfigError, with nothing half written, when it is set up already or a choice cannot be."""
    config_file = places.folder / CONFIG_NAME
    if config_file.exists():
        raise ConfigError(
            f"{config_file} is there already, and nothing was changed: start it with 'cornerman serve --config "
            f"{config_file}', make another connection string with 'cornerman token create', or name another folder with --dir."
        )
    text = render(places, choices)
    config = configuration.build(_parse(text), where="What was chosen")
    configuration.check_files(config)
    with _saying_what_to_do(places):
        _make_folders(places)
        tls.ensure(config.state_dir, public_host=choices.public_host, now=now)
        ensure_secret(config.state_dir)
        admin, lease = _first_tokens(config, now)
        admin_file = places.folder / ADMIN_URL_NAME
        write_atomically(admin_file, f"{admin}\n".encode())
        _hand_over(config.state_dir)
        try:
            write_atomically(config_file, text.encode(), mode=0o640 if _service_user() else 0o600, replace=False)
        except FileExistsError as error:
            raise ConfigError(f"{config_file} was made by somebody else just now: use that one.") from error
        if user := _service_user():
            os.chown(config_file, -1, user.pw_gid)
    return Made(config_file, config.state_dir, admin_file, lease, config.server.port, config.relay.port)


def renew_certificate(config: Config, *, now: datetime.datetime) -> datetime.datetime:
    """A new certificate of the same CA, so that every connection string stays valid; returns until when it is good."""
    if config.server.certificate is not None:
        raise ConfigError(f"The certificate {config.server.certificate} is your own: renew it where it came from.")
    where = tls.files(config.state_dir)
    if not where.ca.exists():
        raise ConfigError(f"There is no CA at {where.ca}: restore {where.ca.parent} from a backup, or set up anew.")
    tls.ensure(config.state_dir, public_host=config.server.public_host, now=now, renew=True)
    _hand_over(config.state_dir)
    return tls.valid_until(where.certificate)


def renew_admin(places: Places, config: Config, *, now: datetime.datetime) -> Path:
    """A new connection string for the administrator in the place of the one that init made; returns its file."""
    admin_file = places.folder / ADMIN_URL_NAME
    with _saying_what_to_do(places):
        database = Database.open(config.database)
        try:
            with database.write() as db:
                for token in principals.list_tokens(db):
                    if token.principal == ADMIN and token.note == NOTE:
                        principals.delete_token(db, token.id)
                        text = f"set-up on this host revoked token {token.id}"
                        events.record(db, "token.revoked", text, now=now.timestamp(), actor=ON_HOST)
                value = _issue(db, ADMIN, Scope.ADMIN, now)
                write_atomically(admin_file, f"{connection_string(config, value)}\n".encode())
        finally:
            database.close()
        _hand_over(config.state_dir)
    return admin_file


def connection_string(config: Config, token: str) -> str:
    """The string that a client needs, and that is as secret as the token in it."""
    host = config.server.public_host
    authority = f"[{host}]:{config.server.port}" if ":" in host else f"{host}:{config.server.port}"
    if not config.server.tls:
        return f"cornerman+http://{token}@{authority}"
    if config.server.certificate is not None:
        return f"cornerman://{token}@{authority}"
    return f"cornerman://{token}@{authority}?ca=sha256:{tls.fingerprint(tls.files(config.state_dir).ca)}"


def render(places: Places, choices: Choices) -> str:
    """The text of the configuration file; ConfigError when a choice cannot be."""
    if not _is_host(choices.public_host):
        raise ConfigError(
            f"{choices.public_host!r} is no name or address of a host: give --public-host the one by which notebooks reach it."
        )
    if not _POOL.fullmatch(choices.pool):
        raise ConfigError(
            f"{choices.pool!r} is no name of a pool: give --pool small letters, digits and hyphens, at most 32."
        )
    image = choices.image or (PRACTICE_IMAGE if choices.runtime == "process" else "diambra/engine:latest")
    template = Template(resources.files("orchestrator").joinpath("template.toml").read_text("utf-8"))
    return template.substitute(
        state_dir=_quoted(str(places.state_dir)),
        port=choices.port,
        relay_port=relay_port(choices),
        public_host=_quoted(choices.public_host),
        idle_after='#after = "45m"' if choices.idle_after is None else f"after = {_quoted(choices.idle_after)}",
        pool=choices.pool,
        runtime=choices.runtime,
        image=_quoted(image),
        expose=choices.expose,
        bind=_bind_line(choices),
        min_ready=choices.min_ready,
        max_engines=choices.max_engines,
        credentials_path=_path_line("credentials_path", choices.credentials, "/home/me/.diambra/credentials"),
        roms_path=_path_line("roms_path", choices.roms, "/home/me/roms"),
    )


def relay_port(choices: Choices) -> int:
    """The relay's port: the one after the API's, unless another was chosen."""
    if choices.relay_port is not None:
        return choices.relay_port
    return choices.port + 1 if choices.port < LAST_PORT else choices.port - 1


def _bind_line(choices: Choices) -> str:
    """Engines that only this machine is told of listen to this machine only."""
    if choices.expose == "direct" and is_loopback(choices.public_host):
        return f"bind = {_quoted('127.0.0.1' if choices.public_host == 'localhost' else choices.public_host)}"
    return '#bind = "0.0.0.0"'


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches itself by that name or address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _path_line(name: str, path: Path | None, example: str) -> str:
    return f'#{name} = "{example}"' if path is None else f"{name} = {_quoted(str(path.expanduser().absolute()))}"


def _quoted(text: str) -> str:
    """A TOML string; what JSON escapes, TOML escapes alike."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parse(text: str) -> dict[str, object]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    values: dict[str, object] = toml.loads(text)
    return values


def _is_host(text: str) -> bool:
    with suppress(ValueError):
        return not ipaddress.ip_address(text).is_unspecified
    return _HOST.fullmatch(text) is not None and not re.fullmatch(r"[0-9.]+", text)


def _make_folders(places: Places) -> None:
    if not places.folder.exists():
        places.folder.mkdir(parents=True)
        places.folder.chmod(0o755 if places.shared else 0o700)
    places.state_dir.mkdir(parents=True, exist_ok=True)
    places.state_dir.chmod(0o700)


def _issue(db: sqlite3.Connection, principal: str, scope: Scope, now: datetime.datetime) -> str:
    """The value of a new token, which the event log knows by its name."""
    issued = make_token(db, principal=principal, scope=scope, note=NOTE, now=now.timestamp())
    text = f"set-up on this host made token {issued.token.id} of {scope.value} scope for {principal}"
    events.record(db, "token.made", text, now=now.timestamp(), actor=ON_HOST)
    return issued.value


def _first_tokens(config: Config, now: datetime.datetime) -> tuple[str, str]:
    """The connection strings of an administrator and of a first holder of leases."""
    database = Database.open(config.database)
    try:
        with database.write() as db:
            meta.instance(db)
            tokens = [
                _issue(db, principal, scope, now) for principal, scope in ((ADMIN, Scope.ADMIN), (HOLDER, Scope.LEASE))
            ]
    finally:
        database.close()
    return connection_string(config, tokens[0]), connection_string(config, tokens[1])


def hand_over_all(config_file: Path, state_dir: Path) -> None:
    """After root put files in place: each belongs to whom init gives it, and nobody else may read it."""
    user = _service_user()
    _hand_over(state_dir)
    if config_file.exists():
        config_file.chmod(0o640 if user else 0o600)
        if user:
            os.chown(config_file, -1, user.pw_gid)


def _service_user() -> pwd.struct_passwd | None:
    """Whom the daemon runs as under systemd, when root sets it up and that user exists."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam(SERVICE_USER)
    return None


def _hand_over(state_dir: Path) -> None:
    """What root made in the state folder belongs to the user the daemon runs as."""
    user = _service_user()
    if user is None:
        return
    for path in (state_dir, *state_dir.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)  # that user could have put a link there


@contextmanager
def _saying_what_to_do(places: Places) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or places.folder} cannot be written ({error.strerror}): check owner and free space, or name "
            "another folder with --dir; then run init again."
        ) from error
