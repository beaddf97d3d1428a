"""Iceberg tables at a ref: folders of it, with the current metadata file of each table as ``metadata.json``.

The files lie at a location of the storage namespace that names no ref, so any engine follows the metadata. A commit of
a table stages the files that it adds as objects of the table's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg import exceptions
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import update_table_metadata

from lakeops.model.errors import FileMissing, InvalidInput, ObjectNotFound, PathTaken, RefNotFound
from lakeops.model.names import as_folder
from lakeops.model.records import Entry
from lakeops.model.sanitising import excerpt, one_line, safe
from lakeops.ops.iceberg.files import MOST_METADATA, TableFileIO
from lakeops.ops.iceberg.metadata import (
    GC_ENABLED,
    POINTER,
    LoadedTable,
    check_metadata,
    file_after,
    parsed,
    supported_version,
    table_change,
)
from lakeops.ops.tables import TableChange
from lakeops.store.reader import parse_json

if TYPE_CHECKING:
    from lakeops.lake import Branch, Ref, Repository

Identifier = tuple[str, ...]

NAMESPACE_FILE = "_namespace.json"
_WORDS: dict[type[Exception], str] = {
    exceptions.NoSuchNamespaceError: "Namespace does not exist: {} at {}; create it, or name another ref",
    exceptions.NamespaceAlreadyExistsError: "Namespace already exists: {} at {}; choose another name",
    exceptions.NamespaceNotEmptyError: "Namespace {} is not empty at {}; drop its tables and namespaces first",
    exceptions.NoSuchTableError: "Table does not exist: {} at {}; create it, or name another ref",
    exceptions.TableAlreadyExistsError: "Table already exists: {} at {}, or a namespace; drop it, or use another name",
}
"""Iceberg's own words, which engines and their users look for, and what to do."""
_AGAIN = "Requirement failed: {}; load the table again and repeat the change"
_REQUIREMENTS = {
    "assert-table-uuid": "UUID does not match",
    "assert-last-assigned-field-id": "last assigned field id changed",
    "assert-current-schema-id": "current schema changed",
    "assert-last-assigned-partition-id": "last assigned partition id changed",
    "assert-default-spec-id": "default partition spec changed",
    "assert-default-sort-order-id": "default sort order changed",
}
"""Iceberg's own words for requirements that pyiceberg words otherwise."""
_NUMBERED = {
    "add-schema": ("schema_", "schema_id", "schemas", "schema_id"),
    "add-spec": ("spec", "spec_id", "partition_specs", "spec_id"),
    "add-sort-order": ("sort_order", "order_id", "sort_orders", "sort_order_id"),
}
"""Updates that add what has a number: its attribute, the number's, the table's, and that of updates that choose."""
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

    def _error(self, kind: type[Exception], levels: Identifier) -> Exception:
        return kind(_WORDS[kind].format(_shown(levels), self))

    # --- namespaces ---

    def namespace(self, levels: Identifier) -> dict[str, str]:
        """The properties of a namespace, of which a ref has none. Raises ``NoSuchNamespaceError``, ``RefNotFound``."""
        if not levels:
            _ = self._ref.commit  # raises where there is no such ref
            return {}
        path = f"{self._folder(levels)}{NAMESPACE_FILE}"
        found = self._read(path)
        if found is None:
            raise self._error(exceptions.NoSuchNamespaceError, levels)
        try:
            return {str(name): str(value) for name, value in parse_json(found[1]).items()}
        except (ValueError, AttributeError):
            raise InvalidInput(f"{excerpt(path)} holds no properties of a namespace; write it anew") from None

    def namespaces(self, parent: Identifier) -> list[Identifier]:
        """The namespaces directly in another one, or at the top. Raises ``NoSuchNamespaceError``."""
        return self._children(parent, NAMESPACE_FILE)

    def create_namespace(self, levels: Identifier, properties: Mapping[str, str]) -> None:
        """Create a namespace in one that exists. Raises ``NamespaceAlreadyExistsError``, ``NoSuchNamespaceError``."""
        self.namespace(levels[:-1])
        if self._ref.find(f"{self._folder(levels)}{POINTER}") is not None:
            raise self._error(exceptions.NamespaceAlreadyExistsError, levels)
        try:
            self.set_namespace(levels, properties, if_absent=True)
        except PathTaken:
            raise self._error(exceptions.NamespaceAlreadyExistsError, levels) from None

    def set_namespace(self, levels: Identifier, properties: Mapping[str, str], *, if_absent: bool = False) -> None:
        """Replace the properties of a namespace. The last of several writers wins."""
        path, text = f"{self._folder(levels)}{NAMESPACE_FILE}", json.dumps(dict(properties), sort_keys=True)
        self._branch().put(path, text.encode(), content_type="application/json", if_absent=if_absent)

    def update_namespace(self, levels: Identifier, gone: set[str], new: dict[str, str]) -> PropertiesUpdateSummary:
        """Remove and set properties. The last of several writers wins. Raises ``NoSuchNamespaceError``."""
        before = self.namespace(levels)
        self.set_namespace(levels, {name: value for name, value in before.items() if name not in gone} | new)
        removed, missing = sorted(gone & before.keys()), sorted(gone - before.keys())
        return PropertiesUpdateSummary(removed=removed, updated=sorted(new), missing=missing)

    def drop_namespace(self, levels: Identifier) -> None:
        """Remove an empty namespace. Raises ``NamespaceNotEmptyError``, ``NoSuchNamespaceError``."""

        def changes() -> Iterator[TableChange]:
            if self.tables(levels) or self.namespaces(levels):
                raise self._error(exceptions.NamespaceNotEmptyError, levels)
            yield TableChange(gone=[f"{self._folder(levels)}{NAMESPACE_FILE}"])

        self._update(self._folder(levels), changes)

    # --- tables ---

    def tables(self, levels: Identifier) -> list[Identifier]:
        """The tables of a namespace. Raises ``NoSuchNamespaceError``."""
        return self._children(levels, POINTER)

    def _children(self, levels: Identifier, mark: str) -> list[Identifier]:
        self.namespace(levels)
        prefix = self._folder(levels)
        found = [item.path[len(prefix) :] for item in self._ref.list(prefix, delimiter="/")]
        names = [name[:-1] for name in found if name.endswith("/") and _NAME.fullmatch(name[:-1])]
        return [(*levels, name) for name in names if self._ref.find(f"{prefix}{name}/{mark}") is not None]

    def _check_folder(self, levels: Identifier, *, of_table: bool) -> list[Entry]:
        """The objects of a folder without a table or namespace at any depth, or with ``of_table`` with only its own."""
        # A table is dropped and renamed with all of its folder, and a merge may bring anything there.
        prefix = self._folder(levels)
        found = [item for item in self._ref.list(prefix) if isinstance(item, Entry)]
        names = (item.path.removeprefix(prefix) for item in found)
        marks = {name for name in names if name.rpartition("/")[2] in {POINTER, NAMESPACE_FILE}}
        if of_table and POINTER not in marks:
            raise self._error(exceptions.NoSuchTableError, levels)
        if marks != ({POINTER} if of_table else set()):
            kind = exceptions.NamespaceNotEmptyError if of_table else exceptions.TableAlreadyExistsError
            raise self._error(kind, levels)
        return found

    def load(self, identifier: Identifier) -> LoadedTable:
        """A table. Raises ``NoSuchTableError``, ``ObjectNotFound`` where its metadata file is lost."""
        found = self._find(identifier)
        if found is None:
            raise self._error(exceptions.NoSuchTableError, identifier)
        return found

    def _find(self, identifier: Identifier) -> LoadedTable | None:
        path = f"{self._folder(identifier)}{POINTER}"
        found = self._read(path)
        return None if found is None else LoadedTable(found[0], parsed(found[1], path))

    def _read(self, path: str) -> tuple[str, bytes] | None:
        """The address and contents of an object, or None where there is none. A lost file is an error of its own."""
        entry = self._ref.find(path)
        if entry is None:
            return None
        if entry.size_bytes > MOST_METADATA:
            raise InvalidInput(
                f"{excerpt(path)} has {entry.size_bytes:,} bytes, and metadata has {MOST_METADATA:,} at most"
            )
        try:
            return entry.physical_address, self._ref.read_entry(entry)
        except FileMissing as error:
            lost = f"Failed to open input stream for file: {entry.physical_address}: {error.message}"
            raise ObjectNotFound(lost, kind=error.kind) from None

    def new_table(
        self,
        identifier: Identifier,
        schema: Any,
        location: str | None,
        partition_spec: PartitionSpec | None,
        sort_order: SortOrder | None,
        properties: Mapping[str, str] | None,
    ) -> LoadedTable:
        """The metadata of a table that is not created yet. Raises as ``commit``."""
        self.namespace(identifier[:-1])
        self._check_folder(identifier, of_table=False)
        place = location.rstrip("/") if location else self.io.files.new_location()
        given = {GC_ENABLED: "false", **(properties or {})}
        version = supported_version(given.get("format-version", "2"))
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
            self._check_folder(identifier, of_table=False)
            self.namespace(identifier[:-1])
            name = file_after(last)
            made[:] = [LoadedTable(f"{metadata.location}/{name}", metadata)]
            yield table_change(self.io, self._folder(identifier), None, metadata, name, every=every)

        self._update(self._folder(identifier[:-1] or identifier), changes)
        return made[0]

    def commit(self, commits: Sequence[TableCommit]) -> list[LoadedTable]:
        """Commit to several tables, all or none. Those with the requirement ``assert-create`` are created.

        Raises:
            CommitFailedException: a requirement does not hold. Another writer was first.
            NoSuchTableError, TableAlreadyExistsError, NoSuchNamespaceError.
            InvalidInput: the metadata names files elsewhere, or files that are not what it says.
        """
        made: list[LoadedTable] = []
        new = {one.identifier for one in commits if any(each.type == "assert-create" for each in one.requirements)}

        def changes() -> Iterator[TableChange]:
            made.clear()
            for one in commits:
                base = self._find(one.identifier)
                if base is not None and one.identifier in new:
                    raise exceptions.TableAlreadyExistsError(
                        _AGAIN.format(f"table already exists: {_shown(one.identifier)}")
                    )
                if base is None:
                    self._check_folder(one.identifier, of_table=one.identifier not in new)
                self.namespace(one.identifier[:-1])
                loaded, change = self._next(one, base)
                made.append(loaded)
                if change is not None:
                    yield change

        if len({one.identifier for one in commits}) < len(commits):
            raise InvalidInput("a transaction changes each table once; put the updates of a table together")
        first = commits[0].identifier
        alone = self._folder(first[:-1] or first) if new else self._folder(first) + POINTER
        self._update(alone if len(commits) == 1 else self._root, changes)
        return made

    def register(self, identifier: Identifier, location: str) -> LoadedTable:
        """Make a metadata file of the repository's tables a table. Raises as ``commit``."""
        metadata = parsed(self.io.files.read(location, MOST_METADATA), location)
        return self.create(identifier, metadata, location, every=True)

    def drop(self, identifier: Identifier) -> None:
        """Stage a table's deletion. Other refs keep it. Raises ``NoSuchTableError``, ``NamespaceNotEmptyError``."""
        self._check_folder(identifier, of_table=True)
        self._branch().delete_prefix(self._folder(identifier))

    def rename(self, old: Identifier, new: Identifier) -> None:
        """Give a table another name. Its location stays. Raises as ``drop``, and ``TableAlreadyExistsError``."""
        folder, there = self._folder(old), self._folder(new)

        def changes() -> Iterator[TableChange]:
            found = self._check_folder(old, of_table=True)
            self.namespace(new[:-1])
            self._check_folder(new, of_table=False)
            moved = [replace(one, path=there + one.path.removeprefix(folder)) for one in found]
            yield TableChange(gone=[one.path for one in found], moved=moved)

        self._update(self._folder(old[:-1]) if old[:-1] == new[:-1] else self._root, changes)

    # --- what a commit adds and removes ---

    def _update(self, place: str, changes: Callable[[], Iterator[TableChange]]) -> None:
        try:
            self._branch().update_tables(place, changes)
        except (FileNotFoundError, exceptions.ResolveError) as error:
            raise InvalidInput(
                f"a file of the table is not there, or is no manifest: {one_line(error, 300)}"
            ) from error

    def _next(self, commit: TableCommit, base: LoadedTable | None) -> tuple[LoadedTable, TableChange | None]:
        before = None if base is None else base.metadata
        added = {update.snapshot.snapshot_id for update in commit.updates if update.action == "add-snapshot"}
        for requirement in commit.requirements:
            try:
                requirement.validate(before)
            except exceptions.CommitFailedException as error:
                if base is not None and added and all(base.metadata.snapshot_by_id(one) for one in added):
                    return base, None  # it was done, its answer was lost, and the client asks again
                said = str(error).removeprefix("Requirement failed: ")
                if requirement.type in _REQUIREMENTS:
                    said = f"{_REQUIREMENTS[requirement.type]}: {said.rpartition(': ')[2]}"
                raise exceptions.CommitFailedException(_AGAIN.format(said)) from None
        for update in commit.updates:
            if update.action == "upgrade-format-version":
                supported_version(update.format_version)
        try:
            after = update_table_metadata(
                base_metadata=before or MetastoreCatalog._empty_table_metadata(),  # noqa: SLF001 - pyiceberg's own base
                updates=tuple(commit.updates if before is None else _renumbered(commit.updates, before)),
                enforce_validation=before is None,
                metadata_location=None if base is None else base.location,
            )
        except (ValueError, KeyError) as error:
            raise InvalidInput(f"table {_shown(commit.identifier)} cannot be updated: {one_line(error, 300)}") from None
        if base is not None and after == base.metadata:
            return base, None
        after = after.model_copy(update={"properties": {GC_ENABLED: "false", **after.properties}})
        last = base.location if base else ""
        name = file_after(last)
        change = table_change(self.io, self._folder(commit.identifier), before, after, name, last)
        return LoadedTable(self.io.files.address(f"{after.location}/{name}"), after), change


def _renumbered(updates: Sequence[Any], base: TableMetadata) -> Iterator[Any]:
    """Number the schemas, specs and orders that updates add as the table does now, and not as its writer knew it.

    What the table has keeps its number. Properties that it does not have are not removed.
    """
    properties = set(base.properties).union(*(one.updates for one in updates if one.action == "set-properties"))
    lists = {each: [*getattr(base, each)] for _, _, each, _ in _NUMBERED.values()}
    numbers: dict[str, dict[int, int]] = {chosen: {} for *_, chosen in _NUMBERED.values()}
    for update in updates:
        changed: dict[str, Any] = {}
        if update.action in _NUMBERED:
            name, number, known, chosen = _NUMBERED[update.action]
            one = getattr(update, name)
            told = one.model_dump(exclude={number})
            taken = {getattr(each, number): each.model_dump(exclude={number}) == told for each in lists[known]}
            equal = [at for at, is_equal in taken.items() if is_equal]
            old = getattr(one, number)
            new = equal[0] if equal else max(taken) + 1 if old in taken else old
            if new != old and known == "partition_specs" and any(each.action == "add-snapshot" for each in updates):
                # Manifests name the spec by its old number.
                raise exceptions.CommitFailedException(_AGAIN.format(f"partition spec {old} is another one now"))
            numbers[chosen] |= {old: new, -1: new}
            if equal:
                continue
            changed[name] = one.model_copy(update={number: new})
            lists[known].append(changed[name])
        elif update.action == "add-snapshot":
            old = update.snapshot.schema_id
            changed["snapshot"] = update.snapshot.model_copy(update={"schema_id": numbers["schema_id"].get(old, old)})
        elif update.action == "remove-properties":
            changed["removals"] = [one for one in update.removals if one in properties]
        for chosen, numbered in numbers.items():
            if hasattr(update, chosen):
                changed[chosen] = numbered.get(getattr(update, chosen), getattr(update, chosen))
        yield update.model_copy(update=changed)


def _shown(levels: Identifier) -> str:
    return f"{safe('.'.join(levels)):.200}"
