"""Commit ids: the digest of all that a commit says.

What this room keeps true: equal commits have equal ids on any engine, in any process and at any mirror, and two
different commits never have the same input to the digest. The encoding is fixed. Changing it means a new version tag.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakeops.model.errors import InvalidInput
from lakeops.model.names import flaw
from lakeops.model.records import ALONG, DECLARED, Along, Commit
from lakeops.model.sanitising import excerpt

VERSION = "lakeops:commit:v1"


def _integer(value: int) -> bytes:
    return b"i" + value.to_bytes(8, "big", signed=True)


def _text(value: str) -> bytes:
    data = value.encode()
    return b"s" + len(data).to_bytes(8, "big") + data


def _list(values: Sequence[str]) -> bytes:
    return b"l" + len(values).to_bytes(8, "big") + b"".join(map(_text, values))


def _map(values: Mapping[str, str]) -> bytes:
    pairs = b"".join(_text(key) + _text(values[key]) for key in sorted(values))
    return b"m" + len(values).to_bytes(8, "big") + pairs


def commit_id(
    *,
    committer: str,
    message: str,
    meta_range_id: str,
    creation_date: int,
    metadata: Mapping[str, str],
    parents: Sequence[str],
) -> str:
    """The id of a commit: 64 hex digits, the SHA-256 of these values written one after another.

    ::

        text "lakeops:commit:v1"
        text committer
        text message
        text meta_range_id
        integer creation_date             whole Unix seconds
        map metadata
        list parents                      destination first, source second

        text     "s", byte length (8 bytes, big-endian), UTF-8 bytes
        integer  "i", value (8 bytes, big-endian, two's complement)
        list     "l", count (8 bytes, big-endian), each as a text
        map      "m", count (8 bytes, big-endian), key and value as texts, in the order of the keys' UTF-8 bytes

    The generation is not part of it (it follows from the parents), nor are the metarange's file name and digest
    (they belong to one copy of the commit).
    """
    return hashlib.sha256(
        _text(VERSION)
        + _text(committer)
        + _text(message)
        + _text(meta_range_id)
        + _integer(creation_date)
        + _map(metadata)
        + _list(parents)
    ).hexdigest()


def id_of(commit: Commit) -> str:
    """The id that a commit should have, by all that it says."""
    return commit_id(
        committer=commit.committer,
        message=commit.message,
        meta_range_id=commit.meta_range_id,
        creation_date=commit.creation_date,
        metadata=commit.metadata,
        parents=commit.parents,
    )


def make_commit(
    *,
    parents: Sequence[Commit],
    committer: str,
    message: str,
    creation_date: int,
    meta_range_id: str,
    metadata: Mapping[str, str] | None = None,
    meta_range_file: str = "",
    meta_range_digest: str = "",
) -> Commit:
    """A new commit on its parents, with its id and generation worked out.

    Args:
        parents: none for the initial commit, one, or two for a merge: destination first, source second.
        committer: who commits.
        message: why.
        creation_date: when, in whole Unix seconds.
        meta_range_id: the id of what is committed.
        metadata: user metadata of the commit.
        meta_range_file: the file that holds the metarange here; not part of the id.
        meta_range_digest: the SHA-256 of that file's bytes; not part of the id.
    """
    metadata = dict(metadata or {})
    ids = tuple(parent.id for parent in parents)
    return Commit(
        id=commit_id(
            committer=committer,
            message=message,
            meta_range_id=meta_range_id,
            creation_date=creation_date,
            metadata=metadata,
            parents=ids,
        ),
        parents=ids,
        committer=committer,
        message=message,
        creation_date=creation_date,
        metadata=metadata,
        meta_range_id=meta_range_id,
        generation=1 + max((parent.generation for parent in parents), default=0),
        meta_range_file=meta_range_file,
        meta_range_digest=meta_range_digest,
    )


def with_along(commit: Commit, others: Sequence[Along]) -> Commit:
    """The commit with co-author notes of the callers whose changes it covers, and with the id that this makes.

    Once these take a mebibyte, the rest are cut to the beginnings of their messages.
    """
    if not others:
        return commit
    metadata, room = dict(commit.metadata), ALONG_BYTES
    for number, other in enumerate(others, 1):
        text = other.to_text()
        room -= len(text.encode())
        if room < 0:
            declared = {DECLARED: other.metadata[DECLARED]} if DECLARED in other.metadata else {}
            text = replace(other, message=other.message[:100], metadata=declared, cut=True).to_text()
        metadata[f"{ALONG}{number}"] = text
    made = replace(commit, metadata=metadata)
    return replace(made, id=id_of(made))


MAX_KEY_BYTES = 256
OBJECT_METADATA_BYTES = 2 * 1024
"""All keys and values of one object, in UTF-8."""
COMMIT_METADATA_BYTES = 64 * 1024
"""All keys and values of one commit, in UTF-8."""
ALONG_BYTES = 1024 * 1024
"""Bytes of co-author notes that a commit keeps whole."""
MAX_MESSAGE_BYTES = 64 * 1024
MAX_CONTENT_TYPE_BYTES = 255
MAX_CHECKSUM_BYTES = 256
MAX_OBJECT_BYTES = 1 << 47
"""128 TiB, more than any store takes. Sums over a repository stay within 64 bits."""
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
        InvalidInput: it is not a map from text to text, or too big. The message names the key.
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


SQUASHED = "squash-origin"
"""Under which key of a commit's metadata a squashed merge keeps the id of its source."""

PROVENANCE = (SQUASHED, "revert-origin", "cherry-pick-", ALONG, DECLARED)
"""How the keys of a commit's metadata begin that verbs alone set: guards believe them, and no caller gives one."""

RESERVED = ("airflow_", "approved_by", *PROVENANCE)
"""How the keys of a commit's metadata begin that Airflow's provider, or a verb itself, alone sets."""


class Origin(dict[str, str]):
    """Commit metadata by Airflow's provider, which knows the task that makes a commit, and who approved it."""


def check_commit_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of a commit's metadata from a caller, when it is within the bounds and claims no other origin.

    Whoever reads a log takes ``airflow_run_id`` and ``approved_by`` for true. It keeps a mistake or a careless script
    from saying such things. A program that runs as the provider does can say them. Nobody can say which commit was
    squashed, reverted or picked: a protected branch takes a squashed merge by that.

    Raises:
        InvalidInput: it breaks a rule of metadata, or has a key that is reserved for others than the caller.
    """
    pairs = check_metadata(metadata, at_most=COMMIT_METADATA_BYTES)
    reserved = [key for key in pairs if key.startswith(PROVENANCE if isinstance(metadata, Origin) else RESERVED)]
    if reserved:
        raise InvalidInput(
            f"metadata key {excerpt(reserved[0])} is reserved: tasks of Airflow or lakeops alone set it; rename it"
        )
    return pairs


def check_message(message: str) -> str:
    """A commit message, when it is text of at most 64 KiB. It may be empty.

    Raises:
        InvalidInput: it is not.
    """
    return check_text("commit message", message, at_most=MAX_MESSAGE_BYTES)


def check_content_type(content_type: str) -> str:
    """A content type, when it can be sent as a header: 1 to 255 printable ASCII characters.

    Raises:
        InvalidInput: it cannot. A line end in it would begin another header.
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


SOURCE_ETAG = "source_etag_is_md5"
"""Under which of a mirror's capabilities it is kept whether plain ETags are MD5 at its source."""

_DIGESTS = {"sha256": re.compile(r"[0-9a-f]{64}"), "md5": re.compile(r"[0-9a-f]{32}")}


def algorithm_of(checksum: str) -> str | None:
    """The name of the digest that a checksum looks like, as ``hashlib`` knows it. None when it is no digest."""
    return next((name for name, pattern in _DIGESTS.items() if pattern.fullmatch(checksum)), None)


def etags_are_md5(capabilities: Mapping[str, Any]) -> bool:
    """Whether plain ETags of a repository's objects are MD5: here, and where a mirror's objects come from."""
    return capabilities.get("etag_is_md5") is True and capabilities.get(SOURCE_ETAG, True) is True
