"""The whole check: from the refs over commits, metaranges and ranges to the staging area and the objects.

Three things keep it from crying wolf beside live writers. The namespace is listed before the catalog is read, so
whatever the catalog refers to and the listing does not have is asked for once more before it is called missing. What
is missing is damage only while a commit that needs it is live, by a second look at the catalog: garbage collection
may have expired it meanwhile. And files that nothing refers to are information, whatever their age.

The check writes nothing: not to the store, not to the catalog. Whoever ran it may leave its result on record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from lakeops.catalog.records import CatalogSnapshot, StagedLine
from lakeops.model.errors import Corrupted, LakeopsError
from lakeops.model.findings import Finding, Severity, found
from lakeops.model.reports import ReportKind
from lakeops.ops.context import Context
from lakeops.ops.fsck.history import check_history, split_flaw
from lakeops.ops.fsck.inventory import Inventory, check_claim, check_owner, leftovers
from lakeops.ops.fsck.objects import Entries
from lakeops.ops.fsck.ranges import Uses, check_metaranges, check_ranges, pointers, promised
from lakeops.ops.fsck.staging import (
    StagedObjects,
    check_reflog,
    check_rows,
    check_rows_of_tables,
    check_tokens,
    check_uploads,
)
from lakeops.ranges.read import RangeCache, RangeReader
from lakeops.store import layout
from lakeops.store.base import StoredObject

PAGE = 10_000
"""Staged rows that are read at a time."""

NOTED = 50
"""Findings that stay on record, the worst ones."""


def fsck(ctx: Context, *, data: bool = False) -> Fsck:
    """Check everything from the refs down to the ranges. Changes nothing.

    Returns an iterator of findings (``kind``, ``severity``, ``where``, ``message``, ``advice``), as they are made. A
    repository is sound when no finding has the severity ``error``.

    Args:
        data: check the objects too.
    """
    return Fsck(ctx, data=data)


class Fsck(Iterator[Finding]):
    """The findings of one check, as they are made.

    Attributes:
        checked: how much was looked at so far: ``files`` (listed), ``commits``, ``metaranges``, ``ranges``,
            ``entries``, ``staged`` and, with ``data``, ``objects``.
        severities: how many findings there were so far, by severity.
    """

    def __init__(self, ctx: Context, *, data: bool) -> None:
        self.checked: Counter[str] = Counter()
        self.severities: Counter[Severity] = Counter()
        self._ctx = ctx
        self._data = data
        self._worst: dict[Severity, list[Finding]] = {severity: [] for severity in Severity}
        self._findings = _check(ctx, self.checked, data=data)

    def __next__(self) -> Finding:
        finding = next(self._findings)
        self.severities[finding.severity] += 1
        kept = self._worst[finding.severity]
        if len(kept) < NOTED:
            kept.append(finding)
        return finding

    def note(self) -> bool:
        """Leave on record what was found, as the last check of the repository; False where that cannot be written."""
        worst = [finding.to_json() for severity in Severity for finding in self._worst[severity]][:NOTED]
        found = {
            "severities": {severity.value: self.severities[severity] for severity in Severity},
            "checked": dict(self.checked),
            "findings": worst,
            "data": self._data,
        }
        try:
            self._ctx.catalog.add_report(self._ctx.repository_id, ReportKind.CHECK, found, actor=self._ctx.actor)
        except LakeopsError:  # a login that may only read, say: what was found is told all the same
            return False
        return True

    def close(self) -> None:
        """End the check early, and give back what it holds."""
        self._findings.close()


def _check(ctx: Context, checked: Counter[str], *, data: bool) -> Generator[Finding]:
    with TemporaryDirectory(prefix="lakeops-fsck-") as place:
        files = _NamespaceListing(ctx)
        with closing(Inventory(Path(place), files, lambda done: ctx.progress("fsck: listing", done, 0))) as inventory:
            checked["files"] = len(inventory)
            try:
                records = ctx.catalog.records(ctx.repository_id)
            except Corrupted as error:  # the repository's own row, without which nothing else can be looked at
                yield found("row_unreadable", f"repository {ctx.repository_id}", error.message)
                return
            checked["commits"] = len(records.commits)
            entries = Entries(ctx, inventory, checked, data=data)
            whole = True
            for finding in chain(
                files.check(),
                check_claim(ctx.store, records.repository),
                check_owner(ctx, follows=records.follows),
                check_rows_of_tables(records),
                check_reflog(records),
                check_history(records),
                _check_committed(ctx, records, inventory, entries, checked),
                _check_staging(ctx, records, entries, checked),
            ):
                whole = whole and (finding.severity != Severity.ERROR or finding.kind.startswith("object_"))
                yield finding
            if records.follows:
                return
            if whole:
                yield from leftovers(inventory, records.uploads, records.overdue)
            else:
                message = "which files no live version needs cannot be told: what could not be read may need them"
                yield found("leftovers_unknown", ctx.repository.storage_namespace, message)


class _NamespaceListing:
    """The namespace's objects in order, up to the end or the first error."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._error: LakeopsError | None = None

    def __iter__(self) -> Iterator[StoredObject]:
        try:
            yield from self._ctx.store.list()
        except LakeopsError as error:
            self._error = error

    def check(self) -> Iterator[Finding]:
        """What ended the listing early, if something did."""
        if self._error is not None:
            namespace = self._ctx.repository.storage_namespace
            yield found("namespace_unreadable", namespace, f"it cannot be listed: {self._error.message}")


def _check_committed(
    ctx: Context, records: CatalogSnapshot, inventory: Inventory, entries: Entries, checked: Counter[str]
) -> Iterator[Finding]:
    """Everything from live commits down to the objects of their entries."""

    def live(commits: Sequence[str]) -> list[str]:
        """The commits that are live now, read from the catalog anew."""
        known = ctx.catalog.commits(ctx.repository_id, commits)
        return [name for name in commits if name in known and not known[name].expired]

    wanted = pointers(promised(records))
    inventory.need_keys([layout.metarange_key(one.meta_range_file) for one in wanted])
    uses = Uses()
    # A reader of its own: what this process remembers of a file says nothing about the file.
    reader = RangeReader(ctx.store, RangeCache(0))

    def on_progress(done: int) -> None:
        checked["metaranges"] = done
        ctx.progress("fsck: metaranges", done, len(wanted))

    yield from check_metaranges(reader, wanted, uses, live=live, on_progress=on_progress)
    total = len(uses)
    ctx.progress("fsck: ranges", 0, total)
    engine = ctx.engine.for_work(total)
    split = None if split_flaw(records.repository.split) else records.repository.split
    for one in check_ranges(engine, ctx.store, uses, split, entries.columns):
        checked["ranges"] += 1
        commits: list[str] | None = None
        for flaw in entries.flaws_of_range(one):
            if commits is None:
                commits = uses.commits(one.number)
            needed = live(commits) if flaw.missing else commits
            if needed:
                yield found(flaw.kind, flaw.where, flaw.message, commits=needed, count=flaw.count)
        ctx.progress("fsck: ranges", checked["ranges"], total)


def _check_staging(
    ctx: Context, records: CatalogSnapshot, entries: Entries, checked: Counter[str]
) -> Iterator[Finding]:
    """The staging area, and the objects that it would commit."""
    yield from check_tokens(records)
    yield from check_uploads(records)

    def read(after: tuple[str, str]) -> list[StagedLine]:
        page = ctx.catalog.staged_rows(ctx.repository_id, after=after, limit=PAGE)
        checked["staged"] += len(page)
        ctx.progress("fsck: staged rows", checked["staged"], sum(records.staged.values()))
        return page

    for one in check_rows(records, read):
        if isinstance(one, StagedObjects):
            for flaw in entries.follow(one.table, place=f"{one.where}, path "):
                yield found(flaw.kind, flaw.where, flaw.message, count=flaw.count)
        else:
            yield one
