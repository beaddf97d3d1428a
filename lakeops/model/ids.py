"""Commit ids, and the checks of texts and numbers from outside.

Equal commits have equal ids on any engine, in any process and at any mirror, and two different commits never have the
same input to the digest. The encoding is fixed. Changing it means a new version tag.
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


def _text(value: str) -> bytes:
    data = value.encode()
    return b"s" + len(data).to_bytes(8, "big") + data


def id_of(commit: Commit) -> str:
    """Compute the id of a commit: 64 hex digits, the SHA-256 of these values written one after another.

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

    Not part of it are the generation, which follows from the parents, and the metarange's file and digest.
    """
    state = hashlib.sha256()
    for text in (VERSION, commit.committer, commit.message, commit.meta_range_id):
        state.update(_text(text))
    state.update(b"i" + commit.creation_date.to_bytes(8, "big", signed=True))
    state.update(b"m" + len(commit.metadata).to_bytes(8, "big"))
    for key in sorted(commit.metadata):
        state.update(_text(key) + _text(commit.metadata[key]))
    state.update(b"l" + len(commit.parents).to_bytes(8, "big"))
    for parent in commit.parents:
        state.update(_text(parent))
    return state.hexdigest()


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
    """Make a commit on its parents, and compute its id and generation.

    Parents are none for the initial commit, one, or two for a merge: destination first, source second.
    ``creation_date`` is in whole Unix seconds. The metarange's file, and the SHA-256 of its bytes, are not part of the
    id.
    """
    generation = 1 + max((parent.generation for parent in parents), default=0)
    said = tuple(parent.id for parent in parents), committer, message, creation_date, dict(metadata or {})
    commit = Commit("", *said, meta_range_id, generation, meta_range_file, meta_range_digest)
    return replace(commit, id=id_of(commit))


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
"""Bytes of co-author notes that a commit keeps whole, and of a list of checks that a merge rests on."""
MAX_MESSAGE_BYTES = 64 * 1024
MAX_CONTENT_TYPE_BYTES = 255
MAX_CHECKSUM_BYTES = 256
MAX_COMMITTER_BYTES = 4096
MAX_OBJECT_BYTES = 1 << 47
"""128 TiB, more than any store takes. Sums over a repository stay within 64 bits."""
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799
"""Times that have a date with a year from 1 to 9999, in Unix seconds."""


def check_text(what: str, text: str, *, at_most: int, at_least: int = 0) -> str:
    """Return a text that every store and database can keep, of so many bytes in UTF-8. ``what`` is its name.

    Raises ``InvalidInput`` where it is not text, holds NUL or half a character, or is too short or too long.
    """
    reason = flaw(text, at_least=at_least, at_most=at_most)
    if reason is not None:
        raise InvalidInput(f"{what}: it {reason}")
    return text


def check_metadata(metadata: Mapping[str, str] | None, *, at_most: int = OBJECT_METADATA_BYTES) -> dict[str, str]:
    """Copy user metadata (None counts as empty). Keys take 1 to 256 bytes, keys and values together ``at_most``.

    Raises ``InvalidInput``, naming the key, where it is not a map from text to text, or too big.
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
"""The key of a commit's metadata under which a squashed merge keeps the id of its source."""

PROVENANCE = (SQUASHED, "revert-origin", "cherry-pick-", ALONG, DECLARED)
"""Prefixes of keys in a commit's metadata that only verbs set. Guards trust them. Callers cannot set them."""

RESERVED = ("airflow_", "approved_by", *PROVENANCE)
"""Prefixes of keys in a commit's metadata that only Airflow's provider or a verb sets."""


class Origin(dict[str, str]):
    """Commit metadata by Airflow's provider, which knows the task that makes a commit, and who approved it."""


def check_commit_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Copy a commit's metadata from a caller. Raises ``InvalidInput`` for reserved keys, and as ``check_metadata``.

    Whoever reads a log takes ``airflow_run_id`` and ``approved_by`` for true. It keeps a mistake or a careless script
    from saying such things; a program that runs as the provider can. Nobody can say which commit was squashed, reverted
    or picked: a protected branch takes a squashed merge by that.
    """
    pairs = check_metadata(metadata, at_most=COMMIT_METADATA_BYTES)
    reserved = PROVENANCE if isinstance(metadata, Origin) else RESERVED
    for key in pairs:
        if key.startswith(reserved):
            raise InvalidInput(
                f"metadata key {excerpt(key)} is reserved: tasks of Airflow or lakeops alone set it; rename it"
            )
    return pairs


def check_message(message: str) -> str:
    """Return a commit message that says something, in at most 64 KiB. Raises ``InvalidInput`` for another one."""
    if not check_text("commit message", message, at_most=MAX_MESSAGE_BYTES).strip():
        raise InvalidInput("the commit message is empty; say what the commit is about")
    return message


def check_content_type(content_type: str) -> str:
    """Return a content type of 1 to 255 printable ASCII characters. Raises ``InvalidInput`` for another one."""
    return _check_header("content type", content_type, MAX_CONTENT_TYPE_BYTES)


def check_checksum(checksum: str) -> str:
    """Return a checksum of 1 to 256 printable ASCII characters, as an ETag is. Raises ``InvalidInput``."""
    return _check_header("checksum", checksum, MAX_CHECKSUM_BYTES)


def _check_header(what: str, text: str, at_most: int) -> str:
    check_text(what, text, at_least=1, at_most=at_most)
    if not (text.isascii() and text.isprintable()):  # a line end would begin another header
        raise InvalidInput(f"{what}: {excerpt(text)} holds more than printable ASCII")
    return text


def check_size(size_bytes: int) -> int:
    """Return an object's size in bytes. Raises ``InvalidInput`` where there can be no such object."""
    if not 0 <= size_bytes <= MAX_OBJECT_BYTES:
        raise InvalidInput(f"size_bytes: {size_bytes} is no object's size; give 0 to {MAX_OBJECT_BYTES} bytes")
    return size_bytes


def check_mtime(mtime: int) -> int:
    """Return a time in Unix seconds. Raises ``InvalidInput`` where it cannot be written as a date."""
    if not EARLIEST <= mtime <= LATEST:
        raise InvalidInput(
            f"mtime: {mtime} is no date between the years 1 and 9999; give whole seconds since 1970, not milliseconds"
        )
    return mtime


SOURCE_ETAG = "source_etag_is_md5"
"""The key of a replica's capabilities that tells whether plain ETags of its source are MD5. Nothing else has it."""

_DIGESTS = {"sha256": re.compile(r"[0-9a-f]{64}"), "md5": re.compile(r"[0-9a-f]{32}")}


def algorithm_of(checksum: str) -> str | None:
    """The name of the digest that a checksum looks like, as ``hashlib`` knows it. None when it is no digest."""
    return next((name for name, pattern in _DIGESTS.items() if pattern.fullmatch(checksum)), None)


def etags_are_md5(capabilities: Mapping[str, Any]) -> bool:
    """Whether plain ETags of a repository's objects are MD5: here, and where a mirror's objects come from."""
    return capabilities.get("etag_is_md5") is True and capabilities.get(SOURCE_ETAG, True) is True
