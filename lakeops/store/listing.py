"""Listing with several requests under way: they run ahead of the reader, and their results come in order.

A listing is a tree of steps (directories, prefixes, pages), and only doing a step tells which ones follow it. Where one
folder holds many pages its names are split at points that its first page suggests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, groupby
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import TypeAlias, Union

from lakeops.model.errors import ObjectNotFound
from lakeops.store.base import Listing, ObjectStore, StoredObject
from lakeops.store.in_flight import in_flight

LISTING_SECONDS = 0.04
"""The time in which one core lists 2,800 objects of a bucket."""

LEVELS = 3
"""Levels of folders that a listing is divided by."""

Step: TypeAlias = Callable[[], "Sequence[Found]"]
"""Does one request. Gives listings and further steps, in order."""
Found: TypeAlias = Union[Listing, "Step"]
_Waiting: TypeAlias = "Found | Future[Sequence[Found]]"


def gathered(listings: Iterable[Listing], least: int) -> Generator[Listing]:
    """The objects of some listings in larger ones, of at least so many: a store may give one for each directory."""
    keys, sizes, mtimes, marks = list[str](), list[int](), list[int](), list[str]()
    for listing in listings:
        keys += listing.keys
        sizes += listing.sizes
        mtimes += listing.mtimes
        marks += listing.marks
        if len(keys) >= least:
            yield Listing(keys, sizes, mtimes, marks)
            keys, sizes, mtimes, marks = [], [], [], []
    if keys:
        yield Listing(keys, sizes, mtimes, marks)


def in_order(first: Step) -> Iterator[Listing]:
    """The listings that a step leads to, in order, one step after the other: for readers who may stop early."""
    line: list[Found] = [first]
    while line:
        front = line.pop()
        if isinstance(front, Listing):
            yield front
        else:
            line += reversed(front())


class ParallelListing:
    """The steps of one listing, several at a time.

    Args:
        threads: how many steps are done at a time.
        ahead: how many listings and steps, from the front on, may be done or under way. It bounds memory.
    """

    def __init__(self, threads: int, ahead: int = 64) -> None:
        self._threads = threads
        self._ahead = ahead
        self._running: set[Future[Sequence[Found]]] = set()

    @property
    def idle(self) -> int:
        """The number of idle threads. The thread of the step that asks counts as busy."""
        return max(0, self._threads - len(self._running))

    def run(self, first: Step) -> Iterator[Listing]:
        """The listings that a step leads to, in order."""
        line: deque[_Waiting] = deque([first])
        with ThreadPoolExecutor(self._threads, thread_name_prefix="list") as pool:
            try:
                while line:
                    self._begin(line, pool)
                    front = line.popleft() if line else None  # the last steps may have given nothing
                    if isinstance(front, Listing):
                        yield front
                    elif isinstance(front, Future):
                        line.extendleft(reversed(front.result()))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, line: deque[_Waiting], pool: ThreadPoolExecutor) -> None:
        """Begin the steps at the front of the line, and put the results of those that are done in their places."""
        looked: list[_Waiting] = []
        while line and len(looked) < self._ahead:
            item = line.popleft()
            if isinstance(item, Future):
                if item.done():
                    line.extendleft(reversed(item.result()))
                else:
                    looked.append(item)
            elif isinstance(item, Listing):
                looked.append(item)
            else:
                begun = pool.submit(item)
                self._running.add(begun)
                begun.add_done_callback(self._running.discard)
                looked.append(begun)
        line.extendleft(reversed(looked))


_ALPHABETS = (
    digits,
    digits + "abcdef",
    digits + "ABCDEF",
    digits + ascii_lowercase,
    digits + ascii_uppercase,
    digits + ascii_letters,
)


def folder_borders(parts: Callable[[str], Sequence[str]], root: str, after: str, count: int) -> list[str]:
    """About ``count`` ascending names behind ``after`` that part what lies below ``root``: see ``ObjectStore.borders``.

    They are folders, as far down as there have to be to get so many, and points in flat folders. ``parts`` gives the
    folders in a folder, ending in slashes, or points in it.
    """
    found, points, inside = list[str](), list[str](), [root]
    for _ in range(LEVELS):
        if len(found) < count:
            names = list(chain.from_iterable(in_flight(parts, inside)))
            inside = [name for name in names if name.endswith("/")]
            found, points = found + inside, points + [name for name in names if not name.endswith("/")]
    found = sorted(name for name in found if name > after)
    return sorted({*found[:: -(-len(found) // count) or 1], *(name for name in points if name > after)})


def split_points(page: Sequence[str], until: str | None, *, start: int, count: int) -> list[str]:
    """Up to ``count`` ascending names behind a page and before ``until`` at which to split what comes there.

    Where the page's names begin to differ, each next part is to reach as many characters further as the page did. The
    characters to the left follow while they are of the same alphabet, as the digits of one number are. Bad points cost
    requests and nothing else: whatever the points are, the parts between them hold everything once.

    Args:
        page: names in order.
        until: the last name that may come. None for all.
        start: how many characters at the beginning of all names are their folder.
        count: how many points at most.
    """
    if not page:
        return []
    first, last = page[0], page[-1]
    place = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    points: list[str] = []
    alphabet: Sequence[str] = last[place : place + 1]
    while start <= place < len(last) and last[place] in alphabet:
        seen = {name[place] for name in page if place < len(name)}
        alphabet = sorted(next((set(known) for known in _ALPHABETS if seen <= set(known)), seen))
        here = alphabet.index(last[place])
        step = max(1, here - alphabet.index(first[place])) if place < len(first) else 1
        points += [last[:place] + character for character in alphabet[here + step :: step]]
        place -= 1
    return [point for point in points if until is None or point < until][:count]


LIST_FROM = 32
"""Objects of one directory that are worth a listing."""

SHOWN_FOR_ASKED = 100
"""Names that a listing may show for each object that it is searched for: a request for ten objects."""

_FEW = 4


def present(store: ObjectStore, keys: Iterable[str]) -> dict[str, StoredObject]:
    """The keys, in any order, that the store has, each with what the store tells of it."""
    wanted = sorted(set(keys))
    groups = [list(group) for _, group in groupby(wanted, key=_directory)]
    many = [group for group in groups if len(group) >= LIST_FROM]
    single = [key for group in groups if len(group) < LIST_FROM for key in group]
    if not many and len(single) <= _FEW:
        return {item.key: item for key in single if (item := look_up(store, key)) is not None}
    found: dict[str, StoredObject] = {}
    for listed, rest in in_flight(lambda group: _listed(store, group), many):
        found.update(listed)
        single += rest
    for item in in_flight(lambda key: look_up(store, key), single):
        if item is not None:
            found[item.key] = item
    return found


def _directory(key: str) -> str:
    """The first two parts of a key: objects are written under ``data/<hour>/``."""
    return "/".join(key.split("/", 2)[:2]) + "/" if key.count("/") > 1 else key.rpartition("/")[0]


def _listed(store: ObjectStore, keys: Sequence[str]) -> tuple[dict[str, StoredObject], list[str]]:
    """Look for keys of one directory in a listing. Gives those found, and the keys that it did not get to."""
    wanted, last = set(keys), keys[-1]
    found: dict[str, StoredObject] = {}
    left = SHOWN_FOR_ASKED * len(keys)
    # Anything before the first key will do to begin at, and a part of it is.
    for item in store.list(_directory(last), after=keys[0][:-1]):
        if item.key > last:
            break
        if item.key in wanted:
            found[item.key] = item
        left -= 1
        if left < 0:
            return found, [key for key in keys if key > item.key]
    return found, []


def look_up(store: ObjectStore, key: str) -> StoredObject | None:
    """The description of an object, as ``head`` gives it. None where there is no object."""
    try:
        return store.head(key)
    except ObjectNotFound:
        return None
