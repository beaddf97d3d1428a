"""Copies within a repository: of whole objects as metadata alone, and of bytes as parts of an upload.

Hadoop renames a file by a copy: in one request, or a large one in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakeops.gateway.answers import Refused, etag
from lakeops.gateway.objects import contents, names_mark, range_of
from lakeops.model.errors import NotAsSeen
from lakeops.model.records import Entry

if TYPE_CHECKING:
    from lakeops.lake import Branch, Ref, Repository

SOURCE = "x-amz-copy-source"
RANGE = "x-amz-copy-source-range"
IF_MATCH = "x-amz-copy-source-if-match"


def find_source(repository: Repository, headers: Mapping[str, str]) -> tuple[Ref, Entry]:
    """The ref and the object that a copy is made from. Raises ``Refused``."""
    bucket, _, key = unquote(headers[SOURCE]).removeprefix("/").partition("/")
    name, _, path = key.partition("/")
    if bucket != repository.id or not path:
        raise Refused(501, "NotImplemented", "this gateway copies objects of one repository")
    ref = repository.ref(name)
    entry = ref.find(path)
    if entry is None:
        raise Refused(404, "NoSuchKey", f"no object {path!r} at {name!r} of repository {repository.id!r}")
    wanted = headers.get(IF_MATCH)
    if wanted is not None and not names_mark(wanted, etag(entry)):
        raise Refused(412, "PreconditionFailed", "the source is not the object that was named; it was replaced")
    return ref, entry


def copy_object(
    repository: Repository,
    branch: Branch,
    path: str,
    headers: Mapping[str, str],
    metadata: Mapping[str, str],
    *,
    if_absent: bool,
) -> Entry:
    """Stage an object of a ref on a branch, with its own metadata and content type or with those of the request.

    Nothing is copied, and the object is there with its metadata at once. A copy to itself describes the object anew
    that is there when it is staged. Raises ``Refused``, and what ``Branch.link`` raises.
    """
    told: dict[str, Any] = {}
    if headers.get("x-amz-metadata-directive") == "REPLACE":
        told = {"metadata": metadata, "content_type": headers.get("content-type")}
    while True:
        source, entry = find_source(repository, headers)
        itself = (source.id, entry.path) == (branch.id, path)
        if itself and not told:
            raise Refused(400, "InvalidRequest", "a copy of an object to itself has to replace its metadata")
        with suppress(NotAsSeen):  # it was replaced after the look: look again
            return branch.link(entry, path, if_absent=if_absent and not itself, in_place=itself, **told)


def bytes_of(source: Ref, entry: Entry, headers: Mapping[str, str]) -> Iterable[bytes]:
    """The bytes of an object that become a part of an upload, piece by piece. Raises ``Refused``."""
    wanted = headers.get(RANGE)
    part = range_of(entry, wanted)
    if wanted is not None and not part.is_range:
        raise Refused(400, "InvalidArgument", f"{RANGE} is bytes=FIRST-LAST")
    found = contents(source, entry, part)
    return [found] if isinstance(found, bytes) else found
