"""A mark's files: the list of what a sweep deletes, and the report for people.

The list is Parquet, so that any tool can read it. Its digest is kept in the catalog, where those who may only write to
the bucket cannot change it. The list is read only after the whole file was found to have this digest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeops.catalog.records import Roots
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import (
    Corrupted,
    InvalidInput,
    MarkRefused,
    ObjectNotFound,
    PreconditionFailed,
)
from lakeops.model.marks import HOLDING, SWEEPABLE, Mark, MarkState
from lakeops.model.records import check_asked
from lakeops.model.retention import DAY, counted
from lakeops.ops.context import Context
from lakeops.ops.gc.plan import KINDS, FileCount, Held, MarkDecision
from lakeops.ops.gc.unreferenced import managed
from lakeops.store import layout
from lakeops.store.listing import present
from lakeops.store.reader import parse_json, read_small

MARK_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
"""One file a row, relative to the namespace: ``object``, ``range``, ``metarange``, ``mark``, ``task`` or ``probe``."""

_MAX_REPORT = 64 << 20
"""A report has a line for each mirror and each prefix that it shows: megabytes at most."""

OURS = layout.OBJECT_NAME + r"|^_lakefs/(ranges|metaranges|retention/gc|tasks|probe)/."
"""What a mark may hold: everything else was not made by lakeops."""

_CLIMBS = r"(^|/)\.\.?(/|$)|\x00"


class MarkWriter:
    """Writes a mark's list to a local file, row by row. Used as a context manager."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: int = 0
        self._writer = pq.ParquetWriter(file, MARK_SCHEMA, compression="zstd", use_dictionary=["kind"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, kind: str, table: pa.Table) -> None:
        """Add files: a table with ``physical_address`` and ``size_bytes``."""
        if table.num_rows:
            kinds = pa.repeat(kind, table.num_rows)
            columns = [table["physical_address"], table["size_bytes"], kinds]
            self._writer.write_table(pa.table(columns, schema=MARK_SCHEMA))
            self.rows += table.num_rows

    def digest(self) -> str:
        """The SHA-256 of the file, once it is closed."""
        with self.file.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest()


def begun_key(mark_id: str) -> str:
    """Where a run writes first, to see the store's time."""
    return f"{layout.GC}{mark_id}/begun"


def mark_key(mark_id: str) -> str:
    """Where a mark's list lies."""
    return f"{layout.GC}{mark_id}/mark.parquet"


def report_key(mark_id: str) -> str:
    """Where a mark's report lies."""
    return f"{layout.GC}{mark_id}/report.json"


MARK_FILES = (begun_key, mark_key, report_key)
"""What a mark on record may have in the store."""


@contextmanager
def opened(ctx: Context, mark: Mark) -> Iterator[pq.ParquetFile]:
    """A mark's list, verified, to be read inside the block. Raises ``Corrupted``, ``MarkRefused``."""
    key = mark_key(mark.id)
    with tempfile.TemporaryDirectory(prefix="lakeops-") as name:
        copy = Path(name) / "mark.parquet"
        try:
            with ctx.store.open(key) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except ObjectNotFound:
            now = ctx.catalog.marks.get(ctx.repository_id, mark.id).state
            if now not in SWEEPABLE:  # a later collection may have taken the list, too
                raise MarkRefused(f"mark {mark.id} became {now} meanwhile; make a new mark") from None
            raise Corrupted(
                f"{ctx.store.url}/{key} is gone, so nothing of mark {mark.id} can be deleted; make a new mark"
            ) from None
        with copy.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
        if found != mark.digest:
            raise Corrupted(
                f"{ctx.store.url}/{key} is not what the mark wrote: its digest is {found[:16]}, not "
                f"{mark.digest[:16]}; nothing was deleted; make a new mark"
            )
        with pq.ParquetFile(copy) as file:
            yield file


def check_ours(ctx: Context, mark: Mark, addresses: pa.Array | pa.ChunkedArray) -> None:
    """Refuse a list that names what lakeops did not make: the last line of defence. Raises ``Corrupted``."""
    fine = pc.and_not(pc.match_substring_regex(addresses, OURS), pc.match_substring_regex(addresses, _CLIMBS))
    if not pc.all(fine).as_py():
        name = pc.filter(addresses, pc.invert(fine))[0].as_py()
        raise Corrupted(f"mark {mark.id} of {ctx.store.url} names {name!r}, which is not lakeops' own; it is not swept")


def write_report(ctx: Context, mark_id: str, report: dict[str, Any]) -> None:
    """Keep a mark's report beside its list."""
    text = json.dumps(report, indent=2, ensure_ascii=False)
    ctx.store.put(report_key(mark_id), text.encode(), content_type="application/json")


def report(ctx: Context, mark_id: str) -> dict[str, Any]:
    """What a mark holds, what was kept and why, and what is not lakeops' own.

    The report was written by the mark's run. Its ``mark`` has the state of now.

    Raises:
        NotFound: ``mark_not_found``: this repository has no such mark.
        ObjectNotFound: the mark has no report, because its run was killed.
    """
    mark = ctx.catalog.marks.get(ctx.repository_id, check_asked(mark_id, "a mark"))
    try:
        text = read_small(ctx.store, report_key(mark.id), _MAX_REPORT)
    except ObjectNotFound:
        raise ObjectNotFound(
            f"mark {mark.id} is {mark.state.value} and has no report: its run was killed, or the file was deleted"
        ) from None
    try:
        found = parse_json(text)
    except ValueError:
        raise Corrupted(f"{ctx.store.url}/{report_key(mark.id)} is no report: it is not JSON") from None
    return {**found, "mark": mark.to_json()}


def own_objects(ctx: Context, addresses: pa.ChunkedArray) -> pa.Array:
    """The addresses that are names of lakeops in the namespace, in any spelling. They are relative to it.

    What somebody else put below ``data/`` is never collected, and is the caller's word, as imported objects are.

    Raises:
        InvalidInput: one of them is lakeops' own metadata, or lies elsewhere in the namespace.
    """
    inside = managed(ctx.repository.storage_namespace, addresses)
    strange = inside.filter(pc.invert(pc.starts_with(inside, layout.DATA)))
    if len(strange):
        raise InvalidInput(f"{strange[0].as_py()!r} of {ctx.store.url} is not an object: objects lie below data/")
    return inside.filter(pc.match_substring_regex(inside, layout.OBJECT_NAME))


def cleared(ctx: Context, objects: pa.Array) -> frozenset[str]:
    """The marks that hold none of these objects and never will, or have nothing left to delete.

    Raises:
        PreconditionFailed: ``object_collected``: one of them holds one of the objects.
    """
    found = set()
    for mark in ctx.catalog.marks.on_record(ctx.repository_id):
        within = _begun_by(objects, mark.cutoff)
        if mark.state is MarkState.MARKING and len(within):
            continue
        found.add(mark.id)
        if mark.state not in HOLDING or not len(within):
            continue
        with opened(ctx, mark) as file:
            for batch in file.iter_batches(columns=["physical_address"]):
                doomed = pc.is_in(batch.column(0), value_set=within)
                if pc.any(doomed).as_py():
                    name = batch.column(0).filter(doomed)[0].as_py()
                    raise PreconditionFailed(
                        f"nothing refers to {name!r} any more, and mark {mark.id} is going to delete it: "
                        "upload the contents again",
                        kind="object_collected",
                    )
    return frozenset(found)


def check_present(ctx: Context, objects: pa.Array) -> None:
    """Prove that every object is in the store. Asked of the store, after ``cleared``. Raises ``ObjectNotFound``."""
    names = objects.unique().to_pylist()
    found = present(ctx.store, names)
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise ObjectNotFound(
            f"there is no object {missing!r} in {ctx.store.url} ({len(names) - len(found):,} of {len(names):,} are "
            "missing): garbage collection took it, or it was never written; upload the contents again"
        )


def _begun_by(objects: pa.Array, cutoff: datetime) -> pa.Array:
    """The names that a mark of this cutoff may hold: those of no later hour."""
    hour = pc.utf8_slice_codeunits(objects, 5, 15)
    return objects.filter(pc.less_equal(hour, f"{cutoff:%Y%m%d%H}"))


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
        registered = sorted(
            ctx.catalog.mirrors.registrations(ctx.repository_id), key=lambda mirror: (mirror.at, mirror.id)
        )
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
