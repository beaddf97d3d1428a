"""Sums of what differs between two commits, kept by the commits' ids; and the list of it, page by page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lakeops.model.changes import Change
from lakeops.model.errors import LakeopsError, StoreUnavailable
from lakeops.model.records import Commit
from lakeops.ops.sums import Size, Sums
from lakeops.store.in_flight import in_flight

if TYPE_CHECKING:
    from lakeops.lake import Repository

COUNTED = 50_000
"""With more changes than this, a page says *at least*."""
LISTED = 100
FOLDERS = 50
"""Folders that are listed; the others are summed up as one."""
_KEPT = 128
_PAIRS = 4096
K = TypeVar("K")
T = TypeVar("T")


class Shown(NamedTuple):
    """What a page shows of a difference.

    Attributes:
        prefix: what the paths begin with.
        sums: all of it, summed up. None on a later page, which reads no more than it lists.
        listed: the changes of this page.
        next_after: the path behind which the next page begins; None at the end.
    """

    prefix: str
    sums: Sums | None
    listed: list[Change]
    next_after: str | None


def differing(
    repository: Repository, left: str, right: str, *, two_way: bool, prefix: str = "", after: str = ""
) -> Shown:
    """What differs between two commits, or what the right one changed since their merge base.

    The sums are kept by the commits' ids. A later page is read from where the one before has ended.
    """
    if after:
        found = None
        find = repository.diff if two_way else repository.compare
        listed = list(islice(find(left, right, prefix=prefix, after=after), LISTED + 1))
    else:
        found = summed(repository, left, right, two_way=two_way, prefix=prefix)
        listed = found.first
    more = listed[LISTED - 1].path if len(listed) > LISTED else None
    return Shown(prefix, found, listed[:LISTED], more)


def summed(repository: Repository, left: str, right: str, *, two_way: bool, prefix: str = "") -> Sums:
    """The sums of what differs between two commits, by their ids."""
    key = (repository.storage_namespace, str(two_way), left, right, prefix)
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
    found = repository.sums(
        left, right, two_way=two_way, prefix=prefix, most=COUNTED, folders=FOLDERS, first=LISTED + 1
    )
    with _lock:
        _known[key] = found
        while len(_known) > _KEPT:
            _known.popitem(last=False)
    return found


def base_of(repository: Repository, left: str, right: str) -> str:
    """The id of the merge base of two commits. Raises what ``Repository.merge_base`` raises."""
    key = (repository.storage_namespace, left, right)
    with _lock:
        if key in _bases:
            return _bases[key]
    found = repository.merge_base(left, right).id
    _keep(_bases, {key: found})
    return found


def apart(repository: Repository, base: str, commits: Sequence[str]) -> list[tuple[int, int] | None]:
    """How far each commit is from another one, as ``Repository.divergence`` tells it."""
    place = repository.storage_namespace
    with _lock:
        known = {one: _distances[place, base, one] for one in commits if (place, base, one) in _distances}
    missing = [one for one in dict.fromkeys(commits) if one not in known]
    if missing:
        found = dict(zip(missing, repository.divergence(base, missing), strict=True))
        _keep(_distances, {(place, base, one): far for one, far in found.items()})
        known |= found
    return [known[one] for one in commits]


def sizes(heads: Sequence[tuple[Repository, Commit | None]]) -> list[Size | None]:
    """How large some commits are, each of its repository; None where that cannot be read now.

    What is not known is asked for with several requests under way. After a store that did not answer, nothing else is
    asked of it: a page waits for it once.
    """
    down: set[str] = set()

    def size(asked: tuple[Repository, Commit | None]) -> Size | None:
        repository, commit = asked
        place = repository.storage_namespace
        if commit is None or commit.expired:
            return None
        with _lock:
            known = _sizes.get((place, commit.meta_range_id))
        server = "/".join(place.split("/", 3)[:3])  # the scheme and the bucket
        if known is not None or server in down:
            return known
        try:
            found = repository.size(commit)
        except StoreUnavailable:
            down.add(server)
            return None
        except LakeopsError:
            return None
        _keep(_sizes, {(place, commit.meta_range_id): found})
        return found

    return list(in_flight(size, heads))


def _keep(kept: OrderedDict[K, T], found: Mapping[K, T]) -> None:
    with _lock:
        kept.update(found)
        while len(kept) > _PAIRS:
            kept.popitem(last=False)


_bases: OrderedDict[tuple[str, str, str], str] = OrderedDict()
_distances: OrderedDict[tuple[str, str, str], tuple[int, int] | None] = OrderedDict()
_sizes: OrderedDict[tuple[str, str], Size] = OrderedDict()
_known: OrderedDict[tuple[str, ...], Sums] = OrderedDict()
_lock = Lock()
