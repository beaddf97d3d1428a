"""Names of objects in buckets: built in one place, so that no key, however spelled, leaves its storage namespace."""

from __future__ import annotations

import re

from lakeops.model.errors import InvalidPath

MAX_NAME_BYTES = 1024

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_plain(name: str) -> bool:
    """Whether obstore takes a name as it is: no empty, ``.`` or ``..`` segment, and no control character."""
    return not _CONTROL.search(name) and all(part not in {"", ".", ".."} for part in name.split("/"))


def object_name(prefix: str, key: str) -> str:
    """The object's name in the bucket. Raises ``InvalidPath``."""
    if not key:
        raise InvalidPath("a key must not be empty")
    name = listing_prefix(prefix, key)
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidPath(
            f"key {key[:200]!a} is too long: with the namespace's prefix it is over {MAX_NAME_BYTES} bytes"
        )
    depth = 0
    for segment in key.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(segment, 1)
        if depth < 0:
            raise InvalidPath(f"key {key[:200]!a} climbs out of the storage namespace")
    return name


def listing_prefix(prefix: str, part: str) -> str:
    """The beginning of names that a listing looks for. Any text will do, but NUL and lone surrogates are refused."""
    try:
        raw = part.encode()
    except UnicodeError:
        raise InvalidPath(f"key {part[:200]!a} holds a lone surrogate, which is no text") from None
    if b"\0" in raw:
        raise InvalidPath(f"key {part[:200]!a} holds NUL, which no object name may")
    return f"{prefix}/{part}" if prefix else part
