"""``lakeops commit`` and ``import`` make commits. ``log``, ``reflog``, ``blame``, ``audit`` and others show history."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli import options
from lakeops.cli.changes import SIGNS, ChangeCounts
from lakeops.cli.options import flag, lake_uri, parse_metadata, parsed, uri, url_of, value
from lakeops.cli.output import SHORT_ID, Styled, verdict_lines, with_checks
from lakeops.cli.session import Session, command
from lakeops.model.errors import CommitExpired, InvalidInput, RefNotFound
from lakeops.model.formatting import counted, human_size, instant, moment
from lakeops.model.names import COMMIT_ID, LakeUri
from lakeops.model.records import ALONG, Commit, Version, Written

if TYPE_CHECKING:
    from lakeops.lake import Repository

app: typer.Typer = typer.Typer(add_completion=False)
show: typer.Typer = typer.Typer(help="Show a commit in full.", add_completion=False)
app.add_typer(show, name="show")


@command(app, "commit", example='commit lakefs://flights/dev -m "load day 1" --meta rows=842', progress=True)
def commit(
    session: Session,
    uri: options.BranchUri,
    message: options.Message,
    meta: options.Metadata = None,
    allow_empty: Annotated[bool, flag("--allow-empty-commit", "Commit even when nothing has changed.")] = False,
    checks: options.Checks = None,
    idempotency_key: options.IdempotencyKey = None,
) -> None:
    """Commit the uncommitted changes of a branch."""
    metadata = parse_metadata(meta)
    branch = session.branch(uri)
    with session.progress(f"Committing {branch.id}"):
        made = branch.commit(
            message, metadata, idempotency_key=idempotency_key, allow_empty=allow_empty, checks=checks or ()
        )
    session.answer(made, ["Committed to ", (branch.id, "green"), ":"], [""], *commit_lines(made))
    if made.message != message and any(other.message == message for other in made.along):
        session.note("Another commit at the same time covers these changes. It keeps this message and metadata.")


_IMPORT = 'import --from s3://raw/events/ --to lakefs://flights/main/events/ -m "take over"'


@command(app, "import", example=_IMPORT, progress=True)
def import_(
    session: Session,
    source: Annotated[
        str, value("--from", "URL", "s3://, az:// or gs://BUCKET/PREFIX, or a directory.", parser=parsed(url_of))
    ],
    to: Annotated[
        LakeUri, value("--to", "lakefs://REPO/BRANCH/PREFIX", "The folder to replace.", parser=parsed(lake_uri))
    ],
    message: options.Message,
    meta: options.Metadata = None,
    allow_empty_source: Annotated[bool, flag("--allow-empty-source", "Let an empty source empty the folder.")] = False,
    skip_special: options.SkipSpecial = False,
    inventory: Annotated[
        str | None, value("--inventory", "FILE", "Take the keys from Parquet, CSV or an S3 Inventory's manifest.json.")
    ] = None,
    idempotency_key: options.IdempotencyKey = None,
) -> None:
    """Import objects without copying them.

    The folder then holds what the source holds, and nothing else. A single object replaces only its own path. The
    other paths of the branch stay as they are.
    """
    metadata = parse_metadata(meta)
    branch, prefix = session.on_branch(to, folder=True)
    with session.progress(f"Importing {source}"):
        given: dict[str, Any] = {"allow_empty_source": allow_empty_source, "skip_special": skip_special}
        given |= {"inventory": inventory, "idempotency_key": idempotency_key}
        made = branch.import_objects(source, prefix, message, metadata, **given)
    objects = counted(int(made.metadata["lakeops.import.objects"]), "object")
    size = human_size(int(made.metadata["lakeops.import.bytes"]))
    line: Sequence[Styled] = ["Imported ", objects, f" ({size}) to ", (f"{branch.id}/{prefix}", "green"), ":"]
    session.answer(made, line, [""], *commit_lines(made))


@command(app, "log", example="log lakefs://flights/main/raw/ --since 7d --oneline", progress=True, lists="after amount")
def log(
    session: Session,
    at: Annotated[LakeUri, uri("lakefs://REPO/REF[/PATH]", "Any ref. With a path: only the commits that changed it.")],
    first_parent: Annotated[bool, flag("--first-parent", "Follow only the first parent of merge commits.")] = False,
    prefix: Annotated[str, value("--prefix", "PREFIX", "Only commits that changed something under it.")] = "",
    since: Annotated[
        str | None, value("--since", "TIME", "Only commits since then: 2026-11-02T13:48 (UTC), or 3d.")
    ] = None,
    until: Annotated[str | None, value("--until", "TIME", "Only commits until then.")] = None,
    author: Annotated[str, value("--author", "TEXT", "Only commits whose committer's name contains this.")] = "",
    oneline: Annotated[bool, flag("--oneline", "One line a commit.")] = False,
    stat: Annotated[bool, flag("--stat", "Show how much each commit changed against its first parent.")] = False,
    graph: Annotated[bool, flag("--graph", "Draw the graph of commits.")] = False,
) -> None:
    """Show the commits that lead to a ref, newest first.

    A path that ends in a slash is a folder.
    """
    repository_id, ref, path = at.with_prefix()
    if path and prefix:
        raise InvalidInput("give a path or --prefix, not both")
    path, prefix = ("", path) if path.endswith("/") else (path, prefix)
    if graph and (path or prefix or author):
        raise InvalidInput("--graph draws a whole history; leave out the path, --prefix and --author")
    repository = session.lake.repository(repository_id)
    moments = [None if text is None else instant(text, session.now()) for text in (since, until)]
    unknown: list[Commit] = []
    given: dict[str, Any] = {"path": path or None, "prefix": prefix, "author": author, "first_parent": first_parent}
    given |= {"since": moments[0], "until": moments[1], "amount": None if session.after else session.amount}
    found = repository.log(ref, on_expired=unknown.append, **given)
    found = session.part(found, newest_first=True)
    # A log without filters needs no diffs, so its first commit comes at once.
    found = session.awaited("Looking for commits", found, long=bool(path or prefix or author))
    drawn = Graph() if graph else None
    commit = None
    with session.paged():
        for number, commit in enumerate(found):
            counts = _counts(repository, commit, path or prefix) if stat else None
            if session.as_json:
                more = {"summary": counts} if stat else {}
                session.document({**commit.to_json(), **more})
                continue
            lines = [oneline_of(commit)] if oneline else [*commit_lines(commit)]
            if stat:
                lines += [] if oneline else [[""]]
                unknown_counts = [(("unknown: this commit or its parent has expired", "dim"),)]
                shown = unknown_counts if counts is None else [line for line in counts.lines() if line != ("",)]
                lines += [["    ", *line] for line in shown]
            if not oneline and (number or graph):
                lines = [*lines, [""]] if graph else [[""], *lines]
            before, rest, following = drawn.node(commit) if drawn else ("", "", [])
            for place, line in enumerate(lines):
                session.line(rest if place else before, *line)
            for line in following:
                session.line(line)
    if commit is None and session.amount != 0:
        session.note("No commits; a folder ends in a slash." if path else "No commits.")
    if unknown:
        session.note(f"{counted(len(unknown), 'commit')} left out: commits that tell their changes have expired.")
    if commit is not None and commit.parents and session.amount is None and not (path or prefix or since or author):
        session.note("History before this was pruned.")


def _counts(repository: Repository, commit: Commit, prefix: str) -> ChangeCounts | None:
    counts = ChangeCounts()
    try:
        for parent in commit.parents[:1]:
            deque(counts.count(repository.diff(parent, commit.id, prefix=prefix)), maxlen=0)
    except (CommitExpired, RefNotFound):
        return None
    return counts


def oneline_of(commit: Commit) -> Sequence[Styled]:
    """Format a commit as one line."""
    expired = " (expired)" if commit.expired else ""
    return ((commit.id[:SHORT_ID], "yellow"), (expired, "red"), " ", commit.message.partition("\n")[0])


@command(show, "commit", example="show commit lakefs://flights/main~1")
def show_commit(session: Session, at: options.RefUri) -> None:
    """Show the commit that a ref means."""
    commit = session.ref(at).commit
    found = session.lake.repository(at.repository).verdicts_of([commit])[commit.id]
    session.answer(
        with_checks(commit, found),
        *commit_lines(commit),
        *([""], *verdict_lines(found)) if found else (),
        [""],
        ["Generation: ", str(commit.generation)],
        ["Metarange:  ", commit.meta_range_id],
        *(("Parent:     ", (parent, "yellow")) for parent in commit.parents),
    )


@command(app, "merge-base", example="merge-base lakefs://flights/dev lakefs://flights/main")
def merge_base(session: Session, left: options.RefUri, right: options.ShortRef) -> None:
    """Show the best common ancestor of two refs."""
    repository, one, other = session.two_refs(left, right)
    base = repository.merge_base(one, other)
    session.answer(base, *commit_lines(base))


@command(app, "reflog", example="reflog lakefs://flights/main --amount 5", lists="after amount")
def reflog(
    session: Session,
    where: Annotated[LakeUri, uri("lakefs://REPO[/REF]", "A repository, or one of its branches or tags.")],
) -> None:
    """Show where branches and tags pointed before, newest first."""
    name = None if where.ref is None else where.only_ref()[1]
    repository = session.lake.repository(where.repository)
    limit = sys.maxsize if session.after else 1000 if session.amount is None else session.amount
    moves = session.part(repository.reflog(name, limit=limit), "sequence", newest_first=True)
    move = None
    with session.paged():
        for move in moves:
            was = f" (was {move.old[:SHORT_ID]})" if move.old and move.new else ""
            to = move.new or move.old or ""
            session.answer(
                {key: getattr(move, key) for key in ("sequence", "ref", "old", "new", "action", "actor", "at")},
                [(to[:SHORT_ID], "yellow"), "  ", moment(move.at)[:19], "  ", move.action.ljust(17), "  ",
                 (move.ref, "cyan"), was, " by ", move.actor],
            )  # fmt: skip
    if name is not None and move is None and session.amount != 0 and not session.after:
        repository.ref(name).commit_id  # noqa: B018 - raises when there was never such a ref


def commit_lines(commit: Commit) -> Iterator[Sequence[Styled]]:
    """Format a commit as ``git log`` does."""
    expired: Sequence[Styled] = (" ", ("(expired)", "red")) if commit.expired else ()
    yield (("commit " + commit.id, "yellow"), *expired)
    if len(commit.parents) > 1:
        yield ("Merge:  " + " ".join(parent[:SHORT_ID] for parent in commit.parents),)
    yield ("Author: ", commit.committer)
    yield ("Date:   ", moment(commit.creation_date))
    yield ("",)
    for line in commit.message.splitlines() or [""]:
        yield ("    ", line)
    metadata = {key: text for key, text in commit.metadata.items() if not key.startswith(ALONG)}
    if metadata:
        yield ("",)
        for key, text in sorted(metadata.items()):
            yield ("    ", (key, "cyan"), " = ", text)
    for other in commit.along:
        yield ("",)
        yield ("    With changes of ", other.committer, ":")
        for line in other.message.splitlines():
            yield ("        ", line)
        for key, text in sorted(other.metadata.items()):
            yield ("        ", (key, "cyan"), " = ", text)


class Graph:
    """Draws the lines that join commits, as ``git log --graph`` does. Commits come children first.

    A lane goes down from each commit to each of its parents.
    """

    def __init__(self) -> None:
        self._lanes: list[str] = []

    def node(self, commit: Commit) -> tuple[str, str, list[str]]:
        """Draw a commit: the prefix of its first line, the prefix of its other lines, and the lines below it."""
        lanes = self._lanes
        if commit.id not in lanes:
            lanes.append(commit.id)
        column = lanes.index(commit.id)
        first = "".join("* " if number == column else "| " for number in range(len(lanes)))
        parents = [*dict.fromkeys(commit.parents)]
        following: list[str] = []
        if not parents:
            del lanes[column]
            if column < len(lanes):
                following.append("| " * column + " /" * (len(lanes) - column))
        else:
            lanes[column] = parents[0]
            for number, parent in enumerate(parents[1:], column + 1):
                following.append("| " * (number - 1) + "|\\" + " \\" * (len(lanes) - number))
                lanes.insert(number, parent)
        rest = "".join("  " if not parents and number == column else "| " for number in range(first.count(" ")))
        return first, rest, [line.rstrip() for line in [*following, *self._join()]]

    def _join(self) -> Iterator[str]:
        lanes = self._lanes
        while True:
            again = next((right for right, name in enumerate(lanes) if name in lanes[:right]), None)
            if again is None:
                return
            left = lanes.index(lanes[again])
            crossed = "|_" * (again - left - 1)
            yield "| " * left + crossed + "|/" + " /" * (len(lanes) - again - 1)
            del lanes[again]


Depth = Annotated[int | None, value("--depth", "N", "Look at no more than this many commits.", min=0)]


@command(app, "blame", example="blame lakefs://flights/main/raw/", progress=True, lists="after amount")
def blame(
    session: Session,
    under: Annotated[LakeUri, uri("lakefs://REPO/REF[/PREFIX]", "Where to look.")],
    depth: Depth = None,
) -> None:
    """Show which commit wrote each object under a prefix.

    A caret before a commit means that an earlier one may have written the object: earlier commits have expired, or lie
    deeper than --depth.
    """
    ref, prefix = session.at_path(under, folder=True)
    found = ref.blame(prefix, after=session.after, amount=session.amount, depth=depth)
    shown = session.awaited("Looking for writers", found)
    with session.paged():
        session.stream(shown, lambda one: (*_author_cells(one), "  ", one.path))


@command(app, "history", example="history lakefs://flights/main/raw/day1.csv", progress=True, lists="after amount")
def history(session: Session, at: options.ObjectUri, depth: Depth = None) -> None:
    """Show which commits wrote an object or removed it, newest first.

    The object may be gone at the ref.
    """
    ref, path = session.at_path(at)
    found = ref.history(path, amount=None if session.after else session.amount, depth=depth)
    found = session.part(found, "commit.id", newest_first=True)
    shown = session.awaited("Looking for versions", found)
    with session.paged():
        session.stream(shown, _version)


def _version(one: Version) -> Iterable[Styled]:
    sign, colour = SIGNS[one.type]
    return (*_author_cells(one), "  ", (sign.ljust(9), colour), "  ", one.commit.message.partition("\n")[0])


def _author_cells(one: Written) -> Iterable[Styled]:
    """Format who wrote a version: commit, time, committer, and the DAG run with its link where there is one."""
    caret = "^" if one.boundary else " "
    who = f"  {moment(one.commit.creation_date)[:19]}  {one.commit.committer.ljust(12)}"
    run = one.dag_run
    made = "" if run is None else f"  {run['dag_id']} {run['run_id']}" + (f" {run['link']}" if run["link"] else "")
    return ((caret + one.commit.id[:SHORT_ID], "yellow"), who, (made, "cyan"))


@command(app, "audit", example="audit lakefs://flights --since 2026-01-01 --actor ada", lists="after amount")
def audit(
    session: Session,
    where: Annotated[LakeUri | None, uri("[lakefs://REPO]", "A repository, also a deleted one. Default: all.")] = None,
    since: Annotated[str | None, value("--since", "TIME", "Only changes since then: 2026-01-31, or 3d.")] = None,
    until: Annotated[str | None, value("--until", "TIME", "Only changes before then.")] = None,
    actor: Annotated[str | None, value("--actor", "NAME", "Only changes by this user or database login.")] = None,
) -> None:
    """Show who changed what, newest first: of one repository, or of all."""
    repository = None if where is None else where.only_repository()
    amount = None if session.after else session.amount
    first, last = (None if text is None else instant(text, session.now()) for text in (since, until))
    found = session.lake.audit(repository, since=first, until=last, actor=actor, amount=amount)
    record = None
    for record in session.part(found, "sequence", newest_first=True):
        before, after = record.before, record.after
        names = [record.repository, *((record.kind, record.ref) if record.kind != "repository" else ())]
        what = " ".join(name for name in names if name)
        change = "" if before is after is None else f": {_shortened(before)} -> {_shortened(after)}"
        login = f" (login {record.login})" if record.login != record.actor else ""
        claimed = f" (claimed: {record.claimed})" if record.claimed else ""
        session.answer(
            record,
            [f"{moment(record.at)[:19]}  {record.action.ljust(18)} ", (what, "cyan"), change],
            ["    by ", (record.actor, "green"), login, claimed],
        )
    if record is None and repository is not None and not any(session.lake.audit(repository, amount=1)):
        session.lake.repository(repository)  # raises when there was never one


def _shortened(text: str | None) -> str:
    if text is None:
        return "-"
    return text[:SHORT_ID] if COMMIT_ID.fullmatch(text) else text
