"""From a ref expression to what it means: a commit, or a branch with its staging area over its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from lakeops.catalog.records import BranchAt
from lakeops.model.errors import (
    InvalidInput,
    NotFound,
    NotReplicated,
    ObjectNotFound,
    RefNotFound,
)
from lakeops.model.graph import ReadAhead
from lakeops.model.names import COMMIT_ID
from lakeops.model.records import Commit, gone
from lakeops.model.refs import RefExpression, parse_ref
from lakeops.model.refs import resolve as resolve_expression
from lakeops.ops.context import Context, expired, require_live

if TYPE_CHECKING:
    from datetime import datetime

    from lakeops.catalog.open import Catalog


@contextmanager
def explain_expired(ctx: Context, commits: Iterable[Commit]) -> Iterator[None]:
    """Says *expired* when a file is missing because one of these commits was expired after it was looked up.

    Raises:
        CommitExpired: the catalog says so now.
        ObjectNotFound: a file is missing, and all of the commits are live.
    """
    try:
        yield
    except NotReplicated:
        raise
    except ObjectNotFound as error:
        read = list(commits)
        now = ctx.catalog.commits.get_many(ctx.repository_id, [commit.id for commit in read])
        for commit in read:
            if commit.id not in now or now[commit.id].expired:
                raise expired(commit) from error
        raise


def watched(ctx: Context, commits: Iterable[Commit], items: Iterable[T]) -> Iterator[T]:
    """Yield the items. An object that is missing while they are read raises the error that explains why."""
    with explain_expired(ctx, commits):
        yield from items


T = TypeVar("T")


class CatalogLookup:
    """The names of one repository, as the ref grammar asks for them. One serves one call, so it never grows stale.

    ``ahead`` is how many commits of a line are going to be asked for.
    """

    def __init__(self, catalog: Catalog, repository_id: str, ahead: int = 1) -> None:
        self._catalog = catalog
        self._repository_id = repository_id
        self.get: ReadAhead = history_of(catalog, repository_id, ahead)

    def branch(self, name: str) -> str | None:
        """The head of a branch."""
        try:
            return self._catalog.refs.branch(self._repository_id, name).commit_id
        except NotFound:
            return None

    def tag(self, name: str) -> str | None:
        """The commit of a tag."""
        try:
            return self._catalog.refs.tag(self._repository_id, name).commit_id
        except NotFound:
            return None

    def commit(self, commit_id: str) -> Commit | None:
        """A commit by full id."""
        try:
            found = self.get(commit_id)
        except NotFound:
            return None
        return None if found.is_gone else found

    def commits_with_prefix(self, prefix: str) -> list[str]:
        """Commit ids that start with some hex digits."""
        return self._catalog.commits.commits_with_prefix(self._repository_id, prefix)


def history_of(catalog: Catalog, repository_id: str, ahead: int = 1, most: int = 0) -> ReadAhead:
    """The commits of a repository, for walks: one that was pruned comes as ``gone``, where its line ends."""
    return ReadAhead(
        lambda commit_id, count: line_of(catalog, repository_id, commit_id, count),
        ahead,
        lambda ids: catalog.commits.get_many(repository_id, ids).values(),
        most,
    )


def line_of(catalog: Catalog, repository_id: str, commit_id: str, limit: int) -> list[Commit]:
    """A commit and its first parents, newest first. One that was pruned comes as ``gone``. Raises ``RefNotFound``."""
    try:
        return catalog.commits.first_parents(repository_id, commit_id, limit=limit)
    except RefNotFound:
        if catalog.retention.pruned(repository_id):
            return [gone(commit_id)]
        raise


def lookup(ctx: Context, ahead: int = 1) -> CatalogLookup:
    """The repository's names and commits."""
    return CatalogLookup(ctx.catalog, ctx.repository_id, ahead)


def resolve_id(ctx: Context, text: str) -> str:
    """The id of the commit that a ref expression means. A transition that rests on it says whether it is live.

    Raises:
        InvalidInput, RefNotFound: ``invalid_ref``, ``ambiguous_ref``: as the expression deserves.
    """
    return ctx.catalog.in_snapshot(lambda: resolve_expression(text, lookup(ctx)))


def resolve_commit(ctx: Context, text: str, *, live: bool = True, names: CatalogLookup | None = None) -> Commit:
    """The commit that a ref expression means. Whoever walks on from it passes ``names``, which read ahead.

    Raises:
        InvalidInput, RefNotFound: ``invalid_ref``, ``ambiguous_ref``: as the expression deserves.
        CommitExpired: retention took it, and ``live`` asks for one that can be read.
    """
    commit = _resolved(ctx, text, names or lookup(ctx))
    return require_live(commit) if live or commit.is_gone else commit


def resolve_both(ctx: Context, left: str, right: str) -> tuple[Commit, Commit]:
    """The commits that two ref expressions mean at one instant. Raises what ``resolve_commit`` raises."""
    return ctx.catalog.in_snapshot(lambda: (resolve_commit(ctx, left), resolve_commit(ctx, right)))


def _resolved(ctx: Context, expression: str | RefExpression, names: CatalogLookup) -> Commit:
    return ctx.catalog.in_snapshot(lambda: names.get(resolve_expression(expression, names)))


def at_ref(ctx: Context, text: str, of_branch: Callable[[str], T], of_commit: Callable[[Commit], T]) -> T:
    """What a reader of this ref sees: a plain branch name shows its staging area too, anything else a commit.

    A reader of a branch sees its staging area over its head, both at one instant. So nothing of the branch is read
    before: ``of_branch`` finds out whether there is one, and raises ``RefNotFound`` when there is none.
    """
    expression = parse_ref(text)
    if expression.is_name and not COMMIT_ID.fullmatch(text):
        try:
            return of_branch(text)
        except RefNotFound:
            pass
    commit = require_live(_resolved(ctx, expression, lookup(ctx)))
    with explain_expired(ctx, (commit,)):
        return of_commit(commit)


def is_dirty(ctx: Context, ref: str) -> bool:
    """Whether a ref expression is the name of a branch with uncommitted changes."""
    if not parse_ref(ref).is_name or COMMIT_ID.fullmatch(ref):
        return False
    try:
        return ctx.catalog.staging.has_staged(ctx.repository_id, ref)
    except RefNotFound:  # a tag, or the beginning of a commit id
        return False


def require_branch(ctx: Context, name: str) -> str:
    """The name, when it is a branch's.

    Raises ``RefNotFound``, or ``InvalidInput`` (``invalid_ref``) for an expression.
    """
    return ctx.catalog.refs.branch(ctx.repository_id, check_name(name)).id


def check_name(name: str) -> str:
    """The name, when it can be a branch's and is no expression. Nothing is read.

    Raises ``InvalidInput`` (``invalid_ref``).
    """
    if not parse_ref(name).is_name:
        raise InvalidInput(f"{name!r} is an expression; this needs the name of a branch", kind="invalid_ref")
    return name


def begin_staging(ctx: Context, name: str) -> datetime:
    """The catalog's time, before anything is written that is to be staged on a branch. Raises as ``require_stageable``.

    Calls that begin within a moment share one check.
    """
    return ctx.stage_queue(check_name(name)).check()


def require_stageable(ctx: Context, name: str) -> BranchAt:
    """A branch that may take uncommitted changes.

    The catalog decides again in every transition. Asking first spares an upload that would be refused.

    Raises:
        RefNotFound, ReadOnlyRepository, ProtectedBranch.
    """
    return ctx.catalog.staging.stageable(ctx.repository_id, check_name(name))
