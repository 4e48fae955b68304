"""The daemon: the one place that builds and wires everything.

This process runs the pool; API and relay are child processes (the relay may be a service of its own instead). They meet
only in the store, so none can take the others along.
"""

from __future__ import annotations

import datetime
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from client_sdk._version import __version__
from orchestrator import certificate_note, logs, tls
from orchestrator import config as configuration
from orchestrator.children import Child, Listens, PortTaken, claim
from orchestrator.config import Config
from orchestrator.errors import ConfigError, CornermanError, Unavailable
from orchestrator.exits import Exit as Exit
from orchestrator.idle_watch import IdleWatch
from orchestrator.interfaces import Probe, Runtime
from orchestrator.leasing import Leasing
from orchestrator.lock import AlreadyRunning, owning
from orchestrator.notify import Notifier
from orchestrator.policies import policies
from orchestrator.pool import PoolService
from orchestrator.probes import GrpcProbe
from orchestrator.relay_token import ensure_secret
from orchestrator.status_line import status_line
from orchestrator.store import meta
from orchestrator.store.database import Database
from orchestrator.wakeups import Wakeups

log = structlog.get_logger(__name__)

STARTING_S, STEADY_S = 0.1, 5.0
CERTIFICATE_EVERY_S = 86400.0
POOL_STOP_S = 10.0
CHILD_TRIES = 3
RELAY_STOP_S = 13.0  # it lets the calls in flight come to their end first
ANSWER_AT_START_S = 2.0


class StateFault(CornermanError):
    """The state folder cannot be used."""


class Broken(CornermanError):
    """The daemon cannot go on."""


_EXITS: dict[type[CornermanError], Exit] = {
    ConfigError: Exit.CONFIG,
    PortTaken: Exit.PORT_TAKEN,
    AlreadyRunning: Exit.ALREADY_RUNNING,
    StateFault: Exit.STATE,
    Unavailable: Exit.STATE,
}


def serve(config_file: Path, *, relay: bool = True) -> Exit:
    """Run the daemon until a signal ends it; what keeps it from running is logged in one sentence and decides the exit code.

    Without ``relay`` that is left to a service of its own.
    """
    logs.configure()
    wakeups, notifier = Wakeups(), Notifier()
    wakeups.catch_signals()
    try:
        config = _configuration(config_file)
        logs.configure(config.log_level)
        Daemon(config_file, config, wakeups=wakeups, notifier=notifier, relay=relay).run()
    except CornermanError as error:
        log.error(str(error))
        notifier.status(str(error))
        return next((code for kind, code in _EXITS.items() if isinstance(error, kind)), Exit.FAULT)
    except Exception:  # the edge of the daemon
        log.exception("the daemon ended by a fault of its own")
        return Exit.FAULT
    return Exit.STOPPED


def _configuration(config_file: Path) -> Config:
    try:
        config = configuration.load(config_file)
        configuration.check_files(config)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or config_file} cannot be looked at ({error.strerror}): let the user that runs this read it."
        ) from error
    return config


def _open(config: Config) -> Database:
    try:
        return Database.open(config.database)
    except ConfigError as error:  # its file, not the configuration: another try may succeed
        raise StateFault(str(error)) from error


def build_runtimes(config: Config, instance: str) -> dict[str, Runtime]:
    """The engine hosts that the configured pools need; a library is loaded only with the host that needs it."""
    makers = {"docker": _docker, "process": _process, "fake": _fake}
    needed = sorted({pool.runtime for pool in config.pools.values()})
    return {name: makers[name](config, instance) for name in needed}


def _docker(config: Config, instance: str) -> Runtime:
    from orchestrator.runtimes.docker import DockerRuntime

    return DockerRuntime(config.docker, instance)


def _process(config: Config, instance: str) -> Runtime:
    from orchestrator.runtimes.process import ProcessRuntime

    homes = config.state_dir / "engines"
    shutil.rmtree(homes, ignore_errors=True)  # left by a life that was killed; its engines ended with it
    homes.mkdir(mode=0o700, exist_ok=True)
    return ProcessRuntime(instance, homes)


def _fake(_config: Config, instance: str) -> Runtime:
    from orchestrator.runtimes.fake import FakeRuntime

    return FakeRuntime(instance)


def _probe(runtimes: Mapping[str, Runtime]) -> Probe:
    """Simulated engines listen on no socket: where a configuration has nothing else, they answer for themselves."""
    fake = runtimes.get("fake")
    return fake.probe if fake is not None and len(runtimes) == 1 else GrpcProbe()  # type: ignore[attr-defined]


class Daemon:
    """One life of the daemon, from taking the lock to letting go of it."""

    def __init__(
        self, config_file: Path, config: Config, *, wakeups: Wakeups, notifier: Notifier, relay: bool = True
    ) -> None:
        self._config_file, self._config = config_file, config
        self._with_relay = relay and config.relay.enabled
        self._wakeups, self._notifier = wakeups, notifier
        self._stop_pool = threading.Event()
        self._pool_fault: BaseException | None = None
        self._first_tick = threading.Event()
        self._checked_at = time.monotonic()

    def run(self) -> None:
        """Start everything, look after it until a signal comes, end it; raises what keeps it from running."""
        config = self._config
        with ExitStack() as undo:
            undo.callback(self._notifier.stopping)
            try:
                undo.enter_context(owning(config.database))
                database = _open(config)
                undo.callback(database.close)
                self._ensure_certificate()
                certificate_note.note(database, config)
                ensure_secret(config.state_dir)
            except OSError as error:
                raise StateFault(
                    f"The state folder {config.state_dir} cannot be used ({error.strerror}): check its owner and free space."
                ) from error
            children = self._children()
            for _, place in children:
                claim(place)
            idle = IdleWatch(database, config.idle)
            idle.begin()
            pool = self._build_pool(database)
            self._start_pool(pool, undo)
            for child, _ in children:
                undo.callback(child.close)
            self._bring_up([child for child, _ in children])
            self._look_after([child for child, _ in children], database, idle)
            log.info("stopping")

    # ------------------------------------------------------------ building

    def _ensure_certificate(self) -> bool:
        """Keep the certificate of our own CA good; True when a new one was made."""
        server = self._config.server
        self._checked_at = time.monotonic()
        if not server.tls or server.certificate is not None:
            return False
        now = datetime.datetime.now(datetime.timezone.utc)
        made = tls.ensure(self._config.state_dir, public_host=server.public_host, now=now)
        if made:
            until = tls.valid_until(tls.files(self._config.state_dir).certificate)
            log.info("made a new certificate of the same CA", valid_until=until.isoformat())
        return made

    def _children(self) -> list[tuple[Child, Listens]]:
        """API and relay, in the order of their start; they end the other way round, the relay first."""
        config, wake, options = self._config, self._wakeups.wake, ("--config", str(self._config_file))
        place = Listens("server", config.server.bind, config.server.port, config.server.tls)
        api = (sys.executable, "-m", "orchestrator.api.server", *options)
        found = [(Child("API", api, place, wake=wake), place)]
        if self._with_relay:
            place = Listens("relay", config.relay_bind, config.relay.port, config.server.tls)
            relay = (sys.executable, "-m", "orchestrator.relay", *options, "--child")
            found.append((Child("relay", relay, place, wake=wake, stop_s=RELAY_STOP_S), place))
        return found

    def _build_pool(self, database: Database) -> PoolService:
        with database.write() as db:
            instance = meta.instance(db)
        runtimes = build_runtimes(self._config, instance)
        by_pool = policies(self._config)
        return PoolService(
            database=database,
            config=self._config,
            policies=by_pool,
            runtimes=runtimes,
            probe=_probe(runtimes),
            leasing=Leasing(database, by_pool, time.time),
            instance=instance,
        )

    def _start_pool(self, pool: PoolService, undo: ExitStack) -> None:
        thread = threading.Thread(target=self._run_pool, args=(pool,), name="pool", daemon=True)

        def end() -> None:
            self._stop_pool.set()
            thread.join(POOL_STOP_S)
            pool.close()

        undo.callback(end)
        thread.start()

    def _run_pool(self, pool: PoolService) -> None:
        try:
            pool.prepare()
            pool.run(self._stop_pool, self._beat)
        except CornermanError as error:  # one sentence, for the main thread to say
            self._pool_fault = error
        except BaseException as error:  # the loop's edge: without it there is no daemon
            self._pool_fault = error
            log.exception("the pool's loop ended by itself")
        finally:
            self._wakeups.wake()

    def _beat(self) -> None:
        """A life sign of the pool's loop, and of nothing else."""
        self._notifier.alive()
        self._first_tick.set()

    # ------------------------------------------------------------ looking after it

    def _bring_up(self, children: Sequence[Child]) -> None:
        waiting = list(children)
        while not self._done():
            for child in children:
                child.look_after()
                if child in waiting and child.deaths >= CHILD_TRIES:
                    raise Broken(
                        f"The {child.name} ended {CHILD_TRIES} times before it answered: the lines above say why."
                    )
            waiting = [child for child in waiting if not child.answers(timeout_s=ANSWER_AT_START_S)]
            if self._first_tick.is_set() and not waiting:
                break
            self._wakeups.sleep(STARTING_S)
        else:
            return
        server, relay = self._config.server, self._config.relay
        scheme = "https" if server.tls else "http"
        with_relay = f", and its relay on port {relay.port}" if self._with_relay else ""
        log.info(f"Cornerman {__version__} listens on {scheme}://{_in_url(server.bind)}:{server.port}{with_relay}")
        self._notifier.ready()

    def _look_after(self, children: Sequence[Child], database: Database, idle: IdleWatch) -> None:
        while not self._done():
            idle.look()
            for child in children:
                child.look_after()
            if time.monotonic() - self._checked_at >= CERTIFICATE_EVERY_S and self._renewed(database):
                children[0].restart()  # the relay takes up a new certificate by itself
            if self._notifier.heard:
                self._tell_status(database)
            self._wakeups.sleep(STEADY_S)

    def _done(self) -> bool:
        if isinstance(self._pool_fault, CornermanError):
            raise self._pool_fault
        if self._pool_fault is not None:
            raise Broken(f"The pool's loop ended by itself ({self._pool_fault}): start the daemon again.")
        return self._wakeups.stopping

    def _renewed(self, database: Database) -> bool:
        try:
            made = self._ensure_certificate()
            certificate_note.note(database, self._config)
            return made
        except (CornermanError, OSError) as error:
            log.warning("the certificate cannot be renewed", fault=str(error))
            return False

    def _tell_status(self, database: Database) -> None:
        try:
            self._notifier.status(status_line(database, self._config, time.time()))
        except CornermanError as error:
            self._notifier.status(str(error))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
