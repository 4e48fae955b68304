"""From an engine's end to a reason in words a person can act on; pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from orchestrator.errors import FaultKind

ASKS_FOR_CREDENTIALS = "engine asks for DIAMBRA credentials: log in with 'diambra user login' and set credentials_path to the file it writes"
OUT_OF_MEMORY = "out of memory: raise memory_mb of the pool, or run fewer engines on this host"
OOM_EXIT = 128 + signal.SIGKILL  # what a process killed by the kernel (or by anybody's SIGKILL) leaves

_PROMPT = re.compile(
    r"\b(user ?name|e-?mail|password)\b[^:]{0,60}:\s*(\S{0,3})$"
    r"|^(?!.*(connect|download|server|network)).*\bretry\s*:?\s*\d+\s*/\s*\d+",
    re.I,
)
_GRANTED = re.compile(r"authorization granted|server listening", re.I)
_DENIED = re.compile(r"(authori[sz]ation|authentication|login)\W+(\w+\W+){0,3}(failed|denied|refused|rejected)", re.I)

_BY_LOG: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"\brom\b.*(not found|missing|no such file|does not exist)|(no such|missing|cannot find).*\brom\b", re.I
        ),
        "ROM missing: put the game's archive, as it was downloaded, into the folder roms_path names",
    ),
    (
        re.compile(r"\brom\b.*(sha-?256|checksum|hash|wrong version|not valid|invalid)", re.I),
        "ROM of another version: its SHA-256 is not the one DIAMBRA lists, so find the matching archive",
    ),
    (re.compile(r"no space left on device|disk quota exceeded", re.I), "disk full: free space on the engine host"),
    (
        re.compile(r"address (already )?in use|failed to bind|port is already allocated|could not bind", re.I),
        "its port was taken by something else: the next engine gets another one",
    ),
    (
        re.compile(r"cannot allocate memory|out of memory|MemoryError|std::bad_alloc", re.I),
        OUT_OF_MEMORY,
    ),
    (
        re.compile(r"pthread_create failed|resource temporarily unavailable|can't start new thread", re.I),
        "too many processes or threads: raise pids of the pool",
    ),
    (
        re.compile(r"read-only file system", re.I),
        "it may not write where it wants to: set read_only = false, or private_home = true",
    ),
    (
        re.compile(r"permission denied|operation not permitted", re.I),
        "it was refused a file or a right it needs: check user and the rights of roms_path and credentials_path, "
        "or loosen cap_drop, no_new_privileges or seccomp",
    ),
    (
        re.compile(r"could not resolve|name resolution|network is unreachable|no route to host", re.I),
        "it cannot reach the internet, where it must be authorised: check the engine host's network and DNS",
    ),
    (re.compile(r"no module named '?practice_engine", re.I), "the practice engine is not installed beside the daemon"),
)

_BY_EXIT = {
    125: "Docker could not run it: see 'journalctl -u docker'",
    126: "its program cannot be executed: check the image and its user",
    127: "its program does not exist: check the image",
    128 + signal.SIGILL: "it used an instruction this CPU does not have, or crashed (SIGILL)",
    128 + signal.SIGABRT: "it gave up by itself (SIGABRT)",
    128 + signal.SIGBUS: "it crashed (SIGBUS): often its /dev/shm or /tmp is full, so raise tmpfs_mb",
    128 + signal.SIGSEGV: "it crashed (SIGSEGV)",
    OOM_EXIT: "it was killed from outside (SIGKILL)",
    128 + signal.SIGTERM: "it was ended from outside (SIGTERM)",
}

_BY_FAULT = {
    FaultKind.UNREACHABLE: "engine host unreachable",
    FaultKind.TIMEOUT: "engine host too slow",
    FaultKind.PORT_TAKEN: "port taken",
    FaultKind.IMAGE_MISSING: "image missing",
    FaultKind.BAD_SPEC: "settings refused by the engine host",
    FaultKind.DISK_FULL: "disk full",
    FaultKind.NOT_FOUND: "engine vanished",
    FaultKind.OTHER: "engine host failed",
}


def asks_for_credentials(lines: Sequence[str]) -> bool:
    """Whether the log of an engine that is starting shows it waiting for somebody to log in."""
    for line in reversed(lines):
        if _GRANTED.search(line):
            return False
        if _PROMPT.search(line.strip()):
            return True
    return False


def explain(lines: Sequence[str], exit_code: int | None, oom: bool, killed_by_us: bool) -> str:
    """Why an engine ended (or, with no exit code, does not come up), and what to do; without its full stop."""
    if killed_by_us and not oom:
        return "removed by the daemon"
    if asks_for_credentials(lines):
        return ASKS_FOR_CREDENTIALS
    by_log = _read(lines)
    if oom:
        return OUT_OF_MEMORY
    if by_log is not None:
        return f"{by_log}{_quote(lines)}"
    if exit_code == OOM_EXIT:
        # Docker does not always flag it; nobody else here sends SIGKILL.
        return f"exit code {OOM_EXIT} without our own kill: most likely {OUT_OF_MEMORY}"
    if exit_code is None:
        return _last_words(lines)
    what = _BY_EXIT.get(exit_code, "it ended by itself" if exit_code == 0 else "it failed")
    return f"{what}, exit code {exit_code}{_quote(lines)}"


def fault_reason(kind: FaultKind, text: str) -> str:
    """The reason of a pool that cannot get engines, from what the engine host answered."""
    return f"{_BY_FAULT[kind]}: {text.rstrip('. ')}"


def no_port_left(first: int, last: int) -> str:
    """The reason of a pool for whose next engine there is no host port."""
    return (
        f"no port left between {first} and {last}: widen first_port..last_port, "
        "or end what holds them (see 'ss -ltnp' and 'docker ps -a')"
    )


def _read(lines: Sequence[str]) -> str | None:
    for line in reversed(lines):
        if _DENIED.search(line):
            return "DIAMBRA refused the credentials: log in again with 'diambra user login'"
        for pattern, reason in _BY_LOG:
            if pattern.search(line):
                return reason
    return None


def _last_words(lines: Sequence[str]) -> str:
    last = _last(lines)
    if last is None:
        return "it has written nothing to its log; without credentials_path it may be waiting for somebody to log in"
    return f'the last line of its log is "{last}"'


def _quote(lines: Sequence[str]) -> str:
    last = _last(lines)
    return f' (last log line: "{last}")' if last is not None else ""


def _last(lines: Sequence[str]) -> str | None:
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), None)
