"""Transitions of tags, and the reflog, which records the moves of every ref.

* ``create_tag`` needs a free name and a live commit; leaves the tag and a reflog row.
* ``delete_tag`` leaves a reflog row.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from lakeops.catalog.digests import delete_rows
from lakeops.catalog.guards import check_writable, find_repository, lock_repository
from lakeops.catalog.part import Part, new_ref
from lakeops.catalog.rows import reflog_record
from lakeops.catalog.tables import REFLOG, TAG
from lakeops.model.errors import RefNotFound
from lakeops.model.mirrors import RefKind
from lakeops.model.records import Ref, ReflogRecord

_NEW = new_ref(TAG)


class Tags(Part):
    """Tags: immutable pointers to commits."""

    def tag(self, repository_id: str, name: str) -> Ref:
        """The tag. Raises ``RefNotFound``."""
        return self.database.read(lambda conn: self._find_tag(conn, repository_id, name))

    def tags(self, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Ref]:
        """Tags by name in byte order, keyset-paged."""
        return self._refs(TAG, repository_id, prefix, after, limit)

    def create_tag(self, repository_id: str, name: str, commit_id: str, *, actor: str) -> Ref:
        """A new tag at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        values = {"repository": repository_id, "ref": name, "commit": commit_id}

        def work(conn: Connection) -> Ref:
            check_writable(conn, lock_repository(conn, repository_id), action="create-tag")
            self._insert_ref(conn, TAG, _NEW, values, {})
            self._record_move(conn, repository_id, name, None, commit_id, "create-tag", actor, kind=RefKind.TAG)
            return Ref(name, commit_id)

        def settle(conn: Connection) -> Ref | None:
            # The same tag made by another caller is as good as ours.
            same = select(TAG.c.commit_id).where(TAG.c.repository_id == repository_id, TAG.c.name == name)
            return Ref(name, commit_id) if conn.execute(same).scalar() == commit_id else None

        return self.database.write(work, settle=settle)

    def delete_tag(self, repository_id: str, name: str, *, actor: str) -> str:
        """Delete a tag; returns the commit that it pointed to."""

        def work(conn: Connection) -> str:
            check_writable(conn, lock_repository(conn, repository_id), action="delete-tag")
            ref = self._find_tag(conn, repository_id, name)
            if not delete_rows(
                conn, TAG, TAG.c.repository_id == repository_id, TAG.c.name == name
            ):  # somebody else deleted it between the two statements
                raise _no_tag(repository_id, name)
            self._record_move(conn, repository_id, name, ref.commit_id, None, "delete-tag", actor, kind=RefKind.TAG)
            return ref.commit_id

        return self.database.write(work)

    def reflog(self, repository_id: str, ref: str | None = None, *, limit: int = 1000) -> list[ReflogRecord]:
        """Moves of one ref or of all, newest first."""
        query = select(REFLOG).where(REFLOG.c.repository_id == repository_id)
        if ref is not None:
            query = query.where(REFLOG.c.ref == ref)
        query = query.order_by(REFLOG.c.sequence.desc()).limit(limit)

        def work(conn: Connection) -> list[ReflogRecord]:
            find_repository(conn, repository_id)
            return [reflog_record(row) for row in conn.execute(query)]

        return self.database.read(work)

    @staticmethod
    def _find_tag(conn: Connection, repository_id: str, name: str) -> Ref:
        query = select(TAG.c.commit_id).where(TAG.c.repository_id == repository_id, TAG.c.name == name)
        commit_id = conn.execute(query).scalar_one_or_none()
        if commit_id is None:
            find_repository(conn, repository_id)
            raise _no_tag(repository_id, name)
        return Ref(name, commit_id)


def _no_tag(repository_id: str, name: str) -> RefNotFound:
    return RefNotFound(f"repository {repository_id!r} has no tag {name!r}")
