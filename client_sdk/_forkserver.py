"""The fork server of ``multiprocessing``, which keeps the environment variables of the moment it started."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading

# Servers that make no more workers, by pid, each with the pipe whose closing ends it.
_former: dict[int, int] = {}
_lock = threading.Lock()


def forget() -> None:
    """Let the next worker of the ``forkserver`` method be made by a new server, which sees the variables as they are now.

    Without this the workers of a second lease would be told the addresses of the first. Workers that run go on. The standard library
    has no public way to ask for this; where its insides look different (another Python), nothing is done.
    """
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is None:
        return
    with contextlib.suppress(AttributeError), server._lock, _lock:
        pid, alive, address = server._forkserver_pid, server._forkserver_alive_fd, server._forkserver_address
        if pid is not None:
            server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
            _former[pid] = alive
            with contextlib.suppress(OSError, ValueError):
                os.unlink(address)
    # A server tells how its workers ended, so it has to outlive them.
    if not multiprocessing.active_children():
        _end_former()


def _end_former() -> None:
    with _lock:
        ended = dict(_former)
        _former.clear()
    for pid, alive in ended.items():
        with contextlib.suppress(OSError):
            os.close(alive)
        threading.Thread(target=_collect, args=(pid,), name="cornerman-forkserver", daemon=True).start()


def _collect(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)
