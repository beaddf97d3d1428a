"""The pages that lead to all others: the list of repositories, and the search within one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.model.names import COMMIT_ID
from lakeops.model.requests import check_asked
from lakeops.web.page import Moved, Page
from lakeops.web.sums import sizes

if TYPE_CHECKING:
    from lakeops.catalog.records import Overview
    from lakeops.lake import Repository
    from lakeops.model.records import Commit, Ref
    from lakeops.ops.sums import Size

REPOSITORIES = 50
LOOKED_AT = 500
"""Repositories that are looked at for a page, where whoever looks may not see all of them."""
MOST_BRANCHES = 1_000
"""Branches of a repository that the list counts; with more it says so."""
FOUND = 40
"""Commits of a page of a search."""
SEARCHED = 10_000
"""Commits whose messages a page of a search looks at."""
NAMED = 10
"""Branches, tags and commits that a search shows by their names."""


class Row(NamedTuple):
    """A repository in the list.

    Attributes:
        repository: its handle.
        about: what the catalog says of it.
        size: what the last commit of its default branch holds; None where that cannot be read now.
        problem: why its default branch cannot be shown.
    """

    repository: Repository
    about: Overview
    size: Size | None
    problem: str | None


class FindingPages(Page):
    """Pages that lead to others."""

    def repositories(self) -> str:
        """All repositories that whoever looks may see."""
        shown, more = self._seen(self._query_value("q"), self._query_value("after"))
        abouts = self._lake.catalog.overviews([one.id for one in shown], most_branches=MOST_BRANCHES + 1)
        known = [(one, abouts[one.id]) for one in shown if one.id in abouts]  # others were deleted meanwhile
        found = sizes([(one, about.head) for one, about in known])
        rows = [
            Row(one, about, size, None if about.head else _problem(one))
            for (one, about), size in zip(known, found, strict=True)
        ]
        return self._page(
            "repositories.html",
            "Repositories",
            rows=rows,
            next_after=more,
            q=self._query_value("q"),
            most_branches=MOST_BRANCHES,
            some=self._site.sees is not None,
        )

    def _seen(self, prefix: str, after: str) -> tuple[list[Repository], str | None]:
        """The repositories of a page, and the name behind which the next one begins."""
        shown: list[Repository] = []
        last = None
        for number, repository in enumerate(self._lake.repositories(prefix=prefix, after=after)):
            if len(shown) == REPOSITORIES or number == LOOKED_AT:
                return shown, last
            last = repository.id
            if self._site.sees is None or self._site.sees(repository.id):
                shown.append(repository)
        return shown, None

    def go(self) -> Moved:
        """To the page of a ref or a commit that somebody typed."""
        ref = self._query_value("ref").strip()
        if not ref:
            raise InvalidInput("type a branch, a tag, a commit id or an expression such as main~2")
        return Moved(self._address("ref", ref))

    def search(self) -> str:
        """Refs and commits by their names, and commits by their messages."""
        repository, q = self._repository(), check_asked(self._query_value("q").strip(), "what is searched for")
        catalog, below = self._lake.catalog, self._below()
        exact = None if below or not q else _resolved(repository, q)
        branches: list[Ref] = []
        tags: list[Ref] = []
        if q and not below:
            branches, tags = (
                refs(repository.id, prefix=q, limit=NAMED + 1) for refs in (catalog.branches, catalog.tags)
            )
        found = None
        if q:
            found = catalog.search_messages(repository.id, q, below=below, looked_at=SEARCHED, limit=FOUND)
        return self._of_repository(
            "search.html",
            "Search",
            repository,
            tab="search",
            q=q,
            exact=exact,
            branches=branches,
            tags=tags,
            named=NAMED,
            found=found,
            below=below,
            searched=SEARCHED,
            next_below="" if found is None or found.next_below is None else "-".join(map(str, found.next_below)),
        )

    def _below(self) -> tuple[int, str] | None:
        """Where a search goes on. Raises ``InvalidInput``."""
        asked = self._query_value("below")
        if not asked:
            return None
        generation, _, commit_id = asked.partition("-")
        if not (generation.isdecimal() and len(generation) <= 18 and COMMIT_ID.fullmatch(commit_id)):
            raise InvalidInput("the place in the search is a generation and a commit id")
        return int(generation), commit_id


def _problem(repository: Repository) -> str:
    """Why a repository's default branch cannot be shown."""
    try:
        head = repository.ref(repository.default_branch).commit
    except LakeopsError as error:
        return error.message
    return f"its last commit is {head.id[:12]} now; look again"


def _resolved(repository: Repository, ref: str) -> Commit | None:
    """The commit that a text means as a ref; None where it means none."""
    try:
        return repository.ref(ref).commit
    except LakeopsError:
        return None
