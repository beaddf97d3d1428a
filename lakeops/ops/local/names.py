"""Which objects can be files of a clone, and under which names."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from lakeops.model.errors import InvalidPath
from lakeops.model.records import Entry
from lakeops.model.text import excerpt

PLACE = ".lakeops-local"
"""The folder of a clone that is no part of it."""

MAX_PART_BYTES = 255


def check_file_name(name: str) -> str:
    """An object's path below the prefix, when it can be a file's. Raises ``InvalidPath``."""
    if not isinstance(name, str):
        raise InvalidPath("a file's name is not text")
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        why = "it has an empty part, '.' or '..'"
    elif parts[0] == PLACE:
        why = "clones keep their own files there"
    elif any(len(part.encode(errors="surrogatepass")) > MAX_PART_BYTES for part in parts):
        why = f"a part of it is longer than {MAX_PART_BYTES} bytes"
    elif "\0" in name:
        why = "it has NUL"
    else:
        return name
    raise InvalidPath(f"{excerpt(name)} cannot be a file of a clone: {why}; nothing was written")


def is_marker(entry: Entry) -> bool:
    """Whether an object only says that there is a folder. Clones leave such objects alone."""
    return entry.path.endswith("/") and not entry.size_bytes


def check_names(names: Iterable[str], *, folds: bool) -> None:
    """Refuse names that cannot be beside one another. Raises ``InvalidPath``.

    A name may not be another one's folder. On a disk that ``folds`` letters, two names may not be one.
    """
    shown: dict[str, str] = {}
    for name in names:
        check_file_name(name)
        key = unicodedata.normalize("NFC", name).casefold() if folds else name
        other = shown.setdefault(key, name)
        if other != name:
            raise InvalidPath(f"{excerpt(name)} and {excerpt(other)} are one file on this disk; nothing was written")
    for key, name in shown.items():
        at = key.find("/")
        while at >= 0:
            if key[:at] in shown:
                other = excerpt(shown[key[:at]])
                raise InvalidPath(f"{other} cannot be a file and the folder of {excerpt(name)}; nothing was written")
            at = key.find("/", at + 1)


def folds_letters(folder: Path) -> bool:
    """Whether a clone's disk takes names for one that differ in the case of letters alone."""
    return (folder / PLACE.upper()).exists()
