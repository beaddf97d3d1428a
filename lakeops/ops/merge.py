"""Merging: what the source changed since the merge base, applied to the destination, as one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lakeops.model.errors import InvalidRef, NoChanges
from lakeops.model.ids import check_commit_metadata
from lakeops.model.records import Change, Commit, MergeResult, Strategy, Summary
from lakeops.model.requests import Request, check_amount
from lakeops.ops.ancestor import Sides, check_strategy, decide, foretell, sides_of_merge
from lakeops.ops.commit import check_message
from lakeops.ops.context import Context, require_live
from lakeops.ops.diff import summary_of
from lakeops.ops.publish import Attempt, Draft, Move, Published, apply_merge, first_look, publish, require_clean
from lakeops.ops.resolve import check_name, lookup, overtaken, require_stageable, resolve_commit


class UpToDate(Exception):
    """The source brings no commit that the destination does not have."""


def merge(
    ctx: Context,
    source: str,
    destination: str,
    *,
    strategy: str | Strategy | None = None,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    on_head: Callable[[str], None] | None = None,
) -> MergeResult:
    """Merge what ``source`` changed into the branch ``destination``, as one commit.

    The source is resolved once, at the start. The destination is whatever its branch points to when the merge is
    published. Uncommitted changes of the source are not part of it.

    Args:
        source: any ref.
        destination: a branch without uncommitted changes.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        message: the commit's message; one that names both refs when left out.
        metadata: key/value pairs kept with the commit.
        idempotency_key: a second call with the same key returns the first call's result.
        on_head: called with the id of the head that the merge commit is about to follow, again whenever somebody moves
            the branch first. What it raises ends the call, and nothing is published.

    Raises:
        MergeConflict: both sides changed the same paths and no strategy settles it. ``conflicts`` lists all of these
            paths, and nothing is published.
        DirtyBranch: the destination has uncommitted changes.
        NoMergeBase: the two share no history.
        RefNotFound: there is no such source or destination.
        BranchMoved: others moved the destination, and this call's turn did not come in time. Try again.
    """
    settle = check_strategy(strategy)
    text = check_message(message) if message is not None else f"Merge {source!r} into {destination!r}"
    pairs = check_commit_metadata(metadata)
    parts = {"source": source, "strategy": settle.value if settle else ""}
    move = Move(Request("merge", check_name(destination), parts, message, pairs), idempotency_key)
    ours = first_look(ctx, move, lambda: resolve_commit(ctx, source))
    if isinstance(ours, Published):
        return _result(ctx, ours.commit, None)

    def plan(attempt: Attempt) -> Draft:
        names = (source, destination)
        sides = sides_of_merge(ctx, ours, attempt.head, names)
        if sides.up_to_date:
            raise UpToDate
        require_clean(ctx, attempt.state.id, attempt.head, attempt.staged)
        if on_head is not None:
            on_head(attempt.head.id)
        with overtaken(ctx, sides.commits):
            decision = decide(ctx, sides, settle, names)
            metarange, summary = apply_merge(ctx, decision.plan, ours, attempt.head, started=attempt.started)
        return Draft(metarange, (attempt.head, ours), text, pairs, summary, rests_on=decision.rests_on)

    try:
        published = publish(ctx, move, plan, clean=True)
    except UpToDate:
        return MergeResult(None, up_to_date=True, summary=Summary())
    return _result(ctx, published.commit, published.summary)


def _result(ctx: Context, commit: Commit, summary: Summary | None) -> MergeResult:
    return MergeResult(commit.id, up_to_date=False, summary=summary or summary_of(ctx, commit))


def revert(
    ctx: Context,
    branch: str,
    ref: str,
    parent_number: int | None = None,
    *,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    on_head: Callable[[str], None] | None = None,
) -> Commit:
    """A new commit on the branch that undoes what the commit ``ref`` did.

    Args:
        ref: the commit to undo.
        parent_number: of a merge commit, the parent to go back to, from 1.
        message: the commit's message; one that names the commit that is undone when left out.
        metadata: key/value pairs kept beside the id of the commit that is undone.
        idempotency_key: a second call with the same key returns the first call's commit.
        on_head: as for ``merge``.

    Raises:
        InvalidRef: a merge commit needs a parent number. The initial commit cannot be reverted.
        MergeConflict: later commits changed the same paths.
        NoChanges: it is undone already.
        DirtyBranch: the branch has uncommitted changes.
    """
    given = _checked(message, metadata)
    parts = {"source": ref, "parent number": str(parent_number or "")}
    move = Move(Request("revert", check_name(branch), parts, message, given), idempotency_key)
    found = first_look(ctx, move, lambda: _step(ctx, ref, parent_number))
    if isinstance(found, Published):
        return found.commit
    undone, parent = found
    text = message or f"Revert {undone.message.splitlines()[0]!r}"
    origin = {"revert-origin": undone.id}
    return _replay_change(ctx, move, _Replay(undone, parent, (ref, branch), text, {**given, **origin}, on_head))


def of_revert(ctx: Context, branch: str, ref: str, parent_number: int | None = None) -> Iterator[Change]:
    """What ``revert`` would change now, by path, with its conflicts. Publishes nothing.

    Raises what ``revert`` raises for the branch and the commit.
    """
    head = _clean_head(ctx, branch)
    undone, parent = _step(ctx, ref, parent_number)
    return foretell(ctx, Sides((undone,), parent, head))


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
        ref: the commit to apply.
        destination: a branch without uncommitted changes.
        parent_number: of a merge commit, the parent to compare it with, from 1.
        message: the commit's message; that of ``ref`` when left out.
        metadata: key/value pairs that are added to those of ``ref``; a pair here takes the place of one there.
        idempotency_key: a second call with the same key returns the first call's commit.
        on_head: as for ``merge``.

    Raises:
        InvalidRef, MergeConflict, NoChanges, DirtyBranch: as for ``revert``.
    """
    given = _checked(message, metadata)
    parts = {"source": ref, "parent number": str(parent_number or "")}
    move = Move(Request("cherry-pick", check_name(destination), parts, message, given), idempotency_key)
    found = first_look(ctx, move, lambda: _step(ctx, ref, parent_number))
    if isinstance(found, Published):
        return found.commit
    picked, parent = found
    pairs = {
        **picked.metadata,
        **given,
        "cherry-pick-origin": picked.id,
        "cherry-pick-committer": picked.committer,
    }
    return _replay_change(
        ctx, move, _Replay(parent, picked, (ref, destination), message or picked.message, pairs, on_head)
    )


def of_cherry_pick(ctx: Context, ref: str, destination: str, parent_number: int | None = None) -> Iterator[Change]:
    """What ``cherry_pick`` would change now, by path, with its conflicts. Publishes nothing.

    Raises what ``cherry_pick`` raises for the branch and the commit.
    """
    head = _clean_head(ctx, destination)
    picked, parent = _step(ctx, ref, parent_number)
    return foretell(ctx, Sides((parent,), picked, head))


def _checked(message: str | None, metadata: Mapping[str, str] | None) -> dict[str, str]:
    if message is not None:
        check_message(message)
    return check_commit_metadata(metadata)


@dataclass(frozen=True)
class _Replay:
    base: Commit
    source: Commit
    names: tuple[str, str]
    message: str
    metadata: Mapping[str, str]
    on_head: Callable[[str], None] | None


def _replay_change(ctx: Context, move: Move, step: _Replay) -> Commit:
    def plan(attempt: Attempt) -> Draft:
        require_clean(ctx, attempt.state.id, attempt.head, attempt.staged)
        if step.on_head is not None:
            step.on_head(attempt.head.id)
        sides = Sides((step.base,), step.source, attempt.head)
        with overtaken(ctx, sides.commits):
            decision = decide(ctx, sides, None, step.names)
            metarange, summary = apply_merge(ctx, decision.plan, step.source, attempt.head, started=attempt.started)
        if not summary.total:
            raise NoChanges(f"{move.action} of {step.names[0]!r} changes nothing on branch {move.branch!r}")
        return Draft(metarange, (attempt.head,), step.message, step.metadata, summary, rests_on=decision.rests_on)

    return publish(ctx, move, plan, clean=True).commit


def _clean_head(ctx: Context, branch: str) -> Commit:
    """The head of a branch that takes changes and has none uncommitted.

    Raises:
        RefNotFound, ReadOnlyRepository, ProtectedBranch, DirtyBranch.
    """
    found, staged = ctx.catalog.staged_table(ctx.repository_id, require_stageable(ctx, branch).state.id)
    require_clean(ctx, found.state.id, found.head, staged)
    return found.head


def _step(ctx: Context, ref: str, parent_number: int | None) -> tuple[Commit, Commit]:
    """The commit that is undone or done again, and the parent that it is taken against."""
    commit = resolve_commit(ctx, ref)
    return commit, _parent(ctx, commit, parent_number, ref)


def _parent(ctx: Context, commit: Commit, number: int | None, ref: str) -> Commit:
    """The parent that a change is taken against. Raises ``InvalidRef``."""
    count = len(commit.parents)
    if not count:
        raise InvalidRef(f"{ref!r} is the initial commit: it has no parent to compare with")
    if number is None:
        if count > 1:
            raise InvalidRef(f"{ref!r} is a merge of {count} parents; say which one with a parent number from 1")
        number = 1
    check_amount(number, "the parent number")
    if not 1 <= number <= count:
        raise InvalidRef(f"{ref!r} has {count} parent{'s' if count > 1 else ''}; there is no parent {number}")
    return require_live(lookup(ctx).get(commit.parents[number - 1]))
