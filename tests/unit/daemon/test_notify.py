"""What systemd is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.notify import Notifier


@pytest.fixture
def systemd(state_dir: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """A socket that listens as systemd does, and the environment that names it."""
    path = state_dir / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)
        yield listener, {"NOTIFY_SOCKET": str(path)}


def _heard(listener: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(listener.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_each_state_is_told_in_systemds_words(systemd: tuple[socket.socket, dict[str, str]]) -> None:
    """READY, STATUS and STOPPING arrive as sd_notify(3) has them, a status as one line."""
    listener, environ = systemd
    notifier = Notifier(environ)
    notifier.ready()
    notifier.status("two\nlines")
    notifier.stopping()
    assert _heard(listener) == ["READY=1", "STATUS=two lines", "STOPPING=1"]


def test_life_signs_are_only_as_many_as_the_watchdog_needs(systemd: tuple[socket.socket, dict[str, str]]) -> None:
    """However often the loop beats, systemd hears it a few times within its limit, not each time."""
    listener, environ = systemd
    notifier = Notifier({**environ, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())})
    for _ in range(100):
        notifier.alive()
    assert notifier.watchdog_s == 60
    assert _heard(listener) == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}]
)
def test_no_life_signs_without_a_watchdog(
    systemd: tuple[socket.socket, dict[str, str]], watchdog: dict[str, str]
) -> None:
    """A watchdog that is off, nonsense, or somebody else's gets no life signs."""
    listener, environ = systemd
    Notifier({**environ, **watchdog}).alive()
    assert _heard(listener) == []


def test_nobody_listening_is_no_fault(tmp_path: Path) -> None:
    """Outside systemd, or when its socket is gone, telling does nothing."""
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready()


def test_an_abstract_socket_is_understood() -> None:
    """A NOTIFY_SOCKET that begins with @ is in the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0cornerman-test-notify")
        listener.setblocking(False)
        Notifier({"NOTIFY_SOCKET": "@cornerman-test-notify"}).ready()
        assert _heard(listener) == ["READY=1"]
