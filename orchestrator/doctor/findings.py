"""What a check says: how bad it is, one sentence, and the command that cures it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from client_sdk._version import __version__


class Level(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # it runs, but not as well, or not for long
    FAULT = "fault"  # something that was asked for does not work


EXIT_CODES = {Level.OK: 0, Level.WARNING: 1, Level.FAULT: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one thing; ``cure`` is a command, or None where nothing needs curing."""

    check: str
    level: Level
    text: str
    cure: str | None = None


Findings = Iterable[Finding]


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, cure: str) -> Finding:
    """It runs, but not as it should."""
    return Finding(check, Level.WARNING, text, cure)


def fault(check: str, text: str, cure: str) -> Finding:
    """It does not work."""
    return Finding(check, Level.FAULT, text, cure)


def exit_code(findings: Findings) -> int:
    """0 when all is well, 1 with warnings, 2 with a fault."""
    return max((EXIT_CODES[finding.level] for finding in findings), default=0)


def as_json(findings: Sequence[Finding]) -> str:
    """One document for programs."""
    counts = {level.value: sum(finding.level is level for finding in findings) for level in Level}
    shown = [asdict(finding) | {"level": finding.level.value} for finding in findings]
    return json.dumps({"version": __version__, "exit_code": exit_code(findings), **counts, "findings": shown}, indent=2)


def as_text(findings: Sequence[Finding]) -> str:
    """Lines for people: what is worst comes last, nearest to the prompt."""
    ordered = sorted(findings, key=lambda finding: EXIT_CODES[finding.level])
    lines = [line for finding in ordered for line in _lines(finding)]
    faults, warnings = (sum(finding.level is level for finding in findings) for level in (Level.FAULT, Level.WARNING))
    end = "All is well." if not faults + warnings else f"{_count(faults, 'fault')}, {_count(warnings, 'warning')}."
    return "\n".join([*lines, end])


def _lines(finding: Finding) -> list[str]:
    lines = [f"{finding.level.value:<8} {finding.check:<12} {_printable(finding.text)}"]
    return lines if finding.cure is None else [*lines, f"{'':<21} -> {_printable(finding.cure)}"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
