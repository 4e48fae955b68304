"""How a child process is started and ended: command, environment, port, and what can go wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from pathlib import Path

from orchestrator.config import ProcessOptions
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import EngineSpec
from orchestrator.runtimes.seeds import with_seed

DEFAULT_COMMAND = (sys.executable, "-m", "practice_engine")
_NOT_PASSED_ON = {"CORNERMAN_URL", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}  # a secret; the supervisor's
_IN_USE = (errno.EADDRINUSE, errno.EACCES)


def command(spec: EngineSpec) -> list[str]:
    """What is run, with its place on the host and a seed."""
    options = _options(spec)
    args = with_seed(spec.args or options.args, spec.engine_id)
    place = ("--host", spec.host, "--port", str(spec.port), "--exit-on-stdin-eof")
    return [*(options.command or DEFAULT_COMMAND), *place, *args]


def environment(spec: EngineSpec, folder: Path) -> dict[str, str]:
    """The daemon's environment without what is its own alone, with private folders, and with what is configured."""
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    private = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONUNBUFFERED": "1"}
    return {**ours, **private, **_options(spec).env, **spec.env}


def kill_group(pid: int) -> None:
    """SIGKILL to a process and all it has started; gone already is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def exit_code(code: int) -> int:
    """As Docker and shells have it: 128 and the signal's number."""
    return 128 - code if code < 0 else code


def check_port(host: str, port: int) -> None:
    """Raise RuntimeFault(PORT_TAKEN) when anybody listens there, BAD_SPEC when nobody could."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as attempt:
        # As a server would: past connections that linger do not matter, somebody listening does.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((host, port))
        except OSError as error:
            if error.errno in _IN_USE:
                raise port_taken(port) from error
            raise RuntimeFault(
                FaultKind.BAD_SPEC,
                f"No engine can listen on {host}:{port} ({error.strerror}): correct the pool's bind.",
            ) from error


def port_taken(port: int) -> RuntimeFault:
    """The fault of an engine whose port is held."""
    return RuntimeFault(
        FaultKind.PORT_TAKEN, f"Port {port} is held by something else: another one is needed; see 'ss -ltnp'."
    )


def launch_fault(spec: EngineSpec, error: OSError) -> RuntimeFault:
    """What a failed start of the program means."""
    if error.errno == errno.ENOSPC:
        return RuntimeFault(FaultKind.DISK_FULL, "The disk is full, so no engine can start: free space in TMPDIR.")
    if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
        program = command(spec)[0]
        return RuntimeFault(
            FaultKind.BAD_SPEC, f"{program} cannot be run ({error.strerror}): correct the pool's process.command."
        )
    return RuntimeFault(
        FaultKind.OTHER, f"No process could be started ({error.strerror}): free memory or processes on this machine."
    )


def _options(spec: EngineSpec) -> ProcessOptions:
    return spec.options if isinstance(spec.options, ProcessOptions) else ProcessOptions()
