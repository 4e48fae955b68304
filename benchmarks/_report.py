"""Shared by all benchmarks: a table on the terminal, and the figures in benchmarks/results/<name>.json."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write_results(
    name: str,
    figures: Mapping[str, float],
    *,
    head: Sequence[str] = (),
    rows: Sequence[Sequence[object]] = (),
    note: str = "",
    add: bool = False,
) -> Path:
    """Write benchmarks/results/<name>.json with these figures, rounded to four significant digits.

    A table of ``rows`` under ``head`` and a ``note`` on how all was measured go with them onto the page. With ``add`` the other figures
    and rows of the file stay, because another run measures them; a row is known by its first cell.
    """
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if add and path.exists() else {"figures": {}}
    rounded = before["figures"] | {key: float(f"{value:.4g}") for key, value in figures.items()}
    result: dict[str, object] = {"machine": machine(), "figures": rounded}
    named = {row[0]: row for row in before.get("table", {"rows": []})["rows"]}
    named |= {str(row[0]): [_text(cell) for cell in row] for row in rows}
    if named:
        result["table"] = {"head": list(head) or before["table"]["head"], "rows": list(named.values())}
    if note:
        result["note"] = note
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a head, numbers to the right, floats with three significant digits."""
    cells = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        left = row[0].ljust(widths[0])
        print("  ".join([left, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]))
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
