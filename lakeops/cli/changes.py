"""``lakeops diff``, ``merge`` and ``cherry-pick``: compare refs, and bring changes from one to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from lakeops.cli import options
from lakeops.cli.options import flag, parse_metadata, ref, uri, value
from lakeops.cli.output import Styled
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput
from lakeops.model.formatting import counted, human_size
from lakeops.model.names import LakeUri
from lakeops.model.records import Change, ChangeType, Counts, Strategy, TablesMode

app: typer.Typer = typer.Typer(add_completion=False)

SIGNS = {
    ChangeType.ADDED: ("+ added", "green"),
    ChangeType.REMOVED: ("- removed", "red"),
    ChangeType.CHANGED: ("~ changed", "yellow"),
    ChangeType.CONFLICT: ("! conflict", "magenta"),
}
Right = Annotated[Any, ref("RIGHT", "The ref whose changes are shown.")]
_WINS = "The side that wins each conflict. Default: a conflict stops the merge."
_TABLES = "Where both sides changed an Iceberg table, apply the source's changes again."
Destination = Annotated[Any, ref("DEST", "The branch that takes the changes.")]
MAX_FOLDERS = 10
"""Folders that are counted one by one."""
MAX_TABLES = 20
"""Iceberg tables whose changes are shown."""


def change_line(change: Change) -> tuple[Styled, ...]:
    """Format a change as a line: ``+ added path``."""
    return (SIGNS[change.type], " ", change.path)


@command(
    app, "diff", example="diff lakefs://flights/main lakefs://flights/dev", progress=True, lists="prefix after amount"
)
def diff(
    session: Session,
    left: Annotated[
        LakeUri, uri("lakefs://REPO/LEFT", "A branch, for its uncommitted changes; or the ref to compare with.")
    ],
    right: Right = None,
    two_way: Annotated[bool, flag("--two-way", "Compare the two refs directly, not since their merge base.")] = False,
    strategy: Annotated[
        Strategy | None, typer.Option(help="Show what a merge with this strategy would do.", show_default=False)
    ] = None,
) -> None:
    """Show what changed, path by path.

    One branch: its uncommitted changes. Two refs: what the second one changed since their merge base, that is, what
    merging it into the first one would do. Between two refs commits are compared.
    """
    if right is None and (two_way or strategy):
        raise InvalidInput(f"{'--two-way' if two_way else '--strategy'} needs two refs")
    if two_way and strategy:
        raise InvalidInput("--strategy settles conflicts of a merge, and --two-way shows none; give one of them")
    prefix, after = session.prefix, session.after
    repository, old, new = session.two_refs(left, left if right is None else right)
    meant = repository.ref(new).id  # without the "$" of lakeFS's spelling of the branch with what is staged on it
    uncommitted = right is None or (new != old == meant)
    if uncommitted:
        changes = session.part(repository.branch(meant).uncommitted(prefix), "path")
    elif two_way:
        changes = repository.diff(old, new, prefix=prefix, after=after)
    else:
        changes = repository.compare(old, new, prefix=prefix, after=after, strategy=strategy)
    counts = ChangeCounts()
    shown = session.awaited("Comparing", islice(changes, session.amount))
    with session.paged():
        session.stream(counts.count(shown), change_line)
    for line in counts.lines(session.amount):
        session.note(*line)
    if counts.tables:
        if uncommitted:
            sides = f"{meant}@", meant
        else:
            sides = repository.ref(old).commit_id, repository.ref(new).commit_id
            if not two_way:
                sides = repository.merge_base(*sides).id, sides[1]
        for table in repository.table_diffs(*sides, counts.tables):
            session.note(str(table))
    if not uncommitted:
        # Releases are often named newest first. The older one has changed nothing since.
        if not (two_way or strategy or after or counts.all.total or session.amount == 0) and any(
            repository.compare(new, old, prefix=prefix)
        ):
            turned = " ".join(str(LakeUri(left.repository, ref)) for ref in (new, old))
            session.note(f"They differ, but only {old} changed since both parted: lakeops diff {turned}")
        session.note_left_out([ref for ref in dict.fromkeys((old, new)) if repository.ref(ref).is_dirty])


class ChangeCounts:
    """Counts of changes, in all and by top-level folder."""

    def __init__(self) -> None:
        self.all = Counts()
        self.folders: dict[str, Counts] = {}
        self.tables: list[str] = []

    def count(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield the changes and count them."""
        for change in changes:
            folder, slash, _ = change.path.partition("/")
            group = folder + slash if slash else "(top level)"
            self.all.count(change)
            self.folders.setdefault(group, Counts()).count(change)
            if change.path.endswith("/metadata.json") and len(self.tables) < MAX_TABLES:
                self.tables.append(change.path)
            yield change

    def to_json(self) -> dict[str, int]:
        """The contract's ``summary`` object."""
        return {
            str(kind): self.all.by_kind[kind] for kind in (ChangeType.ADDED, ChangeType.REMOVED, ChangeType.CHANGED)
        }

    def lines(self, asked: int | None = None) -> Iterator[tuple[Styled, ...]]:
        """Format the counts: a line for each folder where there are several, and a total if fewer than ``asked``."""
        if self.all.total == asked:
            yield (f"{counted(asked, 'change')} shown, as --amount asks.",)
            return
        if not self.all.total:
            yield ("No changes.",)
            return
        yield ("",)
        if len(self.folders) > 1:
            shown = sorted(self.folders.items(), key=lambda one: -one[1].total)[:MAX_FOLDERS]
            width = max(len(folder) for folder, _ in shown)
            for folder, count in shown:
                amount = f"  {counted(count.total, 'change').rjust(14)}  {human_size(count.bytes)}"
                yield ((folder.ljust(width), "cyan"), amount)
            if len(self.folders) > MAX_FOLDERS:
                yield (f"... and {len(self.folders) - MAX_FOLDERS:,} more folders",)
        totals = ", ".join(f"{self.all.by_kind[kind]:,} {kind.value}" for kind in SIGNS if self.all.by_kind[kind])
        yield (totals, f" ({human_size(self.all.bytes)})")


@command(app, "merge", example="merge lakefs://flights/dev lakefs://flights/main", progress=True)
def merge(
    session: Session,
    source: Annotated[LakeUri, uri("lakefs://REPO/SOURCE", "Any ref.")],
    destination: Destination,
    strategy: Annotated[Strategy | None, typer.Option(help=_WINS, show_default=False)] = None,
    message: Annotated[str | None, value("--message -m", "TEXT", "The commit's message.")] = None,
    meta: options.Metadata = None,
    squash: Annotated[bool, flag("--squash", "Make a commit with one parent, without the source's history.")] = False,
    no_commit: Annotated[bool, flag("--no-commit", "Show what the merge would do, and publish nothing.")] = False,
    allow_empty: Annotated[bool, flag("--allow-empty", "Make a commit even when the source brings nothing.")] = False,
    idempotency_key: options.IdempotencyKey = None,
    despite_check: options.DespiteChecks = None,
    tables: Annotated[TablesMode | None, value("--tables", "rebase", _TABLES)] = None,
) -> None:
    """Merge what a ref changed into a branch.

    When both sides changed the same paths, nothing is published and all of them are listed.
    """
    metadata = parse_metadata(meta)
    repository, ref, name = session.two_refs(source, destination)
    with session.progress(f"Merging {ref} into {name}"):
        given: dict[str, Any] = {"strategy": strategy, "squash": squash, "allow_empty": allow_empty, "tables": tables}
        given["despite_checks"] = despite_check or ()
        if no_commit:
            result = repository.preview_merge(ref, name, **given)
        else:
            given |= {"message": message, "metadata": metadata, "idempotency_key": idempotency_key}
            result = repository.merge(ref, name, **given)
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
def cherry_pick(
    session: Session, ref: options.RefUri, destination: options.ShortRef, parent_number: options.ParentNumber = None
) -> None:
    """Apply the changes of one commit to a branch, by a new commit."""
    repository, picked, name = session.two_refs(ref, destination)
    with session.progress(f"Picking {picked} onto {name}"):
        commit = repository.cherry_pick(picked, name, parent_number)
    session.answer(commit, ["Picked ", picked, " onto ", (name, "green"), ": commit ", (commit.id, "yellow")])
