"""The pages about objects: what a ref holds, what is in one of them, who wrote them, and what a change did to one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lakeops.model.errors import LakeopsError, ObjectNotFound
from lakeops.model.records import CommonPrefix, Entry
from lakeops.model.text import excerpt
from lakeops.web.page import Page
from lakeops.web.preview import Preview, preview
from lakeops.web.problem import Problem

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.lake.repository import Readable

OBJECTS = 50
"""Folders and objects of a page. Each folder is looked for on its own, in what is staged and in what is committed."""
STAGED = 100
TRACED = 50
"""Objects whose writers are looked for at once, or versions of an object."""
DEPTH = 100
"""Commits that are looked at for them."""


class Side(NamedTuple):
    """An object on one side of a change.

    Attributes:
        ref: where; empty for what was before the first commit.
        entry: the object, if there is one.
        shown: the beginning of its contents.
        problem: why they cannot be read.
    """

    ref: str
    entry: Entry | None
    shown: Preview | None = None
    problem: str | None = None


class ObjectPages(Page):
    """Pages of objects."""

    def uncommitted(self) -> str:
        """What is staged on a branch and not committed."""
        repository, ref = self._repository(), self._path["ref"]
        prefix, after = self._query_value("prefix"), self._query_value("after")
        found, more = repository.branch(ref).uncommitted_page(prefix, after=after, amount=STAGED)
        return self._of_ref(
            "uncommitted.html",
            ref,
            "uncommitted",
            changes=found,
            next_after=more,
            prefix=prefix,
            after=after,
            changed=lambda path: self._address("change", before=f"{ref}@", after=ref, path=path),
        )

    def tree(self) -> str:
        """The folders and objects of a ref under a prefix."""
        repository, ref = self._repository(), self._path["ref"]
        prefix, after = self._query_value("prefix"), self._query_value("after")
        found = list(islice(repository.ref(ref).list(prefix, after=after, delimiter="/"), OBJECTS + 1))
        shown: list[Entry | CommonPrefix] = found[:OBJECTS]
        return self._of_ref(
            "tree.html",
            ref,
            "objects",
            items=shown,
            prefix=prefix,
            folders=list(_folders(prefix)),
            after=after,
            next_after=shown[-1].path if len(found) > OBJECTS else None,
        )

    def contents(self) -> str:
        """An object: what is known of it, and the beginning of its contents."""
        repository, ref = self._repository(), self._path["ref"]
        path = self._query_value("path")
        at = repository.ref(ref)
        entry = at.stat(path)
        shown, problem = _previewed(at, entry)
        return self._of_ref(
            "object.html",
            ref,
            "objects",
            item=_name(path),
            entry=entry,
            shown=shown,
            problem=problem,
            folders=list(_folders(path)),
            uri=f"lakefs://{repository.id}/{ref}/{path}",
        )

    def blame(self) -> str:
        """Which commit wrote each object under a prefix."""
        repository, ref = self._repository(), self._path["ref"]
        prefix, after = self._query_value("prefix"), self._query_value("after")
        found = list(repository.ref(ref).blame(prefix, after=after, amount=TRACED + 1, depth=DEPTH))
        return self._of_ref(
            "blame.html",
            ref,
            "blame",
            rows=found[:TRACED],
            depth=DEPTH,
            prefix=prefix,
            folders=list(_folders(prefix)),
            after=after,
            next_after=found[TRACED - 1].path if len(found) > TRACED else None,
        )

    def versions(self) -> str:
        """The commits that wrote an object or removed it."""
        repository, ref = self._repository(), self._path["ref"]
        path = self._query_value("path")
        try:
            found = list(repository.ref(ref).history(path, amount=TRACED, depth=DEPTH))
        except ObjectNotFound as error:
            if Problem.of(error).is_damage:
                raise
            found = []  # not committed yet
        return self._of_ref(
            "versions.html",
            ref,
            "blame",
            item=_name(path),
            path=path,
            rows=found,
            most=TRACED,
            depth=DEPTH,
            folders=list(_folders(path)),
            changed=lambda one: self._address(
                "change", before=next(iter(one.commit.parents), ""), after=one.commit.id, path=path
            ),
        )

    def change(self) -> str:
        """An object before and after a change: what is known of it, and the beginning of both contents."""
        repository = self._repository()
        path = self._query_value("path")
        sides = [self._side_at(repository, self._query_value(name), path) for name in ("before", "after")]
        if all(side.entry is None for side in sides):
            raise ObjectNotFound(f"there is no object at {excerpt(path)}, neither before nor after")
        kinds = [dict(side.shown.schema) if side.shown else {} for side in sides]
        refs = {side: one.ref for side, one in zip(("left", "right"), sides, strict=True)}
        compared = self._address("diff", **refs, two_way="true") if all(refs.values()) else self._address("diff")
        columns = [(name, *(kind.get(name) for kind in kinds)) for name in {**kinds[0], **kinds[1]}]
        return self._of_repository(
            "change.html",
            _name(path),
            repository,
            tab="compare",
            crumbs=[("Compare", compared), (_name(path), None)],
            path=path,
            sides=sides,
            columns=columns,
            altered=[column for column in columns if column[1] != column[2]],
            folders=list(_folders(path)),
        )

    def _side_at(self, repository: Repository, ref: str, path: str) -> Side:
        """What a ref has at a path. An empty ref is the state before the first commit."""
        if not ref:
            return Side(ref, None)
        at = repository.ref(ref)
        entry = at.find(path)
        return Side(ref, None) if entry is None else Side(ref, entry, *_previewed(at, entry))


def _previewed(at: Readable, entry: Entry) -> tuple[Preview | None, str | None]:
    """The preview of an object, or why there is none."""
    try:
        with at.open_entry(entry, verify=False) as file:
            return preview(file, entry), None
    except LakeopsError as error:
        return None, error.message


def _name(path: str) -> str:
    """The last part of a path, which its object is called by."""
    return path.rpartition("/")[2] or path


def _folders(path: str) -> Iterator[tuple[str, str]]:
    """The folders that a path lies in: their names, and their prefixes."""
    end = path.find("/")
    start = 0
    while end >= 0:
        yield path[start:end], path[: end + 1]
        start, end = end + 1, path.find("/", end + 1)
