"""``lakeops commit`` and ``import`` make commits. ``log``, ``show``, ``merge-base`` and ``reflog`` show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.diff import ChangeCounts
from lakeops.cli.options import (
    Amount,
    BranchUri,
    IdempotencyKey,
    Message,
    Metadata,
    RefUri,
    SkipSpecial,
    flag,
    parse_metadata,
    parsed,
    uri,
    url_of,
    value,
)
from lakeops.cli.output import SHORT_ID, Styled
from lakeops.cli.session import Session, command
from lakeops.model.errors import CommitExpired, InvalidInput, RefNotFound
from lakeops.model.records import ALONG, Commit
from lakeops.model.uris import LakeUri
from lakeops.model.words import counted, human_size, instant, moment

if TYPE_CHECKING:
    from lakeops.lake import Repository

app: typer.Typer = typer.Typer(add_completion=False)
show: typer.Typer = typer.Typer(help="Show one thing in full.", add_completion=False)
app.add_typer(show, name="show")


@command(app, "commit", example='commit lakefs://flights/dev -m "load day 1" --meta rows=842', progress=True)
def commit(
    session: Session,
    uri: BranchUri,
    message: Message,
    meta: Metadata = None,
    allow_empty: Annotated[bool, flag("--allow-empty-commit", "Commit even when nothing has changed.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Commit the uncommitted changes of a branch."""
    metadata = parse_metadata(meta)
    branch = session.branch(uri)
    with session.progress(f"Committing {branch.id}"):
        made = branch.commit(message, metadata, idempotency_key=idempotency_key, allow_empty=allow_empty)
    session.answer(made, ["Committed to ", (branch.id, "green"), ":"], [""], *commit_lines(made))
    if made.message != message and any(other.message == message for other in made.along):
        session.note("Another commit at the same time took these changes along. It keeps this message and metadata.")


@command(
    app,
    "import",
    example='import --from s3://raw/events/ --to lakefs://flights/main/events/ -m "take over"',
    progress=True,
)
def import_(
    session: Session,
    source: Annotated[str, value("--from", "URL", "s3://BUCKET/PREFIX, or a directory.", parser=parsed(url_of))],
    to: Annotated[
        LakeUri, value("--to", "lakefs://REPO/BRANCH/PREFIX", "The folder to replace.", parser=parsed(LakeUri.parse))
    ],
    message: Message,
    meta: Metadata = None,
    allow_empty_source: Annotated[bool, flag("--allow-empty-source", "Let an empty source empty the folder.")] = False,
    skip_special: SkipSpecial = False,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Import objects without copying them.

    The folder then holds what the source holds, and nothing else. The other paths of the branch stay as they are.
    """
    repository_id, name, prefix = to.with_prefix()
    metadata = parse_metadata(meta)
    branch = session.lake.repository(repository_id).branch(name)
    with session.progress(f"Importing {source}"):
        made = branch.import_objects(
            source,
            prefix,
            message,
            metadata,
            idempotency_key=idempotency_key,
            allow_empty_source=allow_empty_source,
            skip_special=skip_special,
        )
    objects = counted(int(made.metadata["lakeops.import.objects"]), "object")
    size = human_size(int(made.metadata["lakeops.import.bytes"]))
    session.answer(
        made,
        ["Imported ", objects, f" ({size}) to ", (f"{name}/{prefix}", "green"), ":"],
        [""],
        *commit_lines(made),
    )


@command(app, "log", example="log lakefs://flights/main/raw/ --since 7d --oneline", progress=True)
def log(
    session: Session,
    at: Annotated[LakeUri, uri("lakefs://REPO/REF[/PATH]", "Any ref; with a path, what changed it.")],
    amount: Amount = None,
    first_parent: Annotated[bool, flag("--first-parent", "Follow only the first parent of merge commits.")] = False,
    prefix: Annotated[str, value("--prefix", "PREFIX", "Only commits that changed something under it.")] = "",
    since: Annotated[str | None, value("--since", "TIME", "Only newer ones: 2026-11-02T13:48 (UTC), or 3d.")] = None,
    until: Annotated[str | None, value("--until", "TIME", "Only older ones, likewise.")] = None,
    author: Annotated[str, value("--author", "TEXT", "Only those whose committer's name holds this.")] = "",
    oneline: Annotated[bool, flag("--oneline", "One line a commit.")] = False,
    stat: Annotated[bool, flag("--stat", "Show how much each commit changed against its first parent.")] = False,
    graph: Annotated[bool, flag("--graph", "Draw how commits follow each other.")] = False,
) -> None:
    """Show the commits that lead to a ref, newest first.

    A path that ends in a slash is a folder.
    """
    repository_id, ref, path = at.with_prefix()
    if path and prefix:
        raise InvalidInput("give a path or --prefix, not both")
    if path.endswith("/"):
        path, prefix = "", path
    if graph and (path or prefix or author):
        raise InvalidInput("--graph draws a whole history; leave out the path, --prefix and --author")
    repository = session.lake.repository(repository_id)
    moments = [None if text is None else datetime.fromtimestamp(instant(text, session.now()), UTC)
               for text in (since, until)]  # fmt: skip
    unknown: list[Commit] = []
    found = repository.log(
        ref,
        first_parent=first_parent,
        amount=amount,
        path=path or None,
        prefix=prefix,
        since=moments[0],
        until=moments[1],
        author=author,
        on_expired=unknown.append,
    )
    # A plain log is there at once.
    found = session.awaited("Looking for commits", found, long=bool(path or prefix or author))
    drawn = Graph() if graph else None
    commit = None
    with session.paged():
        for number, commit in enumerate(found):
            counts = _counts(repository, commit, path or prefix) if stat else None
            if session.as_json:
                more = {"summary": None if counts is None else counts.to_json()} if stat else {}
                session.document({**commit.to_json(), **more})
                continue
            lines = [oneline_of(commit)] if oneline else [*commit_lines(commit)]
            if stat:
                lines += [] if oneline else [[""]]
                lines += [["    ", *line] for line in _stat_lines(counts)]
            if not oneline and (number or graph):
                lines = [*lines, [""]] if graph else [[""], *lines]
            before, rest, following = drawn.node(commit) if drawn else ("", "", [])
            for place, line in enumerate(lines):
                session.line(rest if place else before, *line)
            for line in following:
                session.line(line)
    if unknown:
        session.note(f"{counted(len(unknown), 'commit')} left out: retention took what they, or those before, changed.")
    if commit is not None and commit.parents and amount is None and not (path or prefix or since or author):
        session.note("History before this was pruned.")


def _counts(repository: Repository, commit: Commit, prefix: str) -> ChangeCounts | None:
    """What a commit changed against its first parent. None when retention took either."""
    counts = ChangeCounts()
    try:
        for parent in commit.parents[:1]:
            for _ in counts.count(repository.diff(parent, commit.id, prefix=prefix)):
                pass
    except (CommitExpired, RefNotFound):
        return None
    return counts


def _stat_lines(counts: ChangeCounts | None) -> Iterator[Sequence[Styled]]:
    if counts is None:
        yield (("unknown: retention took this commit or its parent", "dim"),)
        return
    yield from (line for line in counts.lines() if line != ("",))


def oneline_of(commit: Commit) -> Sequence[Styled]:
    """A commit in one line."""
    expired = " (expired)" if commit.expired else ""
    return ((commit.id[:SHORT_ID], "yellow"), (expired, "red"), " ", commit.message.partition("\n")[0])


@command(show, "commit")
def show_commit(session: Session, at: RefUri) -> None:
    """Show the commit that a ref means."""
    commit = session.ref(at).commit
    session.answer(
        commit,
        *commit_lines(commit),
        [""],
        ["Generation: ", str(commit.generation)],
        ["Metarange:  ", commit.meta_range_id],
        *(("Parent:     ", (parent, "yellow")) for parent in commit.parents),
    )


@command(app, "merge-base")
def merge_base(session: Session, left: RefUri, right: RefUri) -> None:
    """Show the best common ancestor of two refs."""
    repository, one, other = session.two_refs(left, right)
    base = repository.merge_base(one, other)
    session.answer(base, *commit_lines(base))


@command(app, "reflog")
def reflog(
    session: Session,
    where: Annotated[LakeUri, uri("lakefs://REPO[/REF]", "A repository, or one of its branches or tags.")],
    amount: Annotated[int, typer.Option("--amount", "-n", min=0, metavar="N", help="At most this many moves.")] = 1000,
) -> None:
    """Show where branches and tags pointed before, newest first."""
    name = None if where.ref is None else where.only_ref()[1]
    repository = session.lake.repository(where.repository)
    moves = iter(repository.reflog(name, limit=amount))
    first = next(moves, None)
    if name is not None and first is None and amount:
        repository.ref(name).commit_id  # noqa: B018 - raises when there was never such a ref
    with session.paged():
        for move in moves if first is None else chain([first], moves):
            was = f" (was {move.old[:SHORT_ID]})" if move.old and move.new else ""
            to = move.new or move.old or ""
            session.answer(
                {key: getattr(move, key) for key in ("sequence", "ref", "old", "new", "action", "actor", "at")},
                [(to[:SHORT_ID], "yellow"), "  ", moment(move.at)[:19], "  ", move.action.ljust(17), "  ",
                 (move.ref, "cyan"), was, " by ", move.actor],
            )  # fmt: skip


def commit_lines(commit: Commit) -> Iterator[Sequence[Styled]]:
    """A commit as ``git log`` shows one."""
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
        """What stands before the commit's first line, before its other lines, and the lines that follow these."""
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
        """Join lanes that lead to the same commit, the right one to the left one."""
        lanes = self._lanes
        while True:
            again = next((right for right, name in enumerate(lanes) if name in lanes[:right]), None)
            if again is None:
                return
            left = lanes.index(lanes[again])
            crossed = "|_" * (again - left - 1)
            yield "| " * left + crossed + "|/" + " /" * (len(lanes) - again - 1)
            del lanes[again]
