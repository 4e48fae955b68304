"""A child of the daemon is started, watched, and started again; what it does is a stand-in's here."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import children
from orchestrator.children import Child, Listens, PortTaken, claim
from tests.support.processes import alive
from tests.support.waiting import wait_until

ANSWERS = """
import http.server, os, pathlib, subprocess, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
pathlib.Path(sys.argv[2], str(os.getpid())).touch()
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
"""
DIES = "import os, pathlib, sys; pathlib.Path(sys.argv[2], str(os.getpid())).touch(); sys.exit(3)"
DEAF = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for pid in (child.pid, os.getpid()): pathlib.Path(sys.argv[2], str(pid)).touch()
time.sleep(600)
"""

Start = Callable[[str], Child]


@pytest.fixture
def woken() -> threading.Event:
    """Set when the process has ended."""
    return threading.Event()


@pytest.fixture
def start(free_port: int, tmp_path: Path, woken: threading.Event) -> Iterator[Start]:
    """Starts a stand-in of the API; it leaves a file named by its pid in the test's folder."""
    place = Listens("server", "127.0.0.1", free_port, tls=False)
    made: list[Child] = []

    def begin(program: str) -> Child:
        command = (sys.executable, "-c", program, str(free_port), str(tmp_path))
        api = Child("API", command, place, wake=woken.set)
        made.append(api)
        api.look_after()
        return api

    yield begin
    for api in made:
        api.close()


def _pids(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir()}


def test_it_answers_once_it_is_up(start: Start) -> None:
    """Whether the API answers is asked over its own port."""
    api = start(ANSWERS)
    wait_until(api.answers, 10)


def test_a_dead_api_is_started_again(start: Start, tmp_path: Path, woken: threading.Event) -> None:
    """A killed API wakes who looks after it, and is back after a short rest."""
    api = start(ANSWERS)
    wait_until(api.answers, 10)
    (pid,) = _pids(tmp_path)
    os.kill(pid, signal.SIGKILL)
    assert woken.wait(10)

    def back() -> bool:
        api.look_after()
        return len(_pids(tmp_path)) == 2 and api.answers()

    wait_until(back, 10)
    assert not alive(pid)


def test_one_that_dies_at_once_is_not_started_at_full_speed(start: Start, tmp_path: Path) -> None:
    """The rest before the next start doubles each time, and deaths are counted until it answers."""
    began = time.monotonic()
    api = start(DIES)

    def died_four_times() -> bool:
        api.look_after()
        return api.deaths >= 4

    wait_until(died_four_times, 20)
    assert time.monotonic() - began >= 0.2 + 0.4 + 0.8
    assert len(_pids(tmp_path)) == 4


def test_one_that_does_not_answer_for_long_is_ended(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API that hangs is as good as dead, and gets a successor."""
    for name in ("HUNG_AFTER_S", "ASK_EVERY_S", "ANSWER_S"):
        monkeypatch.setattr(children, name, 0.1)
    api = start(DEAF)
    wait_until(lambda: len(_pids(tmp_path)) == 2, 10)
    first = _pids(tmp_path)

    def ended() -> bool:
        api.look_after()
        return api.deaths > 0

    wait_until(ended, 10)
    wait_until(lambda: not any(map(alive, first)), 10)


def test_it_ends_with_all_its_children_even_when_deaf(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing ends the whole session, by force when asking does not help."""
    monkeypatch.setattr(children, "STOP_S", 0.2)
    api = start(DEAF)
    wait_until(lambda: len(_pids(tmp_path)) == 2, 10)
    api.close()
    wait_until(lambda: not any(map(alive, _pids(tmp_path))), 10)


def test_a_restart_is_at_once(start: Start, tmp_path: Path) -> None:
    """After a renewal of the certificate the API is back without any rest."""
    api = start(ANSWERS)
    wait_until(api.answers, 10)
    api.restart()
    api.look_after()
    wait_until(api.answers, 10)
    assert len(_pids(tmp_path)) == 2
    assert api.deaths == 0


def test_a_taken_port_is_one_sentence(free_port: int) -> None:
    """A port held by another program is said with what to do, also when that program listens on all addresses."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", free_port))
        other.listen()
        with pytest.raises(
            PortTaken, match=rf"Port {free_port} on 127\.0\.0\.1 is taken by another program: stop that"
        ):
            claim(Listens("server", "127.0.0.1", free_port, tls=True), patience_s=0.1)


def test_a_predecessor_gets_the_time_to_end(free_port: int) -> None:
    """A port that becomes free within the patience is taken."""
    other = socket.socket()
    other.bind(("127.0.0.1", free_port))
    other.listen()
    threading.Timer(0.3, other.close).start()
    claim(Listens("server", "127.0.0.1", free_port, tls=True), patience_s=10)


def test_an_address_of_another_machine_is_one_sentence(free_port: int) -> None:
    """An address that this host does not have is said with what to do."""
    with pytest.raises(PortTaken, match=r"Nothing can listen on 192\.0\.2\.1 .*: set server\.bind"):
        claim(Listens("server", "192.0.2.1", free_port, tls=True))
