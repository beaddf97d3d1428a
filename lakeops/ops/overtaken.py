"""Reading commits that garbage collection may take meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lakeops.model.errors import NotReplicated, ObjectNotFound
from lakeops.model.records import Commit
from lakeops.ops.context import Context, expired

T = TypeVar("T")


@contextmanager
def overtaken(ctx: Context, commits: Iterable[Commit]) -> Iterator[None]:
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
        now = ctx.catalog.commits(ctx.repository_id, [commit.id for commit in read])
        for commit in read:
            if commit.id not in now or now[commit.id].expired:
                raise expired(commit) from error
        raise


def watched(ctx: Context, commits: Iterable[Commit], items: Iterable[T]) -> Iterator[T]:
    """The same items; what is missing while they are read is explained likewise."""
    with overtaken(ctx, commits):
        yield from items
