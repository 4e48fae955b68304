"""The two lines of README, in a notebook's environment as Colab has it: Python 3.12 with everything current."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.left_out import leave_out
from tests.support.pythons import find_python
from tests.support.real_daemon import RealDaemon

ROOT = Path(__file__).resolve().parents[2]
THERE_BEFORE = ("protobuf", "numpy", "gymnasium", "opencv-python-headless")
URL_IN_README = "git+URL-OF-THIS-REPOSITORY"
PLAY = """
import logging
import diambra.arena
from client_sdk import Cornerman

with Cornerman().lease(envs=2) as lease:
    for rank in range(2):
        settings = diambra.arena.EnvironmentSettings()
        settings.splash_screen = False
        env = diambra.arena.make("doapp", settings, rank=rank, log_level=logging.WARNING)
        observation, info = env.reset(seed=7)
        observation, *_ = env.step(env.action_space.sample())
        assert observation["frame"].shape == (480, 512, 3)
    print("played on", lease.diambra_envs)
"""


def _run(*command: str | Path, **changes: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": "", **changes},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def readme_lines() -> list[list[str]]:
    """The pip lines between README's markers, as arguments of pip."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- notebook:begin.*?-->(.*?)<!-- notebook:end -->", text, re.DOTALL)
    assert block is not None, "README has no lines for a notebook"
    lines = [shlex.split(line) for line in block[1].splitlines() if line.startswith("%pip ")]
    return [words[1:] for words in lines]


class Notebook:
    """A virtual environment like a notebook's."""

    def __init__(self, folder: Path, python: Path) -> None:
        _run(python, "-m", "venv", folder)
        self.python = folder / "bin" / "python"

    def pip(self, *arguments: str) -> None:
        _run(self.python, "-m", "pip", "--no-input", "--quiet", *arguments)

    def versions(self) -> dict[str, str]:
        """What is installed."""
        listed = json.loads(_run(self.python, "-m", "pip", "list", "--format", "json"))
        return {package["name"].lower(): package["version"] for package in listed}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone of the repository has, as far as an installation needs it; built here, the clone stays clean."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("client_sdk", "orchestrator", "practice_engine"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[tuple[Notebook, dict[str, str]]]:
    """A notebook in which README's lines were run, and what was there before."""
    python = find_python("3.12")
    if python is None:
        leave_out("there is no Python 3.12, which Colab has")
    folder = tmp_path_factory.mktemp("colab")
    notebook = Notebook(folder / "venv", python)
    notebook.pip("install", *THERE_BEFORE)
    before = notebook.versions()
    for arguments in readme_lines():
        notebook.pip(*[argument.replace(URL_IN_README, source.as_uri()) for argument in arguments])
    yield notebook, before
    shutil.rmtree(folder, ignore_errors=True)


def test_readme_has_two_lines() -> None:
    """README's section for notebooks is two pip lines, and the first one installs Cornerman from its repository."""
    first, second = readme_lines()
    assert first[0] == second[0] == "install"
    assert URL_IN_README in first[-1]
    assert "--no-deps" in second


@pytest.mark.timeout(900)
def test_nothing_is_downgraded(installed: tuple[Notebook, dict[str, str]]) -> None:
    """The two lines leave every package that was there as it was."""
    notebook, before = installed
    after = notebook.versions()
    assert {name: after.get(name) for name in before} == before
    assert int(before["protobuf"].split(".")[0]) >= 5
    assert not {"flask", "docker", "torch"} & set(after)


@pytest.mark.timeout(900)
def test_everything_imports(installed: tuple[Notebook, dict[str, str]], tmp_path: Path) -> None:
    """The SDK and DIAMBRA's client are there, and so is the command."""
    notebook, _ = installed
    code = "import client_sdk, diambra.arena; print(client_sdk.__version__, diambra.arena.__file__)"
    assert "site-packages" in _run(notebook.python, "-c", code)
    assert "cornerman, version" in _run(notebook.python.with_name("cornerman"), "--version")


@pytest.mark.timeout(900)
def test_notebook_plays_on_leased_engines(
    installed: tuple[Notebook, dict[str, str]], new_daemon: Callable[..., RealDaemon], tmp_path: Path
) -> None:
    """In that environment the stock client plays on engines that the SDK has leased from a host."""
    notebook, _ = installed
    daemon = new_daemon("--runtime", "process", "--expose", "direct", "--min-ready", "2", "--max-engines", "2")
    daemon.start()
    assert "played on 127.0.0.1:" in _run(notebook.python, "-c", PLAY, CORNERMAN_URL=daemon.url)


@pytest.mark.timeout(900)
def test_host_commands_say_what_they_need(installed: tuple[Notebook, dict[str, str]]) -> None:
    """In a notebook's environment the commands of a host say what to install, instead of failing on an import."""
    notebook, _ = installed
    done = subprocess.run(
        [notebook.python.with_name("cornerman"), "serve"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install 'cornerman[orchestrator]'" in done.stderr
    assert "Traceback" not in done.stderr
