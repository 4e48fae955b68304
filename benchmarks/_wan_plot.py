"""The picture of docs/benchmarks.md: steps a second of every way at every point, and the limit of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#b04a3a", "#e0a458", "#2f6f9f", "#3f9c8f", "#274060")


def draw(path: Path, *, points: Sequence[str], ways: Mapping[str, Sequence[tuple[float, float, bool]]]) -> None:
    """Write a PNG: for each way its (steps/s, limit, busy) at each of ``points``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9.5, 4.6))
    width = 0.8 / len(ways)
    for number, (name, values) in enumerate(ways.items()):
        where = [at + (number - (len(ways) - 1) / 2) * width for at in range(len(points))]
        rates = [rate for rate, _, _ in values]
        axes.bar(where, rates, 0.92 * width, label=name, color=COLOURS[number])
        labels = [f"{rate:.0f}{'*' if busy else ''}" for rate, _, busy in values]
        for at, text in zip(where, labels, strict=True):
            axes.text(at, 0, text, fontsize=7, color="white", ha="center", va="bottom")  # clear of the limit's line
        edges = [at - 0.46 * width for at in where], [at + 0.46 * width for at in where]
        told = "limit" if number == len(ways) - 1 else "_"  # one line in the legend stands for all
        axes.hlines([limit for _, limit, _ in values], *edges, colors="black", linewidth=1.4, label=told)
    axes.set_xticks(range(len(points)), [point.replace(", step", "\nstep") for point in points], fontsize=8)
    axes.set_ylabel("steps a second, 12 environments")
    axes.set_title("doapp over a long line (* both cores busy above 85 %)", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
    axes.margins(y=0.22)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
