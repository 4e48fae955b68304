"""From an engine's end to a reason in words."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis import asks_for_credentials, explain, fault_reason, no_port_left
from orchestrator.errors import FaultKind

BOOTED = ["Stored credentials found.", "Authorization granted.", "Server listening on 0.0.0.0:50051"]


@pytest.mark.parametrize(
    "lines",
    [
        ["Credentials not found.", "Insert username and password (retry 1/5)"],
        ["Username: "],
        ["Please enter your DIAMBRA user name:"],
        ["e-mail:", "Password:"],
        ["Welcome", "retry 2/5"],
    ],
)
def test_a_prompt_is_recognised(lines: list[str]) -> None:
    """Report 32: an engine that waits for somebody to log in is recognised by the last thing it wrote."""
    assert asks_for_credentials(lines)
    reason = explain(lines, None, oom=False, killed_by_us=False)
    assert "diambra user login" in reason
    assert "credentials_path" in reason


@pytest.mark.parametrize(
    "lines",
    [
        [],
        BOOTED,
        ["Insert username and password (retry 1/5)", *BOOTED],
        ["Username is not needed for this game"],
        ["connecting to the server, retry 2/5"],
    ],
)
def test_an_authorised_engine_asks_for_nothing(lines: list[str]) -> None:
    """An engine that was authorised, or speaks of something else, is not taken for one that asks for credentials."""
    assert not asks_for_credentials(lines)


@pytest.mark.parametrize(
    ("lines", "exit_code", "oom", "said"),
    [
        (BOOTED, 137, True, "out of memory"),
        (BOOTED, 1, True, "out of memory"),
        (BOOTED, 137, False, "out of memory"),
        (
            ["Authorization failed.", "Insert username and password (retry 5/5)", "Too many attempts."],
            1,
            False,
            "log in",
        ),
        (["Authorization failed: token expired"], 1, False, "refused the credentials"),
        (["doapp.zip: ROM file not found"], 1, False, "ROM missing"),
        (["ROM sha256 does not match"], 1, False, "another version"),
        (["write: No space left on device"], 1, False, "disk full"),
        (["bind: Address already in use"], 1, False, "port was taken"),
        (["terminate called after throwing an instance of 'std::bad_alloc'"], 134, False, "out of memory"),
        (["pthread_create failed"], 134, False, "pids"),
        (["open: Permission denied"], 1, False, "cap_drop"),
        (["curl: Could not resolve host: api.diambra.ai"], 1, False, "internet"),
        (["No module named practice_engine"], 1, False, "not installed"),
        (["what happened"], 139, False, "SIGSEGV"),
        (["what happened"], 3, False, 'exit code 3 (last log line: "what happened")'),
        ([], 127, False, "does not exist"),
        ([], 0, False, "ended by itself, exit code 0"),
        ([], None, False, "written nothing"),
        (["Loading"], None, False, '"Loading"'),
    ],
)
def test_a_death_is_explained(lines: list[str], exit_code: int | None, oom: bool, said: str) -> None:
    """Report 27: exit code, out-of-memory flag and log become a reason that says what to do, 137 without a flag too."""
    reason = explain(lines, exit_code, oom=oom, killed_by_us=False)
    assert said in reason
    assert not reason.endswith(".")


def test_our_own_kill_is_no_fault() -> None:
    """An engine the daemon removed itself is not reported as out of memory."""
    assert explain(BOOTED, 137, oom=False, killed_by_us=True) == "removed by the daemon"


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_fault_has_words(kind: FaultKind) -> None:
    """Whatever an engine host answers, the reason begins with words, not with a code."""
    assert fault_reason(kind, "It says no.").endswith(": It says no")
    assert "_" not in fault_reason(kind, "It says no.")


def test_no_port_left_names_the_settings() -> None:
    """A pool without ports is told which settings to widen."""
    assert "first_port..last_port" in no_port_left(32000, 32003)
