"""Iceberg tables at a ref: folders of it, with the current metadata file of each table as ``metadata.json``.

The files lie at a location of the storage namespace that names no ref, so any engine follows the metadata. A commit of
a table stages the files that it adds as objects of the table's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg import exceptions
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import update_table_metadata

from lakeops.model.errors import InvalidInput, ObjectNotFound, PathTaken, RefNotFound
from lakeops.model.names import as_folder
from lakeops.model.sanitising import excerpt
from lakeops.ops.iceberg.files import MOST_METADATA, TableFileIO
from lakeops.ops.iceberg.metadata import (
    GC_ENABLED,
    POINTER,
    LoadedTable,
    check_metadata,
    file_after,
    one_line,
    parsed,
    table_change,
)
from lakeops.ops.tables import TableChange
from lakeops.store.reader import parse_json

if TYPE_CHECKING:
    from lakeops.lake import Branch, Ref, Repository

Identifier = tuple[str, ...]

NAMESPACE_FILE = "_namespace.json"
_NAME = re.compile(r"[^/._\x00-\x1f][^/\x00-\x1f]*")


@dataclass(frozen=True)
class TableCommit:
    """The request to commit to one table: Iceberg's requirements, and its updates where they hold."""

    identifier: Identifier
    requirements: Sequence[Any]
    updates: Sequence[Any]


class RefTables:
    """The Iceberg tables below a folder of a ref. An empty ``root`` is the whole ref. Only branches can be written."""

    def __init__(self, repository: Repository, ref: str, root: str = "") -> None:
        self._repository = repository
        self._name = ref
        self._root = as_folder(root)
        self.io: TableFileIO = TableFileIO(repository.table_files)

    def __str__(self) -> str:
        return f"lakefs://{self._repository.id}/{self._name}/{self._root}"

    @property
    def _ref(self) -> Ref:
        return self._repository.ref(self._name)

    def _branch(self) -> Branch:
        try:
            return self._repository.branch(self._name)
        except RefNotFound:
            _ = self._ref.commit  # raises where there is no tag of the name either
            raise InvalidInput(f"{excerpt(self._name)} is no branch: tables can only be read there") from None

    def _folder(self, levels: Identifier) -> str:
        for level in levels:
            if not _NAME.fullmatch(level):
                raise InvalidInput(
                    f"{excerpt(level)} cannot be a namespace or table: no slash, and no dot or _ at its beginning"
                )
        return "".join([self._root, *(f"{level}/" for level in levels)])

    # --- namespaces ---

    def namespace(self, levels: Identifier) -> dict[str, str]:
        """The properties of a namespace, of which a ref has none. Raises ``NoSuchNamespaceError``, ``RefNotFound``."""
        if not levels:
            _ = self._ref.commit  # raises where there is no such ref
            return {}
        path = f"{self._folder(levels)}{NAMESPACE_FILE}"
        try:
            text = self._small(path)
        except ObjectNotFound:
            raise exceptions.NoSuchNamespaceError(f"no namespace {_shown(levels)} at {self}") from None
        try:
            return {str(name): str(value) for name, value in parse_json(text).items()}
        except (ValueError, AttributeError):
            raise InvalidInput(f"{excerpt(path)} holds no properties of a namespace; write it anew") from None

    def namespaces(self, parent: Identifier) -> list[Identifier]:
        """The namespaces directly in another one, or at the top. Raises ``NoSuchNamespaceError``."""
        self.namespace(parent)
        return [(*parent, name) for name in self._folders(parent) if self._has((*parent, name), NAMESPACE_FILE)]

    def create_namespace(self, levels: Identifier, properties: Mapping[str, str]) -> None:
        """Create a namespace in one that exists. Raises ``NamespaceAlreadyExistsError``, ``NoSuchNamespaceError``."""
        self.namespace(levels[:-1])
        if self._has(levels, POINTER):
            raise exceptions.NamespaceAlreadyExistsError(f"there is a table {_shown(levels)}")
        try:
            self.set_namespace(levels, properties, if_absent=True)
        except PathTaken:
            raise exceptions.NamespaceAlreadyExistsError(f"namespace {_shown(levels)} exists") from None

    def set_namespace(self, levels: Identifier, properties: Mapping[str, str], *, if_absent: bool = False) -> None:
        """Replace the properties of a namespace. The last of several writers wins."""
        path, text = f"{self._folder(levels)}{NAMESPACE_FILE}", json.dumps(dict(properties), sort_keys=True)
        self._branch().put(path, text.encode(), content_type="application/json", if_absent=if_absent)

    def drop_namespace(self, levels: Identifier) -> None:
        """Remove an empty namespace. Raises ``NamespaceNotEmptyError``, ``NoSuchNamespaceError``."""
        if self.tables(levels) or self.namespaces(levels):
            raise exceptions.NamespaceNotEmptyError(f"namespace {_shown(levels)} has tables or namespaces")
        self._branch().delete(f"{self._folder(levels)}{NAMESPACE_FILE}")

    # --- tables ---

    def tables(self, levels: Identifier) -> list[Identifier]:
        """The tables of a namespace. Raises ``NoSuchNamespaceError``."""
        self.namespace(levels)
        return [(*levels, name) for name in self._folders(levels) if self._has((*levels, name), POINTER)]

    def _folders(self, levels: Identifier) -> list[str]:
        prefix = self._folder(levels)
        found = [item.path[len(prefix) :] for item in self._ref.list(prefix, delimiter="/")]
        return [name[:-1] for name in found if name.endswith("/") and _NAME.fullmatch(name[:-1])]

    def _has(self, levels: Identifier, name: str) -> bool:
        return self._ref.find(f"{self._folder(levels)}{name}") is not None

    def load(self, identifier: Identifier) -> LoadedTable:
        """A table. Raises ``NoSuchTableError``."""
        found = self._find(identifier)
        if found is None:
            raise exceptions.NoSuchTableError(f"no table {_shown(identifier)} at {self}")
        return found

    def _find(self, identifier: Identifier) -> LoadedTable | None:
        path = f"{self._folder(identifier)}{POINTER}"
        entry = self._ref.find(path)
        return None if entry is None else LoadedTable(entry.physical_address, parsed(self._small(path), path))

    def _small(self, path: str) -> bytes:
        entry = self._ref.stat(path)
        if entry.size_bytes > MOST_METADATA:
            raise InvalidInput(
                f"{excerpt(path)} has {entry.size_bytes:,} bytes, and metadata has {MOST_METADATA:,} at most"
            )
        return self._ref.read(path)

    def new_table(
        self,
        identifier: Identifier,
        schema: Any,
        location: str | None,
        partition_spec: PartitionSpec | None,
        sort_order: SortOrder | None,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """The metadata of a table that is not created yet. Raises as ``commit``."""
        self.namespace(identifier[:-1])
        if self._find(identifier) is not None:
            raise exceptions.TableAlreadyExistsError(f"table {_shown(identifier)} exists")
        place = location.rstrip("/") if location else self.io.files.new_location()
        given = {GC_ENABLED: "false", **properties}
        version = _supported(given.get("format-version", "2"))
        convert = MetastoreCatalog._convert_schema_if_needed  # noqa: SLF001 - pyiceberg has no other function for it
        metadata = new_table_metadata(
            location=place,
            schema=convert(schema, version),
            partition_spec=partition_spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=sort_order or UNSORTED_SORT_ORDER,
            properties=given,
        )
        check_metadata(self.io, None, metadata)
        return LoadedTable(f"{place}/{file_after('')}", metadata)

    def create(
        self, identifier: Identifier, metadata: TableMetadata, last: str = "", *, every: bool = False
    ) -> LoadedTable:
        """Create a table with metadata that ``new_table`` made, or that lies at ``last``. Raises as ``commit``."""
        made: list[LoadedTable] = []

        def changes() -> Iterator[TableChange]:
            if self._find(identifier) is not None:
                raise exceptions.TableAlreadyExistsError(f"table {_shown(identifier)} exists")
            self.namespace(identifier[:-1])
            name = file_after(last)
            made[:] = [LoadedTable(f"{metadata.location}/{name}", metadata)]
            yield table_change(self.io, self._folder(identifier), None, metadata, name, every=every)

        self._branch().update_tables(f"{self._folder(identifier)}{POINTER}", changes)
        return made[0]

    def commit(self, commits: Sequence[TableCommit]) -> list[LoadedTable]:
        """Commit to several tables, all or none. Those with the requirement ``assert-create`` are created.

        Raises:
            CommitFailedException: a requirement does not hold. Another writer was first.
            NoSuchTableError, TableAlreadyExistsError, NoSuchNamespaceError.
            InvalidInput: the metadata names files elsewhere, or files that are not what it says.
        """
        made: list[LoadedTable] = []

        def changes() -> Iterator[TableChange]:
            made.clear()
            for one in commits:
                base = self._find(one.identifier)
                creates = any(requirement.type == "assert-create" for requirement in one.requirements)
                if creates and base is not None:
                    raise exceptions.TableAlreadyExistsError(f"table {_shown(one.identifier)} exists")
                if not creates and base is None:
                    raise exceptions.NoSuchTableError(f"no table {_shown(one.identifier)} at {self}")
                self.namespace(one.identifier[:-1])
                loaded, change = self._next(one, base)
                made.append(loaded)
                if change is not None:
                    yield change

        with _files_are_there():
            only = commits[0].identifier
            place = f"{self._folder(only)}{POINTER}" if len(commits) == 1 else self._root
            self._branch().update_tables(place, changes)
        return made

    def register(self, identifier: Identifier, location: str) -> LoadedTable:
        """Make a metadata file of the repository's tables a table. Raises as ``commit``."""
        with _files_are_there():
            metadata = parsed(self.io.files.read(location, MOST_METADATA), location)
            return self.create(identifier, metadata, location, every=True)

    def drop(self, identifier: Identifier) -> None:
        """Stage the deletion of a table's objects. Other refs keep theirs. Raises ``NoSuchTableError``."""
        self.load(identifier)
        self._branch().delete_prefix(self._folder(identifier))

    def rename(self, old: Identifier, new: Identifier) -> None:
        """Give a table another name. Its location stays. Raises ``NoSuchTableError``, ``TableAlreadyExistsError``."""
        self.load(old)
        self.namespace(new[:-1])
        if self._find(new) is not None or self._has(new, NAMESPACE_FILE):
            raise exceptions.TableAlreadyExistsError(f"{_shown(new)} exists")
        self._branch().rename(self._folder(old), self._folder(new), recursive=True)

    # --- what a commit adds and removes ---

    def _next(self, commit: TableCommit, base: LoadedTable | None) -> tuple[LoadedTable, TableChange | None]:
        before = None if base is None else base.metadata
        for requirement in commit.requirements:
            requirement.validate(before)
        for update in commit.updates:
            if update.action == "upgrade-format-version":
                _supported(update.format_version)
        try:
            after = update_table_metadata(
                base_metadata=before or MetastoreCatalog._empty_table_metadata(),  # noqa: SLF001 - pyiceberg's own base
                updates=tuple(commit.updates),
                enforce_validation=before is None,
                metadata_location=None if base is None else base.location,
            )
        except (ValueError, KeyError) as error:
            raise InvalidInput(f"table {_shown(commit.identifier)} cannot be updated: {one_line(error)}") from None
        if base is not None and after == base.metadata:
            return base, None
        if base is None:
            after = after.model_copy(update={"properties": {GC_ENABLED: "false", **after.properties}})
        last = base.location if base else ""
        name = file_after(last)
        change = table_change(self.io, self._folder(commit.identifier), before, after, name, last)
        return LoadedTable(f"{after.location}/{name}", after), change


@contextmanager
def _files_are_there() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidInput(f"a file of the table is not there: {one_line(error)}") from error


def _supported(version: object) -> int:
    if str(version) not in {"1", "2"}:
        raise InvalidInput(
            f"format-version is 1 or 2 here, and not {excerpt(str(version))}: pyiceberg writes no other one"
        )
    return int(str(version))


def _shown(levels: Identifier) -> str:
    return excerpt(".".join(levels))
