"""The practice engine's command line: `python -m practice_engine`."""

import getpass
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from practice_engine import options as opts

_TRIES = 5


def log(text: str) -> None:
    """One line on standard output, as the real engine writes it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def authorize(
    credentials: Path,
    *,
    ask: Callable[[str], str] = input,
    ask_secret: Callable[[str], str] = getpass.getpass,
    say: Callable[[str], None] = log,
) -> bool:
    """True with stored credentials; else asks for them on the terminal, as the real engine does, and never succeeds."""
    if credentials.is_file() and credentials.stat().st_size > 0:
        say("Stored credentials found.")
        say("Authorization granted.")
        return True
    say(f"Credentials not found at {credentials}.")
    for retry in range(1, _TRIES + 1):
        say(f"Insert username and password (retry {retry}/{_TRIES})")
        try:
            ask("Username: ")
            ask_secret("Password: ")
        except EOFError:
            # A container without a terminal: the real engine waits for somebody who never comes, and so do we.
            threading.Event().wait()
        say("Authorization failed.")
    return False


def _end_with_stdin() -> None:
    """End this process when whoever holds the other end of standard input is gone."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def main(arguments: list[str] | None = None) -> int:
    """Run an engine until it is killed, told to shut down, or its standard input ends."""
    options = opts.parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    # DIAMBRA's engine does not handle SIGTERM, and as PID 1 of its container never gets one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.exit_on_stdin_eof:
        threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    if options.require_credentials and not authorize(options.credentials):
        log("Too many attempts. Log in first and mount the credentials file.")
        return 1
    if not options.require_credentials:
        log("Stored credentials found.")
        log("Authorization granted.")
    from practice_engine.service import EnvServer, exit_soon, serve

    servicer = EnvServer(options, log=log, exit_process=exit_soon)
    try:
        server, port = serve(servicer, host=options.host, port=options.port)
    except RuntimeError:
        log(f"Cannot listen on {options.host}:{options.port}: the port is taken; choose another with --port.")
        return 1
    log(f"Server listening on {options.host}:{port}")
    server.wait_for_termination()
    return 0
