"""Watching and ending the processes that tests start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from tests.support.waiting import wait_until

MARK = "CORNERMAN_TEST_RUN"
FAMILY_MARK = "TESTS_DAEMON"
# multiprocessing keeps these for the whole life of the process that used it.
_KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def marked_processes(mark: str, *, name: str = MARK) -> dict[int, str]:
    """Pid and command line of the living processes whose environment says that they come from the run ``mark``."""
    wanted = f"{name}={mark}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command and not any(kept in command for kept in _KEPT):
                    found[int(folder.name)] = command
    return found


def end_marked(mark: str, *, name: str = MARK, but: Collection[int] = ()) -> None:
    """Kill what still runs of those a moment from now, and then fail with their command lines; ``but`` are spared."""

    def left() -> dict[int, str]:
        return {pid: line for pid, line in marked_processes(mark, name=name).items() if pid not in but}

    try:
        wait_until(lambda: not left(), 5)
    except AssertionError:
        remaining = left()
        kill(remaining)
        wait_until(lambda: not left(), 10, what="the end of processes that got SIGKILL")
        listing = "\n".join(f"  {pid}: {line}" for pid, line in remaining.items())
        raise AssertionError(f"these processes were left behind (killed now):\n{listing}") from None


def alive(pid: int) -> bool:
    """Whether the process runs: one that has ended and only waits to be collected (a zombie) does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def group_members(group: int) -> list[int]:
    """The pids of the living processes of a process group."""
    members = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and os.getpgid(int(folder.name)) == group and alive(int(folder.name)):
                members.append(int(folder.name))
    return members


def kill(pids: Iterable[int]) -> None:
    """Kill each of ``pids``; one that is gone already is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_group(process: subprocess.Popen[bytes] | subprocess.Popen[str], *, timeout_s: float = 10.0) -> None:
    """SIGTERM to a process started with ``start_new_session=True``, then SIGKILL to what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout_s)
    wait_until(lambda: not group_members(process.pid), timeout_s, what=f"the end of process group {process.pid}")
