"""The report of a mark: what would go, what stays and why, and what is not ours."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Roots
from lakeops.model.clock import unix_seconds
from lakeops.model.marks import Mark
from lakeops.model.retention import DAY, counted
from lakeops.ops.context import Context
from lakeops.ops.gc.plan import KINDS, FileCount, Held, MarkDecision

AGES = (2, 7, 30, 90, 365)
"""Borders between the ages of objects, in days."""

PREFIXES = 100
"""How many prefixes are shown, the largest first."""

VERSIONED = (
    "the bucket keeps versions: what a sweep deletes stays as noncurrent versions, and is paid for, until a lifecycle "
    "rule with NoncurrentVersionExpiration (and ExpiredObjectDeleteMarker) removes them"
)

SILENT_DAYS = 7
"""After so many days without a report, a mirror that commits are kept for is named in the notes."""

_HOUR = 10


@dataclass
class Findings:
    """What one mark found.

    Attributes:
        mark: the mark.
        grace: the grace period that it went by.
        held: what the store held.
        decided: which commits live and why, and what became of the others.
        roots: what was referred to.
        referenced: how many of the objects that are old enough something refers to.
        kinds: what would go, by kind.
        hours: objects that would go, by the hour that they were begun in: count and bytes.
    """

    mark: Mark
    grace: timedelta
    held: Held
    decided: MarkDecision
    roots: Roots
    referenced: int = 0
    kinds: dict[str, FileCount] = field(default_factory=lambda: {kind: FileCount() for kind in ("object", *KINDS)})
    hours: dict[str, list[int]] = field(default_factory=dict)

    @property
    def objects(self) -> FileCount:
        """The objects that would go."""
        return self.kinds["object"]

    def add(self, kind: str, files: pa.Table) -> None:
        """Count files that would go."""
        self.kinds[kind].add(files)
        if kind != "object" or not files.num_rows:
            return
        hour = pc.utf8_slice_codeunits(files["physical_address"], 5, 5 + _HOUR)
        sums = pa.table({"hour": hour, "size": files["size_bytes"]}).group_by("hour")
        for row in sums.aggregate([("size", "count"), ("size", "sum")]).to_pylist():
            counts = self.hours.setdefault(row["hour"], [0, 0])
            counts[0] += row["size_count"]
            counts[1] += row["size_sum"]

    def to_json(self, ctx: Context, rows: int) -> dict[str, Any]:
        """The report, as it is kept."""
        versions = ctx.store.keeps_versions()
        mirrors = self._mirrors(ctx)
        return {
            "mark": self.mark.to_json(),
            "repository": ctx.repository_id,
            "storage_namespace": ctx.repository.storage_namespace,
            "cutoff": self.mark.cutoff.isoformat(timespec="seconds"),
            "grace_hours": self.grace.total_seconds() / 3600,
            "files": rows,
            "objects": self.objects.count,
            "bytes": self.objects.size_bytes,
            "share": round(self.objects.count / self.held.listed.count, 4) if self.held.listed.count else 0.0,
            "metadata": {kind: _counts(tally) for kind, tally in self.kinds.items() if kind != "object"},
            "by_prefix": self._by_prefix(),
            "by_age": self._by_age(),
            "sample": {kind: tally.sample for kind, tally in self.kinds.items() if tally.sample},
            "commits": {
                "live": counted(self.decided.kept.values()),
                "expired_now": len(self.decided.expired),
                "expired_earlier": len(self.decided.carried),
                "live_again": len(self.decided.revived),
            },
            "kept": {
                "referenced": self.referenced,
                "staged": self.roots.staged.num_rows,
                "uploads": len(self.roots.uploads),
                "grace": _counts(self.held.young),
            },
            "listed": _counts(self.held.listed),
            "strays": {**_counts(self.held.strays), "sample": self.held.strays.sample},
            "versioned": versions,
            "mirrors": mirrors,
            "notes": [*([VERSIONED] if versions else []), *(_silence(ctx, row) for row in mirrors if _is_silent(row))],
        }

    def _mirrors(self, ctx: Context) -> list[dict[str, Any]]:
        """The mirrors that commits are kept for, the one that has been silent longest first."""
        now = unix_seconds(self.mark.created)
        registered = sorted(ctx.catalog.registrations(ctx.repository_id), key=lambda mirror: (mirror.at, mirror.id))
        return [
            {
                "id": mirror.id,
                "last_report": mirror.at,
                "silent_days": max(0, now - mirror.at) // DAY,
                "commits": len(mirror.commits),
                "only_for_it": len(self.decided.only_for_mirrors.get(mirror.id, ())),
            }
            for mirror in registered
        ]

    def _by_prefix(self) -> list[dict[str, Any]]:
        days: dict[str, list[int]] = {}
        for hour, (count, size) in self.hours.items():
            counts = days.setdefault(f"data/{hour[:8]}", [0, 0])
            counts[0] += count
            counts[1] += size
        largest = sorted(days.items(), key=lambda item: (-item[1][1], item[0]))
        shown = [{"prefix": day, "objects": count, "bytes": size} for day, (count, size) in largest[:PREFIXES]]
        rest = [counts for _, counts in largest[PREFIXES:]]
        if rest:
            total = [sum(column) for column in zip(*rest, strict=True)]
            shown.append({"prefix": f"{len(rest)} more", "objects": total[0], "bytes": total[1]})
        return shown

    def _by_age(self) -> list[dict[str, Any]]:
        sums = [[0, 0] for _ in range(len(AGES) + 1)]
        for hour, (count, size) in self.hours.items():
            days = (self.mark.created - _parse_hour(hour)).days
            counts = sums[sum(days >= border for border in AGES)]
            counts[0] += count
            counts[1] += size
        names = [f"under {AGES[0]} days", *(f"{a} to {b} days" for a, b in itertools.pairwise(AGES))]
        names.append(f"{AGES[-1]} days and more")
        return [
            {"age": name, "objects": count, "bytes": size}
            for name, (count, size) in zip(names, sums, strict=True)
            if count
        ]


def _is_silent(row: dict[str, Any]) -> bool:
    return bool(row["only_for_it"]) and row["silent_days"] >= SILENT_DAYS


def _silence(ctx: Context, row: dict[str, Any]) -> str:
    return (
        f"mirror {row['id']} has not reported for {row['silent_days']} days, and {row['only_for_it']:,} commits are "
        f"kept for it alone; if it is gone: lakeops mirror drop lakefs://{ctx.repository_id} {row['id']}"
    )


def _counts(tally: FileCount) -> dict[str, int]:
    return {"count": tally.count, "bytes": tally.size_bytes}


def _parse_hour(hour: str) -> datetime:
    try:
        return datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC)
    except ValueError:  # ten digits that are no hour: older than anything
        return datetime.min.replace(tzinfo=UTC)
