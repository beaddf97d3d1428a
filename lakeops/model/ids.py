"""Commit ids: the digest of all that a commit says.

What this room keeps true: equal commits have equal ids on any engine, in any process and at any mirror, and two
different commits never have the same input to the digest. The encoding is fixed; changing it means a new version tag.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from lakeops.model.records import Commit

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
