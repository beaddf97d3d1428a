"""Merging: what the source changed since the merge base, applied to the destination, as one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lakeops.model import graph
from lakeops.model.errors import InvalidInput, NoChanges, unsupported
from lakeops.model.ids import SQUASHED, check_commit_metadata, check_message
from lakeops.model.names import check_amount
from lakeops.model.records import (
    DECLARED,
    Change,
    Commit,
    IdempotentRequest,
    MergeResult,
    Strategy,
    StrategyName,
    Summary,
    TablesMode,
)
from lakeops.model.sanitising import excerpt
from lakeops.ops.ancestor import MergeInputs, Rebase, check_strategy, decide, preview_changes, sides_of_merge
from lakeops.ops.checks import CheckResults, check_names, evaluate_checks, merged_commits, retry_for_untouched
from lakeops.ops.context import (
    Context,
    check_name,
    explain_expired,
    history_of,
    is_dirty,
    require_branch,
    require_live,
    resolve_commit,
)
from lakeops.ops.diff import summary_of
from lakeops.ops.history import merge_bases
from lakeops.ops.publish import (
    CommitPlan,
    CommitResult,
    find_by_key_or,
    metarange_of,
    publish,
    publish_in_queue,
    require_clean,
    snapshot,
    write_ranges,
)
from lakeops.ranges.merge import apply_plan
from lakeops.ranges.range_file import fetch_ranges


class UpToDate(Exception):
    """The source brings no commit that the destination does not have."""


def merge(
    ctx: Context,
    source: str,
    destination: str,
    *,
    strategy: StrategyName | Strategy | None = None,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    squash: bool = False,
    allow_empty: bool = False,
    checks: Sequence[str] = (),
    despite_checks: Sequence[str] = (),
    tables: TablesMode | None = None,
    on_head: Callable[[str], None] | None = None,
) -> MergeResult:
    """Merge what ``source`` changed into the branch ``destination``, as one commit.

    The source is resolved once, at the start. The destination is whatever its branch points to when the merge is
    published. Uncommitted changes of the source are not part of it: ``source_uncommitted`` of the result says so.

    Args:
        source: any ref.
        destination: a branch without uncommitted changes.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        message: the commit's message. One that names both refs when left out.
        idempotency_key: a second call with the same key returns the first call's result.
        squash: make a commit with one parent, which keeps the source's id in its metadata (``squash-origin``). Merging
            the source again compares with the old merge base.
        allow_empty: make a commit even when the source brings nothing.
        checks: names of checks that the source must have passed, beside those that it and the other commits that it
            brings declare, and those that the branch requires.
        despite_checks: names of declared checks to go around. The commit and the audit say which, and who did it.
            Checks that the branch requires cannot be gone around.
        tables: ``rebase`` makes the source's changes of an Iceberg table again on the destination's table where both
            sides changed it and Iceberg's rules allow that.
        on_head: called with the id of the head that the merge commit is about to follow, again whenever somebody moves
            the branch first. What it raises ends the call, and nothing is published.

    Raises:
        MergeConflict: both sides changed the same paths and no strategy settles it. ``conflicts`` lists all of these
            paths, and nothing is published.
        PreconditionFailed: ``dirty_branch``: the destination has uncommitted changes. ``no_merge_base``: the two share
            no history. ``missing_check``: a declared or required check has failed, or nobody has recorded a verdict.
        RefNotFound: there is no such source or destination.
        BranchMoved: others moved the destination, and this call's turn did not come in time. Try again.
    """
    chosen = check_strategy(strategy)
    text = check_message(message) if message is not None else f"Merge {source!r} into {destination!r}"
    pairs = check_commit_metadata(metadata)
    options = {name: "yes" for name, given in (("squash", squash), ("allow empty", allow_empty)) if given}
    demanded, despite = check_names(checks), check_names(despite_checks, "despite_checks")
    around = {"despite checks": ", ".join(despite)} if despite else {}
    if tables is not None:
        around["tables"] = tables
    rebase = _rebase(ctx, tables, chosen, squash=squash, publish=True)
    parts = {"source": source, "strategy": chosen.value if chosen else "", **options, **around}
    request = IdempotentRequest("merge", check_name(destination), parts, message, pairs, key=idempotency_key)
    names, nothing = (source, destination), MergeResult(None, up_to_date=True, summary=Summary())
    # 1. Look up the key: an earlier call may have made this commit. The source is resolved once, here.
    seen = find_by_key_or(ctx, request, lambda: (resolve_commit(ctx, source), is_dirty(ctx, source)))
    if isinstance(seen, CommitResult):
        return _result(ctx, seen)
    ours, left_out = seen

    def attempt(publisher: str | None) -> CommitResult:
        # 2. The destination as it is now, and what both sides have in common.
        found = snapshot(ctx, destination)
        sides = sides_of_merge(ctx, ours, found.head, names)
        if sides.is_base(ours) and not allow_empty:
            raise UpToDate
        require_clean(ctx, found)
        judged = evaluate_checks(ctx, _judged_commits(ctx, sides), demanded=demanded, despite=despite)
        if on_head is not None:
            on_head(found.head.id)
        with explain_expired(ctx, sides.commits):
            # 3. The plan: all conflicts, or what changes. 4. The changed ranges are written, and 5. the metarange.
            decided, reused = decide(ctx, sides, chosen, names, rebase=rebase)
            work = partial(apply_plan, planned=decided, source=ctx.metarange(ours))
            metarange, summary = write_ranges(ctx, "merge", (found.head, ours), found.started, work)
        if sides.is_base(found.head):
            # Take the source's metarange, which its checks saw: a merge keeps old entries of equal, rewritten objects.
            metarange = metarange_of(ours)
        if squash and not summary.total and not allow_empty:
            raise UpToDate
        alone = squash or ours.id == found.head.id
        parents = (found.head,) if alone else (found.head, ours)
        said = {**pairs, **judged.metadata, **({SQUASHED: ours.id} if alone else {})}
        plan = CommitPlan(
            metarange,
            parents,
            text,
            said,
            summary,
            reused_commits=reused,
            merged=ours,
            judged=judged,
            touches=partial(_touches, ctx, sides, chosen),
        )
        # 6. One transaction checks the branch and moves its head.
        return publish(ctx, request, found, plan, publisher)

    try:
        # 7. Run the attempt once, and again in the branch's queue when others moved the head meanwhile.
        result = _result(
            ctx, publish_in_queue(ctx, request, attempt, read_ahead=lambda: _read_ahead(ctx, ours, destination))
        )
    except UpToDate:
        result = nothing
    return replace(result, source_uncommitted=left_out)


def _judged_commits(ctx: Context, sides: MergeInputs) -> list[Commit]:
    """The commits whose checks a merge needs. A source that brings none needs only what the call demands of it."""
    return merged_commits(ctx, sides) or [replace(sides.source, metadata={})]


def _rebase(
    ctx: Context, tables: str | None, strategy: Strategy | None, *, squash: bool, publish: bool
) -> Rebase | None:
    if tables is None:
        return None
    if tables != "rebase":
        raise InvalidInput(f"tables must be rebase, or left out, not {excerpt(tables)}")
    if strategy is not None or squash:
        # A later merge of this source could not see that its rows were merged already.
        raise InvalidInput("a merge that rebases tables has no strategy and is not squashed; leave one of them out")
    try:
        from lakeops.ops.iceberg.rebase import rebase
    except ImportError as error:
        raise unsupported(f'tables need pyiceberg; install lakeops with its extra "iceberg" ({error})') from None
    return partial(rebase, ctx, publish=publish)


MOST_AHEAD = 64
"""Ranges of the source, and of its merge base, that a merge reads ahead."""


def _read_ahead(ctx: Context, source: Commit, destination: str) -> None:
    """Load the ranges that differ between a source and its merge base into the caches, if the store is remote."""
    if not ctx.reader.store.remote:
        return
    branch = ctx.catalog.refs.branch(ctx.repository_id, destination)
    head = ctx.catalog.commits.get(ctx.repository_id, branch.commit_id)
    bases = merge_bases(ctx, head.id, source.id)
    new, *known = ctx.metaranges(source, *bases, head)
    for old in known[:-1]:
        sides = ((one, one.without(other)[:MOST_AHEAD]) for one, other in ((new, old), (old, new)))
        fetch_ranges(ctx.reader.store, [one.row(number) for one, rows in sides for number in rows.tolist()])


def _touches(ctx: Context, sides: MergeInputs, strategy: Strategy | None, prefix: str) -> bool:
    return next(preview_changes(ctx, sides, strategy, prefix=prefix), None) is not None


def preview_merge(
    ctx: Context,
    source: str,
    destination: str,
    *,
    strategy: StrategyName | Strategy | None = None,
    squash: bool = False,
    allow_empty: bool = False,
    checks: Sequence[str] = (),
    despite_checks: Sequence[str] = (),
    tables: TablesMode | None = None,
) -> MergeResult:
    """Preview ``merge``, by the function that plans it. Publishes nothing: ``reference`` is None.

    Raises what ``merge`` raises, and ``PreconditionFailed`` (``missing_check``, ``read_only_repository``). Hooks do not
    run.
    """
    chosen, names = check_strategy(strategy), (source, destination)
    rebase = _rebase(ctx, tables, chosen, squash=squash, publish=False)
    demanded, despite = check_names(checks), check_names(despite_checks, "despite_checks")
    ours, left_out, head = ctx.catalog.in_snapshot(
        lambda: (
            resolve_commit(ctx, source),
            is_dirty(ctx, source),
            resolve_commit(ctx, require_branch(ctx, destination)),
        )
    )
    sides = sides_of_merge(ctx, ours, head, names)
    nothing = MergeResult(None, up_to_date=True, summary=Summary(), source_uncommitted=left_out)
    if sides.is_base(ours) and not allow_empty:
        return nothing
    require_clean(ctx, snapshot(ctx, destination))
    judged = evaluate_checks(ctx, _judged_commits(ctx, sides), demanded=demanded, despite=despite)
    with explain_expired(ctx, sides.commits):
        summary = decide(ctx, sides, chosen, names, rebase=rebase)[0].summary
    if squash and not summary.total and not allow_empty:
        return nothing
    asked = partial(ctx.catalog.refs.check_merge, ctx.repository_id, destination, ours.id, rests_on=judged.passed)
    retry_for_untouched(ctx, destination, partial(_touches, ctx, sides, chosen), asked)
    return MergeResult(None, up_to_date=False, summary=summary, source_uncommitted=left_out)


def _result(ctx: Context, made: CommitResult) -> MergeResult:
    summary = made.summary or summary_of(ctx, made.commit)
    return MergeResult(made.commit.id, up_to_date=False, summary=summary, repeated=made.by_key)


MOST_REVERTED = 1000
"""Commits that one revert takes back."""


def revert(
    ctx: Context,
    branch: str,
    ref: str | Sequence[str],
    parent_number: int | None = None,
    *,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    on_head: Callable[[str], None] | None = None,
) -> Commit:
    """A new commit on the branch that undoes what a commit, or several, did: all of them, or on a conflict none.

    Args:
        ref: the commit to undo; several, in the order in which they are undone, newest first; or a range ``OLD..NEW``:
            the commits of the first-parent history of ``NEW`` that ``OLD`` does not have.
        parent_number: of merge commits, the parent to go back to, from 1.
        message: the commit's message. One that names what is undone when left out.
        metadata: key/value pairs kept beside the ids of the commits that are undone (``revert-origin``).
        idempotency_key: a second call with the same key returns the first call's commit.
        on_head: as for ``merge``.

    Raises:
        InvalidInput: ``invalid_ref``: a merge commit needs a parent number. The initial commit cannot be reverted. A
            range is empty.
        MergeConflict: later commits changed the same paths.
        NoChanges: it is undone already.
        PreconditionFailed: ``dirty_branch``: the branch has uncommitted changes.
    """
    given = check_commit_metadata(metadata)
    if message is not None:
        check_message(message)
    refs = _listed(ref)
    parts = {"source": " ".join(refs), "parent number": str(parent_number or "")}
    request = IdempotentRequest("revert", check_name(branch), parts, message, given, key=idempotency_key)
    found = find_by_key_or(ctx, request, lambda: _commits_to_revert(ctx, refs, parent_number))
    if isinstance(found, CommitResult):
        return found.commit
    titles = [undone.message.partition("\n")[0] for undone, _ in found]
    text = message or f"Revert {titles[0]!r}"
    if len(found) > 1:
        text = message or "\n".join([f"Revert {len(found)} commits", "", *(f"* {title}" for title in titles)])
    origin = {"revert-origin": " ".join(undone.id for undone, _ in found)}
    names = (" ".join(refs), branch)
    return _replay_change(ctx, request, found, names, text, {**given, **origin}, on_head)


def _listed(ref: object) -> list[str]:
    given: Sequence[object] = ref if isinstance(ref, Sequence) and not isinstance(ref, str) else [ref]
    refs = [one for one in given if isinstance(one, str)]
    if len(refs) < len(given):
        raise InvalidInput(f"{excerpt(ref)} is no ref; name a commit to revert, or several")
    return refs


def _commits_to_revert(ctx: Context, refs: Sequence[str], parent_number: int | None) -> list[tuple[Commit, Commit]]:
    """The commits that some refs and ranges name, each with the parent to go back to."""
    steps: list[tuple[Commit, Commit]] = []
    for ref in refs:
        old, dots, new = ref.partition("..")
        if not dots:
            steps.append(_step(ctx, ref, parent_number))
            continue
        get = history_of(ctx)
        first, last = (resolve_commit(ctx, each, live=False) for each in (old, new))
        before = len(steps)
        for commit in graph.log(get, last.id, first_parent=True):
            if graph.is_ancestor(get, commit.id, first.id):
                break
            number = parent_number if len(commit.parents) > 1 else None
            steps.append((require_live(commit), _parent(ctx, commit, number, commit.id[:16])))
            if len(steps) > MOST_REVERTED:
                break
        if len(steps) == before:
            raise InvalidInput(f"{ref!r} is an empty range: {old!r} has all commits of {new!r}", kind="invalid_ref")
    if not steps:
        raise InvalidInput("name a commit to revert")
    if len(steps) > MOST_REVERTED:
        raise InvalidInput(f"these are more than {MOST_REVERTED:,} commits; revert them in several steps")
    return steps


def revert_changes(ctx: Context, branch: str, ref: str, parent_number: int | None = None) -> Iterator[Change]:
    """The changes that ``revert`` would make now, by path, with its conflicts. Publishes nothing."""
    head = _clean_head(ctx, branch)
    undone, parent = _step(ctx, ref, parent_number)
    return preview_changes(ctx, MergeInputs((undone,), parent, head))


def cherry_pick(
    ctx: Context,
    ref: str,
    destination: str,
    parent_number: int | None = None,
    *,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    on_head: Callable[[str], None] | None = None,
) -> Commit:
    """A new commit on the branch ``destination`` that does what the commit ``ref`` did.

    Args:
        destination: a branch without uncommitted changes.
        parent_number: of a merge commit, the parent to compare it with, from 1.
        message: the commit's message; that of ``ref`` when left out.
        metadata: key/value pairs that are added to those of ``ref``, and win over them.
        idempotency_key: a second call with the same key returns the first call's commit.
        on_head: as for ``merge``.

    Raises:
        InvalidInput, MergeConflict, NoChanges, PreconditionFailed: ``invalid_ref``, ``dirty_branch``: as for
            ``revert``. ``missing_check``: a check that the commit declares has not passed.
    """
    given = check_commit_metadata(metadata)
    if message is not None:
        check_message(message)
    parts = {"source": ref, "parent number": str(parent_number or "")}
    request = IdempotentRequest("cherry-pick", check_name(destination), parts, message, given, key=idempotency_key)
    found = find_by_key_or(ctx, request, lambda: _step(ctx, ref, parent_number))
    if isinstance(found, CommitResult):
        return found.commit
    picked, parent = found
    judged = evaluate_checks(ctx, merged_commits(ctx, MergeInputs((parent,), picked, parent)))
    pairs = {
        **{key: value for key, value in picked.metadata.items() if key != SQUASHED and not key.startswith(DECLARED)},
        **given,
        "cherry-pick-origin": picked.id,
        "cherry-pick-committer": picked.committer,
    }
    names, text = (ref, destination), message or picked.message
    return _replay_change(ctx, request, [(parent, picked)], names, text, pairs, on_head, judged)


def cherry_pick_changes(ctx: Context, ref: str, destination: str, parent_number: int | None = None) -> Iterator[Change]:
    """The changes that ``cherry_pick`` would make now, by path, with its conflicts. Publishes nothing.

    Raises what ``cherry_pick`` raises for the branch and the commit.
    """
    head = _clean_head(ctx, destination)
    picked, parent = _step(ctx, ref, parent_number)
    evaluate_checks(ctx, merged_commits(ctx, MergeInputs((parent,), picked, parent)))
    return preview_changes(ctx, MergeInputs((parent,), picked, head))


def _replay_change(
    ctx: Context,
    request: IdempotentRequest,
    steps: Sequence[tuple[Commit, Commit]],
    names: tuple[str, str],
    message: str,
    metadata: Mapping[str, str],
    on_head: Callable[[str], None] | None,
    judged: CheckResults = CheckResults(),  # noqa: B008 - frozen
) -> Commit:
    """Make changes one after the other, each from a base to a source, and publish them as one commit."""

    def attempt(publisher: str | None) -> CommitResult:
        found = snapshot(ctx, request.branch)
        require_clean(ctx, found)
        if on_head is not None:
            on_head(found.head.id)
        head, reused = found.head, list[Commit]()
        for base, source in steps:
            sides = MergeInputs((base,), source, head)
            with explain_expired(ctx, (base, source, found.head)):
                decided, kept = decide(ctx, sides, None, names, replayed=True)
                work = partial(apply_plan, planned=decided, source=ctx.metarange(source))
                metarange, summary = write_ranges(ctx, "merge", (head, source), found.started, work)
            reused += kept
            head = replace(  # what the next step changes; nobody else ever sees it
                head, meta_range_id=metarange.id, meta_range_file=metarange.file, meta_range_digest=metarange.digest
            )
        if metarange.id == found.head.meta_range_id:
            raise NoChanges(f"{request.action} of {names[0]!r} changes nothing on branch {request.branch!r}")
        counted = summary if len(steps) == 1 else None
        plan = CommitPlan(metarange, (found.head,), message, metadata, counted, tuple(reused), judged=judged)
        return publish(ctx, request, found, plan, publisher)

    return publish_in_queue(ctx, request, attempt).commit


def _clean_head(ctx: Context, branch: str) -> Commit:
    """The head of a branch that takes changes and has none uncommitted."""
    found = snapshot(ctx, branch, stageable=True)
    require_clean(ctx, found)
    return found.head


def _step(ctx: Context, ref: str, parent_number: int | None) -> tuple[Commit, Commit]:
    """The commit to revert or to cherry-pick, and the parent to compare it with."""
    commit = resolve_commit(ctx, ref)
    return commit, _parent(ctx, commit, parent_number, ref)


def _parent(ctx: Context, commit: Commit, number: int | None, ref: str) -> Commit:
    count = len(commit.parents)
    if not count:
        raise InvalidInput(f"{ref!r} is the initial commit: it has no parent to compare with", kind="invalid_ref")
    if number is None and count > 1:
        raise InvalidInput(
            f"{ref!r} is a merge of {count} parents; say which one with a parent number from 1", kind="invalid_ref"
        )
    number = check_amount(1 if number is None else number, "the parent number")
    if not 1 <= number <= count:
        raise InvalidInput(
            f"{ref!r} has {count} parent{'s' if count > 1 else ''}; there is no parent {number}", kind="invalid_ref"
        )
    return require_live(history_of(ctx)(commit.parents[number - 1]))
