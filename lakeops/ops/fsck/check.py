"""The whole check: from the refs over commits, metaranges and ranges to the staging area and the objects.

It changes nothing, and does not cry wolf beside live writers. The namespace is listed before the catalog is read, so
what the catalog refers to and the listing lacks is asked for once more. What is missing is damage only while a commit
that needs it is live, by a second look at the catalog. Files that nothing refers to are information.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

import pyarrow as pa

from lakeops.catalog.audit import CatalogSnapshot, RefUpdate, StagedLine
from lakeops.catalog.records import staged_record
from lakeops.engine.base import LocalEngine
from lakeops.model.errors import Corrupted, InvalidInput, InvalidPath, LakeopsError
from lakeops.model.formatting import counted
from lakeops.model.ids import id_of
from lakeops.model.names import check_branch, check_path
from lakeops.model.records import Commit, ReportKind, Split
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context
from lakeops.ops.fsck.findings import NAMED, Finding, Severity, found
from lakeops.ops.fsck.inventory import OWN, check_claim, check_owner, leftovers
from lakeops.ops.fsck.objects import Entries
from lakeops.ops.fsck.ranges import Uses, check_metaranges, check_ranges, pointers
from lakeops.ops.gc.unreferenced import Slices, StoreListing, list_store, scratching
from lakeops.ranges.chunker import check_split
from lakeops.ranges.diff import NEEDED_SCHEMA
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.ranges.validation import proper, relative
from lakeops.store import layout


def check_history(records: CatalogSnapshot) -> Iterator[Finding]:
    """Check the repository's record, its refs and its commits."""
    repository = records.repository
    if repository.default_branch not in {branch.id for branch in records.branches}:
        where = f"branch {repository.default_branch}"
        yield found("default_branch_missing", where, "the default branch does not exist")
    if reason := split_flaw(repository.split):
        yield found("split_invalid", f"repository {repository.id}", reason)
    yield from _refs(records)
    for name, reason in records.unreadable.items():
        yield found("commit_unreadable", f"commit {name}", f"the record cannot be read: {reason}")
    for commit in records.commits.values():
        yield from _commit(records, commit)
    roots = sorted(commit.id for commit in records.commits.values() if not commit.parents)
    where = f"repository {repository.id}"
    if not roots and not records.unreadable:
        yield found("root_missing", where, "every commit has a parent, so the first commit is missing")
    elif len(roots) > 1:
        yield found("roots_several", where, f"{len(roots)} commits have no parents", commits=roots, count=len(roots))
    for key, missing in records.dangling_keys.items():
        message = f"it stands for commit {missing}, which does not exist"
        yield found("idempotency_key_dangling", f"idempotency key {key}", message)


def split_flaw(split: Split) -> str | None:
    """Why ranges cannot be cut in this way. None when they can."""
    try:
        check_split(split)
    except (InvalidInput, TypeError) as error:
        return str(error)
    return None


def _refs(records: CatalogSnapshot) -> Iterator[Finding]:
    branches = (("branch", branch.id, branch.commit_id) for branch in records.branches)
    tags = (("tag", tag.id, tag.commit_id) for tag in records.tags)
    for noun, name, target in chain(branches, tags):
        where = f"{noun} {name}"
        if target in records.unreadable:
            continue  # told of the commit
        commit = records.commits.get(target)
        if commit is None:
            yield found(f"{noun}_target_missing", where, f"it points to commit {target}, which does not exist")
        elif commit.expired:
            yield found(f"{noun}_target_expired", where, f"it points to commit {target}, which is expired")
        try:
            check_branch(name)
        except InvalidInput as error:
            yield found("ref_name_invalid", where, error.message)


def _commit(records: CatalogSnapshot, commit: Commit) -> Iterator[Finding]:
    where, mine = f"commit {commit.id}", (commit.id,)
    try:
        computed = id_of(commit)
    except (OverflowError, UnicodeError):
        computed = "of no commit"
    if computed != commit.id:
        yield found("commit_id_mismatch", where, f"its record gives the id {computed}", commits=mine)
    gone = [parent for parent in commit.parents if parent not in records.commits and parent not in records.unreadable]
    # Missing parents may have been pruned: the repository's row says up to which generation.
    pruned = records.pruned is not None and (len(gone) < len(commit.parents) or commit.generation - 1 <= records.pruned)
    for parent in [] if pruned else gone:
        yield found("commit_parent_missing", where, f"its parent {parent} does not exist", commits=mine)
    known = [records.commits[parent].generation for parent in commit.parents if parent in records.commits]
    expected = 1 + max(known, default=0)
    if len(known) == len(commit.parents) and commit.generation != expected:
        message = f"its generation is {commit.generation}, and its parents make it {expected}"
        yield found("commit_generation_wrong", where, message, commits=mine)
    if commit.id in records.first_parents:
        followed = records.first_parents[commit.id] or "nothing"
        message = f"logs follow {followed}, which is not the first of its parents"
        yield found("commit_first_parent_wrong", where, message, commits=mine)


def check_tokens(records: CatalogSnapshot) -> Iterator[Finding]:
    """Check the branches' tokens, and find rows that no branch reads."""
    owners: dict[str, str] = {}
    for branch in records.branches:
        for token in branch.tokens:
            if token in owners:
                other = owners[token]
                message = f"it shares the staging token {token} with {'itself' if other == branch.id else other}"
                yield found("staging_token_shared", f"branch {branch.id}", message)
            owners[token] = branch.id
            if token in records.retired:
                message = f"its staging token {token} is retired already"
                yield found("staging_token_retired", f"branch {branch.id}", message)
    for token, rows in records.staged.items():
        if token not in owners:
            kind = "staged_rows_retired" if token in records.retired else "staged_rows_orphaned"
            message = f"{rows:,} staged rows of a token that no branch reads"
            yield found(kind, f"staging token {token}", message, count=rows)


def check_uploads(records: CatalogSnapshot) -> Iterator[Finding]:
    """Uploads that were given up."""
    for upload in records.uploads:
        if upload.started < records.overdue:
            message = f"begun on branch {upload.branch} at {upload.started:%Y-%m-%d %H:%M} UTC and never linked"
            yield found("upload_overdue", f"upload {upload.address}", message)


def check_rows(
    ctx: Context, records: CatalogSnapshot, slices: Slices, entries: Entries, checked: Counter[str]
) -> Iterator[Finding]:
    """Check staged rows, and the objects of the sound ones."""
    owners = {token: branch.id for branch in records.branches for token in branch.tokens}
    namespace = records.repository.storage_namespace
    total, after = sum(records.staged.values()), ("", "")
    while page := ctx.catalog.audit.staged_rows(ctx.repository_id, after=after, limit=PAGE):
        checked["staged"] += len(page)
        ctx.progress("fsck: staged rows", checked["staged"], total)
        after = (page[-1].token, page[-1].path)
        staged: dict[str, list[StagedLine]] = {}
        for line in page:
            reason = _flaw(line) if line.token in owners else None
            if reason is not None:
                where = f"branch {owners[line.token]}, path {line.path}"
                yield found("staged_row_invalid", where, f"the staged row {reason}")
            elif line.token in owners and not line.tombstone:
                staged.setdefault(owners[line.token], []).append(line)
        for branch, lines in staged.items():
            columns = {name: [getattr(line, name) for line in lines] for name in NEEDED_SCHEMA.names}
            table = pa.table(columns, schema=NEEDED_SCHEMA)
            keys = relative(namespace, table["physical_address"])
            sound = proper(keys)
            slices.refer_to(keys.filter(sound))
            for line, good in zip(lines, sound.to_pylist(), strict=True):
                if not good:
                    where, address = f"branch {branch}, path {line.path}", excerpt(line.physical_address)
                    message = f"the staged row has the address {address}, which no object can have"
                    yield found("staged_row_invalid", where, message)
            yield from entries.follow(table.filter(sound), place=f"branch {branch}, path ")


def _flaw(line: StagedLine) -> str | None:
    """Why a row cannot be committed, in words that follow "the staged row". None when it can."""
    try:
        check_path(line.path)
        entry = staged_record(line).entry
    except InvalidPath as error:
        return f"has an impossible path: {error.message}"
    except Corrupted as error:
        return f"cannot be decoded: {error.__context__}"
    if entry is None:
        return None
    for name in ("physical_address", "checksum"):
        if not getattr(entry, name):
            return f"has no {name}"
    return "has a negative size" if entry.size_bytes < 0 else None


def check_reflog(records: CatalogSnapshot) -> Iterator[Finding]:
    """Rows that cannot be decoded, and refs whose moves do not follow one another and lead to where they point."""
    for flaw in records.flaws:
        yield found("row_unreadable", f"table {flaw.table}, row {excerpt(flaw.key)}", flaw.reason)
    points = {("branch", branch.id): branch.commit_id for branch in records.branches}
    points |= {("tag", tag.id): tag.commit_id for tag in records.tags}
    unreadable = {("branch", flaw.key) for flaw in records.flaws if flaw.table == "lakeops_branch" and flaw.reason}
    for ref, moves in groupby(records.moves, key=lambda move: (move.kind, move.ref)):
        last: RefUpdate | None = None
        where = " ".join(map(str, ref))
        for move in moves:
            if last is not None and move.old != last.new:
                end, begin = last.new or "nothing", move.old or "nothing"
                yield found("reflog_broken", where, f"one move ends at {end}, and the next one begins at {begin}")
            last = move
        points_to = points.pop(ref, None)
        if last is not None and points_to != last.new and ref not in unreadable:
            at, end = points_to or "nothing", last.new or "nothing"
            yield found("reflog_mismatch", where, f"it is at {at}, and its last move in the reflog led to {end}")
    for (kind, name), commit_id in points.items():
        yield found("reflog_mismatch", f"{kind} {name}", f"it is at {commit_id}, and no move in the reflog led there")


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


_NOUNS = {"commits": "commit", "ranges": "range", "entries": "entry", "staged": "staged row", "objects": "object"}


class Fsck(Iterator[Finding]):
    """The findings of one check, as they are made.

    ``checked`` counts what was looked at so far: ``files``, ``commits``, ``metaranges``, ``ranges``, ``entries``,
    ``staged`` and, with ``data``, ``objects``. ``severities`` counts the findings.
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

    def looked_at(self) -> str:
        """The counts of what was looked at so far, in words."""
        return ", ".join(counted(self.checked[key], noun) for key, noun in _NOUNS.items() if self.checked[key])

    @property
    def errors(self) -> int:
        """The number of findings of damage, so far."""
        return self.severities[Severity.ERROR]

    def counts(self) -> dict[str, dict[str, int]]:
        """The numbers of findings by their severity, and of what was looked at, so far."""
        found = {severity.value: self.severities[severity] for severity in Severity}
        return {"severities": found, "checked": dict(self.checked)}

    def note(self) -> bool:
        """Leave on record what was found, as the last fsck of the repository; False where that cannot be written."""
        worst = [finding.to_json() for severity in Severity for finding in self._worst[severity]][:NOTED]
        found = {**self.counts(), "findings": worst, "data": self._data}
        try:
            self._ctx.catalog.audit.add_report(self._ctx.repository_id, ReportKind.FSCK, found, actor=self._ctx.actor)
        except LakeopsError:  # a login that may only read, say: what was found is told all the same
            return False
        return True

    def close(self) -> None:
        """End early, and give back what it holds."""
        self._findings.close()


def _check(ctx: Context, checked: Counter[str], *, data: bool) -> Generator[Finding]:
    with scratching(ctx.store) as scratch:
        unreadable: list[Finding] = []
        listing = StoreListing(None)
        # In the namespace of a mirror nothing is written.
        engine = LocalEngine() if ctx.repository.read_only else ctx.engine()
        try:
            list_store(ctx.store, listing, engine, scratch, lambda done: ctx.progress("fsck: listing", done, 0))
        except LakeopsError as error:  # what was listed up to it counts
            namespace, message = ctx.repository.storage_namespace, f"it cannot be listed: {error.message}"
            unreadable.append(found("namespace_unreadable", namespace, message))
        checked["files"] = listing.names
        try:
            records = ctx.catalog.audit.snapshot(ctx.repository_id)
        except Corrupted as error:  # the repository's own row, without which nothing else can be looked at
            yield found("row_unreadable", f"repository {ctx.repository_id}", error.message)
            return
        checked["commits"] = len(records.commits)
        entries = Entries(ctx, checked, data=data)
        # A mirror's leftovers are not told, so nothing is joined.
        slices, whole = Slices(scratch, () if records.follows else listing.chunks), True
        for finding in chain(
            unreadable,
            check_claim(ctx.store, records.repository),
            check_owner(ctx, follows=records.follows),
            check_reflog(records),
            check_history(records),
            _check_committed(ctx, records, slices, entries, checked),
            check_tokens(records),
            check_uploads(records),
            check_rows(ctx, records, slices, entries, checked),
        ):
            whole = whole and (finding.severity != Severity.ERROR or finding.kind.startswith("object_"))
            yield finding
        if records.follows:
            return
        if not whole:
            message = "fsck cannot tell which files are not needed: what it could not read may need them"
            yield found("leftovers_unknown", ctx.repository.storage_namespace, message)
            return
        # Uploads that are not overdue may still be linked.
        flying = (upload.address for upload in records.uploads if upload.started >= records.overdue)
        free = slices.unreferenced(engine.for_work(checked["ranges"] * RANGE_SECONDS), (*OWN, *flying))
        yield from leftovers(free.batches(), records.overdue)


def _check_committed(
    ctx: Context, records: CatalogSnapshot, slices: Slices, entries: Entries, checked: Counter[str]
) -> Iterator[Finding]:

    def live(commits: Sequence[str]) -> list[str]:
        """The commits that are live now, read from the catalog anew."""
        known = ctx.catalog.commits.get_many(ctx.repository_id, commits)
        return [name for name in commits if name in known and not known[name].expired]

    wanted = pointers(records)
    slices.refer_to([layout.metarange_key(one.meta_range_file) for one in wanted])
    uses = Uses()
    # A reader of its own: what this process remembers of a file says nothing about the file.
    reader = RangeReader(ctx.store)

    def on_progress(done: int) -> None:
        checked["metaranges"] = done
        ctx.progress("fsck: metaranges", done, len(wanted))

    yield from check_metaranges(reader, wanted, uses, live=live, on_progress=on_progress)
    slices.refer_to([*map(layout.range_key, uses.files)])
    total = len(uses)
    ctx.progress("fsck: ranges", 0, total)
    engine = ctx.engine().for_work(total * RANGE_SECONDS)
    slices.upload_for_workers(engine)
    split = None if split_flaw(records.repository.split) else records.repository.split
    # The leftovers of a mirror are not reported, so nothing is joined, and nothing is written there.
    for one in check_ranges(engine, ctx.store, uses, split, entries.columns, slices):
        checked["ranges"] += 1
        commits: list[str] | None = None
        for finding in entries.flaws_of_range(one):
            if commits is None:
                commits = uses.commits(one[0])
            left = live(commits) if finding.kind in {"range_missing", "object_missing"} else commits
            if left:
                yield replace(finding, commits=tuple(left[:NAMED]), commit_count=len(left))
        ctx.progress("fsck: ranges", checked["ranges"], total)
