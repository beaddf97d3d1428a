"""Files of this machine, as downloads write them.

What it keeps true: a download writes below its destination and nowhere else, and a file appears under its name whole
or not at all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import BinaryIO

from lakeops.model.errors import InvalidPath
from lakeops.model.text import excerpt
from lakeops.ops.put import appearing, translated

_PIECE = 1024 * 1024


def below(root: Path, relative: str) -> Path:
    """Where a downloaded object goes: a path below ``root``.

    Raises:
        InvalidPath: the object's path cannot be a file's there: it leads elsewhere, or aliases another.
    """
    if any(part in {"", ".", ".."} for part in relative.split("/")):
        raise InvalidPath(
            f"object path {excerpt(relative)} cannot be a file below {excerpt(str(root))}: "
            "it has an empty part, '.' or '..'; nothing was written for it"
        )
    return root / relative


def write_below(root: Path, target: Path, source: BinaryIO) -> int:
    """Write a file below ``root``, replacing one of that name; returns its size in bytes.

    Raises:
        InvalidPath: a symbolic link on the way leads elsewhere.
        InvalidInput: the operating system refuses.
    """
    with translated(target):
        _make_folders(root, target.parent)
        with appearing(target) as file:
            shutil.copyfileobj(source, file, _PIECE)
            size = file.tell()
    return size


def _make_folders(root: Path, folder: Path) -> None:
    """Make the folders between ``root`` and ``folder``; the root itself may be a link, what is below may not."""
    root.mkdir(parents=True, exist_ok=True)
    current = root
    for part in folder.relative_to(root).parts:
        current /= part
        if current.is_symlink():
            raise InvalidPath(f"{excerpt(str(current))} is a symbolic link that leads elsewhere; nothing was written")
        current.mkdir(exist_ok=True)
