"""``lakeops diff``: what changed, path by path, and how much of it where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from lakeops.cli.options import Json, two_refs, uri
from lakeops.cli.output import Output, Part, counted, human_size
from lakeops.cli.session import open_lake
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Change, ChangeType, Strategy
from lakeops.model.uris import LakeUri

app = typer.Typer(add_completion=False)

SIGNS = {
    ChangeType.ADDED: ("+ added", "green"),
    ChangeType.REMOVED: ("- removed", "red"),
    ChangeType.CHANGED: ("~ changed", "yellow"),
    ChangeType.CONFLICT: ("! conflict", "magenta"),
}
GROUPS = 10
"""How many folders are counted one by one."""


def change_line(change: Change) -> tuple[Part, ...]:
    """One change as people read it: ``+ added path``."""
    return (SIGNS[change.type], " ", change.path)


@app.command("diff", epilog="Example: lakeops diff lakefs://flights/main lakefs://flights/dev")
def diff(
    left: Annotated[LakeUri, uri("lakefs://REPO/LEFT", "A branch; or what to compare with, any ref.")],
    right: Annotated[LakeUri | None, uri("lakefs://REPO/RIGHT", "Any ref: show what it changed.")] = None,
    two_way: Annotated[
        bool,
        typer.Option("--two-way", metavar="", help="From the first to the second ref, not since their merge base."),
    ] = False,
    prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Only paths under this prefix.")] = "",
    strategy: Annotated[
        Strategy | None, typer.Option(help="Show what a merge with this strategy would do.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show what changed, path by path.

    One branch: its uncommitted changes. Two refs: what the second one changed since their merge base, that is, what
    merging it into the first one would do.
    """
    out = Output(json)
    if right is None and (two_way or strategy):
        raise InvalidInput(f"{'--two-way' if two_way else '--strategy'} needs two refs")
    if two_way and strategy:
        raise InvalidInput("--strategy settles conflicts of a merge, and --two-way shows none; give one of them")
    with open_lake(out) as lake:
        if right is None:
            repository_id, name = left.only_ref()
            changes = lake.repository(repository_id).branch(name).uncommitted(prefix=prefix)
        else:
            repository_id, old, new = two_refs(left, right)
            repository = lake.repository(repository_id)
            if two_way:
                changes = repository.diff(old, new, prefix=prefix)
            else:
                changes = repository.compare(old, new, prefix=prefix, strategy=strategy)
        _print(out, changes)


def _print(out: Output, changes: Iterable[Change]) -> None:
    if out.as_json:
        for change in changes:
            out.document(change.to_json())
        return
    groups = Groups()
    for change in groups.count(changes):
        out.line(*change_line(change))
    for line in groups.lines():
        out.note(*line)


class Groups:
    """Counts of changes, in all and by top-level folder."""

    def __init__(self) -> None:
        self.types: Counter[ChangeType] = Counter()
        self.folders: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()

    def count(self, changes: Iterable[Change]) -> Iterator[Change]:
        """The same changes, counted as they pass."""
        for change in changes:
            folder, slash, _ = change.path.partition("/")
            group = folder + slash if slash else "(top level)"
            self.types[change.type] += 1
            self.folders[group] += 1
            self.sizes[group] += change.size_bytes
            yield change

    def lines(self) -> Iterator[tuple[Part, ...]]:
        """The counts in words: a total, and one line a folder where there are several."""
        if not self.types:
            yield ("No changes.",)
            return
        yield ("",)
        if len(self.folders) > 1:
            shown = self.folders.most_common(GROUPS)
            width = max(len(folder) for folder, _ in shown)
            for folder, count in shown:
                yield (
                    (folder.ljust(width), "cyan"),
                    f"  {counted(count, 'change').rjust(14)}  {human_size(self.sizes[folder])}",
                )
            if len(self.folders) > GROUPS:
                yield (f"... and {len(self.folders) - GROUPS:,} more folders",)
        totals = ", ".join(f"{self.types[kind]:,} {kind.value}" for kind in SIGNS if self.types[kind])
        yield (totals, f" ({human_size(self.sizes.total())})")
