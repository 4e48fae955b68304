"""A release says one version everywhere, and its wheel holds what it should and nothing else."""

from __future__ import annotations

import pytest

from scripts import release_check
from scripts.release_check import NEEDED, schema_faults, version_faults, wheel_faults

LOG = "# Changelog\n\n## [Unreleased] (0.2.0)\n\n## [0.1.0] - 2026-12-01\n"
METADATA = "Metadata-Version: 2.4\nName: cornerman\nVersion: 0.2.0\n"


@pytest.mark.parametrize(
    ("version", "tags", "word"),
    [
        ("0.2.0", [], None),
        ("0.1.0", ["v0.1.0"], None),
        ("0.2.0", ["other"], None),
        ("0.3.0", [], "CHANGELOG.md has neither"),
        ("0.1.0", ["v0.2.0"], "tagged v0.2.0, but the code says 0.1.0"),
        ("0.2.0", ["v0.2.0"], "has no '## [0.2.0] - DATE'"),
        ("0.2", [], "no version of the form"),
    ],
)
def test_code_changelog_and_tag_agree(version: str, tags: list[str], word: str | None) -> None:
    """A version that the changelog does not know, or that the tag contradicts, is not released."""
    found = list(version_faults(version, changelog=LOG, tags=tags))
    assert found == [] if word is None else any(word in fault for fault in found)


def test_every_released_schema_has_its_fixture() -> None:
    """A migration without the dump of the schema before it, or a gap in the numbers, is found."""
    assert list(schema_faults(["0001.sql", "0002.sql"], ["0001.sql"])) == []
    assert "only 1 fixtures" in next(schema_faults(["0001.sql", "0002.sql", "0003.sql"], ["0001.sql"]))
    assert "0003.sql" in next(schema_faults(["0001.sql", "0003.sql"], ["0001.sql"]))


def test_a_wheel_holds_what_it_should() -> None:
    """Migrations, templates and types are in it; tests, keys and databases are not."""
    files = [*NEEDED, "cornerman-0.2.0.dist-info/METADATA"]
    assert list(wheel_faults("cornerman-0.2.0-py3-none-any.whl", files, METADATA, version="0.2.0")) == []
    assert list(wheel_faults("cornerman-0.1.0-py3-none-any.whl", files, METADATA, version="0.2.0"))
    assert list(wheel_faults("cornerman-0.2.0-py3-none-any.whl", files[1:], METADATA, version="0.2.0"))
    for foreign in ("tests/conftest.py", "orchestrator/state.db", "admin.url"):
        assert list(wheel_faults("cornerman-0.2.0-py3-none-any.whl", [*files, foreign], METADATA, version="0.2.0"))


def test_this_tree_could_be_released(capsys: pytest.CaptureFixture[str]) -> None:
    """What is committed is consistent at any time."""
    assert release_check.main([]) == 0, capsys.readouterr().err
