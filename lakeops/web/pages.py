"""The pages of a lake and of refs. A page is a method of ``Pages``; ``ROUTES`` gives its address.

A page reads a bounded amount, however large the repository is. Lists continue page by page from where the last one
ended. What was computed from commits, which never change, is cached by their ids.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.responses import RedirectResponse, Response

from lakeops.lake.mirror import Mirror
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import InvalidInput, LakeopsError, NotAMirror, StoreUnavailable
from lakeops.model.formatting import counted, human_size, moment, span
from lakeops.model.marks import SWEEPABLE, MarkState
from lakeops.model.names import COMMIT_ID, check_asked, parse_ref
from lakeops.model.records import Change, Commit
from lakeops.ops.diff import DiffStat, Size
from lakeops.store.in_flight import in_flight
from lakeops.web import charts
from lakeops.web.charts import Point, lag_area, size_bars
from lakeops.web.objects import ObjectPages
from lakeops.web.page import HEADERS, SHORT, Problem

if TYPE_CHECKING:
    from lakeops.lake import Repository

T = TypeVar("T")
Values = dict[str, Any]
"""The values of a template."""

COUNTED = 50_000
"""Changes that are counted; with more the page says *at least*."""
LISTED = 100
FOLDERS = 50
"""Folders that are listed; the others are summed up as one."""
REPOSITORIES = 50
LOOKED_AT = 500
"""Repositories that are read for one page of the list where the visitor may not see all of them."""
MOST_BRANCHES = 1_000
"""Branches of a repository that the list counts; with more it says so."""
FOUND = 40
"""Commits on a page of search results."""
SEARCHED = 10_000
"""Commits whose messages are searched for one page."""
NAMED = 10
"""Branches, and tags, that a search lists by name."""
REFS = 30
"""Branches or tags on a page."""
COMMITS = 40
STAGED = 1_000
"""Uncommitted paths of a branch that are counted; with more the page says so."""
MOST_LANES = 20
OFFERED = 100
"""Branches, and tags, that a field suggests."""
RECORDS = 100
"""Records of a log, marks or refs of a mirror on a page."""
_NUMBER = "[0-9]{1,18}"
FREED = {MarkState.SWEPT, MarkState.SWEEPING, MarkState.INCOMPLETE}


CACHED = 1024
_cache: OrderedDict[tuple[str, ...], Any] = OrderedDict()
_cache_lock = Lock()


def cached(key: tuple[str, ...], make: Callable[[], T]) -> T:
    """Compute a result from immutable commits, or take it from the cache of the process, by namespace, name and ids."""
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            found: T = _cache[key]
            return found
    result = make()
    with _cache_lock:
        _cache[key] = result
        if len(_cache) > CACHED:
            _cache.popitem(last=False)
    return result


class Shown(NamedTuple):
    """A page of the changes between two commits under a prefix, and of what changed in the Iceberg tables among them.

    ``sums`` is None on a later page, which reads no more than it lists. The next page begins after ``next_after``.
    """

    prefix: str
    sums: DiffStat | None
    listed: list[Change]
    next_after: str | None
    tables: list[str]


def diff_stat(repository: Repository, left: str, right: str, *, two_way: bool, prefix: str = "") -> DiffStat:
    """The sums of the changes between two commits, by their ids."""
    key = (repository.storage_namespace, str(two_way), left, right, prefix)
    options: dict[str, Any] = {"prefix": prefix, "most": COUNTED, "folders": FOLDERS, "first": LISTED + 1}
    return cached(key, lambda: repository.sums(left, right, two_way=two_way, **options))


def apart(repository: Repository, base: str, commits: Sequence[str]) -> list[tuple[int, int] | None]:
    """The distance of each commit from another one, as ``Repository.divergence`` counts it."""
    keys = {one: (repository.storage_namespace, "apart", base, one) for one in commits}
    known = {one: far for one, key in keys.items() if (far := _cache.get(key, _cache)) is not _cache}
    missing = [one for one in keys if one not in known]
    known |= zip(missing, repository.divergence(base, missing) if missing else (), strict=True)
    return [cached(keys[one], partial(known.get, one)) for one in commits]


def sizes(heads: Sequence[tuple[Repository, Commit | None]]) -> list[Size | None]:
    """The sizes of commits, each of its repository; None for one that cannot be read now.

    Unknown ones are read with several requests in flight. A store that did not answer once is not asked again.
    """
    down: set[str] = set()

    def size(asked: tuple[Repository, Commit | None]) -> Size | None:
        repository, commit = asked
        if commit is None or commit.expired:
            return None
        key = (repository.storage_namespace, "size", commit.meta_range_id)
        server = "/".join(key[0].split("/", 3)[:3])  # the scheme and the bucket
        try:
            return None if key not in _cache and server in down else cached(key, lambda: repository.size(commit))
        except StoreUnavailable:
            down.add(server)
        except LakeopsError:
            pass
        return None

    return list(in_flight(size, heads))


class Pages(ObjectPages):
    """All pages of a lake."""

    def repositories(self) -> str:
        """List the repositories that the visitor may see."""
        shown, more = self._seen(self._query_value("q"), self._query_value("after"))
        abouts = self._lake.catalog.audit.overviews([one.id for one in shown], most_branches=MOST_BRANCHES + 1)
        known = [(one, abouts[one.id]) for one in shown if one.id in abouts]  # the others were deleted meanwhile
        found = sizes([(one, about.head) for one, about in known])
        rows = [
            {"repository": one, "about": about, "size": size, "problem": None if about.head else _problem(one)}
            for (one, about), size in zip(known, found, strict=True)
        ]
        given: Values = {"rows": rows, "next_after": more, "some": self._site.sees is not None}
        given |= {"q": self._query_value("q"), "most_branches": MOST_BRANCHES}
        return self._page("repositories.html", "Repositories", **given)

    def _seen(self, prefix: str, after: str) -> tuple[list[Repository], str | None]:
        shown: list[Repository] = []
        last = None
        for number, repository in enumerate(self._lake.repositories(prefix=prefix, after=after)):
            if len(shown) == REPOSITORIES or number == LOOKED_AT:
                return shown, last
            last = repository.id
            if self._site.sees is None or self._site.sees(repository.id):
                shown.append(repository)
        return shown, None

    def go(self) -> Response:
        """Redirect to the page of the ref or commit that the visitor typed."""
        ref = self._query_value("ref").strip()
        if not ref:
            raise InvalidInput("type a branch, a tag, a commit id or an expression such as main~2")
        return RedirectResponse(self._address("ref", ref), 303, headers=HEADERS)

    def search(self) -> str:
        """Search refs and commits by name, and commits by message."""
        repository, q = self._repository, check_asked(self._query_value("q").strip(), "what is searched for")
        catalog, place = (
            self._lake.catalog,
            self._place("below", f"-({COMMIT_ID.pattern})", "a generation and a commit id"),
        )
        below = None if place is None else (int(place[0]), place[1])
        exact = None
        if q and not below:
            with suppress(LakeopsError):
                exact = repository.ref(q).commit
        both = (catalog.refs.branches, catalog.refs.tags)
        branches, tags = ([] if below or not q else refs(repository.id, prefix=q, limit=NAMED + 1) for refs in both)
        look = partial(catalog.audit.search_messages, repository.id, q, below=below)
        found = look(looked_at=SEARCHED, limit=FOUND) if q else None
        more = "" if found is None or found.next_below is None else "-".join(map(str, found.next_below))
        named = {"exact": exact, "branches": branches, "tags": tags, "named": NAMED}
        given: Values = {**named, "q": q, "found": found, "below": below, "searched": SEARCHED, "next_below": more}
        return self._of_repository("search.html", "Search", tab="search", **given)

    def branches(self) -> str:
        """List the branches with their distances from the default branch."""
        repository = self._repository
        q, after = self._query_value("q"), self._query_value("after")
        found = self._lake.catalog.refs.branches(repository.id, prefix=q, after=after, limit=REFS + 1)
        shown = found[:REFS]
        if not q and not after:  # the default branch comes first, wherever its name would be
            first = repository.default_branch
            begin_so = self._lake.catalog.refs.branches(repository.id, prefix=first, limit=1)
            mine = [ref for ref in begin_so if ref.id == first]
            shown = [*mine, *(ref for ref in shown if ref.id != first)]
        commits = self._lake.catalog.commits.get_many(repository.id, [ref.commit_id for ref in shown])
        verdicts = repository.verdicts_of(list(commits.values()))
        moves = self._lake.catalog.refs.last_moves(repository.id, [ref.id for ref in shown])
        own = repository.ref(f"{repository.default_branch}@").commit
        far = apart(repository, own.id, [ref.commit_id for ref in shown])
        staged = self._lake.catalog.staging.staged_counts(repository.id, [ref.id for ref in shown], most=STAGED + 1)
        rows = []
        for ref, distance in zip(shown, far, strict=True):
            if (commit := commits.get(ref.commit_id)) is not None:
                row: Values = {"name": ref.id, "commit": commit, "verdicts": verdicts[commit.id], "apart": distance}
                row |= {"staged": staged.get(ref.id, 0), "beyond": own.generation - commit.generation}
                rows.append({**row, "pointed_by": ref.id in moves and moves[ref.id].pointed_by})
        given: Values = {"rows": rows, "next_after": found[REFS - 1].id if len(found) > REFS else None}
        return self._of_repository("branches.html", "Branches", tab="branches", q=q, most=STAGED, **given)

    def tags(self) -> str:
        """List the tags with their commits."""
        repository = self._repository
        q = self._query_value("q")
        found = self._lake.catalog.refs.tags(repository.id, prefix=q, after=self._query_value("after"), limit=REFS + 1)
        commits = self._lake.catalog.commits.get_many(repository.id, [ref.commit_id for ref in found[:REFS]])
        rows = [{"name": ref.id, "commit": commits.get(ref.commit_id), "id": ref.commit_id} for ref in found[:REFS]]
        more = found[REFS - 1].id if len(found) > REFS else None
        return self._of_repository("tags.html", "Tags", tab="tags", rows=rows, next_after=more, q=q)

    def history(self) -> str:
        """Show the commit graph of a ref."""
        repository, ref = self._repository, self._path["ref"]
        asked = [one for one in self._query_value("from").split(",") if one]
        head = repository.ref(ref).commit
        commits, rest = repository.walk(asked[:MOST_LANES] or [head.id], COMMITS)
        rows = charts.rows(commits, asked[:MOST_LANES])
        heads = {head.id: ref} if parse_ref(ref).is_name and ref != head.id else {}
        given: Values = {"rows": rows, "heads": heads, "beyond": len(asked) > 0, "ROW_HEIGHT": charts.ROW_HEIGHT}
        given |= {"next_from": ",".join(rest[:MOST_LANES]), "cut": len(rest) > MOST_LANES}
        return self._of_ref("history.html", "history", verdicts=repository.verdicts_of([head])[head.id], **given)

    def deleted(self) -> str | None:
        """Show the last commit of a deleted branch or tag, whichever page of it was asked for; None for any other."""
        ref = self._path.get("ref")
        try:  # a text that is no ref's name has no log
            last = None if ref is None else next(iter(self._repository.reflog(ref, limit=1)), None)
        except LakeopsError:
            last = None
        if last is None or last.old is None or last.new is not None:
            return None
        return self._of_repository("deleted.html", str(ref), tab="branches", name=ref, deleted=last)

    def commit(self) -> str:
        """Show a commit and its changes against its first parent."""
        repository, ref = self._repository, self._path["commit_id"]
        commit = repository.ref(ref).commit
        sums, problem = None, None
        try:
            if commit.parents:
                sums = self._differing(commit.parents[0], commit.id, commit.parents[0], two_way=True)
        except InvalidInput:  # the address is wrong, not the commit
            raise
        except LakeopsError as error:  # the page shows the commit all the same
            problem = Problem.of(error)
        refs, whole = repository.containing(commit.id)
        verdicts = repository.verdicts_of([commit])[commit.id]
        given = self._change_links(commit.parents[0] if commit.parents else "", commit.id, "commit", commit.id)
        given |= {"commit": commit, "verdicts": verdicts, "shown": sums, "refs": refs, "whole": whole}
        short, crumbs = commit.id[:SHORT], [(f"commit {commit.id[:SHORT]}", None)]
        given |= {"problem": problem, "crumbs": crumbs}
        return self._of_repository("commit.html", f"Commit {short}", tab="branches", **given)

    def compare(self) -> str:
        """Compare two refs, or the right one with their merge base."""
        repository = self._repository
        left, right = self._query_value("left") or repository.default_branch, self._query_value("right")
        two_way = self._query_value("two_way").lower() in {"1", "true", "on", "yes"}
        catalog, known = self._lake.catalog, repository.id
        names = [ref.id for refs in (catalog.refs.branches, catalog.refs.tags) for ref in refs(known, limit=OFFERED)]
        values: Values = {"left": left, "right": right, "two_way": two_way, "names": names, "shown": None}
        sides = left, right
        if right:
            heads = [repository.ref(ref).commit for ref in (left, right)]
            sides = ids = heads[0].id, heads[1].id
            if not two_way:
                key = (repository.storage_namespace, "base", *ids)
                sides = cached(key, lambda: repository.merge_base(*ids).id), heads[1].id
            values["shown"] = shown = self._differing(*ids, sides[0], two_way=two_way)
            nothing = not two_way and shown.sums is not None and not shown.sums.all.total
            values["behind"] = nothing and any(repository.compare(ids[1], ids[0], prefix=shown.prefix))
            values["heads"] = heads
            values["verdicts"] = repository.verdicts_of(heads[1:])[heads[1].id]
            values["apart"] = apart(repository, heads[0].id, [heads[1].id])[0]
            values["beyond"] = heads[0].generation - heads[1].generation
        values |= self._change_links(*sides, "diff", left=left, right=right, two_way="true" if two_way else "")
        return self._of_repository("compare.html", "Compare", tab="compare", **values)

    def _differing(self, left: str, right: str, before: str, *, two_way: bool) -> Shown:
        """The difference of two commits, or the changes of the right one since their merge base, ``before``."""
        prefix, after = self._query_value("prefix"), self._query_value("after")
        sums = None if after else diff_stat(self._repository, left, right, two_way=two_way, prefix=prefix)
        if sums is None:
            find = self._repository.diff if two_way else self._repository.compare
            found = list(islice(find(left, right, prefix=prefix, after=after), LISTED + 1))
        else:
            found = sums.first
        listed, more = found[:LISTED], found[LISTED - 1].path if len(found) > LISTED else None
        tables = self._repository.table_diffs(before, right, [one.path for one in listed])
        return Shown(prefix, sums, listed, more, [str(one) for one in tables])

    def _change_links(self, before: str, after: str, *parts: str, **query: str) -> dict[str, Any]:
        return {
            "narrowed": lambda **more: self._address(*parts, **query, **more),
            "changed": lambda path: self._address("change", before=before, after=after, path=path),
        }

    def audit(self) -> str:
        """Show the audit: who changed what, in all repositories or in one."""
        name = self._path.get("repository")
        actor = self._query_value("actor")
        place = self._place("before", f"-({_NUMBER})", "a time and a number")
        below: Any = place and tuple(map(int, place))
        repository = None if name is None else self._lake.repository(name)
        records = self._lake.catalog.audit.page(name, actor=actor or None, below=below, limit=RECORDS + 1)
        last = records[RECORDS - 1] if len(records) > RECORDS else None
        more = None if last is None else f"{last.at}-{last.sequence}"
        values: Values = {"records": records[:RECORDS], "next_before": more, "actor": actor}
        if repository is None:
            return self._page("audit.html", "Audit", crumbs=[("Audit", None)], repository=None, **values)
        return self._of_repository("audit.html", "Audit", tab="audit", **values)

    def _place(self, name: str, rest: str, rule: str) -> tuple[str, ...] | None:
        """The place where a page of a list begins: a number and the ``rest``, a pattern. Raises ``InvalidInput``."""
        asked = self._query_value(name)
        found = re.fullmatch(f"({_NUMBER}){rest}", asked)
        if asked and found is None:
            raise InvalidInput(f"{name!r} in the address, the place where the page begins, is {rule}")
        return found and found.groups()

    def moves(self) -> str:
        """Show the reflog, of all refs or of one."""
        repository = self._repository
        ref = self._query_value("of")
        place = self._place("before", "", "a number")
        below = None if place is None else int(place[0])
        found = self._lake.catalog.refs.reflog(repository.id, ref or None, below=below, limit=RECORDS + 1)
        more = found[RECORDS - 1].sequence if len(found) > RECORDS else None
        given: Values = {"records": found[:RECORDS], "next_before": more, "of": ref}
        return self._of_repository("moves.html", "Reflog", tab="moves", **given)

    def collection(self) -> str:
        """Show the rules of garbage collection, the marks, and the garbage that they found over time."""
        repository = self._repository
        marks = repository.gc.marks()[:RECORDS]
        points = []
        for mark in reversed(marks):
            at, kind = unix_seconds(mark.created), "done" if mark.state in FREED else "open"
            points.append(Point(at, mark.bytes, kind, f"{moment(at)}: {human_size(mark.bytes)}, {mark.state.value}"))
        freed = sum(mark.bytes for mark in marks if mark.state in FREED)
        said = f"{counted(len(marks), 'mark')} of the last 30 days; those that were swept freed {human_size(freed)}."
        chart = size_bars("Garbage over time", said, points) if any(mark.bytes for mark in marks) else None
        given: Values = {"marks": marks, "chart": chart, "sweepable": SWEEPABLE, "rules": repository.gc.rules()}
        given |= {"grace": repository.gc.grace(), "registrations": repository.registrations()}
        return self._of_repository("gc.html", "Garbage collection", tab="gc", **given)

    def mirror(self) -> str:
        """Show the lag of a mirror, now and over time, and the mirrors of the repository."""
        repository = self._repository
        lags, chart = [], None
        try:
            status = Mirror.of(repository).status()
        except NotAMirror:
            status = None
        refs = [] if status is None else [*status.branches.values(), *status.tags.values()]
        if status is not None:
            lags = repository.lags()
            points = [Point(one.at, one.number("seconds")) for one in lags]
            if points and status.mirror.last_sync and status.mirror.last_sync > points[-1].at:
                points.append(Point(status.mirror.last_sync, max((ref.lag_seconds for ref in refs), default=0)))
            most = max((point.value for point in points), default=0)
            said = f"How far the ref that was furthest behind was behind its source: at most {span(most)}."
            chart = lag_area("Lag over time", said, points) if len(points) > 1 else None
        furthest = sorted(refs, key=lambda ref: -ref.lag_seconds)[:RECORDS]
        given: Values = {"status": status, "refs": furthest, "count": len(refs), "chart": chart}
        given |= {"lags": lags[: -RECORDS - 1 : -1], "registrations": repository.registrations()}
        return self._of_repository("mirror.html", "Mirrors", tab="mirror", **given)

    def integrity(self) -> str:
        """Show the findings of the last fsck."""
        repository = self._repository
        return self._of_repository("integrity.html", "Integrity", tab="integrity", last=repository.last_fsck())


ROUTES: tuple[tuple[str, Callable[[Pages], str | Response]], ...] = (
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
    ("/{repository}/integrity", Pages.integrity),
    ("/{repository}/moves", Pages.moves),
    ("/{repository}/audit", Pages.audit),
)
"""Paths below the address of a lake. Names of repositories never begin with an underscore."""


def _problem(repository: Repository) -> str:
    try:
        head = repository.ref(repository.default_branch).commit
    except LakeopsError as error:
        return error.message
    return f"its last commit is {head.id[:12]} now; look again"
