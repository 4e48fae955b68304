"""Logs that a machine reads, a person reads, and no thief profits from."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from orchestrator import logs

TOKEN = "b9LEYyJfnkwxxY1wikuQ4"
URL = f"cornerman://{TOKEN}@host.example:8443?ca=sha256:{'0' * 64}"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_record_is_one_line_of_json() -> None:
    """The journal gets one JSON object a record, with time, level, who said it and all details."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger("daemon").info("engine\nready", engine="e-1", port=32000)
    logging.getLogger("docker").warning("slow: %d", 7)
    first, second = _lines(stream)
    assert (first["event"], first["level"], first["logger"], first["engine"], first["port"]) == (
        "engine\nready",
        "info",
        "daemon",
        "e-1",
        32000,
    )
    assert first["at"].endswith("Z")
    assert (second["event"], second["level"]) == ("slow: 7", "warning")


def test_a_terminal_gets_readable_lines() -> None:
    """On a terminal a record is a line for people."""
    stream = Terminal()
    logs.configure(stream=stream)
    structlog.get_logger().info("ready", engine="e-1")
    assert "ready" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["journal", "terminal"])
def test_no_secret_gets_into_a_log(stream: io.StringIO) -> None:
    """Tokens are blotted out by their name, inside any text, and in a fault's traceback."""
    logs.configure("debug", stream=stream)
    log = structlog.get_logger()
    log.info("made", token=TOKEN, data={"authorization": f"Bearer {TOKEN}"}, url=URL, all=[URL], error=ValueError(URL))
    log.warning(f"Authorization: Bearer {TOKEN}")
    logging.getLogger("other").error("cannot reach %s", URL)
    try:
        raise ValueError(f"cannot parse {URL}")
    except ValueError:
        log.exception("failed")
    assert TOKEN not in stream.getvalue()
    assert "host.example" in stream.getvalue()


def test_the_level_is_respected_and_libraries_do_not_chatter() -> None:
    """Only what the configuration asks for is written, and of libraries' requests nothing below a warning."""
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    structlog.get_logger().debug("no")
    logging.getLogger("urllib3.connectionpool").info("no")
    assert stream.getvalue() == ""
