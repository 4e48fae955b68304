"""The tests' own support, which other tests rely on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import ports, processes
from tests.support.left_out import leave_out
from tests.support.pythons import find_python
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


def test_wait_until_returns_the_value_it_waited_for() -> None:
    """wait_until hands back the first true value."""
    values = iter([0, 0, 7])
    assert wait_until(lambda: next(values), 5) == 7


def test_wait_until_names_what_did_not_happen() -> None:
    """wait_until gives up at its deadline and says what it waited for."""
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"the moon did not come true within 0\.1 s"):
        wait_until(lambda: False, 0.1, what="the moon")
    assert time.monotonic() - began < 2


def test_free_ports_are_free_and_given_out_once() -> None:
    """A free port can be bound, and no other test of the run gets the same one."""
    given = [ports.free_port() for _ in range(50)]
    assert len(set(given)) == 50
    with socket.socket() as server:
        server.bind(("127.0.0.1", given[0]))


def test_leaving_out_skips_for_a_person_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine cannot do is skipped with its reason, and fails where CI says that nothing may be left out."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no moon"):
        leave_out("no moon")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no moon"):
        leave_out("no moon")


def test_processes_of_this_run_are_found_and_ended_with_their_group() -> None:
    """A process that a test starts is seen by the guard, and ending its group ends its children too."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        wait_until(lambda: len(processes.group_members(process.pid)) == 2, 20)
        marked = processes.marked_processes(os.environ[processes.MARK])
        assert set(processes.group_members(process.pid)) <= set(marked)
    finally:
        processes.end_group(process)
    assert processes.group_members(process.pid) == []


def test_this_python_is_found_by_its_version() -> None:
    """find_python finds an interpreter of the wanted version, or says that there is none."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = find_python(version)
    assert found is not None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.startswith(f"Python {version}.")
    assert find_python("3.99") is None


@pytest.mark.parametrize(
    ("cases", "code", "closing"),
    [
        ("<testcase/><testcase/>", 0, "total: 2 passed, 0 failed"),
        ("<testcase/><testcase><failure/></testcase>", 1, "total: 1 passed, 1 failed"),
        ("<testcase/><testcase><error/></testcase>", 1, "total: 1 passed, 1 failed"),
        ('<testcase/><testcase><skipped message="no moon"/></testcase>', 0, "total: 1 passed, 0 failed, 1 skipped"),
        ("", 1, "total: 0 passed, 0 failed"),
    ],
)
def test_the_total_counts_every_outcome(tmp_path: Path, cases: str, code: int, closing: str) -> None:
    """The total of a test run adds up its parts, names what was left out, and fails when a test failed or none ran."""
    (tmp_path / "unit.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "total.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == closing
    assert ("left out: 1 test: no moon" in done.stdout) == ("skipped" in closing)
