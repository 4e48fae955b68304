"""A small engine for tests of runtimes, of the standard library alone: it answers as much as a gRPC channel asks to be ready.

It does on its port what it is told: a peer that sends a line such as ``EXIT 3`` is obeyed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import sys
import threading
import time

SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty HTTP/2 SETTINGS frame


def say(text: str, end: str = "\n") -> None:
    """One line on standard output."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def obey(line: str) -> str:
    """Carry out one command and return its answer."""
    command, _, rest = line.partition(" ")
    if command == "EXIT":
        os._exit(int(rest))
    elif command == "SAY":
        say(rest)
    elif command == "FLOOD":
        for number in range(int(rest)):
            say(f"{number:08d} " + "x" * 1000)
    elif command == "EAT":
        hoard = []
        while True:
            hoard.append(b"x" * 1024 * 1024)
    elif command == "BURN":
        end = time.monotonic() + float(rest)
        while time.monotonic() < end:
            pass
    elif command == "RUN":  # a Python expression, evaluated inside the engine
        try:
            return repr(eval(rest, {"os": os, "socket": socket, "pathlib": pathlib}))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "done"


def talk(peer: socket.socket) -> None:
    """Greet a peer as a gRPC server does, then obey it line by line; gRPC's own bytes are no command."""
    with peer:
        peer.sendall(SETTINGS)
        with peer.makefile("rb") as lines:
            for raw in lines:
                line = raw.decode(errors="replace").strip()
                if line.split(" ")[0] in {"EXIT", "SAY", "FLOOD", "EAT", "BURN", "RUN"}:
                    peer.sendall((obey(line) + "\n").encode())


def serve(host: str, port: int, *, silent: bool) -> None:
    """Listen; ``silent`` accepts and says nothing."""
    with socket.create_server((host, port)) as server:
        say(f"Server listening on {host}:{port}")
        kept = []
        while True:
            peer, _ = server.accept()
            if silent:
                kept.append(peer)
            else:
                threading.Thread(target=talk, args=(peer,), daemon=True).start()


def end_with_stdin() -> None:
    """End this process when whoever holds its standard input is gone."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    """Run until told otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=50051)
    parser.add_argument("--randomSeed")
    parser.add_argument("--exit-on-stdin-eof", action="store_true")
    parser.add_argument("--deaf", action="store_true", help="never listen")
    parser.add_argument("--silent", action="store_true", help="accept connections and say nothing")
    parser.add_argument("--prompt", action="store_true", help="ask for credentials, without ending the line")
    parser.add_argument("--exit", type=int, help="end at once")
    options = parser.parse_args()
    say(f"seed {options.randomSeed}")
    if options.exit_on_stdin_eof:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    if options.exit is not None:
        sys.exit(options.exit)
    if options.prompt:
        say("Username: ", end="")
    if options.deaf or options.prompt:
        threading.Event().wait()
    serve(options.host, options.port, silent=options.silent)


if __name__ == "__main__":
    main()
