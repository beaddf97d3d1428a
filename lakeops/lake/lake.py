"""A lake: one catalog and the repositories in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from lakeops.lake.connection import LakeConnection, naming_what_ran_out, ops
from lakeops.lake.repository import Local, Repository
from lakeops.model.names import check_asked, check_repository
from lakeops.model.records import AuditRecord, Split
from lakeops.ops.context import pages

if TYPE_CHECKING:
    from lakeops.lake.mirror import Mirror
    from lakeops.ops.mirror.replicate import Replicated
    from lakeops.ops.refs.restore import RestoreResult


class Lake(LakeConnection):
    """Repositories in one catalog. Open it with ``Lake.open()``, also as a context manager."""

    def create_repository(
        self,
        name: str,
        storage_namespace: str | None = None,
        *,
        default_branch: str = "main",
        split: Split | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Repository:
        """A new repository with one initial commit.

        Args:
            name: ``[a-z0-9][a-z0-9-]{2,62}``.
            storage_namespace: ``file:///...`` or ``s3://bucket/prefix``. Below the home directory when left out.
            default_branch: the first branch.
            split: where ranges end. It can never be changed, and the default suits everything but tests.
            metadata: key/value pairs kept with the repository.

        Raises:
            InvalidInput: ``invalid_name``: the name breaks the rules.
            InvalidInput: ``invalid_uri``: the storage namespace is no URL that lakeops writes to.
            AlreadyExists: a repository has the name.
            NamespaceTaken: the storage namespace holds a repository, or overlaps with one.
            StoreError: the store refused.
        """
        record = ops.repository.create_repository(
            self.catalog,
            self.stores(),
            name,
            self.settings.default_namespace(check_repository(name)) if storage_namespace is None else storage_namespace,
            default_branch=default_branch,
            split=split or Split(),
            ids=self._ids,
            actor=self.settings.committer,
            metadata=metadata,
        )
        return Repository(self.context(record))

    @naming_what_ran_out
    def restore_repository(self, name: str, storage_namespace: str, *, of: str | None = None) -> RestoreResult:
        """Make a repository of the dump in its storage namespace, after its catalog was lost.

        It reads and writes at once. It collects no garbage before ``Repository.adopt`` and ``RefsDump.accept``, because
        the lost catalog may have committed more than it dumped. All of the dump is checked first, and nothing is
        restored when any of it is wrong.

        Args:
            name: the repository's name here.
            storage_namespace: where it is.
            of: the storage namespace that the dump was made in, where replication copied dumps of several.

        Raises:
            NotFound: there is no dump.
            Corrupted: a file of the dump is missing, or not as it was written.
            RecordRefused: a record of the dump is not valid.
            AlreadyExists: a repository has the name.
            NamespaceTaken: the namespace overlaps with a repository, or belongs to another one.
        """
        return ops.refs.restore.restore(self.catalog, self.stores(), name, storage_namespace, of=of, ids=self._ids)

    def repository(self, name: str) -> Repository:
        """An existing repository. Raises ``RepositoryNotFound``."""
        return Repository(self.context(self.catalog.repositories.get(check_asked(name, "a repository"))))

    def repositories(self, *, prefix: str = "", after: str = "") -> Iterator[Repository]:
        """The repositories of the lake by name."""
        records = pages(self.catalog.repositories.page, prefix=prefix, after=after)
        return (Repository(self.context(record)) for record in records)

    def create_mirror(
        self,
        name: str,
        storage_namespace: str | None = None,
        *,
        source: LakeConnection | str,
        source_repository: str | None = None,
        branches: Sequence[str] = ("*",),
        tags: Sequence[str] = ("*",),
        reports: bool = True,
        check_imported: bool = True,
    ) -> Mirror:
        """A read-only repository that follows a repository of another lake. It shows nothing before its first ``sync``.

        The source's storage namespace must be replicated to the mirror's, by the bucket's own replication or by
        ``replicate``.

        Args:
            name: the mirror's name here.
            storage_namespace: the replica. Below the home directory when left out.
            source: another lake, or a text that leads to one (see ``lakeops.model.mirrors``). A password is refused.
            source_repository: the repository's name there. The mirror's name when left out.
            branches: glob patterns of the branches to follow.
            tags: glob patterns of the tags to follow.
            reports: tell the source which commits the mirror needs, so that garbage collection there keeps them. This
                needs write access to the source's catalog. Without it, set ``mirror_lag_days`` in the source's rules.
            check_imported: also look for imported objects, which are outside the storage namespace.

        Raises:
            AlreadyExists: a repository has the name.
            NamespaceTaken: the storage namespace overlaps with a repository of this lake.
            PreconditionFailed: ``not_a_replica``: the storage namespace belongs to another repository.
            InvalidInput: the text leads to no source, or holds a password.
            Transient: ``catalog_unavailable``: the source's database does not answer.
            CatalogError: the source's database refuses.
        """
        from lakeops.lake.mirror import Mirror, reaching, reference_to
        from lakeops.model.mirrors import MirrorRecord
        from lakeops.store.open import same_server

        reference = reference_to(source, source_repository, name)
        given = source if isinstance(source, LakeConnection) else None
        follow = ops.mirror.create.ref_patterns("branch", branches), ops.mirror.create.ref_patterns("tag", tags)
        with reaching(reference, self.clock, given=given) as origin:
            record = ops.mirror.create.create_mirror(
                self.catalog,
                self.stores(),
                MirrorRecord(check_repository(name), reference, "", *follow, reports, check_imported),
                self.settings.default_namespace(name) if storage_namespace is None else storage_namespace,
                ops.mirror.source.Source(origin, reference.repository),
                same_store=same_server(origin.settings.s3_endpoint_url, self.settings.s3_endpoint_url),
                ids=self._ids,
                actor=self.settings.committer,
            )
        return Mirror(self.context(record), self.clock, given)

    def mirror(self, name: str) -> Mirror:
        """An existing mirror. Raises ``RepositoryNotFound``, ``NotAMirror``."""
        from lakeops.lake.mirror import Mirror

        self.catalog.mirrors.get(check_asked(name, "a repository"))
        return Mirror(self.context(self.catalog.repositories.get(name)), self.clock)

    def mirrors(self) -> Iterator[Mirror]:
        """The mirrors of the lake by name, those that were promoted to writable repositories included."""
        return (self.mirror(mirror.repository_id) for mirror in self.catalog.mirrors.all())

    def local(self, directory: str | Path = ".") -> Local:
        """The clone that a directory is, or lies in. Raises ``InvalidInput`` (there is none), ``NotFound``."""
        from lakeops.ops.local.index import find, read

        folder = find(directory)
        return Local(self.context(self.catalog.repositories.get(read(folder).repository)), folder)

    def delete_repository(self, name: str, *, seen: int | None = None) -> None:
        """Forget a repository. Its objects stay where they are. Raises ``RepositoryNotFound``.

        This catalog also gives up the right to delete in the storage namespace, unless the store is down. ``seen`` is
        the ``sequence`` of the newest move of its reflog that somebody saw: raises ``NotAsSeen`` after a newer one.
        """
        ops.repository.delete_repository(self.catalog, self.stores(), check_asked(name, "a repository"), seen)

    def audit(
        self,
        repository: str | None = None,
        *,
        since: date | str | None = None,
        until: date | str | None = None,
        actor: str | None = None,
        amount: int | None = None,
    ) -> Iterator[AuditRecord]:
        """Records of who changed what, newest first: of one repository, which may be deleted, or of all.

        Args:
            repository: its name.
            since: leave out records before this moment. A text is ISO 8601. Without a zone it is UTC.
            until: leave out records at this moment or later.
            actor: only what this user or database login did.
            amount: the most records to return.

        Raises:
            InvalidInput: a moment or the amount is not valid.
        """
        return ops.history.audit(self.catalog, repository, since=since, until=until, actor=actor, amount=amount)

    @naming_what_ran_out
    def replicate(
        self,
        source: str,
        destination: str,
        *,
        source_endpoint: str | None = None,
        delete: bool = False,
        force: bool = False,
    ) -> Replicated:
        """Copy the objects, ranges and metaranges that one storage namespace has and another one lacks.

        Args:
            source: the storage namespace of a repository, of this lake or another one.
            destination: the storage namespace of its mirror.
            source_endpoint: the S3-compatible server of the source, when it is not the one in the settings.
            delete: afterwards remove what the source does not have.
            force: remove it even when it is a large share of what is there.

        Raises:
            NotAllReplicated: some objects failed. Run it again: it goes on from there.
            NamespaceTaken: the destination overlaps with another repository.
            PreconditionFailed: ``not_the_owner``: it was opened for writing. Or ``delete`` would take a large share.
            InvalidInput: source and destination overlap.
            NotFound: the source is no repository's storage namespace.
            StoreError: a store refused.
        """
        from lakeops.store.open import Stores

        stores = self.stores()
        here = stores.at(source)
        if source_endpoint is not None:
            here = Stores(replace(stores.settings, endpoint_url=source_endpoint)).at(source)
        ops.overlap.check_apart(self.catalog, stores, destination, mirrors=True)
        return ops.mirror.replicate.replicate(
            here, stores.at(destination), self._range_engine(), delete=delete, force=force, progress=self._report
        )
