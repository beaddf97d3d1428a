"""``lakeops cache``: the metadata of far stores that this machine keeps on its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lakeops.cli.session import Session, command
from lakeops.model.errors import StoreError
from lakeops.model.words import counted, human_size

if TYPE_CHECKING:
    from lakeops.store.pieces import Pieces

app: typer.Typer = typer.Typer(add_completion=False)


@app.callback()
def cache() -> None:
    """Look at the metadata of far stores that this machine keeps, or forget it."""


@command(app, "show")
def show(session: Session) -> None:
    """Show where metadata is kept, how much there is, and how much there may be."""
    pieces = _pieces()
    found = pieces.kept()
    record = {
        "folder": str(pieces.folder),
        "usable": pieces.is_usable(),
        "files": found.files,
        "size_bytes": found.size_bytes,
        "max_bytes": pieces.max_bytes,
    }
    session.answer(record, [pieces.described()])


@command(app, "clear")
def clear(session: Session) -> None:
    """Forget all metadata that this machine keeps. It is fetched again when it is needed."""
    pieces = _pieces()
    try:
        found = pieces.clear()
    except OSError as error:
        raise StoreError(f"{pieces.folder} cannot be emptied ({error.strerror}); remove it yourself") from None
    record = {"files": found.files, "size_bytes": found.size_bytes}
    session.answer(record, [f"Removed {counted(found.files, 'file')} ({human_size(found.size_bytes)})."])


def _pieces() -> Pieces:
    from lakeops.settings import Settings
    from lakeops.store.pieces import Pieces

    return Pieces.of(Settings.load())
