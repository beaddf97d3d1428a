"""Which commits a mark expires: planned beside writers, carried out in small steps.

A plan is made of what the catalog held at one instant, read without a lock. It is carried out a few hundred commits at
a time, each step in a transaction of its own that takes in which refs moved meanwhile. What a ref came to show since
then lives, with everything that it descends from, until the next mark: so a plan is never made again because others go
on working. A dry run makes the same plan and stops there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import ExpiryStep
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import (
    BranchMoved,
    InvalidInput,
    MarkRefused,
    NotAsSeen,
    RefNotFound,
)
from lakeops.model.graph import Lineage, RefMove
from lakeops.model.marks import Mark, parse_grace
from lakeops.model.records import TAG_PROTECTION, Change, JsonRecord, Protection, RefRecord
from lakeops.model.retention import DAY, RetentionReason, Rules, live, only_for_mirrors, parse_rules, read_rules
from lakeops.ops.branch import delete_tag, drop_branch
from lakeops.ops.context import Context, pages
from lakeops.ops.diff import uncommitted_page
from lakeops.ops.gc.unreferenced import LISTED_SCHEMA
from lakeops.store import layout
from lakeops.store.base import Listing, ObjectStore

STEP = 500
"""Commits of one transaction."""

_TRIES = 4
"""How often rules may change under a plan."""


@dataclass
class GcPlan:
    """Which commits live and which do not.

    Attributes:
        lineage: what that was decided on.
        kept: the commits that live, and why.
        only_for_mirrors: mirrors by name, to the commits that would not live but for this one.
        doomed: those that do not: live ones that expire, and pending ones that stay expired.
    """

    lineage: Lineage
    kept: dict[str, RetentionReason]
    only_for_mirrors: dict[str, frozenset[str]] = field(default_factory=dict)
    doomed: list[str] = field(init=False)
    _spared: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        commits = self.lineage.commits.values()
        gone = [node for node in commits if not node.expired and node.id not in self.kept]
        self.doomed = [node.id for node in sorted(gone, key=lambda node: (node.generation, node.id))]
        self._heads = {*self.lineage.branches.values()}

    def foretold(self) -> MarkDecision:
        """What becomes of the commits when nothing moves meanwhile."""
        commits = self.lineage.commits
        carried = {commit_id for commit_id in self.doomed if commits[commit_id].pending}
        revived = {commit_id for commit_id in self.kept if commits[commit_id].pending}
        gone = frozenset({*self.doomed} - carried)
        return MarkDecision(self.kept, gone, frozenset(carried), frozenset(revived), self.only_for_mirrors)

    def spare(self, moves: Iterable[RefMove]) -> None:
        """Let live what refs came to show since the plan was made, and all that it descends from.

        What a new commit is on top of was a head when the plan was made, or was made since: it lives anyway. If not,
        an old commit was merged, and counts as shown.
        """
        waiting = [commit_id for move in moves for commit_id in self._commits_of(move) if commit_id not in self._heads]
        commits = self.lineage.commits
        while waiting:
            commit_id = waiting.pop()
            if commit_id in commits and commit_id not in self._spared:
                self._spared.add(commit_id)
                waiting += commits[commit_id].parents

    def chosen(self, most: int) -> list[str]:
        """The next commits to decide about, those that were spared left out. The last ``most`` of ``doomed``."""
        some = self.doomed[-most:]
        pending = self.lineage.commits
        return [commit_id for commit_id in some if commit_id not in self._spared or pending[commit_id].pending]

    def _commits_of(self, move: RefMove) -> Iterable[str]:
        """What the plan knows of a move. A commit that it does not know is a new one, on top of its parents."""
        known = self.lineage.commits
        below = () if move.new in known else move.parents
        return (commit_id for commit_id in (move.old, move.new, *below) if commit_id is not None)


@dataclass(frozen=True, slots=True)
class MarkDecision:
    """What a mark does to commits.

    Attributes:
        kept: the commits that the rules keep, and why.
        expired: those that were live and are expired.
        carried: those that an earlier mark had expired, was not swept for, and that stay expired.
        revived: those of them that live again.
        only_for_mirrors: mirrors by name, to the commits that would not live but for this one.
    """

    kept: dict[str, RetentionReason]
    expired: frozenset[str]
    carried: frozenset[str]
    revived: frozenset[str]
    only_for_mirrors: dict[str, frozenset[str]] = field(default_factory=dict)


def make_plan(ctx: Context, now: int) -> GcPlan:
    """What the rules say now. Raises ``MarkRefused`` when they change all the time."""
    for _ in range(_TRIES):
        text = ctx.catalog.retention.get_rules(ctx.repository_id)
        rules = None if text is None else read_rules(text)
        lineage = ctx.catalog.retention.lineage(ctx.repository_id, left_since=now - _window(rules))
        if lineage.rules == text:
            return GcPlan(lineage, live(lineage, rules, now), only_for_mirrors(lineage, rules, now))
    raise _rules_keep_changing(ctx)


def carry_out(ctx: Context, mark: Mark, since: int, now: int) -> MarkDecision:
    """Expire what the rules do not keep, and let live again what an earlier mark expired and they keep.

    Args:
        ctx: the repository.
        mark: the mark, which has begun.
        since: the newest move of a ref when it began.
        now: the time to decide by, in Unix seconds.
    """
    expired: set[str] = set()
    for _ in range(_TRIES):
        plan = make_plan(ctx, now)
        carried: set[str] = set()
        total, changed = len(plan.doomed), False
        foretold = plan.foretold()
        for step in steps(ctx, mark, since, plan):
            expired |= step.expired
            carried |= step.carried
            changed = step.rules_changed
            ctx.progress("expiring", total - len(plan.doomed), total)
        if not changed:
            ctx.catalog.retention.revive_commits(ctx.repository_id, mark.id, foretold.revived)
            ours = frozenset(expired - foretold.revived)
            return replace(foretold, expired=ours, carried=frozenset(carried - ours))
    raise _rules_keep_changing(ctx)


def steps(ctx: Context, mark: Mark, since: int, plan: GcPlan) -> Iterator[ExpiryStep]:
    """Carry out a plan, transaction by transaction. The last step says when the rules are others now."""

    def choose(moves: Sequence[RefMove]) -> Sequence[str]:
        plan.spare(moves)
        return plan.chosen(STEP)

    while plan.doomed:
        step = ctx.catalog.retention.expire_by_mark(
            ctx.repository_id, mark.id, since=since, rules=plan.lineage.rules, choose=choose
        )
        since = step.sequence
        if step.complete:
            del plan.doomed[-STEP:]
        yield step
        if step.rules_changed:
            return


def _window(rules: Rules | None) -> int:
    """For how long what a ref showed may matter, in seconds."""
    return 0 if rules is None else max(rules.undo_days, rules.mirror_lag_days) * DAY


def _rules_keep_changing(ctx: Context) -> MarkRefused:
    return MarkRefused(f"the retention rules of {ctx.repository_id!r} changed {_TRIES} times meanwhile; mark again")


SAMPLE = 20
"""How many names of a kind are shown."""

_TOGETHER = 50_000
"""Names that are looked at in one step."""

_TO_THE_SECOND = r"^data/\d{10}/\d{4}[0-9a-v]{20}(/|$)"
_ATTEMPT = r"-(?P<stamp>\d{14})[0-9a-v]{20,}\.parquet$"
_RUN = r"^_lakefs/retention/gc/(?P<stamp>\d{14})[0-9a-v]{20}/."

KINDS = {
    "range": r"^_lakefs/ranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "metarange": r"^_lakefs/metaranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "mark": _RUN,
    "task": r"^_lakefs/tasks/[^/]+/.",
    "probe": r"^_lakefs/probe/[0-9a-v]+",
}
"""Metadata files by what their keys look like. ``object`` is the kind of everything under ``layout.OBJECT_NAME``."""


@dataclass
class FileCount:
    """How many files, how many bytes, and the first few of their names."""

    count: int = 0
    size_bytes: int = 0
    sample: list[str] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Count the files of a table of ``LISTED_SCHEMA``."""
        self.count += table.num_rows
        self.size_bytes += pc.sum(table["size_bytes"]).as_py() or 0
        if len(self.sample) < SAMPLE:
            self.sample += table["physical_address"].slice(0, SAMPLE - len(self.sample)).to_pylist()


@dataclass
class Held:
    """What a store held when it was listed.

    Attributes:
        objects: where the objects that are old enough wait, as an Arrow stream of ``LISTED_SCHEMA``.
        files: metadata files that are old enough, by kind.
        listed: all objects that lakeops named.
        young: what is too young to be looked at, of every kind.
        strays: what somebody else put into the namespace.
    """

    objects: Path
    files: dict[str, list[pa.Table]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    listed: FileCount = field(default_factory=FileCount)
    young: FileCount = field(default_factory=FileCount)
    strays: FileCount = field(default_factory=FileCount)

    def old(self, kind: str) -> pa.Table:
        """The metadata files of a kind that are old enough: ``LISTED_SCHEMA``."""
        return pa.concat_tables([LISTED_SCHEMA.empty_table(), *self.files[kind]])

    def batches(self) -> Iterator[pa.Table]:
        """The objects that are old enough: tables of ``LISTED_SCHEMA``."""
        with pa.memory_map(str(self.objects)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])


def list_store(ctx: Context, store: ObjectStore, cutoff: datetime, folder: Path) -> Held:
    """Everything that a store holds now, sorted out. ``folder`` takes about 60 bytes for each object."""
    held = Held(folder / "objects.arrow")
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    sorting = _Sorting(held, cutoff)
    with pa.ipc.new_stream(held.objects, LISTED_SCHEMA, options=options) as spool:
        for table in _join_small(store.scan(skip_special=True, moving=True)):
            sorting.sort(table, spool)
            ctx.progress("listing", held.listed.count, 0)
    return held


@dataclass
class _Sorting:
    held: Held
    cutoff: datetime

    def sort(self, table: pa.Table, spool: pa.RecordBatchWriter) -> None:
        """Put each row of a table where it belongs."""
        rest = self._objects(table, spool)
        for kind, pattern in KINDS.items():
            if not rest.num_rows:
                return
            of_kind = pc.match_substring_regex(rest["physical_address"], pattern)
            files, rest = rest.filter(of_kind), rest.filter(pc.invert(of_kind))
            if files.num_rows:
                self.held.files[kind].append(self._only_old(files, self._file_stamps(files, kind)))
        names = rest["physical_address"]
        strange = pc.not_equal(names, layout.CLAIM)
        for folder in (layout.OWNER, layout.REFS):
            strange = pc.and_not(strange, pc.starts_with(names, folder))
        self.held.strays.add(rest.filter(strange))

    def _objects(self, table: pa.Table, spool: pa.RecordBatchWriter) -> pa.Table:
        address = table["physical_address"]
        ours = pc.match_substring_regex(address, layout.OBJECT_NAME)
        objects = table.filter(ours)
        self.held.listed.add(objects)
        address = objects["physical_address"]
        second = pc.if_else(
            pc.match_substring_regex(address, _TO_THE_SECOND), pc.utf8_slice_codeunits(address, 16, 20), "5959"
        )
        stamps = pc.binary_join_element_wise(pc.utf8_slice_codeunits(address, 5, 15), second, "")
        old = self._only_old(objects, stamps)
        if old.num_rows:
            spool.write_table(old)
        return table.filter(pc.invert(ours))

    def _only_old(self, files: pa.Table, stamps: pa.ChunkedArray) -> pa.Table:
        """The files that were begun before the cutoff. The others are counted as young."""
        # A stamp of this second may stand for any moment in it.
        last = f"{self.cutoff - timedelta(seconds=1):%Y%m%d%H%M%S}"
        by_store = pc.less_equal(files["mtime"], unix_seconds(self.cutoff))
        old = pc.if_else(pc.equal(stamps, ""), by_store, pc.less_equal(stamps, last))
        self.held.young.add(files.filter(pc.invert(old)))
        return files.filter(old)

    def _file_stamps(self, files: pa.Table, kind: str) -> pa.ChunkedArray:
        """When what wrote each metadata file began, as far as its name says; else empty."""
        pattern = {"range": _ATTEMPT, "metarange": _ATTEMPT, "mark": _RUN}.get(kind)
        if pattern is None:
            return pa.chunked_array([pa.repeat("", files.num_rows)])
        found = pc.extract_regex(files["physical_address"], pattern)
        return pc.fill_null(pc.struct_field(found, [0]), "")


def _join_small(listings: Iterable[Listing]) -> Iterator[pa.Table]:
    """Listings as tables of ``LISTED_SCHEMA``, small ones joined: a store may give one for each directory."""
    waiting: list[Listing] = []
    count = 0
    for listing in listings:
        waiting.append(listing)
        count += len(listing.keys)
        if count >= _TOGETHER:
            yield _table(waiting)
            waiting, count = [], 0
    if waiting:
        yield _table(waiting)


def _table(listings: list[Listing]) -> pa.Table:
    columns = [
        pa.chunked_array([pa.array(getattr(listing, name), field.type) for listing in listings], field.type)
        for name, field in zip(("keys", "sizes", "mtimes"), LISTED_SCHEMA, strict=True)
    ]
    return pa.table(columns, schema=LISTED_SCHEMA).combine_chunks()


def get_rules(ctx: Context) -> Rules | None:
    """The repository's rules, if it has any."""
    text = ctx.catalog.retention.get_rules(ctx.repository_id)
    return None if text is None else read_rules(text)


def set_rules(ctx: Context, rules: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Replace the retention rules. Returns them as they are kept.

    Args:
        rules: a mapping as JSON gives it, or JSON text. None removes the rules: then no commit expires.

    Raises:
        InvalidInput: ``invalid_rules``: they make no sense, or have an entry for one branch or tag that does not exist.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror. Rules belong to its source.
    """
    if rules is None:
        ctx.catalog.retention.set_rules(ctx.repository_id, None)
        return None
    checked = read_rules(rules) if isinstance(rules, str) else parse_rules(rules)
    _check_names(ctx, checked)
    ctx.catalog.retention.set_rules(ctx.repository_id, checked.to_text())
    return checked.to_json()


def live_commits(ctx: Context) -> set[str]:
    """The ids of the commits that the retention rules keep now. Without rules, all commits that were not pruned.

    The next mark lets the other commits expire.
    """
    return set(make_plan(ctx, unix_seconds(ctx.catalog.now())).kept)


def get_grace(ctx: Context) -> dict[str, Any]:
    """The grace period: ``grace_seconds`` now, and ``pending_seconds`` from the time ``pending_from`` on, if set."""
    return ctx.catalog.retention.grace(ctx.repository_id).to_json(ctx.catalog.now())


def set_grace(ctx: Context, grace: float | str | timedelta) -> dict[str, Any]:
    """Change the grace period for every process. Returns what ``grace`` returns.

    A longer grace period counts at once. A shorter one counts once the old one has passed, so that an attempt that
    began under the old one keeps its time.

    Args:
        grace: seconds, a text such as ``24h`` or ``7d``, or a timedelta.

    Raises:
        InvalidInput: the grace period is none, or too long.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror.
    """
    seconds = parse_grace(int(grace.total_seconds()) if isinstance(grace, timedelta) else grace)
    return ctx.catalog.retention.set_grace(ctx.repository_id, seconds).to_json(ctx.catalog.now())


def _check_names(ctx: Context, rules: Rules) -> None:
    """Refuse a name that nothing has: a rule that was misspelt would keep nothing, and nobody would notice."""
    looks = (("branch", rules.branches, ctx.catalog.refs.branch), ("tag", rules.tags, ctx.catalog.refs.tag))
    for what, entries, look in looks:
        for entry in entries:
            if entry.is_exact and not _is_there(partial(look, ctx.repository_id, entry.pattern)):
                raise InvalidInput(
                    f"the rules name the {what} {entry.pattern!r}, which repository {ctx.repository_id!r} does not "
                    "have; correct it, or use a pattern for names to come",
                    kind="invalid_rules",
                )


def _is_there(look: Callable[[], object]) -> bool:
    try:
        look()
    except RefNotFound:
        return False
    return True


_MOVES = 50
"""Moves of a name that are looked at: a branch and a tag may share one."""


@dataclass(frozen=True, slots=True)
class IdleRef(JsonRecord):
    """A branch or tag that a rule lets go.

    ``idle_days`` are whole days since it last moved, ``kept`` says why it stays all the same. None: it goes.
    """

    type: str
    id: str
    commit_id: str
    idle_days: int
    kept: str | None = None


def idle_refs(ctx: Context) -> list[IdleRef]:
    """Branches, then tags, that have been idle for longer than the rules allow. ``kept`` says why a ref stays."""
    return list(_idle_refs(ctx))


def _idle_refs(ctx: Context) -> Iterator[IdleRef]:
    rules = get_rules(ctx)
    if rules is None:
        return
    now = unix_seconds(ctx.catalog.now())
    protections = ctx.catalog.refs.all_protections(ctx.repository_id)
    for ref in pages(partial(ctx.catalog.refs.branches, ctx.repository_id)):
        days = _idle_days(ctx, ref, now, rules.branch_expiry_days(ref.id))
        if days is not None:
            yield IdleRef("branch", ref.id, ref.commit_id, days, _kept(ctx, ref.id, protections))
    for ref in pages(partial(ctx.catalog.refs.tags, ctx.repository_id)):
        days = _idle_days(ctx, ref, now, rules.tag_expiry_days(ref.id))
        if days is not None:
            yield IdleRef("tag", ref.id, ref.commit_id, days, _protected(ref.id, protections, tag=True))


def expire_refs(ctx: Context, only: Sequence[IdleRef] | None = None) -> list[IdleRef]:
    """Delete the branches and tags that the rules let go. Returns them, and those that stay with the reason.

    Each one is looked at again right before it is deleted. One that moved meanwhile stays. Raises ``MarkRefused``
    (``clock_in_doubt``).

    Args:
        only: those that somebody was shown. Others, and those that are at another commit by now, are left alone.
    """
    ctx.catalog.marks.check_clock()
    shown = None if only is None else {(ref.type, ref.id, ref.commit_id) for ref in only}
    found = [ref for ref in idle_refs(ctx) if shown is None or ref.kept or (ref.type, ref.id, ref.commit_id) in shown]
    return [ref for ref in found if ref.kept is not None or _delete_if_unmoved(ctx, ref)]


def _delete_if_unmoved(ctx: Context, found: IdleRef) -> bool:
    """Delete a ref that is where it was and still clean; whether it was. The catalog looks again as it deletes."""
    try:
        if found.type == "tag":
            delete_tag(ctx, found.id, old=found.commit_id)
            return True
        state = ctx.catalog.refs.branch(ctx.repository_id, found.id)
        if state.commit_id != found.commit_id:
            return False
        drop_branch(ctx, found.id, state)
    except (BranchMoved, NotAsSeen, RefNotFound):
        return False
    return True


def _idle_days(ctx: Context, ref: RefRecord, now: int, limit: int | None) -> int | None:
    """For how many whole days a ref has not moved, if that is long enough for a rule."""
    if limit is None:
        return None
    moves = ctx.catalog.refs.reflog(ctx.repository_id, ref.id, limit=_MOVES)
    at = next((move.at for move in moves if move.new == ref.commit_id), None)
    since = ctx.catalog.commits.get(ctx.repository_id, ref.commit_id).creation_date if at is None else at
    days = (now - since) // DAY
    return days if days >= limit else None


def _protected(name: str, protections: list[Protection], *, tag: bool) -> str | None:
    patterns = (one.pattern for one in protections if (one.kind == TAG_PROTECTION) == tag)
    pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
    return None if pattern is None else f"it is protected by {pattern!r}"


def _kept(ctx: Context, branch: str, protections: list[Protection]) -> str | None:
    if branch == ctx.repository.default_branch:
        return "it is the default branch"
    protected = _protected(branch, protections, tag=False)
    if protected is not None:
        return protected
    change = _first_change(ctx, branch)
    return None if change is None else f"it has uncommitted changes, {change.path!r} for one"


def _first_change(ctx: Context, branch: str) -> Change | None:
    """An uncommitted change of a branch, found page by page, however much is staged."""
    found, after = uncommitted_page(ctx, branch)
    while not found and after is not None:
        found, after = uncommitted_page(ctx, branch, after=after)
    return found[0] if found else None
