"""What the pages show, as HTML. Everything is read from an open repository, and bounded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from urllib.parse import quote, urlsplit

from lakeops.airflow.changes import SIGNS, Tally
from lakeops.airflow.web.html import Cell, Markup, block, join, number, page, table, tag
from lakeops.lake import Repository
from lakeops.model.errors import CommitExpired, InvalidRef, RefNotFound
from lakeops.model.records import Change, Commit
from lakeops.model.words import human_size, moment

REFS = 500
COMMITS = 50
SHOWN = 500
COUNTED = 20_000
"""Changes that are counted before a page says *at least*."""

ID = 16
"""Characters of a commit id that are shown."""


class Pages:
    """The pages of one repository, seen through one connection.

    Args:
        root: what the addresses of these pages begin with: ``/lakeops/CONNECTION``.
        repository: the repository.
    """

    def __init__(self, root: str, repository: Repository) -> None:
        self._root = f"{root}/{quote(repository.id, safe='')}"
        self._repository = repository

    def overview(self) -> str:
        """Branches and tags."""
        repo = self._repository
        rows = ((self._to("ref", ref.id), self._commit(ref.commit_id)) for ref in islice(repo.branches(), REFS))
        tags = [(self._to("ref", ref.id), self._commit(ref.commit_id)) for ref in islice(repo.tags(), REFS)]
        return page(
            f"lakefs://{repo.id}",
            tag("p", repo.storage_namespace, class_="path"),
            tag("h2", "Branches"),
            table(rows),
            *((tag("h2", "Tags"), table(tags)) if tags else ()),
        )

    def ref(self, expression: str) -> str:
        """A ref: its history and, for a branch, what is not committed."""
        repo = self._repository
        try:
            changes: Iterable[Change] | None = repo.branch(expression).uncommitted()
        except (RefNotFound, InvalidRef):
            changes = None
            gone = self._gone(expression)
            if gone is not None:
                return gone
        log = islice(repo.log(expression, first_parent=True), COMMITS)
        rows = [(self._commit(c.id), moment(c.creation_date), c.committer, _subject(c)) for c in log]
        return page(
            f"lakefs://{repo.id}/{expression}",
            self._home(),
            tag("h2", "History"),
            table(rows, head=("commit", "made", "by", "message")),
            *(() if changes is None else (tag("h2", "Not committed"), _changes(changes))),
        )

    def commit(self, commit_id: str) -> str:
        """A commit: its record, and what it changed against its first parent."""
        repo = self._repository
        commit = repo.ref(commit_id).commit
        facts: list[tuple[Cell, Cell]] = [
            ("id", tag("code", commit.id)),
            ("made", moment(commit.creation_date)),
            ("by", commit.committer),
            ("parents", join((self._commit(parent) for parent in commit.parents), " ")),
            *((key, _linked(value)) for key, value in sorted(commit.metadata.items())),
        ]
        return page(
            f"Commit {commit.id[:ID]}",
            self._home(),
            block(commit.message),
            table((tag("th", name), value) for name, value in facts),
            tag("h2", "Changes"),
            self._since_parent(commit),
        )

    def diff(self, left: str, right: str, *, two_way: bool) -> str:
        """What differs between two refs, or what the right one changed since their merge base."""
        repo = self._repository
        changes = repo.diff(left, right) if two_way else repo.compare(left, right)
        sides = (self._to("ref", left), self._to("ref", right))
        what = ("From ", sides[0], " to ", sides[1]) if two_way else (sides[1], " since it left ", sides[0])
        return page(f"Changes in lakefs://{repo.id}", self._home(), tag("p", *what), _changes(changes))

    def _gone(self, name: str) -> str | None:
        """A page that says where a branch or tag was, if it was deleted and the name means nothing else now."""
        repo = self._repository
        last = next(iter(repo.reflog(name, limit=1)), None)
        if last is None or last.old is None or last.new is not None:
            return None
        try:
            repo.ref(name).commit_id  # noqa: B018 - a property that asks the catalog
        except RefNotFound:
            where = tag("p", f"Deleted at {moment(last.at)}; it was at ", self._commit(last.old), ".")
            return page(f"lakefs://{repo.id}/{name}", self._home(), where)
        return None

    def _since_parent(self, commit: Commit) -> Markup:
        if not commit.parents:
            return tag("p", "The first commit.")
        try:
            return _changes(self._repository.diff(commit.parents[0], commit.id))
        except CommitExpired as expired:
            return tag("p", expired.message)

    def _home(self) -> Markup:
        return tag("nav", tag("a", f"lakefs://{self._repository.id}", href=self._root))

    def _to(self, *parts: str) -> Markup:
        return tag("a", parts[-1], href="/".join((self._root, *(quote(part, safe="") for part in parts))))

    def _commit(self, commit_id: str) -> Markup:
        return tag("a", tag("code", commit_id[:ID]), href=f"{self._root}/commit/{quote(commit_id, safe='')}")


def failure(title: str, message: str) -> str:
    """A page that says what went wrong."""
    return page(title, tag("p", message))


def _changes(changes: Iterable[Change]) -> Markup:
    tally = Tally.of(islice(changes, COUNTED), SHOWN)
    if not tally.total:
        return tag("p", "No changes.")
    counts = ", ".join(f"{count:,} {kind}" for kind, count in tally.counts.items() if count)
    said = f"At least {counts}" if tally.total == COUNTED else counts
    rows = (
        (
            tag("td", SIGNS[change.type], class_=change.type.value),
            tag("td", change.path, class_="path"),
            number(human_size(change.size_bytes)),
        )
        for change in tally.first
    )
    rest = f"... and {tally.total - len(tally.first):,} more" if tally.total > len(tally.first) else ""
    return join((tag("p", said), table(rows), tag("p", rest)))


def _subject(commit: Commit) -> str:
    return commit.message.partition("\n")[0]


def _linked(value: str) -> Cell:
    """A metadata value; a web address can be followed. Nothing else becomes a link, least of all ``javascript:``."""
    try:
        web = urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        web = False
    return tag("a", value, href=value, rel="noopener noreferrer") if web else value
