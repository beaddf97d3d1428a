"""Catalog of the Iceberg tables at a ref, for pyiceberg without a server."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, NoReturn

from pyiceberg import exceptions
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.table import CommitTableResponse, StagedTable, Table

from lakeops.iceberg.tables import RefTables, TableCommit
from lakeops.lake import Lake
from lakeops.model.errors import InvalidInput
from lakeops.model.names import LakeUri, split_connection
from lakeops.ops.iceberg.files import TableFileIO
from lakeops.settings import LakeAddress, Settings


class RefCatalog(MetastoreCatalog):  # type: ignore[misc] # pyiceberg's classes are not typed here
    """Catalog of the tables below a folder of a ref.

    Properties: ``warehouse`` is ``lakefs://[CONNECTION@]REPO/REF[/FOLDER]``. ``lakeops.home`` or
    ``lakeops.database_url`` name another lake than the environment does. At a tag or a commit, tables can only be read.
    The catalog stages files on the branch, and commits nothing to it.
    """

    _opened: ClassVar[dict[Settings, Lake]] = {}
    """Lakes of this process, which its catalogs share."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        if "warehouse" not in properties:
            raise InvalidInput("an Iceberg catalog needs warehouse, such as lakefs://REPO/BRANCH/tables")
        self._connection, uri = split_connection(properties["warehouse"])
        self._uri = LakeUri.parse(uri)
        if self._uri.ref is None:
            raise InvalidInput("warehouse names no ref; write lakefs://REPO/REF/FOLDER", kind="invalid_uri")

    @cached_property
    def _tables(self) -> RefTables:
        home, url = self.properties.get("lakeops.home"), self.properties.get("lakeops.database_url")
        address = LakeAddress.of(self._connection or None, home=home, database_url=url)
        settings = address.settings()
        if settings not in self._opened:
            self._opened[settings] = address.open(Lake.open)
        repository = self._opened[settings].repository(self._uri.repository)
        return RefTables(repository, self._uri.ref or "", self._uri.path or "")

    def _load_file_io(self, properties: dict[str, str] | None = None, location: str | None = None) -> TableFileIO:
        return self._tables.io

    def _named(self, identifier: Any) -> tuple[str, ...]:
        levels: tuple[str, ...] = self.identifier_to_tuple(identifier)
        if len(levels) < 2:
            raise exceptions.NoSuchTableError(f"a table has a namespace and a name, unlike {identifier!r}")
        return levels

    def load_table(self, identifier: Any) -> Table:
        """Load a table at the ref. Raises ``NoSuchTableError``."""
        levels = self._named(identifier)
        found = self._tables.load(levels)
        return Table(levels, found.metadata, found.location, self._tables.io, self)

    def create_table(self, identifier: Any, *described: Any, **more: Any) -> Table:
        """Create a table. Raises ``TableAlreadyExistsError``, ``NoSuchNamespaceError``."""
        with self.create_table_transaction(self._named(identifier), *described, **more):
            pass
        return self.load_table(identifier)

    def _create_staged_table(self, identifier: Any, *described: Any) -> StagedTable:
        levels = self._named(identifier)
        made = self._tables.new_table(levels, *described)
        return StagedTable(levels, made.metadata, made.location, self._tables.io, self)

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        """Commit to a table. Raises ``CommitFailedException`` when another writer was first."""
        (made,) = self._tables.commit([TableCommit(table.name(), requirements, updates)])
        return CommitTableResponse(metadata=made.metadata, metadata_location=made.location)

    def drop_table(self, identifier: Any) -> None:
        """Stage a table's deletion. Other refs keep it. Raises ``NoSuchTableError``, ``NamespaceNotEmptyError``."""
        self._tables.drop(self._named(identifier))

    purge_table = drop_table

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> Table:
        """Move a table to another name. Raises ``NoSuchTableError``, ``TableAlreadyExistsError``."""
        self._tables.rename(self._named(from_identifier), self._named(to_identifier))
        return self.load_table(to_identifier)

    def register_table(self, identifier: Any, metadata_location: str, overwrite: bool = False) -> Table:
        """Make a metadata file of the repository's tables a table. Raises ``TableAlreadyExistsError``."""
        if overwrite:
            raise NotImplementedError("drop the table first, and register it then")
        self._tables.register(self._named(identifier), metadata_location)
        return self.load_table(identifier)

    def list_tables(self, namespace: Any) -> list[tuple[str, ...]]:
        """The tables of a namespace. Raises ``NoSuchNamespaceError``."""
        return self._tables.tables(self.identifier_to_tuple(namespace))

    def create_namespace(self, namespace: Any, properties: dict[str, str] | None = None) -> None:
        """Create a namespace. Raises ``NamespaceAlreadyExistsError``, ``NoSuchNamespaceError``."""
        self._tables.create_namespace(self.identifier_to_tuple(namespace), properties or {})

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        """The properties of a namespace. Raises ``NoSuchNamespaceError``."""
        return self._tables.namespace(self.identifier_to_tuple(namespace))

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        """The namespaces directly in another one, or at the top."""
        return self._tables.namespaces(self.identifier_to_tuple(namespace))

    def drop_namespace(self, namespace: Any) -> None:
        """Remove an empty namespace. Raises ``NamespaceNotEmptyError``, ``NoSuchNamespaceError``."""
        self._tables.drop_namespace(self.identifier_to_tuple(namespace))

    def update_namespace_properties(
        self, namespace: Any, removals: set[str] | None = None, updates: dict[str, str] | None = None
    ) -> PropertiesUpdateSummary:
        """Update the properties of a namespace; the last of concurrent writers wins."""
        self._check_for_overlap(removals, updates or {})
        return self._tables.update_namespace(self.identifier_to_tuple(namespace), removals or set(), updates or {})

    def drop_view(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the catalog has no views."""
        raise NotImplementedError("this catalog has no views")

    load_view = register_view = drop_view

    def list_views(self, namespace: Any) -> list[tuple[str, ...]]:
        return []

    def view_exists(self, identifier: Any) -> bool:
        return False
