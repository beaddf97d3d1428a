"""From a store's key to the name in the bucket, and what a name may be.

S3 keeps names byte for byte, so nearly everything goes. Refused is what would not survive the trip (NUL, lone
surrogates, over 1,024 bytes with the prefix) and what some proxy on the way could take for a path out of the prefix.
"""

from __future__ import annotations

import re

from lakeops.model.errors import InvalidPath

MAX_NAME_BYTES = 1024

_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


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
    """The beginning of names that a listing looks for; any text will do, but NUL and lone surrogates are refused."""
    try:
        raw = part.encode()
    except UnicodeError:
        raise InvalidPath(f"key {part[:200]!a} holds a lone surrogate, which is no text") from None
    if b"\0" in raw:
        raise InvalidPath(f"key {part[:200]!a} holds NUL, which no object name may")
    return f"{prefix}/{part}" if prefix else part


def xml_part(name: str) -> str:
    """The longest beginning of a name that XML can spell; it has no way to write control characters, for instance.

    Batch deletes and the answers to listings are XML, so only this part can go into their requests.
    """
    unfit = _NOT_XML.search(name)
    return name[: unfit.start()] if unfit else name
