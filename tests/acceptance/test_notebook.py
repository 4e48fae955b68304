"""Cells in a real Jupyter kernel: what a notebook's user sees, and what is left when the kernel goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk import Cornerman
from tests.support import processes
from tests.support.notebook import Notebook, Output
from tests.support.real_daemon import RealDaemon, set_up

MOST = 2
WaitUntil = Callable[..., object]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon with two practice engines, for all tests of this module."""
    pool = ("--runtime", "process", "--expose", "direct", "--min-ready", str(MOST), "--max-engines", str(MOST))
    daemon = set_up(tmp_path_factory.mktemp("host"), *pool)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        processes.kill(daemon.family())


@pytest.fixture
def notebook(running: RealDaemon, tmp_path: Path) -> Iterator[Notebook]:
    """A notebook with CORNERMAN_URL set."""
    notebook = Notebook(running.url, tmp_path)
    yield notebook
    notebook.close()


def _held(daemon: RealDaemon) -> int:
    return sum(lease.state.value in ("pending", "active") for lease in Cornerman(daemon.url).leases())


def test_cells_lease_show_and_play(running: RealDaemon, notebook: Notebook) -> None:
    """A lease over several cells: it shows as a table, the stock client plays, and release() gives it back."""
    first = notebook.run(
        "from client_sdk import Cornerman\nlease = Cornerman().lease(envs=2, note='<b>mine</b>')\nlease"
    )
    assert first.error == ""
    (table,) = first.html
    assert table.count("127.0.0.1:") == 2
    assert "&lt;b&gt;mine" in table
    played = notebook.run(
        """
import logging, diambra.arena
settings = diambra.arena.EnvironmentSettings()
settings.splash_screen = False
env = diambra.arena.make("doapp", settings, rank=1, log_level=logging.WARNING)
env.reset(seed=7)
print(env.step(env.action_space.sample())[0]["frame"].shape)
"""
    )
    assert (played.error, played.text.strip().splitlines()[-1]) == ("", "(480, 512, 3)")
    assert notebook.run("lease.release()\nimport os\nprint('DIAMBRA_ENVS' in os.environ)").text == "False\n"
    assert _held(running) == 0


def test_waiting_cell_shows_its_place_and_can_be_interrupted(running: RealDaemon, notebook: Notebook) -> None:
    """A cell run again waits for engines that the notebook itself holds: it says so, and can be interrupted."""
    code = "from client_sdk import Cornerman\nlease = Cornerman().lease(envs=2)"
    assert notebook.run(code).error == ""
    interrupted: list[str] = []

    def interrupt(output: Output) -> None:
        if "place 1 in the queue" in output.text and not interrupted:
            interrupted.append(output.text)
            notebook.manager.interrupt_kernel()

    output = notebook.finish(notebook.begin(code), seen=interrupt)
    assert output.error.startswith("KeyboardInterrupt")
    assert "this process itself holds 2" in interrupted[0]
    assert _held(running) == 1  # the place in the queue is given up, the first lease is not
    assert notebook.run("lease.refresh()").error == ""
    assert notebook.run("lease.release()").error == ""


@pytest.mark.parametrize("how", ["shut down", "restarted", "killed"])
def test_end_of_the_kernel_frees_the_engines(
    running: RealDaemon, notebook: Notebook, wait_until: WaitUntil, how: str
) -> None:
    """However a kernel ends, its engines are given back within seconds, although the lease would live for minutes."""
    assert notebook.run("from client_sdk import Cornerman\nlease = Cornerman().lease(envs=1, ttl_s=600)").error == ""
    assert _held(running) == 1
    if how == "shut down":
        notebook.manager.shutdown_kernel()
    elif how == "restarted":
        notebook.manager.restart_kernel()
    else:
        notebook.manager.shutdown_kernel(now=True)
    wait_until(lambda: _held(running) == 0, 30)
