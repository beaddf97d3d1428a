"""A run as lines of text: what the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.git_side import PATIENCE
from bench.rows import CANDIDATES, Row
from bench.sample import Sample

HEADINGS = (
    "row",
    "lakeops ms (CPU)",
    "git ms (CPU)",
    "ratio",
    "CPU ratio",
    "goal",
    "",
    "ranges opened",
    "written",
    "MB read",
    "MB written",
    "peak MB",
)


def cells(row: Row, found: dict[str, Any], size: int) -> tuple[str, ...]:
    """One row, as long as ``HEADINGS``."""
    ours, theirs = Sample(**found["lakeops"]), Sample(**found["git"]) if found["git"] else None
    return (
        row.name,
        _time(ours),
        _time(theirs) if theirs else f"> {PATIENCE * 1000:,}" if found.get("git_stopped") else "",
        f"{ours.wall / theirs.wall:.2f}x" if theirs else "",
        f"{ours.cpu / theirs.cpu:.2f}x" if theirs else "",
        str(row.goal or ""),
        verdict(row, found, size),
        *(f"{count:,.0f}" if count else "" for count in (ours.opened, ours.written)),
        *(f"{count / 1e6:,.1f}" if count >= 50_000 else "" for count in (ours.bytes_read, ours.bytes_written)),
        f"{ours.peak_mb:,.0f}" if ours.peak_mb else "",
    )


def verdict(row: Row, found: dict[str, Any], size: int) -> str:
    """``pass`` or ``miss``; nothing where no goal speaks of this size."""
    if row.goal is None or size < row.goal.size:
        return ""
    ours, theirs = Sample(**found["lakeops"]), Sample(**found["git"]) if found["git"] else None
    return "pass" if row.goal.reached(ours, theirs) else "miss"


def facts(result: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Numbers without a time: name, number, goal, verdict."""
    found = result["facts"]
    size = found["bytes_per_entry"]
    yield "bytes an entry on disk", f"{size:.1f}", "≤ 68", "pass" if size <= 68 else "miss"
    yield "the same in git's pack, mode and id alone", f"{found['git_bytes_per_entry']:.1f}", "", ""
    peak = max(row["lakeops"]["peak_mb"] for row in result["rows"].values())
    yield "most memory of any row, MB", f"{peak:,.0f}", "≤ 1,000", "pass" if peak <= 1000 else "miss"
    yield "ranges", f"{found['ranges']:,}", "", ""
    # Results of before this row was measured stay readable.
    sides = result["rows"].get(CANDIDATES)
    if sides and sides["git"] and sides["git"]["peak_mb"]:
        share = sides["lakeops"]["peak_mb"] / sides["git"]["peak_mb"]
        said = ("pass" if share <= 0.4 else "miss") if result["size"] >= 10_000_000 else ""
        yield "GC candidates: peak memory beside DuckDB's", f"{share:.2f}x", "≤ 0.4x", said


def _time(sample: Sample) -> str:
    return f"{_ms(sample.wall)} ({_ms(sample.cpu)})"


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"
