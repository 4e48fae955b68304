"""What `make demo` runs: it plays, shows, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from tests.support import processes
from tests.support.docker_engine import connect
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
LARGEST_PICTURE_BYTES = 300_000


@dataclass(frozen=True)
class Demo:
    """A demo that runs, and all that it makes: below ``folder``, or marked with its mark."""

    folder: Path
    mark: str
    process: subprocess.Popen[bytes]

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return (self.folder / "out").read_text()

    def finish(self) -> tuple[int, str]:
        """Its exit code and what it complained of; AssertionError if it left a file or a process behind."""
        code = self.process.wait(110)
        processes.end_marked(self.mark, name=processes.FAMILY_MARK)
        assert {path.name for path in self.folder.iterdir()} <= {"out", "err", "demo.png"}
        return code, (self.folder / "err").read_text()


@pytest.fixture
def start_demo(state_dir: Path) -> Iterator[Callable[..., Demo]]:
    """``start_demo("--runtime", "process", DOCKER_HOST=...)``; it is killed if the test fails."""
    with ExitStack() as undo:

        def start(*arguments: str, **environ: str) -> Demo:
            mark = uuid.uuid4().hex
            with (state_dir / "out").open("wb") as out, (state_dir / "err").open("wb") as err:
                process = subprocess.Popen(
                    [sys.executable, ROOT / "examples" / "demo.py", "--picture", state_dir / "demo.png", *arguments],
                    stdout=out,
                    stderr=err,
                    env={**os.environ, "TMPDIR": str(state_dir), processes.FAMILY_MARK: mark, **environ},
                    start_new_session=True,
                )
            undo.callback(processes.end_group, process)
            return Demo(state_dir, mark, process)

        yield start


def test_the_demo_plays_four_environments_and_leaves_nothing_behind(start_demo: Callable[..., Demo]) -> None:
    """The demo says what engines run as, shows steps/s of four environments, writes one picture, and is gone."""
    demo = start_demo("--runtime", "process", "--seconds", "1")
    code, err = demo.finish()

    assert code == 0, err
    assert "child processes" in demo.out
    rows = re.findall(r"^(\d) +\w+ +127\.0\.0\.1:32\d\d\d +(\d+) +[\d.]+ +\d+$", demo.out, re.MULTILINE)
    assert [rank for rank, _ in rows] == ["0", "1", "2", "3"]
    assert all(int(steps) > 0 for _, steps in rows)
    picture = demo.folder / "demo.png"
    assert picture.stat().st_size < LARGEST_PICTURE_BYTES
    with Image.open(picture) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(start_demo: Callable[..., Demo], signum: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle of a game ends engines, daemon and files, with a sentence."""
    demo = start_demo("--runtime", "process", "--seconds", "60")
    wait_until(lambda: demo.process.poll() is not None or "steps/s" in demo.out, 60, what="the first steps")
    demo.process.send_signal(signum)
    code, err = demo.finish()

    assert code == 130, err
    assert "interrupted" in err


def test_a_demo_that_cannot_use_docker_says_why(start_demo: Callable[..., Demo]) -> None:
    """A Docker Engine that does not answer is named, in one sentence, when nothing else was allowed."""
    demo = start_demo("--runtime", "docker", DOCKER_HOST="unix:///nonexistent/docker.sock")
    code, err = demo.finish()

    assert code == 1
    assert re.fullmatch(r"\s*demo: Docker cannot be used, because no Docker Engine answers at \S+.*\.\s*", err), err


def test_the_demo_in_docker_removes_its_containers(
    docker_host: str, practice_image: str, start_demo: Callable[..., Demo]
) -> None:
    """Games in Docker go on without a daemon, so the demo removes its own containers itself."""
    demo = start_demo("--runtime", "docker", "--seconds", "1", DOCKER_HOST=docker_host)
    code, err = demo.finish()

    assert code == 0, err
    assert "containers of the Docker Engine" in demo.out
    client = connect(docker_host)
    try:
        made = client.api.containers(all=True, filters={"label": "cornerman.pool"})
    finally:
        client.close()
    assert [found for found in made if found["Labels"]["cornerman.pool"].startswith("demo-")] == []
