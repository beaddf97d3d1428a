"""What each page shows. A page is a method of ``Pages``; ``ROUTES`` says at which address.

What a page reads is bounded, whatever the repository's size, and lists are read page by page from where the last one
ended. What two commits differ in never changes, so sums are kept by their ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import InvalidInput, InvalidRef, LakeopsError, RefNotFound
from lakeops.model.refs import parse_ref
from lakeops.web import graph
from lakeops.web.finding import FindingPages
from lakeops.web.objects import ObjectPages
from lakeops.web.page import Moved
from lakeops.web.problem import Problem
from lakeops.web.render import SHORT
from lakeops.web.sums import Shown, apart, base_of, differing
from lakeops.web.upkeep import UpkeepPages

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.model.records import ReflogRecord

REFS = 30
"""Branches or tags of a page."""
COMMITS = 40
STAGED = 1_000
"""Paths of a branch that are counted as not committed; with more the page says so."""
MOST_LANES = 20
OFFERED = 100
"""Branches, and tags, that a field offers to choose from."""


class Pages(FindingPages, ObjectPages, UpkeepPages):
    """All pages of a lake."""

    def branches(self) -> str:
        """The branches, with how far each is from the default one."""
        repository = self._repository()
        q, after = self._query_value("q"), self._query_value("after")
        found = self._lake.catalog.branches(repository.id, prefix=q, after=after, limit=REFS + 1)
        shown = found[:REFS]
        if not q and not after:  # the default branch comes first, wherever its name would be
            first = repository.default_branch
            mine = [ref for ref in self._lake.catalog.branches(repository.id, prefix=first, limit=1) if ref.id == first]
            shown = [*mine, *(ref for ref in shown if ref.id != first)]
        commits = self._lake.catalog.commits(repository.id, [ref.commit_id for ref in shown])
        own = repository.ref(f"{repository.default_branch}@").commit
        far = apart(repository, own.id, [ref.commit_id for ref in shown])
        staged = self._lake.catalog.staged_counts(repository.id, [ref.id for ref in shown], most=STAGED + 1)
        rows = [
            {
                "name": ref.id,
                "commit": commits[ref.commit_id],
                "apart": distance,
                "beyond": own.generation - commits[ref.commit_id].generation,
                "staged": staged.get(ref.id, 0),
            }
            for ref, distance in zip(shown, far, strict=True)
            if ref.commit_id in commits
        ]
        more = found[REFS - 1].id if len(found) > REFS else None
        return self._of_repository(
            "branches.html", "Branches", repository, tab="branches", rows=rows, next_after=more, q=q, most=STAGED
        )

    def tags(self) -> str:
        """The tags."""
        repository = self._repository()
        q = self._query_value("q")
        found = self._lake.catalog.tags(repository.id, prefix=q, after=self._query_value("after"), limit=REFS + 1)
        commits = self._lake.catalog.commits(repository.id, [ref.commit_id for ref in found[:REFS]])
        rows = [{"name": ref.id, "commit": commits.get(ref.commit_id), "id": ref.commit_id} for ref in found[:REFS]]
        more = found[REFS - 1].id if len(found) > REFS else None
        return self._of_repository("tags.html", "Tags", repository, tab="tags", rows=rows, next_after=more, q=q)

    def history(self) -> str:
        """The commit graph of a ref. Of a deleted branch or tag: where it was."""
        repository, ref = self._repository(), self._path["ref"]
        asked = [one for one in self._query_value("from").split(",") if one]
        try:
            head = repository.ref(ref).commit
        except (RefNotFound, InvalidRef):
            deleted = _deletion(repository, ref)
            if deleted is None:
                raise
            return self._of_repository("deleted.html", ref, repository, tab="branches", name=ref, deleted=deleted)
        commits, rest = repository.walk(asked[:MOST_LANES] or [head.id], COMMITS)
        rows = graph.rows(commits, asked[:MOST_LANES])
        heads = {head.id: ref} if parse_ref(ref).is_name and ref != head.id else {}
        return self._of_ref(
            "history.html",
            ref,
            "history",
            rows=rows,
            heads=heads,
            beyond=len(asked) > 0,
            next_from=",".join(rest[:MOST_LANES]),
            cut=len(rest) > MOST_LANES,
            HEIGHT=graph.HEIGHT,
        )

    def commit(self) -> str:
        """A commit: what it says of itself, and what it changed against its first parent."""
        repository, ref = self._repository(), self._path["commit_id"]
        commit = repository.ref(ref).commit
        sums, problem = None, None
        try:
            if commit.parents:
                sums = self._differing(repository, commit.parents[0], commit.id, two_way=True)
        except InvalidInput:  # the address, not the commit
            raise
        except LakeopsError as error:  # what the catalog says of the commit is shown all the same
            problem = Problem.of(error)
        refs, whole = repository.containing(commit.id)
        return self._of_repository(
            "commit.html",
            f"Commit {commit.id[:SHORT]}",
            repository,
            tab="branches",
            crumbs=[(f"commit {commit.id[:SHORT]}", None)],
            commit=commit,
            shown=sums,
            problem=problem,
            refs=refs,
            whole=whole,
            **self._change_links(commit.parents[0] if commit.parents else "", commit.id, "commit", commit.id),
        )

    def compare(self) -> str:
        """What differs between two refs, or what the right one changed since their merge base."""
        repository = self._repository()
        left, right = self._query_value("left") or repository.default_branch, self._query_value("right")
        two_way = self._query_value("two_way").lower() in {"1", "true", "on", "yes"}
        catalog, known = self._lake.catalog, repository.id
        names = [ref.id for refs in (catalog.branches, catalog.tags) for ref in refs(known, limit=OFFERED)]
        values: dict[str, Any] = {"left": left, "right": right, "two_way": two_way, "names": names, "shown": None}
        sides = left, right
        if right:
            heads = [repository.ref(ref).commit for ref in (left, right)]
            ids = heads[0].id, heads[1].id
            sides = ids if two_way else (base_of(repository, *ids), heads[1].id)
            values["shown"] = self._differing(repository, *ids, two_way=two_way)
            values["heads"] = heads
            values["apart"] = apart(repository, heads[0].id, [heads[1].id])[0]
            values["beyond"] = heads[0].generation - heads[1].generation
        return self._of_repository(
            "compare.html",
            "Compare",
            repository,
            tab="compare",
            **values,
            **self._change_links(*sides, "diff", left=left, right=right, two_way="true" if two_way else ""),
        )

    def _differing(self, repository: Repository, left: str, right: str, *, two_way: bool) -> Shown:
        prefix, after = self._query_value("prefix"), self._query_value("after")
        return differing(repository, left, right, two_way=two_way, prefix=prefix, after=after)

    def _change_links(self, before: str, after: str, *parts: str, **query: str) -> dict[str, Any]:
        """How a list of changes links to others: folders below, what follows, and what happened to one object."""
        return {
            "narrowed": lambda **more: self._address(*parts, **query, **more),
            "changed": lambda path: self._address("change", before=before, after=after, path=path),
        }


ROUTES: tuple[tuple[str, Callable[[Pages], str | Moved]], ...] = (
    ("/", Pages.repositories),
    ("/_audit", Pages.audit),
    ("/{repository}", Pages.branches),
    ("/{repository}/tags", Pages.tags),
    ("/{repository}/go", Pages.go),
    ("/{repository}/search", Pages.search),
    ("/{repository}/ref/{ref}", Pages.history),
    ("/{repository}/commit/{commit_id}", Pages.commit),
    ("/{repository}/tree/{ref}", Pages.tree),
    ("/{repository}/object/{ref}", Pages.contents),
    ("/{repository}/uncommitted/{ref}", Pages.uncommitted),
    ("/{repository}/blame/{ref}", Pages.blame),
    ("/{repository}/versions/{ref}", Pages.versions),
    ("/{repository}/change", Pages.change),
    ("/{repository}/diff", Pages.compare),
    ("/{repository}/gc", Pages.collection),
    ("/{repository}/mirror", Pages.mirror),
    ("/{repository}/checks", Pages.checks),
    ("/{repository}/moves", Pages.moves),
    ("/{repository}/audit", Pages.audit),
)
"""The pages below a lake's address. No repository's name begins with an underscore."""


def _deletion(repository: Repository, name: str) -> ReflogRecord | None:
    """The deletion of a branch or tag whose name means nothing else now; None for any other name."""
    try:
        last = next(iter(repository.reflog(name, limit=1)), None)
    except LakeopsError:  # no name of a ref
        return None
    return None if last is None or last.old is None or last.new is not None else last
