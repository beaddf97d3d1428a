"""Looking back: the log of a ref, the branches with their newest commits, and the audit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import partial
from itertools import count, islice
from typing import Any

from lakeops.catalog.open import Catalog
from lakeops.model import graph
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import CommitExpired, InvalidInput, PreconditionFailed
from lakeops.model.graph import Node, ReadAhead
from lakeops.model.names import COMMIT_ID, check_amount, check_asked, check_path, check_prefix
from lakeops.model.records import AuditRecord, BranchHead, Commit, RefRecord
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import (
    PAGE,
    CatalogLookup,
    Context,
    explain_expired,
    history_of,
    pages,
    resolve_commit,
    resolve_id,
)

LINES = 2
"""Statements for single lines of history, before whole spans of generations are read."""
FIRST, LONGEST = 250, 4_000
"""Generations of the first stretch, and of the longest."""
MOST = 100_000
"""Nodes that are kept at a time; past that, those of the spans before are dropped."""


class CommitGraph:
    """A ``CommitSource`` for walks over much of the history: it gives nodes, once lines of commits do not suffice.

    Use one for one call, so that it never grows stale. ``known`` are ids of commits that the walk begins with, read in
    one statement.
    """

    def __init__(self, ctx: Context, known: Collection[str]) -> None:
        self._ctx = ctx
        self._near = history_of(ctx, ahead=100)
        self._heads = ctx.catalog.commits.get_many(ctx.repository_id, known)
        self._nodes: dict[str, Node] = {}
        self._length = FIRST

    def __call__(self, commit_id: str) -> Any:  # noqa: ANN401 - a Commit or a Node
        """The commit, or its node, which has all that walks ask of a commit. Raises ``RefNotFound``."""
        node = self._nodes.get(commit_id) or self._heads.get(commit_id)
        if node is not None:
            return node
        if self._near.loads < LINES or commit_id in self._near:
            return self._near(commit_id)
        if len(self._nodes) > MOST:
            self._nodes.clear()
        found = self._ctx.catalog.commits.newest_generations(self._ctx.repository_id, commit_id, self._length)
        self._length = min(4 * self._length, LONGEST)
        self._nodes.update((one.id, one) for one in found)
        if commit_id not in self._nodes:  # it was pruned, or is not there at all
            return self._near(commit_id)
        return self._nodes[commit_id]


def log(
    ctx: Context,
    ref: str,
    *,
    first_parent: bool = False,
    amount: int | None = None,
    path: str | None = None,
    prefix: str = "",
    since: date | str | None = None,
    until: date | str | None = None,
    author: str = "",
    on_expired: Callable[[Commit], None] | None = None,
) -> Iterator[Commit]:
    """Commits reachable from ``ref``, newest first and children before parents, expired ones included.

    The log ends where history was pruned. The last commits then have parents that are not listed.

    Args:
        first_parent: follow only the first parent of merge commits.
        path: only commits that changed this object. A merge is one of them when it has another object than each of its
            parents; with ``first_parent``, than the first.
        prefix: only commits that changed something under this prefix, likewise.
        since: only commits of this moment or later. A date is its first moment in UTC, and a text is ISO 8601.
        until: only commits of this moment or earlier, likewise.
        author: only commits whose committer's name holds this text.
        on_expired: called with each commit whose changes nobody can tell, because retention took it or a parent. It is
            left out.
    """
    if amount is not None:
        amount = min(check_amount(amount, "the amount of commits"), sys.maxsize)
    if path is not None and prefix:
        raise InvalidInput("a log takes a path or a prefix, not both")
    for moment in (since, until):
        if isinstance(moment, datetime) and moment.tzinfo is None:
            raise InvalidInput(f"{moment} has no time zone")
    under = check_prefix(prefix) if path is None else check_path(path)
    check_asked(author, "a part of a name")
    chosen = since is not None or until is not None or author or under
    names = CatalogLookup(ctx, ahead=1 if chosen else amount or 1)
    start = resolve_commit(ctx, ref, live=False, names=names)
    oldest = float("-inf") if since is None else _parse_time(since).timestamp()
    newest = float("inf") if until is None else _parse_time(until).timestamp()

    looked = count(1)

    def wanted(commit: Commit) -> bool:
        if commit.is_pruned or author not in commit.committer:
            return False
        if not oldest <= commit.creation_date <= newest:
            return False
        if not under:
            return True
        ctx.progress("looking at commits", next(looked), 0)
        parents = [names.get(parent) for parent in commit.parents[: 1 if first_parent else None]]
        changed = _changed(ctx, commit, parents, under, exact=path is not None)
        if changed is None and on_expired is not None:
            on_expired(commit)
        return bool(changed)

    walk = graph.log(names.get, start.id, first_parent=first_parent)
    return islice(filter(wanted, walk), amount)


def _changed(ctx: Context, commit: Commit, parents: list[Commit], prefix: str, *, exact: bool) -> bool | None:
    """Whether a commit differs from each of its parents under a prefix. None when retention took one of them."""
    from lakeops.ranges.diff import diff  # late: a log without a prefix reads no ranges
    from lakeops.ranges.metarange import Metarange

    try:
        with explain_expired(ctx, (commit, *parents)):
            after, *before = ctx.metaranges(commit, *parents)
            for side in before or [Metarange.empty()]:
                found = diff(ctx.reader, side, after, prefix=prefix)
                if not any(prefix in batch.column("path").to_pylist() if exact else True for batch in found):
                    return False
    except CommitExpired:
        return None
    return True


def heads(
    ctx: Context, *, prefix: str = "", merged: str | None = None, not_merged: str | None = None
) -> Iterator[BranchHead]:
    """Branches by name in byte order, each with the commit that it points to.

    Args:
        merged: only branches whose commit this ref leads to: what they have is in it.
        not_merged: only branches whose commit this ref does not lead to.
    """
    refs = list(pages(partial(ctx.catalog.refs.branches, ctx.repository_id), prefix=prefix))
    commits = ctx.catalog.commits.get_many(ctx.repository_id, [ref.commit_id for ref in refs])
    found = [BranchHead(ref.id, commits[ref.commit_id]) for ref in refs if ref.commit_id in commits]
    for ref, is_in in ((merged, True), (not_merged, False)):
        if ref is not None:
            start = resolve_commit(ctx, ref, live=False).id
            known = graph.reached(history_of(ctx), start, [head.commit for head in found])
            found = [head for head in found if (head.commit_id in known) is is_in]
    return iter(found)


FAR = 1_000
"""How many commits are looked at before it is given up to say how far two refs are apart."""


def divergence(ctx: Context, base: str, refs: Sequence[str]) -> list[tuple[int, int] | None]:
    """How many commits each ref has and ``base`` lacks, and the reverse. None where very many, or where pruned."""

    def found() -> list[tuple[int, int] | None]:
        at, *ids = (one if COMMIT_ID.fullmatch(one) else resolve_id(ctx, one) for one in (base, *refs))
        return graph.divergences(CommitGraph(ctx, ids), at, ids, most=FAR)

    return ctx.catalog.in_snapshot(found)


def walk(ctx: Context, starts: Sequence[str], amount: int) -> tuple[list[Commit], list[str]]:
    """Commits that these refs reach, merged sources too, children before parents, and where the next page starts.

    Args:
        starts: refs, or what an earlier call gave.
    """
    check_amount(amount, "the amount of commits")
    names = CatalogLookup(ctx, ahead=amount)
    ids = [resolve_commit(ctx, ref, live=False, names=names).id for ref in starts]
    return graph.walk(names.get, ids, amount)


def containing(ctx: Context, commit_id: str, *, most: int = 50) -> tuple[list[RefRecord], bool]:
    """Branches and tags whose history has a commit, and whether these are all that do.

    At most so many refs of either kind are looked at, and those that are very far ahead are left out.
    """

    def found() -> tuple[list[RefRecord], bool]:
        commit = ctx.catalog.commits.get(ctx.repository_id, commit_id)
        listings = (ctx.catalog.refs.branches, ctx.catalog.refs.tags)
        kinds = [listing(ctx.repository_id, limit=most + 1) for listing in listings]
        listed = [ref for refs in kinds for ref in refs[:most]]
        get = CommitGraph(ctx, [commit_id, *(ref.commit_id for ref in listed)])
        near = [ref for ref in listed if get(ref.commit_id).generation - commit.generation <= FAR]
        whole = all(len(refs) <= most for refs in kinds) and len(near) == len(listed)
        leading = graph.heads_containing(get, commit_id, [ref.commit_id for ref in near])
        return [ref for ref in near if ref.commit_id in leading], whole

    return ctx.catalog.in_snapshot(found)


def audit(
    catalog: Catalog,
    repository_id: str | None = None,
    *,
    since: date | str | None = None,
    until: date | str | None = None,
    actor: str | None = None,
    amount: int | None = None,
) -> Iterator[AuditRecord]:
    """The records of transitions, newest first, read a page at a time. See ``Lake.audit``."""
    left = None if amount is None else check_amount(amount, "the amount")
    first, last = (None if moment is None else unix_seconds(_parse_time(moment)) for moment in (since, until))
    if actor is not None:
        check_asked(actor, "an actor")
    if repository_id is not None:
        check_asked(repository_id, "a repository")

    def every() -> Iterator[AuditRecord]:
        below: tuple[int, int] | None = None
        size = PAGE if left is None else min(PAGE, left)
        while True:
            page = catalog.audit.page(repository_id, since=first, until=last, actor=actor, below=below, limit=size)
            yield from page
            if len(page) < size or not page:
                return
            below = (page[-1].at, page[-1].sequence)

    return islice(every(), left)


def _parse_time(given: date | str) -> datetime:
    try:
        moment = datetime.fromisoformat(given if isinstance(given, str) else given.isoformat())
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        unix_seconds(moment)  # raises for one that no clock has
        return moment
    except (ValueError, AttributeError, OverflowError):
        raise InvalidInput(f"{excerpt(given)} is no moment; give one such as 2026-01-31 or 2026-01-31T12:00") from None


NEAR = 12
"""Statements for single lines of history. After them, ``CommitGraph`` looks for the merge base."""

WALKED = 4_000
"""Generations between two commits. With more of them the statements for single lines would not suffice."""

MOST_FAR = 1_000

# A commit's id is a digest of its whole history, so the answer is the same in every catalog, and for ever.
_far: dict[tuple[str, str], set[str]] = {}


def merge_bases(ctx: Context, left: str, right: str, near: ReadAhead | None = None) -> list[Commit]:
    """The best common ancestors of two commits, given by their ids, oldest first.

    ``near`` is the history that a caller goes on with: it has then what was read here, ``NEAR`` statements at most.
    Raises ``CommitExpired`` where all that they share was pruned.
    """
    near = near or history_of(ctx, most=NEAR)

    def found() -> list[Commit]:
        bases = _far.get((left, right))
        if bases is None:
            low, top = sorted((near(left).generation, near(right).generation))
            if top - low <= WALKED:
                with suppress(graph.WalkLimitReached):
                    return graph.merge_bases(near, [left], [right])
            if len(_far) >= MOST_FAR:
                _far.clear()
            best = graph.merge_bases(CommitGraph(ctx, [left, right]), [left], [right])
            bases = {base.id for base in best}
            if all(base.generation for base in best):  # what was pruned here may be there in another catalog
                _far[left, right] = bases
        commits = map(history_of(ctx), bases)
        return sorted(commits, key=lambda base: (base.creation_date, base.generation, base.id))

    bases = ctx.catalog.in_snapshot(found)
    if bases and all(base.is_pruned for base in bases):
        raise CommitExpired(f"what {left[:16]} and {right[:16]} share was pruned; `diff --two-way` compares them")
    return bases


def merge_base(ctx: Context, left: str, right: str) -> Commit:
    """A best common ancestor of two refs. Raises ``PreconditionFailed`` (``no_merge_base``), ``CommitExpired``."""

    def found() -> list[Commit]:
        one, other = (resolve_commit(ctx, ref, live=False).id for ref in (left, right))
        return merge_bases(ctx, one, other)

    bases = ctx.catalog.in_snapshot(found)
    if not bases:
        raise PreconditionFailed(f"{left!r} and {right!r} share no history", kind="no_merge_base")
    return min(bases, key=lambda one: (-one.generation, -one.creation_date, one.id))
