"""The page of benchmark figures."""

from __future__ import annotations

from benchmarks import report


def test_the_page_says_which_figures_keep_their_aim() -> None:
    """Each figure stands beside its aim, and one that misses it is marked."""
    figures = {"lease.p50_over_get": 1.2, "lease.pairs_over_get": 0.2, "lease.rate_per_s": 12345.6}
    page = report.page({"lease": {"machine": {"cores": 2}, "figures": figures}})
    rows = {line.split("|")[2].strip(" `"): line for line in page.splitlines() if line.startswith("| ")}
    assert rows["lease.p50_over_get"].endswith("| 1.2 | at most 1.5 | yes |")
    assert rows["lease.pairs_over_get"].endswith("| 0.2 | at least 0.35 | **no** |")
    assert "12,346" in rows["lease.rate_per_s"]
    assert "Machine: cores 2" in page


def test_the_page_shows_what_a_benchmark_has_besides_figures() -> None:
    """A note and a table stand below a benchmark's figures, with marks like * as they are."""
    more = {"note": "Over a line.", "table": {"head": ["", "steps/s"], "rows": [["tunnel", "80*"]]}}
    page = report.page({"unseen": {"machine": "here", "figures": {}, **more}})
    assert "\nOver a line.\n" in page
    assert "| tunnel | 80\\* |" in page
    assert "](images/" not in page
