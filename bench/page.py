"""The measured part of docs/performance.md; what is around the two marks is written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.lines import HEADINGS, cells, facts, verdict
from bench.rows import SECTIONS, Row, Section
from bench.sample import ROOT

DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
NUMBERS = DOCS / "performance.json"
FAR_NUMBERS = DOCS / "performance-far.json"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
FAR_BEGIN, FAR_END = "<!-- measured far away: begin -->", "<!-- measured far away: end -->"


def known() -> dict[int, dict[str, Any]]:
    """The last result of each size."""
    found = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else []
    return {each["size"]: each for each in found}


def remember(result: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """All results so far by size, with this one in place of an older one of its size; written beside the page."""
    kept = dict(sorted((known() | {result["size"]: result}).items()))
    NUMBERS.write_text(json.dumps(list(kept.values()), indent=1) + "\n")
    return kept


def write(results: dict[int, dict[str, Any]]) -> None:
    """Put the tables of all sizes into the page."""
    put(PAGE, BEGIN, END, _measured(results))


def remember_far(result: dict[str, Any], lines: Iterable[str]) -> None:
    """Put a run on a bucket far away into the page, and its numbers beside it."""
    FAR_NUMBERS.write_text(json.dumps(result, indent=1) + "\n")
    put(PAGE, FAR_BEGIN, FAR_END, lines)


def put(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Put lines between two marks of a page."""
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    measured = "\n".join(lines)
    page.write_text(f"{before}{begin}\n\n{measured}\n{end}{after}")


def size_name(size: int) -> str:
    """``100k``, ``1M``."""
    return f"{size // 1_000_000}M" if size >= 1_000_000 else f"{size // 1_000}k"


def _measured(results: dict[int, dict[str, Any]]) -> Iterator[str]:
    for size, result in sorted(results.items(), reverse=True):
        machine = result["machine"]
        yield f"## {size:,} entries\n"
        yield (
            f"{machine['cores']} cores, load {_load(result)} during the run, Python {machine['python']}, "
            f"git {machine['git']}. Medians; {_repeats(result)}.\n"
        )
        yield from _table(result)
        yield ""
        yield "|  |  | goal |  |\n|---|---|---|---|"
        yield from (f"| {' | '.join(line)} |" for line in facts(result))
        yield ""
        yield from _misses(result)
    if len(results) > 1:
        yield from _growth(results)


def _load(result: dict[str, Any]) -> str:
    loads = [row["load"] for row in result["rows"].values()]
    return f"{min(loads):.1f} to {max(loads):.1f}"


def _repeats(result: dict[str, Any]) -> str:
    counts = [row["repeats"] for row in result["rows"].values()]
    return f"rows were run {min(counts)} to {max(counts)} times"


def _table(result: dict[str, Any]) -> Iterator[str]:
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|---|{'--:|' * (len(HEADINGS) - 1)}"
    for section in SECTIONS:
        rows = _known_rows(section, result)
        if rows:
            yield f"| **{section.title}** |{' |' * (len(HEADINGS) - 1)}"
        for row in rows:
            yield f"| {' | '.join(cells(row, result['rows'][row.name], result['size']))} |"


def _known_rows(section: Section, result: dict[str, Any]) -> list[Row]:
    """The rows of a section that were measured; an older result may lack some."""
    return [row for row in section.rows if row.name in result["rows"]]


def _misses(result: dict[str, Any]) -> Iterator[str]:
    rows = [row for section in SECTIONS for row in _known_rows(section, result)]
    missed = [row for row in rows if verdict(row, result["rows"][row.name], result["size"]) == "miss"]
    if missed:
        yield "Missed, and why:\n"
        yield from (f"* {row.name}: {row.why}." for row in missed)
        yield ""


def _growth(results: dict[int, dict[str, Any]]) -> Iterator[str]:
    """How cost grows with the repository, the same work each time; CPU, because runs differ in what else went on."""
    sizes = sorted(results)
    names = ["commit 1k clustered", "diff 100 keys, 1 place", "merge 1k+1k clustered", "stat, cold process"]
    yield "## The same work in larger repositories\n"
    yield f"| CPU: lakeops ms (git ms) | {' | '.join(map(size_name, sizes))} |\n|---|{'--:|' * len(sizes)}"
    for name in names:
        row = [results[size]["rows"][name] for size in sizes]
        shown = [f"{each['lakeops']['cpu'] * 1000:.1f} ({each['git']['cpu'] * 1000:.1f})" for each in row]
        yield f"| {name} | {' | '.join(shown)} |"
    yield ""
    if {1_000_000, 10_000_000} <= results.keys():
        small, large = (results[size]["rows"][names[0]]["lakeops"]["cpu"] for size in (1_000_000, 10_000_000))
        said = "pass" if large <= 1.3 * small else "miss"
        yield f"Commit 1k clustered, CPU of 10M over 1M: {large / small:.2f} (goal ≤ 1.3: {said}).\n"
