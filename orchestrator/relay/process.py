"""The relay process: builds the relay, tells systemd how it is, and ends it in good order.

It ends on SIGTERM, SIGINT and SIGHUP, and as a child of the daemon when its standard input reaches its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import structlog

from orchestrator import config as configuration
from orchestrator import logs
from orchestrator.children import Listens, PortTaken, port_text
from orchestrator.config import Config
from orchestrator.errors import ConfigError, CornermanError, Unavailable
from orchestrator.exits import Exit
from orchestrator.leasing import Leasing
from orchestrator.lock import AlreadyRunning, using
from orchestrator.notify import Notifier
from orchestrator.policies import policies
from orchestrator.relay.certificate import Certificate
from orchestrator.relay.directory import Directory
from orchestrator.relay.gallery import Gallery
from orchestrator.relay.server import Relay
from orchestrator.relay_token import ensure_secret, relay_token
from orchestrator.store.database import Changes, Database

log = structlog.get_logger(__name__)

BEAT_EVERY_S = 5.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXITS: dict[type[CornermanError], Exit] = {
    ConfigError: Exit.CONFIG,
    PortTaken: Exit.PORT_TAKEN,
    Unavailable: Exit.STATE,
    AlreadyRunning: Exit.ALREADY_RUNNING,
}


def serve(config_file: Path, *, child: bool = False) -> Exit:
    """Run the relay until a signal ends it; what keeps it from running is logged in one sentence and decides the exit code."""
    logs.configure()
    notifier = Notifier()
    try:
        config = configuration.load(config_file)
        logs.configure(config.log_level)
        with using(config.database):
            asyncio.run(_run(config, notifier, child=child))
    except CornermanError as error:
        log.error(str(error))
        notifier.status(str(error))
        return next((code for kind, code in _EXITS.items() if isinstance(error, kind)), Exit.FAULT)
    except Exception:  # the edge of the process
        log.exception("the relay ended by a fault of its own")
        return Exit.FAULT
    return Exit.STOPPED


async def _run(config: Config, notifier: Notifier, *, child: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    if child:
        threading.Thread(target=_watch_parent, args=(loop, stop), name="parent", daemon=True).start()
    secret = ensure_secret(config.state_dir)
    certificate = Certificate(config) if config.server.tls else None
    database = _open(config)
    changes = Changes(database)
    directory = Directory(database, Leasing(database, policies(config), time.time))
    relay = Relay(
        directory,
        token_of=lambda lease_id: relay_token(secret, lease_id),
        compress_threads=config.relay.threads,
    )
    gallery = Gallery(relay.lanes)
    try:
        await _listen(relay, config, certificate)
        await gallery.open(config.state_dir)
        log.info("the relay is listening", bind=config.relay_bind, port=config.relay.port)
        gc.collect()
        gc.freeze()  # what is there now stays: steps need not pay for looking at it again and again
        notifier.ready()
        await _until(stop, relay, changes, certificate, notifier)
        notifier.stopping()
    finally:
        changes.close()  # lets go of the thread that waits for them
        await gallery.close()
        await relay.stop()
        database.close()


def _open(config: Config) -> Database:
    try:
        return Database.open(config.database)
    except ConfigError as error:  # its file, not the configuration: another try may succeed
        raise Unavailable(str(error)) from error


async def _listen(relay: Relay, config: Config, certificate: Certificate | None) -> None:
    place = Listens("relay", config.relay_bind, config.relay.port, config.server.tls)
    try:
        await relay.listen(place.bind, place.port, certificate.context if certificate else None)
    except OSError as fault:
        raise PortTaken(port_text(place, fault)) from fault


async def _until(
    stop: asyncio.Event, relay: Relay, changes: Changes, certificate: Certificate | None, notifier: Notifier
) -> None:
    """Until ``stop``, or until something that the relay cannot do without has ended."""
    work = [
        asyncio.create_task(relay.follow(changes)),
        asyncio.create_task(relay.record_forever()),
        asyncio.create_task(_beat(relay, certificate, notifier)),
    ]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({stopping, *work}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
    finally:
        for task in (stopping, *work):
            task.cancel()
        await asyncio.gather(stopping, *work, return_exceptions=True)


async def _beat(relay: Relay, certificate: Certificate | None, notifier: Notifier) -> None:
    """Signs of life of the loop itself, and a look at the certificate's files."""
    pause_s = min(BEAT_EVERY_S, (notifier.watchdog_s or BEAT_EVERY_S * 4) / 4)
    while True:
        notifier.alive()
        if notifier.heard:
            notifier.status(relay.status())
        if certificate is not None and certificate.refresh():
            log.info("the renewed certificate is in use")
        await asyncio.sleep(pause_s)


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Blocks until whoever holds the other end of standard input has gone."""
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(stop.set)
