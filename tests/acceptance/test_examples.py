"""The quickstart notebook, cell by cell, against a daemon of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from client_sdk import Cornerman
from tests.support.notebook import Notebook
from tests.support.real_daemon import RealDaemon

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
POOL = ("--runtime", "process", "--min-ready", "2", "--max-engines", "2")


@pytest.mark.parametrize("name", ["colab_quickstart.ipynb", "ppo_from_scratch.ipynb"])
def test_notebooks_install_what_the_readme_says(name: str) -> None:
    """Their first cell is the README's, so that both are right or wrong together."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    lines = [line for line in readme.splitlines() if line.startswith("%pip install")]
    cells = nbformat.read(EXAMPLES / name, as_version=4).cells  # type: ignore[no-untyped-call]
    (install,) = (cell.source for cell in cells if "install" in cell.metadata.get("tags", []))
    assert [line.replace(" -q ", " ") for line in install.splitlines() if line.startswith("%pip")] == lines
    assert not any(cell.get("outputs") for cell in cells)


def test_quickstart(new_daemon: Callable[..., RealDaemon], tmp_path: Path) -> None:
    """The quickstart runs from its first cell to its last: lease, pictures of all environments, episodes, release."""
    daemon = new_daemon(*POOL, environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    daemon.start()
    notebook = Notebook(daemon.url, tmp_path)
    try:
        outputs = notebook.run_file(EXAMPLES / "colab_quickstart.ipynb", {"ENVS": 2})
    finally:
        notebook.close()
    assert sum(output.pictures for output in outputs) == 3
    assert outputs[-1].html[0].count("released") == 1
    assert any("steps; actions" in output.text for output in outputs)
    assert all(lease.state.value == "released" for lease in Cornerman(daemon.url).leases())
