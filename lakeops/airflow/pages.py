"""What the pages of a repository show, as HTML: its refs, one ref, a commit, a difference.

Whatever comes from a repository is text. The templates escape it, and take out characters that would turn or hide
others. What a page reads is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lakeops.airflow.changes import SIGNS, Tally
from lakeops.model.errors import CommitExpired, InvalidRef, RefNotFound
from lakeops.model.text import safe
from lakeops.model.words import human_size, moment

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.model.records import Change

MAX_REFS = 500
MAX_COMMITS = 50
LISTED_CHANGES = 500
COUNTED_CHANGES = 20_000
"""With more changes than this, a page says *at least*."""


class Pages:
    """The pages of one repository, seen through one connection, as HTML.

    Args:
        root: what the addresses of these pages begin with: ``/lakeops/CONNECTION``.
        repository: the repository, in an open lake.
    """

    def __init__(self, root: str, repository: Repository) -> None:
        self._root = f"{root}/{quote(repository.id, safe='')}"
        self._repository = repository

    def overview(self) -> str:
        """Branches and tags."""
        branches, tags = (
            list(islice(refs, MAX_REFS)) for refs in (self._repository.branches(), self._repository.tags())
        )
        return self._page("overview.html", branches=branches, tags=tags)

    def ref(self, expression: str) -> str:
        """A ref's history and, for a branch, its uncommitted changes. Of a deleted branch or tag: where it was."""
        repo = self._repository
        try:
            uncommitted = _counted(repo.branch(expression).uncommitted())
        except (RefNotFound, InvalidRef):
            uncommitted = None
            deleted = self._deletion(expression)
            if deleted is not None:
                return self._page("deleted.html", name=expression, deleted=deleted)
        log = list(islice(repo.log(expression, first_parent=True), MAX_COMMITS))
        return self._page("ref.html", name=expression, log=log, uncommitted=uncommitted)

    def commit(self, commit_id: str) -> str:
        """A commit's record, and what it changed against its first parent."""
        repo = self._repository
        commit = repo.ref(commit_id).commit
        changes, expired = None, None
        try:
            if commit.parents:
                changes = _counted(repo.diff(commit.parents[0], commit.id))
        except CommitExpired as error:
            expired = error.message
        return self._page("commit.html", commit=commit, changes=changes, expired=expired)

    def diff(self, left: str, right: str, *, two_way: bool) -> str:
        """What differs between two refs, or what the right one changed since their merge base."""
        repo = self._repository
        changes = _counted(repo.diff(left, right) if two_way else repo.compare(left, right))
        return self._page("diff.html", left=left, right=right, two_way=two_way, changes=changes)

    def _deletion(self, name: str) -> Any:  # noqa: ANN401 - a record of the reflog
        """The deletion of a branch or tag whose name means nothing else now; None for any other name."""
        repo = self._repository
        last = next(iter(repo.reflog(name, limit=1)), None)
        if last is None or last.old is None or last.new is not None:
            return None
        try:
            repo.ref(name).commit_id  # noqa: B018 - asked for its error
        except RefNotFound:
            return last
        return None

    def _page(self, template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
        return render(template, repository=self._repository, to=self._address, **values)

    def _address(self, *parts: str) -> str:
        """The path of a page of this repository; its overview without parts."""
        return "/".join((self._root, *(quote(part, safe="") for part in parts)))


def render(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """A template as a whole document."""
    return _TEMPLATES.get_template(template).render(**values)


def _counted(changes: Iterable[Change]) -> Tally:
    return Tally.of(changes, LISTED_CHANGES, counted=COUNTED_CHANGES)


def _is_web_address(value: str) -> bool:
    """Whether a text can be followed as a link. Nothing else becomes one, least of all ``javascript:``."""
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False


def _plain(value: object) -> object:
    """What a template writes, without characters that turn or hide others. Markup of the templates stays."""
    return value if hasattr(value, "__html__") else safe(str(value))


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    finalize=_plain,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"moment": moment, "human_size": human_size}
_TEMPLATES.tests["web_address"] = _is_web_address
_TEMPLATES.globals["SIGNS"] = SIGNS
