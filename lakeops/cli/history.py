"""``lakeops log``, ``show``, ``merge-base`` and ``reflog``: reading history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from lakeops.cli.options import Json, RefUri, two_refs, uri
from lakeops.cli.output import SHORT_ID, Output, Part
from lakeops.cli.session import open_lake
from lakeops.cli.text import moment
from lakeops.model.records import Commit, ReflogRecord
from lakeops.model.uris import LakeUri

show_app = typer.Typer(help="Show one thing in full.")


def commit_lines(commit: Commit) -> Iterator[Sequence[Part]]:
    """A commit as ``git log`` shows one."""
    expired: Sequence[Part] = (" ", ("(expired)", "red")) if commit.expired else ()
    yield (("commit " + commit.id, "yellow"), *expired)
    if len(commit.parents) > 1:
        yield ("Merge:  " + " ".join(parent[:SHORT_ID] for parent in commit.parents),)
    yield ("Author: ", commit.committer)
    yield ("Date:   ", moment(commit.creation_date))
    yield ("",)
    for line in commit.message.splitlines() or [""]:
        yield ("    ", line)
    if commit.metadata:
        yield ("",)
        for key, value in sorted(commit.metadata.items()):
            yield ("    ", (key, "cyan"), " = ", value)


def log(
    at: RefUri,
    amount: Annotated[
        int | None,
        typer.Option("--amount", "-n", min=0, metavar="N", help="At most this many commits.", show_default=False),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", metavar="", help="Follow only the first parent of merge commits.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the commits that lead to a ref, newest first."""
    out = Output(json)
    repository_id, ref = at.only_ref()
    with open_lake(out) as lake:
        commits = lake.repository(repository_id).log(ref, first_parent=first_parent, amount=amount)
        for number, commit in enumerate(commits):
            if json:
                out.document(commit.to_json())
                continue
            if number:
                out.line()
            for parts in commit_lines(commit):
                out.line(*parts)


@show_app.command("commit")
def show_commit(at: RefUri, json: Json = False) -> None:
    """Show the commit that a ref means."""
    out = Output(json)
    repository_id, ref = at.only_ref()
    with open_lake(out) as lake:
        commit = lake.repository(repository_id).ref(ref).commit
    out.answer(
        commit,
        *commit_lines(commit),
        [""],
        ["Generation: ", str(commit.generation)],
        ["Metarange:  ", commit.meta_range_id],
        *(("Parent:     ", (parent, "yellow")) for parent in commit.parents),
    )


def merge_base(left: RefUri, right: RefUri, json: Json = False) -> None:
    """Show the best common ancestor of two refs."""
    out = Output(json)
    repository_id, one, other = two_refs(left, right)
    with open_lake(out) as lake:
        commit = lake.repository(repository_id).merge_base(one, other)
    out.answer(commit, *commit_lines(commit))


def reflog(
    where: Annotated[LakeUri, uri("lakefs://REPO[/REF]", "A repository, or one of its branches or tags.")],
    amount: Annotated[int, typer.Option("--amount", "-n", min=0, metavar="N", help="At most this many moves.")] = 1000,
    json: Json = False,
) -> None:
    """Show where branches and tags pointed before, newest first."""
    out = Output(json)
    name = None if where.ref is None else where.only_ref()[1]
    with open_lake(out) as lake:
        moves = lake.repository(where.repository).reflog(name, limit=amount)
    if json:
        for move in moves:
            out.document(_to_json(move))
        return
    for move in moves:
        out.line(
            (_short(move.new), "yellow"), " ", (move.ref, "cyan"), " ", move.action,
            ": was ", _short(move.old), ", ", moment(move.at), ", ", move.actor,
        )  # fmt: skip


def _short(commit_id: str | None) -> str:
    return "-" * SHORT_ID if commit_id is None else commit_id[:SHORT_ID]


def _to_json(move: ReflogRecord) -> dict[str, object]:
    return {
        "sequence": move.sequence,
        "ref": move.ref,
        "old": move.old,
        "new": move.new,
        "action": move.action,
        "actor": move.actor,
        "at": move.at,
    }
