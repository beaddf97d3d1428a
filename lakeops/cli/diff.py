"""``lakeops diff``: what changed, path by path, and how much of it in which folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from lakeops.cli.options import flag, uri
from lakeops.cli.output import Styled
from lakeops.cli.session import Session, command
from lakeops.model.changes import Change, ChangeType, Strategy
from lakeops.model.errors import InvalidInput
from lakeops.model.uris import LakeUri
from lakeops.model.words import counted, human_size

app: typer.Typer = typer.Typer(add_completion=False)

SIGNS = {
    ChangeType.ADDED: ("+ added", "green"),
    ChangeType.REMOVED: ("- removed", "red"),
    ChangeType.CHANGED: ("~ changed", "yellow"),
    ChangeType.CONFLICT: ("! conflict", "magenta"),
}
MAX_FOLDERS = 10
"""How many folders are counted one by one."""


def change_line(change: Change) -> tuple[Styled, ...]:
    """One change as people read it: ``+ added path``."""
    return (SIGNS[change.type], " ", change.path)


@command(app, "diff", example="diff lakefs://flights/main lakefs://flights/dev", progress=True)
def diff(
    session: Session,
    left: Annotated[LakeUri, uri("lakefs://REPO/LEFT", "A branch; or what to compare with, any ref.")],
    right: Annotated[LakeUri | None, uri("lakefs://REPO/RIGHT", "Any ref: show what it changed.")] = None,
    two_way: Annotated[
        bool, flag("--two-way", "From the first to the second ref, not since their merge base.")
    ] = False,
    prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Only paths under this prefix.")] = "",
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
    if right is None:
        changes = session.branch(left).uncommitted(prefix)
    else:
        repository, old, new = session.two_refs(left, right)
        if two_way:
            changes = repository.diff(old, new, prefix=prefix)
        else:
            changes = repository.compare(old, new, prefix=prefix, strategy=strategy)
    counts = ChangeCounts()
    shown = session.awaited("Comparing", changes)
    with session.paged():
        session.stream(counts.count(shown), change_line)
    for line in counts.lines():
        session.note(*line)
    if right is not None:
        session.note_left_out([ref for ref in dict.fromkeys((old, new)) if repository.ref(ref).is_dirty])


class ChangeCounts:
    """Counts of changes, in all and by top-level folder."""

    def __init__(self) -> None:
        self.types: Counter[ChangeType] = Counter()
        self.folders: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()

    def count(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield the changes and count them."""
        for change in changes:
            folder, slash, _ = change.path.partition("/")
            group = folder + slash if slash else "(top level)"
            self.types[change.type] += 1
            self.folders[group] += 1
            self.sizes[group] += change.size_bytes
            yield change

    def to_json(self) -> dict[str, int]:
        """The contract's ``summary`` object."""
        return {str(kind): self.types[kind] for kind in (ChangeType.ADDED, ChangeType.REMOVED, ChangeType.CHANGED)}

    def lines(self) -> Iterator[tuple[Styled, ...]]:
        """The counts in words: one line a folder where there are several, and a total."""
        if not self.types:
            yield ("No changes.",)
            return
        yield ("",)
        if len(self.folders) > 1:
            shown = self.folders.most_common(MAX_FOLDERS)
            width = max(len(folder) for folder, _ in shown)
            for folder, count in shown:
                yield (
                    (folder.ljust(width), "cyan"),
                    f"  {counted(count, 'change').rjust(14)}  {human_size(self.sizes[folder])}",
                )
            if len(self.folders) > MAX_FOLDERS:
                yield (f"... and {len(self.folders) - MAX_FOLDERS:,} more folders",)
        totals = ", ".join(f"{self.types[kind]:,} {kind.value}" for kind in SIGNS if self.types[kind])
        yield (totals, f" ({human_size(self.sizes.total())})")
