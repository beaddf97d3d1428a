"""Handles of refs: reading anything, and writing branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from lakeops.model.records import DEFAULT_CONTENT_TYPE, Change, Commit, CommonPrefix, Entry
from lakeops.ops.context import Context
from lakeops.ops.resolve import resolve_commit

if TYPE_CHECKING:
    import pyarrow as pa

    from lakeops.ops.put import Batch
    from lakeops.ops.stage import OutputUrl
    from lakeops.store.recorded import ObjectFile


class Readable:
    """What a ref expression shows: a commit, or a branch with its uncommitted changes over its head.

    The expression is resolved at every call, so a branch's handle follows its head.
    """

    def __init__(self, context: Context, ref: str) -> None:
        self._ctx = context
        self.id = ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} lakefs://{self._ctx.repository_id}/{self.id}>"

    @property
    def head(self) -> Commit:
        """The commit that the ref means now. Raises ``RefNotFound``, ``InvalidRef``, ``AmbiguousRef``."""
        return resolve_commit(self._ctx, self.id, live=False)

    @property
    def commit_id(self) -> str:
        """The id of ``head``."""
        return self.head.id

    def read(self, path: str, *, verify: bool | None = None) -> bytes:
        """An object's contents, whole. Raises ``ObjectNotFound``, ``CommitExpired``, ``Corrupted``.

        The size is always compared with what was recorded. With ``verify`` the contents are compared with the
        checksum too, where it is a digest of them; the setting ``verify_checksums`` decides when it is None.
        """
        from lakeops.ops import view

        return view.read(self._ctx, self.id, path, verify=verify)

    def open_entry(self, entry: Entry, *, verify: bool | None = None) -> ObjectFile:
        """A seekable binary file over what an earlier ``stat`` or ``list`` found, whatever the ref means by now.

        It is checked as that of ``open`` is.
        """
        from lakeops.ops import view

        return view.open_entry(self._ctx, entry, verify=verify)

    def open(self, path: str, *, verify: bool | None = None) -> ObjectFile:
        """A seekable binary file over an object's contents. Raises ``ObjectNotFound``, ``Corrupted``.

        ``Corrupted`` comes here when the object has another size than was recorded, and at the read that reaches the
        end when it holds other contents. Contents are compared as ``verify`` of ``read`` says, and only when the
        object was read from its start without leaving a gap.
        """
        from lakeops.ops import view

        return view.open_object(self._ctx, self.id, path, verify=verify)

    def stat(self, path: str) -> Entry:
        """The entry at a path, its physical address as a full URL. Raises ``ObjectNotFound``."""
        from lakeops.ops import view

        return view.require(self._ctx, self.id, path)

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path."""
        from lakeops.ops import view

        return view.stat(self._ctx, self.id, path) is not None

    def presign(self, path: str, expires: int = 900) -> str:
        """A URL that reads the object for ``expires`` seconds. Raises ``Unsupported`` on local storage."""
        from lakeops.ops import view

        return view.presign(self._ctx, self.id, path, expires)

    def list(self, prefix: str = "", after: str = "", delimiter: str = "") -> Iterator[Entry | CommonPrefix]:
        """Objects under a prefix in byte order; with a delimiter, deeper ones are summed up as common prefixes.

        ``after`` is the last path or common prefix of an earlier listing: what comes behind it in byte order is shown.
        """
        from lakeops.ops.view import list_objects

        return list_objects(self._ctx, self.id, prefix=prefix, after=after, delimiter=delimiter)

    def entries(self, prefix: str = "") -> pa.RecordBatchReader:
        """Entries under a prefix as Arrow (``model.schema.ENTRY_SCHEMA``), by path, read as they are asked for."""
        from lakeops.ops.view import entries

        return entries(self._ctx, self.id, prefix=prefix)


class Ref(Readable):
    """Anything that a ref expression may name, for reading."""

    @property
    def commit(self) -> Commit:
        """The commit that the ref means now. Raises ``RefNotFound``, ``InvalidRef``, ``AmbiguousRef``."""
        return self.head


class Branch(Readable):
    """A branch: its head, and the staging area that uncommitted changes go to."""

    def put(
        self,
        path: str,
        data: bytes | BinaryIO,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Entry:
        """Write an object of any size from bytes or a binary file; returns the staged entry."""
        from lakeops.ops.put import put

        return put(self._ctx, self.id, path, data, metadata=metadata, content_type=content_type or DEFAULT_CONTENT_TYPE)

    def batch(self) -> AbstractContextManager[Batch]:
        """Many puts, few transactions: ``put`` of what the ``with`` gives uploads at once and links later.

        Everything is linked at the end of the ``with``, also after an exception, and a put counts as made when it is
        linked. The last put of a path wins. Threads may share it.
        """
        from lakeops.ops.put import batch

        return batch(self._ctx, self.id)

    def upload(
        self,
        source: str | Path,
        path: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        skip_special: bool = False,
    ) -> list[Entry]:
        """Upload a file of this machine, or every file below a directory; returns the staged entries by path.

        ``path`` is the object's path, or ends in a slash: the folder that it goes to. A directory's files go below it.
        Links, pipes and devices below a directory are refused, or left out with ``skip_special``.
        """
        from lakeops.ops.put import upload

        return upload(
            self._ctx,
            self.id,
            source,
            path,
            metadata=metadata,
            content_type=content_type or DEFAULT_CONTENT_TYPE,
            skip_special=skip_special,
        )

    def delete(self, path: str) -> None:
        """Stage the deletion of an object. Raises ``ObjectNotFound``."""
        from lakeops.ops.put import delete

        delete(self._ctx, self.id, path)

    def delete_prefix(self, prefix: str) -> int:
        """Stage the deletion of every object under a prefix; returns how many."""
        from lakeops.ops.stage import delete_prefix

        return delete_prefix(self._ctx, self.id, prefix)

    def stage(self, table: pa.Table) -> int:
        """Stage objects that exist already, without copying; returns how many.

        ``table`` has the columns path, physical_address, checksum, size_bytes, mtime (Unix seconds or a timestamp)
        and may have metadata (map or struct list of strings) and content_type.
        """
        from lakeops.ops.stage import stage

        return stage(self._ctx, self.id, table)

    def output(self, prefix: str, mode: Literal["replace", "append"] = "replace") -> AbstractContextManager[OutputUrl]:
        """A fresh directory for any engine to write to; on success its files are staged under ``prefix`` at once.

        ``replace`` lets the new files take the place of everything under the prefix, ``append`` adds to it. After an
        exception nothing is staged.
        """
        from lakeops.ops.stage import output

        return output(self._ctx, self.id, prefix, mode)

    def uncommitted(self, prefix: str = "") -> Iterator[Change]:
        """What a commit would change now, by path."""
        from lakeops.ops.diff import uncommitted

        return uncommitted(self._ctx, self.id, prefix=prefix)

    def reset(self, prefix: str | None = None, path: str | None = None) -> int:
        """Drop uncommitted changes: all, under a prefix, or at one path; returns how many staged paths went."""
        from lakeops.ops.stage import reset

        return reset(self._ctx, self.id, prefix=prefix, path=path)

    def commit(
        self,
        message: str,
        metadata: Mapping[str, str] | None = None,
        *,
        idempotency_key: str | None = None,
        allow_empty: bool = False,
    ) -> Commit:
        """Publish the uncommitted changes as one commit.

        Raises:
            NoChanges: there is nothing to commit, and ``allow_empty`` is not set.
            ProtectedBranch, ReadOnlyRepository: the branch takes no commits.
            BranchMoved: others moved the branch, and this commit's turn did not come in time; try again.
        """
        from lakeops.ops.commit import commit

        return commit(self._ctx, self.id, message, metadata=metadata, key=idempotency_key, allow_empty=allow_empty)

    def import_objects(
        self,
        source: str,
        prefix: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        *,
        idempotency_key: str | None = None,
        allow_empty_source: bool = False,
        skip_special: bool = False,
    ) -> Commit:
        """Replace everything under a prefix with the objects of a bucket's prefix or a directory, in one commit.

        Zero copy: the objects stay where they are, and garbage collection never deletes them. ``source`` is
        ``s3://bucket/prefix`` or ``file:///directory``. What cannot be an object (links, devices, names that are not
        UTF-8) is refused, or left out with ``skip_special``.

        Raises:
            ObjectNotFound: there is nothing at the source, and ``allow_empty_source`` is not set.
            InvalidInput: the source overlaps with a storage namespace, or holds what cannot be an object.
            DirtyBranch: the branch has uncommitted changes.
            NoChanges: the prefix holds these very objects already.
            Transient: the source changed while it was listed; try again.
        """
        from lakeops.ops.ingest import import_objects

        return import_objects(
            self._ctx,
            self.id,
            source,
            prefix,
            message,
            metadata=metadata,
            key=idempotency_key,
            allow_empty_source=allow_empty_source,
            skip_special=skip_special,
        )

    def revert_changes(self, ref: str, parent_number: int | None = None) -> Iterator[Change]:
        """What ``revert`` would change now, by path, and its conflicts; publishes nothing."""
        from lakeops.ops.merge import of_revert

        return of_revert(self._ctx, self.id, ref, parent_number=parent_number)

    def revert(
        self,
        ref: str,
        parent_number: int | None = None,
        *,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Commit:
        """A new commit that undoes what ``ref`` did; a merge commit needs the number of the parent to go back to."""
        from lakeops.ops.merge import revert

        return revert(
            self._ctx,
            self.id,
            ref,
            parent_number=parent_number,
            message=message,
            metadata=metadata,
            key=idempotency_key,
        )
