"""What must agree before a version is released: code, changelog, tag, migrations and their fixtures, and the wheel itself."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "client_sdk/models.py",
    "client_sdk/py.typed",
    "orchestrator/template.toml",
    "orchestrator/store/migrations/0001.sql",
    "orchestrator/dashboard/static/",
    "orchestrator/api/templates/docs.html",
    "practice_engine/",
)
FOREIGN = re.compile(r"(^|/)(tests?|benchmarks|scripts|__pycache__)/|\.(db|key|url|log)$")


def version_faults(version: str, *, changelog: str, tags: Sequence[str]) -> Iterator[str]:
    """What the changelog and the tags of this commit say against ``version``."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"{version!r} is no version of the form 1.2.3"
    released = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    unreleased = re.search(rf"^## \[Unreleased\] \({re.escape(version)}\)$", changelog, re.MULTILINE)
    if not released and not unreleased:
        yield f"CHANGELOG.md has neither '## [{version}] - DATE' nor '## [Unreleased] ({version})'"
    mine = [tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    if mine and f"v{version}" not in mine:
        yield f"this commit is tagged {', '.join(mine)}, but the code says {version}"
    if mine and not released:
        yield f"this commit is tagged, but CHANGELOG.md has no '## [{version}] - DATE'"


def schema_faults(migrations: Sequence[str], dumps: Sequence[str]) -> Iterator[str]:
    """Whether migrations are numbered without a gap, and every schema but perhaps the newest has its fixture."""
    for what, names in (("migration", migrations), ("fixture of a schema", dumps)):
        wanted = [f"{number:04}.sql" for number in range(1, len(names) + 1)]
        if sorted(names) != wanted:
            yield f"the {what}s are {', '.join(sorted(names))}, not {', '.join(wanted)}"
    if len(dumps) < len(migrations) - 1:
        yield f"there are {len(migrations)} migrations, but only {len(dumps)} fixtures of released schemas"


def wheel_faults(name: str, files: Sequence[str], metadata: str, *, version: str) -> Iterator[str]:
    """What is missing in a wheel, or does not belong there."""
    if not name.startswith(f"cornerman-{version}-"):
        yield f"the wheel is called {name}, but the code says {version}"
    if f"\nVersion: {version}\n" not in metadata:
        yield f"the wheel's metadata do not say {version}"
    for needed in NEEDED:
        if not any(file.startswith(needed) for file in files):
            yield f"the wheel lacks {needed}"
    yield from (f"{file} does not belong into the wheel" for file in files if FOREIGN.search(file))


def main(wheels: Sequence[str]) -> int:
    """Print each fault on a line of its own; 1 when there is one."""
    version = _version()
    found = [
        *version_faults(version, changelog=(ROOT / "CHANGELOG.md").read_text("utf-8"), tags=_tags()),
        *schema_faults(_names("orchestrator/store/migrations"), _names("tests/fixtures/schemas")),
    ]
    for wheel in map(Path, wheels):
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
            (about,) = (file for file in files if file.endswith(".dist-info/METADATA"))
            found += wheel_faults(wheel.name, files, archive.read(about).decode(), version=version)
    for fault in found:
        print(f"release: {fault}", file=sys.stderr)
    if not found:
        print(f"release: {version} is consistent")
    return 1 if found else 0


def _version() -> str:
    text = (ROOT / "client_sdk" / "_version.py").read_text("utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return found[1] if found else ""


def _names(folder: str) -> list[str]:
    return [path.name for path in (ROOT / folder).glob("*.sql")]


def _tags() -> list[str]:
    done = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
