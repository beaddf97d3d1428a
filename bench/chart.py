"""docs/performance.png: cost against the size of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.page import DOCS, size_name

CHART = DOCS / "performance.png"

_SHOWN = (
    "import, digests present",
    "commit 1k clustered",
    "commit 1k random",
    "diff 100 keys, 10 places",
    "diff 1k random",
    "merge 1k+1k clustered",
    "merge 1k+1k random",
    "list a page of 1,000",
    "branch create, durable",
)
_OURS, _THEIRS = "#0b6e99", "#b8b2a7"


def draw(results: dict[int, dict[str, Any]], file: Path = CHART) -> None:
    """One small panel for each row, both axes logarithmic; CPU, because runs differ in what else went on."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    sizes = sorted(results)
    figure, axes = plt.subplots(3, 3, figsize=(10, 8), sharex=True, layout="constrained")
    for name, axis in zip(_SHOWN, axes.flat, strict=True):
        for side, colour in (("git", _THEIRS), ("lakeops", _OURS)):
            times = [results[size]["rows"][name][side]["cpu"] * 1000 for size in sizes]
            axis.plot(sizes, times, color=colour, marker="o", linewidth=2, label=side)
        axis.set(xscale="log", yscale="log", title=name, xticks=sizes)
        axis.set_xticklabels(map(size_name, sizes))
        axis.xaxis.set_minor_locator(NullLocator())
        low, high = axis.get_ylim()
        axis.set_ylim(low / 2, high * 2)
        wide = high / low > 100
        axis.yaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.title.set_size(10)
        axis.grid(visible=True, axis="y", color="#eeeeee")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False)
    figure.supylabel("milliseconds of CPU, median")
    figure.supxlabel("entries in the repository")
    figure.savefig(file, dpi=110)
    plt.close(figure)
