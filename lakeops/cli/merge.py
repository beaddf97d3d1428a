"""``lakeops merge`` and ``cherry-pick``: bring changes of one branch to another."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import (
    BranchUri,
    IdempotencyKey,
    Metadata,
    ParentNumber,
    RefUri,
    flag,
    parse_metadata,
    uri,
    value,
)
from lakeops.cli.output import Styled
from lakeops.cli.session import Session, command
from lakeops.model.changes import Strategy
from lakeops.model.uris import LakeUri

app: typer.Typer = typer.Typer(add_completion=False)


@command(app, "merge", example="merge lakefs://flights/dev lakefs://flights/main", progress=True)
def merge(
    session: Session,
    source: Annotated[LakeUri, uri("lakefs://REPO/SOURCE", "Any ref.")],
    destination: Annotated[LakeUri, uri("lakefs://REPO/DEST", "The branch that takes the changes.")],
    strategy: Annotated[
        Strategy | None, typer.Option(help="The side that settles every conflict.", show_default=False)
    ] = None,
    message: Annotated[str | None, value("--message -m", "TEXT", "The commit's message.")] = None,
    meta: Metadata = None,
    squash: Annotated[bool, flag("--squash", "Make a commit with one parent: the source's commits stay out.")] = False,
    no_commit: Annotated[bool, flag("--no-commit", "Show what the merge would do, and publish nothing.")] = False,
    allow_empty: Annotated[bool, flag("--allow-empty", "Make a commit even when the source brings nothing.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Merge what a ref changed into a branch.

    When both sides changed the same paths, nothing is published and all of them are listed.
    """
    metadata = parse_metadata(meta)
    repository, ref, name = session.two_refs(source, destination)
    with session.progress(f"Merging {ref} into {name}"):
        if no_commit:
            result = repository.preview_merge(ref, name, strategy=strategy, squash=squash, allow_empty=allow_empty)
        else:
            result = repository.merge(
                ref,
                name,
                strategy=strategy,
                message=message,
                metadata=metadata,
                idempotency_key=idempotency_key,
                squash=squash,
                allow_empty=allow_empty,
            )
    session.note_left_out([ref] if result.source_uncommitted else [], "; commit and merge them")
    if result.up_to_date:
        session.answer(result, ["Already up to date: ", (name, "green"), " has all of ", ref])
        return
    summary = result.summary
    merged = "Merged before, under the same key: " if result.repeated else "Merged "
    done: list[Styled] = [merged, ref, " into ", (name, "green"), ": commit ", (result.reference or "", "yellow")]
    would: list[Styled] = ["This would merge ", ref, " into ", (name, "green"), "; nothing was published"]
    session.answer(
        result,
        would if no_commit else done,
        ["Summary: ", (f"{summary.added:,} added", "green"), ", ", (f"{summary.removed:,} removed", "red"), ", ",
         (f"{summary.changed:,} changed", "yellow")],
    )  # fmt: skip


@command(app, "cherry-pick", example="cherry-pick lakefs://flights/dev~1 lakefs://flights/main", progress=True)
def cherry_pick(session: Session, ref: RefUri, destination: BranchUri, parent_number: ParentNumber = None) -> None:
    """Apply what one commit did onto a branch, with a new commit."""
    repository, picked, name = session.two_refs(ref, destination)
    with session.progress(f"Picking {picked} onto {name}"):
        commit = repository.cherry_pick(picked, name, parent_number)
    session.answer(commit, ["Picked ", picked, " onto ", (name, "green"), ": commit ", (commit.id, "yellow")])
