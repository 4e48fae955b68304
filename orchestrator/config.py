"""The configuration: one TOML file, overridden by ``CORNERMAN_*``; read once, at the top.

Every value is checked when it is read, and what is wrong is said in one sentence with its place in the file.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from client_sdk.models import PoolName
from orchestrator.errors import ConfigError
from orchestrator.idle_settings import IdleConfig

FIRST_PORT, LAST_PORT = 32000, 32999


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DockerOptions(_Section):
    """How a Docker engine container is run. The defaults harden what the official CLI leaves open; each can be loosened."""

    container_port: int = Field(default=50051, ge=1, le=65535)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    credentials_path: Path | None = None  # a file; mounted read-only where the engine looks for it
    roms_path: Path | None = None  # a folder; mounted read-only
    user: str | None = None  # "uid" or "uid:gid"; the daemon's own by default, as the official CLI has the caller's
    network: str | None = None  # None: one bridge network of Cornerman's own, no traffic between engines
    seccomp: Literal["default", "unconfined"] = "default"
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    no_new_privileges: bool = True
    read_only: bool = False
    private_home: bool = True  # tmpfs home and /tmp: engines that share them hang each other
    tmpfs_mb: int = Field(default=256, ge=1)
    memory_mb: int | None = Field(default=2048, ge=6)
    cpus: float | None = Field(default=2.0, gt=0)
    pids: int | None = Field(default=512, ge=1)
    tty: bool = True
    init: bool = False
    log_max_mb: int = Field(default=10, ge=1)
    pull: bool = True
    random_seed: int | None = None  # None: a new one for each engine


class ProcessOptions(_Section):
    """How a practice engine is run as a child process."""

    command: tuple[str, ...] = ()  # empty: this Python's ``-m practice_engine``
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)


class PoolConfig(_Section):
    """One pool of equal engines."""

    runtime: Literal["docker", "process", "fake"] = "docker"
    image: str = "diambra/engine:latest"
    allowed_images: tuple[str, ...] = ()  # what an admin may change to over REST; ``image`` always is
    expose: Literal["local", "direct"] = "local"
    bind: str = "0.0.0.0"  # noqa: S104 - only with expose = "direct", where being reachable is what was asked for
    min_ready: int = Field(default=1, ge=0, le=1000)
    max_engines: int = Field(default=16, ge=1, le=1000)
    max_starting: int = Field(default=4, ge=1, le=64)
    start_timeout_s: float = Field(default=60.0, gt=0)
    probe_interval_s: float = Field(default=60.0, gt=0)  # of engines that are ready
    probe_timeout_s: float = Field(default=5.0, gt=0)
    probe_failures: int = Field(default=3, ge=1)
    recycle: Literal["per-lease", "reuse"] = "per-lease"
    max_uses: int = Field(default=1, ge=1)
    max_age_s: float | None = Field(default=None, gt=0)
    max_lease_s: float | None = Field(default=None, gt=0)
    idle_release_s: float = Field(default=1800.0, ge=0)  # without a call through the relay; 0: never
    docker: DockerOptions = DockerOptions()
    process: ProcessOptions = ProcessOptions()

    @model_validator(mode="after")
    def _consistent(self) -> PoolConfig:
        if self.min_ready > self.max_engines:
            raise ValueError(
                f"min_ready ({self.min_ready}) is above max_engines ({self.max_engines}): lower one or raise the other"
            )
        if self.recycle == "reuse" and self.expose == "direct":
            raise ValueError(
                'recycle = "reuse" cannot go with expose = "direct", because a stale client could step into the next '
                'tenant\'s game: use recycle = "per-lease"'
            )
        if self.recycle == "reuse" and self.max_uses < 2:
            raise ValueError('recycle = "reuse" needs max_uses of 2 or more')
        return self

    @property
    def host_address(self) -> str:
        """The address of this host on which the pool's engines listen."""
        return self.bind if self.expose == "direct" else "127.0.0.1"


class ServerConfig(_Section):
    """Where the API listens and how it proves who it is."""

    bind: str = "0.0.0.0"  # noqa: S104 - a server for other machines; TLS and tokens guard it
    port: int = Field(default=8443, ge=1, le=65535)
    public_host: str = "127.0.0.1"  # what clients reach this host by; part of connection strings and addresses
    tls: bool = True  # False only on a loopback address
    certificate: Path | None = None  # a brought certificate chain and its key; both or none
    key: Path | None = None
    threads: int = Field(default=32, ge=4, le=512)
    streams: int = Field(default=12, ge=1)  # of these threads, how many long polls and event streams may hold
    requests_per_s: float = Field(default=200.0, gt=0)  # of one token

    @model_validator(mode="after")
    def _consistent(self) -> ServerConfig:
        if (self.certificate is None) != (self.key is None):
            raise ValueError(
                "certificate and key belong together: name both, or none to use the ones made by 'cornerman init'"
            )
        if not self.tls and not _is_loopback(self.bind):
            raise ValueError(f"tls = false is allowed on a loopback address only, not on {self.bind}: set tls = true")
        if self.streams > self.threads - 2:
            raise ValueError(
                "streams must leave at least 2 of the threads to other calls: lower streams or raise threads"
            )
        return self


class RelayConfig(_Section):
    """Where the encrypted data plane listens; its certificate is the API's."""

    enabled: bool = True
    bind: str | None = None  # None: where the API listens
    port: int = Field(default=8444, ge=1, le=65535)
    threads: int = Field(default=2, ge=1, le=64)  # that compress large frames


class DockerHostConfig(_Section):
    """The Docker Engine to use."""

    url: str | None = None  # None: DOCKER_HOST, else the default socket
    timeout_s: float = Field(default=20.0, gt=0)
    connections: int = Field(default=32, ge=4)


class Config(BaseSettings):
    """The whole configuration of a daemon."""

    model_config = SettingsConfigDict(env_prefix="CORNERMAN_", env_nested_delimiter="__", extra="forbid", frozen=True)
    toml_file: ClassVar[Path | None] = None

    state_dir: Path
    first_port: int = Field(default=FIRST_PORT, ge=1024, le=65535)
    last_port: int = Field(default=LAST_PORT, ge=1024, le=65535)
    tick_s: float = Field(default=1.0, gt=0, le=60)
    observe_interval_s: float = Field(default=10.0, gt=0)  # full listing of the engine host, besides its events
    keep_events_s: float = Field(default=7 * 86400.0, gt=0)
    keep_ended_leases_s: float = Field(default=2 * 86400.0, ge=86400.0)  # idempotency keys live a day
    workers: int = Field(default=16, ge=2, le=128)  # threads that talk to the engine host
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    default_pool: PoolName | None = None  # None: the only pool
    server: ServerConfig = ServerConfig()
    relay: RelayConfig = RelayConfig()
    docker: DockerHostConfig = DockerHostConfig()
    idle: IdleConfig = IdleConfig()
    pools: dict[PoolName, PoolConfig]

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if not self.pools:
            raise ValueError("no pool is configured: add a section [pools.NAME]")
        if self.default_pool is None and len(self.pools) > 1:
            raise ValueError("there are several pools: say which one is the default with default_pool = NAME")
        if self.default_pool is not None and self.default_pool not in self.pools:
            raise ValueError(f"default_pool names {self.default_pool!r}, which is not configured")
        if not self.server.tls and not _is_loopback(self.relay_bind):
            raise ValueError(
                f"server.tls = false is allowed on loopback addresses only, and relay.bind is {self.relay_bind}: set tls = true"
            )
        if self.relay.enabled and self.relay.port == self.server.port:
            raise ValueError(f"server.port and relay.port are both {self.relay.port}: give the relay another one")
        room = self.last_port - self.first_port + 1
        need = sum(pool.max_engines for pool in self.pools.values())
        if room < need:
            raise ValueError(
                f"ports {self.first_port}-{self.last_port} are {max(room, 0)}, but the pools may hold {need} engines: "
                "widen first_port..last_port or lower max_engines"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    @property
    def pool_default(self) -> str:
        """The pool a request means that names none."""
        return self.default_pool or next(iter(self.pools))

    @property
    def relay_bind(self) -> str:
        """Where the relay listens."""
        return self.server.bind if self.relay.bind is None else self.relay.bind

    def relay_url(self, lease_id: str) -> str:
        """Where clients find the lanes of a lease."""
        host = self.server.public_host
        authority = f"[{host}]:{self.relay.port}" if ":" in host else f"{host}:{self.relay.port}"
        return f"{'wss' if self.server.tls else 'ws'}://{authority}/v1/leases/{lease_id}"

    @property
    def database(self) -> Path:
        """The database, which all processes of a daemon share; its lock lies beside it."""
        return self.state_dir / "cornerman.db"


Toml = Annotated[dict[str, Any], "what the TOML file says"]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load(path: Path) -> Config:
    """Read ``path``; ConfigError in one sentence when it is missing, unreadable or wrong."""
    if not path.is_file():
        raise ConfigError(
            f"There is no configuration at {path}: make one with 'cornerman init', or name yours with --config."
        )
    try:
        values = TomlConfigSettingsSource(Config, path).toml_data
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): run as a user who may read it.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    return build(values, where=str(path))


def build(values: Toml, *, where: str = "the configuration") -> Config:
    """Check ``values`` and make a Config of them; ConfigError names each wrong place."""
    try:
        config = Config(**values)
    except ValidationError as error:
        faults = "; ".join(_place(item["loc"]) + _text(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{where} is not usable: {faults}.") from None
    return config


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc) + ": " if loc else ""


def _text(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "there is no such setting; check its spelling"
    if item["type"] == "missing":
        return "is missing"
    return str(item["msg"]).removeprefix("Value error, ")


def check_files(config: Config) -> None:
    """Raise ConfigError when a file or folder that the configuration names is absent or of the wrong kind."""
    for name, pool in config.pools.items():
        place = f"pools.{name}.docker"
        credentials, roms = pool.docker.credentials_path, pool.docker.roms_path
        if credentials is not None and not credentials.is_file():
            what = "is a folder" if credentials.is_dir() else "does not exist"
            raise ConfigError(
                f"{place}.credentials_path {credentials} {what}: log in with 'diambra user login' as the user of that home, "
                "and name the file it writes."
            )
        if roms is not None and not roms.is_dir():
            what = "is a file" if roms.is_file() else "does not exist"
            raise ConfigError(f"{place}.roms_path {roms} {what}: name the folder that holds the ROM archives.")
    for label, file in (("server.certificate", config.server.certificate), ("server.key", config.server.key)):
        if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
            raise ConfigError(
                f"{label} {file} does not exist or cannot be read: name a readable PEM file, or leave both out."
            )
