"""Adds up the JUnit files of one test run: prints what was left out and why, then the total."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def main(folder: Path) -> int:
    """Read every ``*.xml`` in ``folder``, print the total, and return 1 when a test failed or none passed, else 0."""
    counts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for file in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(file).getroot().iter("testcase"):  # noqa: S314 - pytest's own file of a minute ago
            outcome = _outcome(case)
            counts[outcome] += 1
            skipped = case.find("skipped")
            if outcome == "skipped" and skipped is not None:
                left_out[skipped.get("message", "")] += 1
    for reason, number in left_out.most_common():
        print(f"left out: {number} test{'s' if number > 1 else ''}: {reason}")
    skipped_part = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"total: {counts['passed']} passed, {counts['failed']} failed{skipped_part}")
    return 1 if counts["failed"] or not counts["passed"] else 0


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
