"""Handles of directories of this machine that follow a ref."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lakeops.lake.verbs import folder_verb, ops
from lakeops.ops.context import Context


class Local:
    """A directory that follows a folder of a ref. Made by ``Ref.clone`` and opened by ``Lake.local``."""

    def __init__(self, context: Context, directory: Path) -> None:
        self._ctx = context
        self.directory = directory

    def __repr__(self) -> str:
        return f"<Local {self.directory}>"

    @property
    def repository_id(self) -> str:
        """The repository's name."""
        return self._ctx.repository_id

    status: Final = folder_verb(lambda: ops.local.clone.status)
    pull: Final = folder_verb(lambda: ops.local.clone.pull)
    checkout: Final = folder_verb(lambda: ops.local.clone.checkout)
    commit: Final = folder_verb(lambda: ops.local.commit.commit)
