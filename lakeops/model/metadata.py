"""What is recorded of objects and commits beside their contents, and its bounds.

User metadata is a map from text to text. Every store and database must be able to carry it, so NUL and lone
surrogates are refused and the size is bounded: an object's by what S3 keeps beside one (2 KiB), a commit's more
generously, because lineage and run ids are written there.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakeops.model.errors import InvalidInput
from lakeops.model.text import excerpt, flaw

MAX_KEY_BYTES = 256
OBJECT_METADATA_BYTES = 2 * 1024
"""All keys and values of one object, in UTF-8."""
COMMIT_METADATA_BYTES = 64 * 1024
"""All keys and values of one commit, in UTF-8."""
MAX_MESSAGE_BYTES = 64 * 1024
MAX_CONTENT_TYPE_BYTES = 255
MAX_CHECKSUM_BYTES = 256
MAX_OBJECT_BYTES = 1 << 47
"""128 TiB, more than any store takes; sums over a repository stay within 64 bits."""
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799
"""Times that have a date with a year from 1 to 9999, in Unix seconds."""


def check_text(what: str, text: str, *, at_most: int, at_least: int = 0) -> str:
    """The text, when every store and database can keep it and its UTF-8 size is within the bounds.

    Args:
        what: what the text is, for the message (``commit message``).
        text: the text.
        at_most: the most bytes it may take.
        at_least: the fewest bytes it must take.

    Raises:
        InvalidInput: it is not text, holds NUL or half a character, or is too short or too long.
    """
    reason = flaw(text, at_least=at_least, at_most=at_most)
    if reason is not None:
        raise InvalidInput(f"{what}: it {reason}")
    return text


def check_metadata(metadata: Mapping[str, str] | None, *, at_most: int = OBJECT_METADATA_BYTES) -> dict[str, str]:
    """A copy of user metadata (None counts as empty), when it is within the bounds.

    Keys take 1 to 256 bytes, keys and values together ``at_most`` (pass ``COMMIT_METADATA_BYTES`` for a commit's).

    Raises:
        InvalidInput: it is not a map from text to text, or too big; the message names the key.
    """
    pairs: object = {} if metadata is None else metadata
    if not isinstance(pairs, Mapping):
        raise InvalidInput(f"metadata: {excerpt(pairs)} is not a map from text to text")
    total = 0
    for key, value in pairs.items():
        check_text("metadata key", key, at_least=1, at_most=MAX_KEY_BYTES)
        check_text(f"metadata value of {excerpt(key)}", value, at_most=at_most)
        total += len(key.encode()) + len(value.encode())
    if total > at_most:
        raise InvalidInput(f"metadata: keys and values take {total} bytes in UTF-8, {at_most} is the limit")
    return dict(pairs)


def check_message(message: str) -> str:
    """A commit message, when it is text of at most 64 KiB; it may be empty.

    Raises:
        InvalidInput: it is not.
    """
    return check_text("commit message", message, at_most=MAX_MESSAGE_BYTES)


def check_content_type(content_type: str) -> str:
    """A content type, when it can be sent as a header: 1 to 255 printable ASCII characters.

    Raises:
        InvalidInput: it cannot; a line end in it would begin another header.
    """
    check_text("content type", content_type, at_least=1, at_most=MAX_CONTENT_TYPE_BYTES)
    if not (content_type.isascii() and content_type.isprintable()):
        raise InvalidInput(f"content type: {excerpt(content_type)} holds more than printable ASCII")
    return content_type


def check_checksum(checksum: str) -> str:
    """A checksum, when it can be sent as a header, as an ETag is: 1 to 256 printable ASCII characters.

    Raises:
        InvalidInput: it cannot.
    """
    check_text("checksum", checksum, at_least=1, at_most=MAX_CHECKSUM_BYTES)
    if not (checksum.isascii() and checksum.isprintable()):
        raise InvalidInput(f"checksum: {excerpt(checksum)} holds more than printable ASCII")
    return checksum


def check_size(size_bytes: int) -> int:
    """An object's size in bytes, when there can be such an object. Raises ``InvalidInput``."""
    if not 0 <= size_bytes <= MAX_OBJECT_BYTES:
        raise InvalidInput(f"size_bytes: {size_bytes} is no object's size; give 0 to {MAX_OBJECT_BYTES} bytes")
    return size_bytes


def check_mtime(mtime: int) -> int:
    """A time in Unix seconds, when it can be written as a date. Raises ``InvalidInput``."""
    if not EARLIEST <= mtime <= LATEST:
        raise InvalidInput(
            f"mtime: {mtime} is no date between the years 1 and 9999; give whole seconds since 1970, not milliseconds"
        )
    return mtime
