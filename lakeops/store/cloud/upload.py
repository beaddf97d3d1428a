"""Writing an object of any size from a stream, with little memory, whole or not at all; and the swap of a small one.

Contents of one part go in one request, bigger ones as an upload in parts, which shows nothing until its last request.
A key that must be new takes one request with a condition. A big object goes to another name first and is copied from
there on that condition. An answer can get lost: such an object carries a mark of its write, which tells whose it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import AlreadyExists
from lakeops.store.base import PutResult, StoreSettings, pieces
from lakeops.store.layout import TASKS

if TYPE_CHECKING:
    from lakeops.store.cloud.client import Client

MARK = "lakeops_write"
"""User metadata that tells which write an object comes from. Azure takes letters, digits and underscores only."""


class _DigestedSource:
    """Pieces of the contents, with their digest and size, and what broke the stream: obstore may change errors."""

    def __init__(self, data: bytes | BinaryIO, size: int) -> None:
        self._pieces = pieces(data, size)
        self.digest = hashlib.sha256()
        self.size = 0
        self.broke: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece = bytes(next(self._pieces))
        except StopIteration:
            raise
        except BaseException as error:
            self.broke = error
            raise
        self.digest.update(piece)
        self.size += len(piece)
        return piece


def write(
    client: Client,
    name: str,
    data: bytes | BinaryIO,
    *,
    settings: StoreSettings,
    if_absent: bool,
    content_type: str,
    where: str,
    root: str,
) -> PutResult:
    """Send the contents.

    Args:
        client: the bucket.
        name: the object's name in it.
        data: the contents.
        settings: sizes and how many parts travel at once.
        if_absent: whether an existing object raises ``AlreadyExists``.
        content_type: kept with the object.
        where: its URL, for messages.
        root: what names of this namespace begin with.
    """
    source = _DigestedSource(data, settings.part_bytes)
    kind: dict[str, Any] = {"Content-Type": content_type} if content_type else {}
    first = next(source, b"")
    second = next(source, None)
    if second is not None:
        etag = _in_parts(client, name, chain((first, second), source), source, settings, kind, if_absent, where, root)
    elif if_absent:
        etag = _put_new(client, name, first, kind, where)
    else:
        etag = _put(client, name, first, kind)
    return PutResult(source.size, source.digest.hexdigest(), etag.strip('"'))


def _put(client: Client, name: str, body: bytes, kind: dict[str, Any], mode: Any = "overwrite") -> str:  # noqa: ANN401 - obstore's
    import obstore

    return obstore.put(client, name, body, attributes=kind, mode=mode, use_multipart=False)["e_tag"] or ""


def _put_new(client: Client, name: str, body: bytes, kind: dict[str, Any], where: str) -> str:
    from obstore.exceptions import BaseError

    mark = Ids().new()
    try:
        return _put(client, name, body, {**kind, MARK: mark}, "create")
    except BaseError as error:
        if (etag := _etag_if_marked(client, name, mark)) is not None:
            return etag
        if _exists(error):
            raise AlreadyExists(f"{where} exists") from None
        raise


def _in_parts(
    client: Client,
    name: str,
    parts: Iterator[bytes],
    source: _DigestedSource,
    settings: StoreSettings,
    kind: dict[str, Any],
    if_absent: bool,
    where: str,
    root: str,
) -> str:
    import obstore
    from obstore.exceptions import BaseError

    target = f"{root}{TASKS}{Ids().new()}" if if_absent else name
    try:
        sent = obstore.put(
            client,
            target,
            parts,
            attributes=kind,
            use_multipart=True,
            chunk_size=settings.part_bytes,
            max_concurrency=settings.parallel_parts,
        )
    except BaseException:
        if source.broke is not None:
            raise source.broke from None
        raise
    if target == name:
        return sent["e_tag"] or ""
    try:
        obstore.copy(client, target, name, overwrite=False)
        return obstore.head(client, name)["e_tag"] or ""
    except BaseError as error:
        if _exists(error):
            raise AlreadyExists(f"{where} exists") from None
        raise
    finally:
        with suppress(BaseError, FileNotFoundError):
            obstore.delete(client, target)


def _etag_if_marked(client: Client, name: str, mark: str) -> str | None:
    import obstore
    from obstore.exceptions import BaseError

    try:
        found = obstore.get(client, name, options={"head": True})
    except (BaseError, FileNotFoundError):
        return None
    return (found.meta["e_tag"] or "") if found.attributes.get(MARK) == mark else None


def _exists(error: Exception) -> bool:
    return type(error).__name__ in {"AlreadyExistsError", "PreconditionError"}


def swap(client: Client, name: str, data: bytes, expected: bytes | None) -> bool:
    """See ``ObjectStore.swap``."""
    from obstore.exceptions import BaseError

    found, version = _current(client, name)
    if found == data:
        return True
    if found != expected:
        return False
    try:
        _put(client, name, data, {"Content-Type": "application/json"}, "create" if expected is None else version)
        return True
    except (BaseError, FileNotFoundError) as error:
        # The answer to a write that went through may be lost, and its repetition refused.
        if _current(client, name)[0] == data:
            return True
        if isinstance(error, FileNotFoundError) or _exists(error):
            return False
        raise


def _current(client: Client, name: str) -> tuple[bytes | None, dict[str, str]]:
    """The object's contents and what tells this version from others. None where there is no object."""
    import obstore

    try:
        found = obstore.get(client, name)
    except FileNotFoundError:
        return None, {}
    meta = found.meta
    told = {"e_tag": meta["e_tag"], "version": meta["version"]}
    return bytes(found.bytes()), {key: value for key, value in told.items() if value}
