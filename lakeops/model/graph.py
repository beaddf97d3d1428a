"""History: the commit that a ref expression means, common ancestors, ancestry and logs.

Every function asks a ``CommitSource`` for commits by id: each one at most once a call, and only those that the answer
needs. Generation numbers make that possible: a parent's is always lower, so ``Walk`` meets a commit only after all its
descendants. The answers depend on the commits alone. Expired commits are walked like any other.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from lakeops.model.errors import InvalidInput, RefNotFound
from lakeops.model.names import COMMIT_ID, RefExpression, Step, parse_ref
from lakeops.model.records import Commit
from lakeops.model.sanitising import excerpt


class Node(NamedTuple):
    """A commit in the graph: ``expired`` for good, or ``pending``, where the mark that expired it can be restored."""

    id: str
    parents: tuple[str, ...]
    creation_date: int
    generation: int
    expired: bool = False
    pending: bool = False


class RefMove(NamedTuple):
    """One move of a ref: the commits before and after, and the parents of the one after."""

    old: str | None
    new: str | None
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lineage:
    """The refs, commits and rules that decide which commits of a repository live, at one instant.

    ``commits`` has the expired ones too. ``mirrors`` are registered ones, to the commits that they need. ``left`` are
    commits that a ref pointed to before it moved or went, to when that last happened (Unix seconds); ``deleted`` are
    the last ones of deleted branches among these.
    """

    branches: Mapping[str, str]
    tags: Mapping[str, str]
    commits: Mapping[str, Node]
    mirrors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    rules: str | None = None


CommitSource = Callable[[str], Commit]
"""Gives the commit of a full id, or raises ``RefNotFound``. ``ReadAhead`` makes one of a catalog's statement."""


class Walk:
    """A walk down from some commits to all that they reach, by generation, the highest first.

    Each commit comes once, after all its descendants, with the union of their marks (bits). ``marks`` are the commits
    that wait, with their marks so far. ``waiting`` counts them by their marks. ``pruned`` stand for commits that were
    reached and are not there any more.
    """

    def __init__(self, get: Callable[[str], Commit | Node], marks: Iterable[tuple[str, int]]) -> None:
        self.marks: dict[str, int] = {}
        self.waiting: defaultdict[int, int] = defaultdict(int)
        self.pruned: list[Any] = []
        self._get = get
        self._queue: list[tuple[int, int, str, Any]] = []
        for commit_id, mark in marks:
            self.reach(commit_id, mark)

    @property
    def generation(self) -> int:
        """The generation of the commit that comes next. -1 at the end."""
        return -self._queue[0][0] if self._queue else -1

    def reach(self, commit_id: str, mark: int) -> None:
        """Let a commit wait, with these marks too."""
        before = self.marks.get(commit_id)
        if before is None:
            commit = self._get(commit_id)
            if not commit.generation:
                self.pruned.append(commit)
            heapq.heappush(self._queue, (-commit.generation, -commit.creation_date, commit.id, commit))
            before = 0
        else:
            self._leave(before)
        self.marks[commit_id] = before | mark
        self.waiting[before | mark] += 1

    def pop(self) -> tuple[Any, int]:
        """Take the next commit and its marks."""
        commit = heapq.heappop(self._queue)[-1]
        mark = self.marks.pop(commit.id)
        self._leave(mark)
        return commit, mark

    def _leave(self, mark: int) -> None:
        self.waiting[mark] -= 1
        if not self.waiting[mark]:
            del self.waiting[mark]  # marks may have a bit for each of thousands of heads

    def pass_on(self, commit: Commit, mark: int) -> None:
        """Reach the commit's parents."""
        for parent in dict.fromkeys(commit.parents):
            self.reach(parent, mark)


_LEFT, _RIGHT, _BELOW = 1, 2, 4
_BOTH = _LEFT | _RIGHT


def merge_bases(get: CommitSource, lefts: Iterable[str], rights: Iterable[str]) -> list[Commit]:
    """The best common ancestors of two groups of commits, oldest first: by date, generation and id.

    As for ``git merge-base --all`` of two commits, or of merges of the commits of each group: a commit is an ancestor
    of itself, and no other common ancestor descends from one of these. None when they share no history. Where pruning
    took what they share, one of the pruned commits that stand for it is among them.
    """
    walk = Walk(get, [*product(lefts, [_LEFT]), *product(rights, [_RIGHT])])
    waiting, found = walk.waiting, list[Commit]()
    while waiting[_BOTH] or (waiting[_LEFT] and waiting[_RIGHT]):
        commit, side = walk.pop()
        if side == _BOTH:
            found.append(commit)
            side |= _BELOW  # what a best one reaches is none
            if not (waiting[_BOTH] or (waiting[_LEFT] and waiting[_RIGHT])):
                break
        walk.pass_on(commit, side)
    return sorted(found or walk.pruned, key=attrgetter("creation_date", "generation", "id"))


def exclusive_commits(get: CommitSource, tip: str, bases: Iterable[str]) -> Iterator[Commit]:
    """The commits that a tip reaches and none of the bases does, children before parents.

    Commits are read down to where all that is left is the bases' too.
    """
    walk = Walk(get, [(tip, _LEFT), *((one, _RIGHT) for one in bases)])
    while walk.waiting[_LEFT]:
        commit, side = walk.pop()
        if side == _LEFT:
            yield commit
        walk.pass_on(commit, side)


def divergences(get: CommitSource, base: str, heads: Sequence[str], *, most: int) -> list[tuple[int, int] | None]:
    """Count for each head the commits that ``base`` lacks, and those of ``base`` that the head lacks; in one walk.

    None for a head where more than ``most`` commits would have to be looked at, or where one of them was pruned. One
    that is further than that by its generation alone takes no part.
    """
    starts = {one: get(one) for one in dict.fromkeys((base, *heads))}
    top = starts[base].generation
    near = [one for one, commit in starts.items() if one != base and abs(commit.generation - top) <= most]
    bits = {one: 2 << number for number, one in enumerate(near)}
    every = (2 << len(near)) - 1
    # Bit 0 is the base. A commit that all reach tells nothing about any of them.
    walk = Walk(lambda commit_id: starts.get(commit_id) or get(commit_id), [(base, 1), *bits.items()])
    seen: Counter[int] = Counter()
    looked = 0
    while near and walk.generation and len(walk.marks) > walk.waiting[every] and looked < most + len(near):
        commit, side = walk.pop()
        seen[side] += 1
        looked += 1
        walk.pass_on(commit, side)
    open_sides = {side for side in walk.marks.values() if side != every}
    found: dict[str, tuple[int, int] | None] = {base: (0, 0)}
    for one, bit in bits.items():
        if any(bool(side & 1) != bool(side & bit) for side in open_sides):
            continue
        ahead = sum(count for side, count in seen.items() if side & bit and not side & 1)
        behind = sum(count for side, count in seen.items() if side & 1 and not side & bit)
        found[one] = (ahead, behind)
    return [found.get(one) for one in heads]


def walk(get: CommitSource, starts: Iterable[str], amount: int) -> tuple[list[Commit], list[str]]:
    """A page of the commits that the starts reach, by generation, the highest first, and the starts of the next page.

    It reads no other commits than these and the next starts.
    """
    downward = Walk(get, ((one, 1) for one in starts))
    found: list[Commit] = []
    rest: list[str] = []
    while downward.marks:
        commit, _ = downward.pop()
        if commit.is_pruned:
            continue
        if len(found) == amount:
            rest.append(commit.id)
            continue
        found.append(commit)
        downward.pass_on(commit, 1)
    return found, rest


def is_ancestor(get: CommitSource, ancestor: str, descendant: str) -> bool:
    """Whether a commit can be reached from another over parents. Each commit is its own ancestor."""
    return ancestor == descendant or bool(heads_containing(get, ancestor, [descendant]))


def heads_containing(get: CommitSource, ancestor: str, heads: Iterable[str]) -> set[str]:
    """The commits among ``heads`` that descend from ``ancestor``. Each commit is its own ancestor.

    One walk reads commits down to the ancestor's generation, and their parents.
    """
    lowest = get(ancestor)
    bits = {head: 1 << number for number, head in enumerate(dict.fromkeys(heads))}
    walk = Walk(lambda one: lowest if one == ancestor else get(one), bits.items())  # each is asked for once
    while walk.generation > lowest.generation:
        walk.pass_on(*walk.pop())
    found = walk.marks.get(ancestor, 0)
    return {head for head, bit in bits.items() if found & bit}


def reached(get: CommitSource, start: str, commits: Collection[Commit]) -> set[str]:
    """The ids of the ``commits`` that ``start`` can reach, itself included, by a walk to the lowest of them."""
    missing = {commit.id: commit.generation for commit in commits}
    found: set[str] = set()
    walk = Walk(get, [(start, 1)])
    while walk.marks and missing:
        commit, mark = walk.pop()
        if missing.pop(commit.id, None) is not None:
            found.add(commit.id)
        elif commit.generation < min(missing.values()):
            break
        walk.pass_on(commit, mark)
    return found


def log(get: CommitSource, start: str, *, first_parent: bool = False) -> Iterator[Commit]:
    """The commits that a commit can reach, itself included: newest first, and no parent before all its children.

    That is the order of ``git log --date-order``; of equally new commits the higher generation comes first, then the
    smaller id. With ``first_parent`` only first parents are followed. Little more is read than is taken, as long as
    dates grow with generations.
    """
    commit: Commit | None = get(start)
    while commit is not None:
        if len(commit.parents) > 1 and not first_parent:
            commit = yield from _log_from_merge(get, commit)
        else:  # a line has one order
            yield commit
            commit = get(commit.parents[0]) if commit.parents else None


def _log_from_merge(get: CommitSource, start: Commit) -> Generator[Commit, None, Commit | None]:
    """The log from a merge on. Returns the commit whose ancestors are all that is left then. None at the end."""
    # Two walks at once. The outer one yields by date. A commit may be yielded when all its children were, and to know
    # all its children, everything of a higher generation must have been passed: that is the inner walk, which runs only
    # as far ahead as the next commit asks.
    left: dict[str, Commit] = {}  # seen and not yielded
    children: Counter[str] = Counter()  # how many known children of a commit are not yielded yet

    def load(commit_id: str) -> Commit:
        left[commit_id] = commit = start if commit_id == start.id else get(commit_id)
        return commit

    def pass_above(generation: int) -> None:
        while inner.generation > generation:
            commit, mark = inner.pop()
            children.update(dict.fromkeys(commit.parents, 1))
            inner.pass_on(commit, mark)

    inner = Walk(load, [(start.id, 1)])
    ready = [_by_age(start)]
    while ready:
        commit = heapq.heappop(ready)[-1]
        pass_above(commit.generation)
        if commit.id not in left or children[commit.id]:
            continue  # Yielded before; or a child turned up that was not known, and the commit comes back after it.
        if len(left) == 1 and commit.id != start.id:
            return commit
        yield commit
        pass_above(commit.generation - 1)
        for parent in dict.fromkeys(commit.parents):
            children[parent] -= 1
            if not children[parent]:
                heapq.heappush(ready, _by_age(left[parent]))
        del left[commit.id], children[commit.id]
    return None


def _by_age(commit: Commit) -> tuple[int, int, str, Commit]:
    return (-commit.creation_date, -commit.generation, commit.id, commit)


LONGEST_RUN = 1024
MOST_KEPT = 65_536
"""Commits kept at a time (about 60 MB). Past that, all are dropped and read again when they are asked for."""

FIRST_SIDES, MOST_SIDES = 8, 256
"""Further parents of merges that are loaded together: at the first miss, and at most."""


class WalkLimitReached(Exception):
    """A walk went further than its limit."""


class ReadAhead:
    """A ``CommitSource`` that reads lines of first parents ahead. Use one for one call, so that it never grows stale.

    Args:
        load: gives a commit and its first parents, newest first, at most as many as asked for (``first_parents`` of a
            catalog). Raises ``RefNotFound``.
        ahead: how many the first miss loads, where it is known how many will be asked for.
        load_some: gives those of some commits that exist: further parents of merges come together, in one round trip.
        most: how often something is loaded before ``WalkLimitReached`` is raised. 0 is no end.
    """

    def __init__(
        self,
        load: Callable[[str, int], list[Commit]],
        ahead: int = 1,
        load_some: Callable[[Sequence[str]], Iterable[Commit]] | None = None,
        most: int = 0,
    ) -> None:
        self._load = load
        self._load_some = load_some
        self._sides: dict[str, None] = {}  # further parents of what is kept, the newest first, not kept themselves
        self._sides_at_once = FIRST_SIDES
        self._ahead = max(1, min(ahead, LONGEST_RUN))
        self.loads: int = 0
        """How often something was loaded."""
        self._most = most
        self._asked = 0
        self._kept: dict[str, Commit] = {}
        self._goes_on: dict[str, int] = {}  # where a run ended: the commit behind it, and how long the run was

    def __call__(self, commit_id: str) -> Commit:
        """The commit. Raises ``RefNotFound``."""
        self._asked += 1
        commit = self._kept.get(commit_id)
        if commit is None:
            if self._most and self.loads >= self._most:
                raise WalkLimitReached
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
                self._goes_on.clear()
                self._sides.clear()
            self._read_sides(commit_id)
            commit = self._kept.get(commit_id)
        if commit is None:
            before = self._goes_on.pop(commit_id, None)
            run = self._ahead if not self._kept else max(1, self._asked // 8)
            if before is not None:
                # Walks beside each other, as for a merge base, go further at a time: each pays for half of the misses.
                run = max(2 * before, 2 * self._asked if self._goes_on else 0)
            run = min(run, LONGEST_RUN)
            loaded = self._load(commit_id, run)
            self.loads += 1
            self._keep(loaded)
            for parent in loaded[-1].parents[:1]:
                self._goes_on[parent] = run
            commit = self._kept[commit_id]
        return commit

    def __contains__(self, commit_id: object) -> bool:
        """Whether the commit is at hand."""
        return commit_id in self._kept

    def _keep(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            self._kept[commit.id] = commit
            self._sides.pop(commit.id, None)
            if self._load_some is not None:
                for parent in commit.parents[1:]:
                    if parent not in self._kept:
                        self._sides[parent] = None

    def _read_sides(self, commit_id: str) -> None:
        """Load a further parent of a merge, and others of them."""
        if self._load_some is None or commit_id not in self._sides:
            return
        wanted = list(dict.fromkeys((commit_id, *islice(self._sides, self._sides_at_once - 1))))
        self._sides_at_once = min(2 * self._sides_at_once, MOST_SIDES)
        for one in wanted:
            self._sides.pop(one)
        self.loads += 1
        self._keep(self._load_some(wanted))


def shared(commits: Mapping[str, Node], heads: Collection[str]) -> set[str]:
    """The merge bases of any two heads, beside the heads themselves. Heads that are no commits do not matter.

    It holds a number for each commit that was reached and not yet passed: a bit for each head and each commit found.
    """
    found: set[str] = set()
    own = sorted({*heads} & commits.keys())
    widest: dict[str, int] = {}
    walk = Walk(commits.__getitem__, ((head, 1 << number) for number, head in enumerate(own)))
    while walk.marks:
        commit, by = walk.pop()
        width, count = widest.pop(commit.id, 0), by.bit_count()
        if count > max(width, 1) and commit.id not in heads:
            by |= 1 << (len(own) + len(found))
            count += 1
            found.add(commit.id)
        for parent in commit.parents:
            if parent in commits:
                walk.reach(parent, by)
                widest[parent] = max(widest.get(parent, 0), count)
    return found


_PREFIX = re.compile(r"[0-9a-fA-F]{1,63}")


class RefLookup(Protocol):
    """Finds the refs and commits of a repository for ``resolve``. None stands for none of this name or id."""

    def branch(self, name: str) -> str | None:
        """The head of a branch."""

    def tag(self, name: str) -> str | None:
        """The commit of a tag."""

    def commit(self, commit_id: str) -> Commit | None:
        """The commit with this full id."""

    def commits_with_prefix(self, prefix: str) -> list[str]:
        """Ids that begin with these lower-case hex digits, in order; enough of them to show when there are many."""


def resolve(expression: RefExpression | str, lookup: RefLookup) -> str:
    """The id of the commit that a ref expression means. Without steps, only the base is looked up.

    A base means, in this order: a full commit id, a branch, a tag, a prefix of a commit id, which has to be unique. No
    number in a step makes the walk longer than history is.

    Raises:
        InvalidInput: ``invalid_ref``: the text is not a ref expression.
        InvalidInput: ``ambiguous_ref``: the base is a prefix of several commit ids, which the message lists.
        RefNotFound: nothing answers to the base, or a step leads past the root or to a parent that is not there.
    """
    if not isinstance(expression, RefExpression):
        expression = parse_ref(expression)
    commit_id = _base(expression, lookup)
    for step in expression.steps:
        commit_id = _walk(expression, commit_id, step, lookup)
    return commit_id


def _base(expression: RefExpression, lookup: RefLookup) -> str:
    name = expression.base
    if expression.committed_only:
        head = lookup.branch(name)
        if head is None:
            raise RefNotFound(f"no branch is called {excerpt(name)}, and only a branch can be followed by '@'")
        return head
    if COMMIT_ID.fullmatch(name):
        commit = lookup.commit(name.lower())
        if commit is None:
            raise RefNotFound(f"there is no commit {name}")
        return commit.id
    found = lookup.branch(name) or lookup.tag(name)
    if found is not None:
        return found
    candidates = lookup.commits_with_prefix(name.lower()) if _PREFIX.fullmatch(name) else []
    if not candidates:
        raise RefNotFound(f"no branch, tag or commit answers to {excerpt(name)}")
    if len(candidates) > 1:
        some = ", ".join(one[:16] for one in candidates)
        raise InvalidInput(f"{name!r} is ambiguous: it matches {some}; give more characters", kind="ambiguous_ref")
    return candidates[0]


def _walk(expression: RefExpression, commit_id: str, step: Step, lookup: RefLookup) -> str:
    for taken in range(step.times):
        commit = lookup.commit(commit_id)
        if commit is None:
            raise RefNotFound(f"{excerpt(expression.text)} needs commit {commit_id}, which is not there")
        count = len(commit.parents)
        if 0 < count < step.parent:
            has = "one parent" if count == 1 else f"{count} parents"
            raise RefNotFound(
                f"{excerpt(expression.text)} is not there: it asks for parent {step.parent} of commit "
                f"{commit.id[:16]}, which has {has}"
            )
        # Every step lowers the generation: a walk that is longer than that ends past the root, so it need not begin.
        if not count or step.times - taken >= commit.generation:
            raise RefNotFound(f"{excerpt(expression.text)} is not there: it leads past the first commit")
        commit_id = commit.parents[step.parent - 1]
    return commit_id
