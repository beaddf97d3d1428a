"""Walking the catalog's keyset-paged listings of repositories, branches and tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from lakeops.model.records import Ref, Repository
from lakeops.model.requests import check_asked

PAGE = 1000

Named = TypeVar("Named", Ref, Repository)
Named_co = TypeVar("Named_co", Ref, Repository, covariant=True)


class ReadPage(Protocol[Named_co]):
    """A listing of the catalog."""

    def __call__(self, *, prefix: str, after: str, limit: int) -> Sequence[Named_co]:
        """One page, in byte order of ids."""
        ...


def pages(read: ReadPage[Named], *, prefix: str = "", after: str = "") -> Iterator[Named]:
    """All that a listing holds under a prefix and after an id, a page at a time."""
    check_asked(prefix, "the beginning of a name")
    check_asked(after, "a name to go on behind")
    while True:
        page = read(prefix=prefix, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id
