"""The documents keep to the code, and their links lead somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.config import (
    Config,
    DockerHostConfig,
    DockerOptions,
    PoolConfig,
    ProcessOptions,
    RelayConfig,
    ServerConfig,
)
from orchestrator.idle_settings import IdleConfig

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SECTIONS: dict[str, tuple[type[BaseModel], set[str]]] = {
    "Top level": (Config, {"server", "relay", "docker", "idle", "pools"}),
    "[server]": (ServerConfig, set()),
    "[relay]": (RelayConfig, set()),
    "[docker]": (DockerHostConfig, set()),
    "[idle]": (IdleConfig, set()),
    "[pools.NAME]": (PoolConfig, {"docker", "process"}),
    "[pools.NAME.docker]": (DockerOptions, set()),
    "[pools.NAME.process]": (ProcessOptions, set()),
}


def _rows(title: str) -> dict[str, str]:
    """Setting and default, as the section of docs/configuration.md has them."""
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    section = text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            found |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells[1])
    return found


@pytest.mark.parametrize("title", SECTIONS)
def test_every_setting_stands_in_the_documents(title: str) -> None:
    """docs/configuration.md names each setting there is, and none that there is not."""
    model, sections = SECTIONS[title]
    assert set(_rows(title)) == set(model.model_fields) - sections


@pytest.mark.parametrize("title", SECTIONS)
def test_defaults_in_the_documents_are_those_of_the_code(title: str) -> None:
    """A default that docs/configuration.md gives as a value is the one that holds."""
    model, _ = SECTIONS[title]
    for name, told in _rows(title).items():
        if re.fullmatch("`[^`]*`", told):
            default: Any = model.model_fields[name].get_default(call_default_factory=True)
            assert told == f"`{json.dumps(default)}`", name


def _links() -> Iterator[tuple[Path, str]]:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8")):
            if not target.startswith(("http://", "https://")):
                yield document, target


@pytest.mark.parametrize(
    ("document", "target"), [pytest.param(*link, id=f"{link[0].name}:{link[1]}") for link in _links()]
)
def test_links_lead_somewhere(document: Path, target: str) -> None:
    """A link between the documents leads to a file, and its anchor to a heading of that file."""
    place, _, anchor = target.partition("#")
    file = (document.parent / place).resolve() if place else document
    assert file.exists(), f"{document.name} links to {target}"
    if anchor:
        headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
