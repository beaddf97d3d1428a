"""Searches for the first bad commit: with a function that looks, or by hand over several calls, as ``git bisect`` does.

A search by hand keeps its verdicts in a file below the lake's home, one for each repository of each catalog, and
computes what is left anew each time. Neither changes anything in the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Literal

from lakeops.catalog.open import Catalog
from lakeops.model import graph
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import Corrupted, InvalidInput, NotFound
from lakeops.model.records import Commit
from lakeops.ops.context import Context, history_of, require_live, resolve_commit
from lakeops.ops.files import atomic_write, translated
from lakeops.store.reader import parse_json

MOST_SHOWN = 10


def nothing_told(ids: Sequence[str]) -> NotFound:
    """The error of a search that ends with several commits, of which one is the first bad one."""
    shown = ", ".join(one[:16] for one in ids[:MOST_SHOWN])
    more = f" and {len(ids) - MOST_SHOWN:,} more" if len(ids) > MOST_SHOWN else ""
    return NotFound(f"the first bad commit is one of these; they were skipped, so nothing more is known: {shown}{more}")


def bisect(
    ctx: Context,
    good: str,
    bad: str,
    is_good: Callable[[Commit], bool | None],
    *,
    first_parent: bool = False,
    on_left: Callable[[int], None] | None = None,
) -> Commit:
    """The first bad commit on the ways from a good one to a bad one, as ``git bisect`` finds it. Changes nothing.

    Args:
        good: any ref that ``bad`` descends from. It is taken to be good, and not looked at.
        bad: any ref. It is taken to be bad, and not looked at.
        is_good: looks at a commit. None: it cannot tell, and another commit is tested.
        first_parent: look at the history of ``bad`` alone, and not at what was merged into it: a merge that brought
            the fault is the answer then.
        on_left: called before each look with how many commits may still be the first bad one.

    Raises:
        InvalidInput: the bad commit does not descend from the good one.
        NotFound: ``is_good`` could not tell for the commits that are left.
        RefNotFound, CommitExpired: there is no such commit, or retention took one that had to be looked at.
    """
    get = history_of(ctx)
    first, last = resolve_commit(ctx, good).id, resolve_commit(ctx, bad).id
    if first == last or not graph.is_ancestor(get, first, last):
        raise InvalidInput(f"{bad!r} does not descend from {good!r}; give a good commit and a later, bad one")
    search = Search(between(get, [first], last, first_parent=first_parent))
    while not search.is_done:
        commit = search.next()
        if commit is None:
            raise nothing_told([one.id for one in search.left])
        if on_left is not None:
            on_left(len(search.left))
        search.tell(commit, is_good(require_live(commit)))
    return search.left[0]


Verdict = Literal["good", "bad", "skip"]


@dataclass(frozen=True)
class Bisection(JsonRecord):
    """The progress of a search by hand.

    ``bad`` is the earliest commit that is known to be bad, if one was named. ``skipped`` are those of which nothing
    could be told. ``left`` is how many may still be the first bad one (0 until a good and a bad one are known), and
    ``next`` the commit to look at, None when the search is over or waits for a good or a bad one. At the end there is
    ``first_bad``, or ``untold``: commits of which one is the first bad one, when nothing could be told of them.
    """

    repository: str
    bad: str | None
    good: tuple[str, ...]
    skipped: tuple[str, ...]
    first_parent: bool
    left: int = 0
    next: Commit | None = None
    first_bad: Commit | None = None
    untold: tuple[str, ...] = ()


def start_bisect(ctx: Context, bad: str | None = None, *good: str, first_parent: bool = False) -> Bisection:
    """Begin a search by hand, in place of one that is under way.

    Args:
        bad: a ref that is bad. It can be named later.
        good: refs that are good. They can be named later.
        first_parent: look at merges as a whole, and leave out what was merged.

    Raises:
        InvalidInput: the bad commit is an ancestor of a good one.
    """
    found = Bisection(
        ctx.repository_id,
        None if bad is None else resolve_commit(ctx, bad).id,
        tuple(dict.fromkeys(resolve_commit(ctx, one).id for one in good)),
        (),
        first_parent,
    )
    return _kept(ctx, _searched(ctx, found))


def bisection(ctx: Context) -> Bisection:
    """The state of the search that is under way. Raises ``NotFound`` when there is none."""
    return _searched(ctx, _read(ctx))


def mark_bisect(ctx: Context, verdict: Verdict, *refs: str) -> Bisection:
    """Mark commits as good, bad or skipped. Returns the state of the search.

    Args:
        verdict: ``good``, ``bad`` or ``skip``.
        refs: which ones. The commit to look at when left out.

    Raises:
        NotFound: no search is under way.
        InvalidInput: no commit is to be looked at, or the bad one is an ancestor of a good one.
    """
    before = _read(ctx)
    if refs:
        ids = tuple(resolve_commit(ctx, one).id for one in refs)
    else:
        waiting = _searched(ctx, before).next
        if waiting is None:
            raise InvalidInput("no commit waits for a verdict; name the commit that you mean")
        ids = (waiting.id,)
    if verdict == "bad" and len(ids) != 1:
        raise InvalidInput("only one commit can be the bad one; name one")
    match verdict:
        case "bad":
            told = replace(before, bad=ids[0])
        case "good":
            told = replace(before, good=tuple(dict.fromkeys((*before.good, *ids))))
        case "skip":
            told = replace(before, skipped=tuple(dict.fromkeys((*before.skipped, *ids))))
        case _:
            raise InvalidInput(f"a commit is good, bad or skipped, not {verdict!r}")
    return _kept(ctx, _searched(ctx, told))


def end_bisect(ctx: Context) -> None:
    """Forget the search that is under way. Without one nothing happens."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _file(ctx).unlink()


def _searched(ctx: Context, said: Bisection) -> Bisection:
    if said.bad is None or not said.good:
        return said
    get = history_of(ctx)
    for good in said.good:
        if graph.is_ancestor(get, said.bad, good):
            raise InvalidInput(f"the bad commit {said.bad[:16]} is an ancestor of the good one {good[:16]}")
    search = Search(between(get, said.good, said.bad, first_parent=said.first_parent))
    for commit in search.left:
        if commit.id in said.skipped:
            search.tell(commit, None)
    if search.is_done:
        return replace(said, left=1, first_bad=search.left[0])
    waiting = search.next()
    if waiting is None:
        return replace(said, left=len(search.left), untold=tuple(commit.id for commit in search.left))
    return replace(said, left=len(search.left), next=require_live(waiting))


def folder_of(catalog: Catalog, home: Path) -> Path:
    """The folder with the searches of a catalog's repositories. Several catalogs may have one home."""
    return Path(home) / "bisect" / sha256(catalog.database.shown.encode()).hexdigest()[:32]


def _file(ctx: Context) -> Path:
    return folder_of(ctx.catalog, ctx.settings.home) / f"{ctx.repository_id}.json"


def _kept(ctx: Context, state: Bisection) -> Bisection:
    file = _file(ctx)
    kept = {name: getattr(state, name) for name in ("bad", "good", "skipped", "first_parent")}
    with translated(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft:
            draft.write(json.dumps(kept).encode())
    return state


def _read(ctx: Context) -> Bisection:
    file = _file(ctx)
    try:
        said = parse_json(file.read_text())
        bad, good, skipped = said["bad"], said["good"], said["skipped"]
        if not all(isinstance(one, str) for one in (*good, *skipped, *([] if bad is None else [bad]))):
            raise ValueError(good)
        return Bisection(ctx.repository_id, bad, tuple(good), tuple(skipped), bool(said["first_parent"]))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no bisection of {ctx.repository_id!r} is under way; begin with lakeops bisect start") from None
    except (ValueError, KeyError, TypeError):
        raise Corrupted(f"{file} holds no bisection; forget it with lakeops bisect reset") from None


MOST_WEIGHED = 10_000
"""Commits of which each one's ancestors are counted: one bit for each pair is held."""


def between(get: graph.CommitSource, good: Iterable[str], bad: str, *, first_parent: bool = False) -> list[Commit]:
    """The commits that ``bad`` reaches and no ``good`` one does, children before parents.

    With ``first_parent`` only those on the line of first parents.
    """
    found = list(graph.exclusive_commits(get, bad, good))
    if not first_parent:
        return found
    among = {commit.id for commit in found}
    return list(takewhile(lambda commit: commit.id in among, graph.log(get, bad, first_parent=True)))


class Search:
    """Narrows commits down to the first bad one, as ``git bisect`` does.

    Each look is at the commit that tells most: as near as can be, half of those that are left are its ancestors. The
    first of the ``commits`` is bad, children come before parents, and the parents of all of them are good.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.left: list[Commit] = list(commits)
        self._skipped: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether the first of ``left`` is the first bad one."""
        return len(self.left) == 1

    def next(self) -> Commit | None:
        """The commit to test next. None when all that are left, except the bad one, were skipped."""
        open_ = [commit for commit in self.left[1:] if commit.id not in self._skipped]
        if not open_:
            return None
        if len(self.left) > MOST_WEIGHED:
            return open_[len(open_) // 2]
        masks: dict[str, int] = {}  # a bit for each of a commit's ancestors among those that are left, itself included
        for place, commit in enumerate(reversed(self.left)):
            mask = 1 << place
            for parent in commit.parents:
                mask |= masks.get(parent, 0)
            masks[commit.id] = mask
        weights = {commit_id: mask.bit_count() for commit_id, mask in masks.items()}
        return max(open_, key=lambda commit: min(weights[commit.id], len(self.left) - weights[commit.id]))

    def tell(self, commit: Commit, is_good: bool | None) -> None:
        """Record whether a commit is good or bad. None: it was skipped."""
        if is_good is None:
            self._skipped.add(commit.id)
            return
        get = {one.id: one for one in self.left}
        waiting, reached = [commit.id], {commit.id}
        while waiting:
            new = {parent for parent in get[waiting.pop()].parents if parent in get} - reached
            reached |= new
            waiting += new
        self.left = [one for one in self.left if (one.id in reached) != is_good]
