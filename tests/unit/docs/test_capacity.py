"""What operators plan with is what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
WITHIN = 2.0
"""A plan still holds when a measurement on a busy machine is so many times as much."""
_QUOTED = re.compile(r"^\|[^|]*\| ([\d.,]+) \| `([\w.]+)` \|$", re.MULTILINE)
_MEASURED = re.compile(r"^\|[^|]*\| `([\w.]+)` \| ([\d.,]+) \|", re.MULTILINE)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _quoted() -> dict[str, float]:
    return {key: _number(value) for value, key in _QUOTED.findall((DOCS / "capacity.md").read_text("utf-8"))}


@pytest.mark.parametrize("key", _quoted())
def test_a_figure_of_the_plan_is_one_that_was_measured(key: str) -> None:
    """Each figure in docs/capacity.md with a key is near the one in docs/benchmarks.md, which is made by measuring."""
    measured = {
        found: _number(value) for found, value in _MEASURED.findall((DOCS / "benchmarks.md").read_text("utf-8"))
    }
    assert key in measured, f"{key} is not among the benchmarks"
    assert measured[key] / WITHIN <= _quoted()[key] <= measured[key] * WITHIN


def test_figures_are_quoted_at_all() -> None:
    """The plan stands on measurements."""
    assert len(_quoted()) >= 6
