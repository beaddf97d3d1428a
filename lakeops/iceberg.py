"""Iceberg tables on refs, for pyiceberg: a catalog that keeps its tables as folders of a branch.

    properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "warehouse": "lakefs://shop/dev/tables"}
    catalog = load_catalog("shop", **properties)

A table's current state is its newest metadata file, as in Iceberg's own Hadoop catalog. An Iceberg commit writes the
next one only if it is absent: of several writers one succeeds, the others get ``CommitFailedException``. Two branches
that both committed have different files of one name, so merging them is a conflict and loses nothing. Locations in
metadata name no ref (``lakeops-table:///...``) and are read at the ref that the catalog was opened with, so other
engines cannot follow them. The catalog stages files on the branch, and commits nothing to it.
"""

from __future__ import annotations

import json
import re
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pyiceberg import exceptions
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import InvalidInput, ObjectNotFound, PathTaken
from lakeops.model.names import LakeUri, as_folder, split_connection
from lakeops.model.sanitising import excerpt
from lakeops.store.reader import parse_json

if TYPE_CHECKING:
    from lakeops.lake import Branch, Ref

SCHEME = "lakeops-table"
"""The scheme of locations in metadata: ``lakeops-table:///PATH``, at the ref that a catalog was opened with."""
NAMESPACE_FILE = "_namespace.json"
MOST_METADATA, MOST_DECODED = 64 << 20, 256 << 20
"""Bytes of the largest metadata file or manifest that is read, and what a manifest may decode to."""
_VERSION = re.compile(r"(?:.*/)?v([0-9]{1,18})\.metadata\.json")
_FIRST = 1
_NAME = re.compile(r"[^/._][^/]*")


class RefFiles(LakeopsFileSystem):
    """Filesystem of one ref, whose paths name no ref.

    Args:
        uri: ``lakefs://REPO/REF``; the rest is ignored.
        options: those of ``LakeopsFileSystem``.
    """

    protocol: ClassVar[str | tuple[str, ...]] = SCHEME

    def __init__(self, uri: str, **options: Any) -> None:
        connection, plain = split_connection(uri)
        super().__init__(**{**options, **({"conn_id": connection} if connection else {})})
        found = LakeUri.parse(plain)
        if found.ref is None:
            raise InvalidInput(f"{excerpt(uri)} names no ref; write lakefs://REPO/REF/PATH", kind="invalid_uri")
        self._bound = found.repository, found.ref

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path).removeprefix(f"{SCHEME}://").lstrip("/")

    def _strip_own(self, path: Any) -> Any:
        return type(self)._strip_protocol(path)  # noqa: SLF001 - as the base class, but no connection is looked for

    def _split(self, path: str) -> tuple[str, str, str]:
        return (*self._bound, self._strip_protocol(path))

    def _open(
        self, path: str, mode: str = "rb", autocommit: bool = True, verify: bool | None = None, **options: Any
    ) -> Any:
        opened = super()._open(path, mode, autocommit, verify, **options)
        if mode != "rb" or not path.endswith(".avro"):
            return opened
        with opened:  # pyiceberg decodes manifests without a limit
            data = opened.read(MOST_METADATA + 1)
        _check_manifest(data, path)
        return BytesIO(data)


def _check_manifest(data: bytes, path: str) -> None:
    """Raise ``InvalidInput`` for an Avro file that decodes to too much, has an unknown codec, or is none."""
    left = MOST_DECODED if len(data) <= MOST_METADATA else -1
    file = BytesIO(data)
    try:
        if file.read(4) != b"Obj\x01":
            raise ValueError
        header: dict[str, bytes] = {}
        while count := _avro_long(file):  # blocks of keys and values, of which an empty one is the last
            if count < 0:  # its size in bytes follows
                count = -count
                _avro_long(file)
            if count > MOST_METADATA:
                raise ValueError
            for _ in range(count):
                key, value = (file.read(max(0, _avro_long(file))) for _ in range(2))
                if not key:
                    raise ValueError
                header[key.decode()] = value
        codec = header.get("avro.codec", b"null")
        file.read(16)
        while left >= 0 and file.tell() < len(data):
            count, size = _avro_long(file), _avro_long(file)
            if not 0 <= size <= len(data):
                raise ValueError
            decoded = _decoded_size(codec, file.read(size), left + 1)
            # A record takes a byte at least, so a block holds no more records than bytes.
            left = left - decoded if 0 <= count <= decoded else -1
            file.read(16)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{excerpt(path)} is no Avro file that can be read {str(error)[:80]}".rstrip()) from None
    if left < 0:
        raise InvalidInput(f"{excerpt(path)} is too large to decode: it takes more than {MOST_DECODED >> 20:,} MiB")


def _avro_long(file: BytesIO) -> int:
    """An Avro long: seven bits a byte, the lowest first, and the sign in the lowest bit of all."""
    value = shift = 0
    while True:
        (byte,) = file.read(1) or b"\0"
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1)
        if shift > 63:
            raise ValueError


def _decoded_size(codec: bytes, block: bytes, most: int) -> int:
    """Bytes that a block decodes to, counted up to ``most``."""
    import pyarrow as pa

    if codec == b"null":
        return len(block)
    if codec == b"deflate":
        return len(zlib.decompressobj(-15).decompress(block, most))
    if codec in {b"zstandard", b"bzip2"}:
        kind = {b"zstandard": "zstd", b"bzip2": "bz2"}[codec]
        with pa.CompressedInputStream(pa.BufferReader(block), kind) as stream:
            return len(stream.read(most))
    raise ValueError(f"(codec {excerpt(codec.decode('latin-1'))})")


class RefFileIO(FsspecFileIO):  # type: ignore[misc] # pyiceberg's classes are not typed here
    """File IO of tables at the ref of a catalog's ``warehouse``."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(properties)
        self._scheme_to_fs = {SCHEME: _files}

    def delete(self, location: Any) -> None:
        name = location if isinstance(location, str) else location.location
        self.get_fs(SCHEME).rm_file(name)


def _files(properties: dict[str, str]) -> RefFiles:
    home, url = properties.get("lakeops.home"), properties.get("lakeops.database_url")
    return RefFiles(properties["warehouse"], home=home, database_url=url)


class RefCatalog(MetastoreCatalog):  # type: ignore[misc]
    """Catalog of the tables below a folder of a ref.

    Properties: ``warehouse`` is ``lakefs://[CONNECTION@]REPO/REF[/FOLDER]``. ``lakeops.home`` or
    ``lakeops.database_url`` name another lake than the environment does. At a tag or a commit, tables can only be read.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        if "warehouse" not in properties:
            raise InvalidInput("an Iceberg catalog needs warehouse, such as lakefs://REPO/BRANCH/tables")
        self._uri = LakeUri.parse(split_connection(properties["warehouse"])[1])
        self._root = as_folder(self._uri.path or "")
        self._fs = _files(properties)

    def _ref(self) -> Ref:
        return self._fs.lake.repository(self._uri.repository).ref(self._uri.ref or "")

    def _branch(self) -> Branch:
        return self._fs.lake.repository(self._uri.repository).branch(self._uri.ref or "")

    def _load_file_io(self, properties: dict[str, str] | None = None, location: str | None = None) -> RefFileIO:
        return RefFileIO({**self.properties, **(properties or {}), "warehouse": self.properties["warehouse"]})

    def _folder(self, identifier: Any) -> str:
        namespace, table = self.identifier_to_database_and_table(identifier, exceptions.NoSuchTableError)
        return f"{self._root}{_checked(namespace)}/{_checked(table)}/"

    def _resolve_table_location(self, location: str | None, database_name: str, table_name: str) -> str:
        if location:
            raise InvalidInput("a table's location follows from its name; leave it out")
        self.load_namespace_properties(database_name)
        return f"{SCHEME}:///{self._folder((database_name, table_name)).rstrip('/')}"

    def _check_size(self, path: str) -> None:
        size = self._ref().stat(path).size_bytes
        if size > MOST_METADATA:
            raise InvalidInput(f"{excerpt(path)} has {size:,} bytes, and metadata has {MOST_METADATA:,} at most")

    def _newest_version(self, folder: str) -> int | None:
        """The version of a table's newest metadata file; None without a table."""
        names = (_VERSION.fullmatch(entry.path) for entry in self._ref().list(f"{folder}metadata/v"))
        return max((int(found[1]) for found in names if found), default=None)

    def load_table(self, identifier: Any) -> Table:
        """Load a table at the ref. Raises ``NoSuchTableError``."""
        folder = self._folder(identifier)
        version = self._newest_version(folder)
        if version is None:
            raise exceptions.NoSuchTableError(f"no table {excerpt(str(identifier))} at {self._uri}")
        location = _metadata_file(f"{SCHEME}:///{folder.rstrip('/')}", version)
        io = self._load_file_io(location=location)
        self._check_size(f"{folder}metadata/v{version}.metadata.json")
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(
            identifier=self.identifier_to_tuple(identifier),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, str] | None = None,
    ) -> Table:
        """Create a table. Raises ``TableAlreadyExistsError``, ``NoSuchNamespaceError``."""
        staged = self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties or {})
        try:
            self._write(staged.metadata, _metadata_file(staged.metadata.location, _FIRST))
        except PathTaken:
            raise exceptions.TableAlreadyExistsError(f"table {excerpt(str(identifier))} exists") from None
        return self.load_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        """Write the next metadata file of a table. Raises ``CommitFailedException`` when another writer was first."""
        try:
            current = self.load_table(table.name())
        except exceptions.NoSuchTableError:
            current = None
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if current is not None and staged.metadata == current.metadata:
            return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)
        version = _FIRST if current is None else _version(current.metadata_location) + 1
        location = _metadata_file(staged.metadata.location, version)
        try:
            self._write(staged.metadata, location)
        except PathTaken:
            lost = f"another writer committed version {version} of table {'.'.join(table.name())} first"
            raise exceptions.CommitFailedException(lost) from None
        return CommitTableResponse(metadata=staged.metadata, metadata_location=location)

    def _write(self, metadata: Any, location: str) -> None:
        path = location.removeprefix(f"{SCHEME}:///")
        self._branch().put(path, metadata.model_dump_json().encode(), content_type="application/json", if_absent=True)

    def drop_table(self, identifier: Any) -> None:
        """Stage the deletion of a table and its files. Commits keep theirs. Raises ``NoSuchTableError``."""
        if not self._branch().delete_prefix(self._folder(identifier)):
            raise exceptions.NoSuchTableError(f"no table {excerpt(str(identifier))} at {self._uri}")

    purge_table = drop_table

    def list_tables(self, namespace: Any) -> list[tuple[str, ...]]:
        """The tables of a namespace. Raises ``NoSuchNamespaceError``."""
        self.load_namespace_properties(namespace)
        name = self._namespace(namespace)
        folders = self._folders(f"{self._root}{name}/")
        return [(name, table) for table in folders if self._newest_version(f"{self._root}{name}/{table}/") is not None]

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> NoReturn:
        """Refuse: the files of a table name their folder."""
        raise NotImplementedError("a table's files name their folder, so a table cannot be renamed")

    def register_table(self, identifier: Any, metadata_location: str, overwrite: bool = False) -> NoReturn:
        """Refuse: the files of a table lie in its folder."""
        raise NotImplementedError("tables of other catalogs cannot be registered; create one and append to it")

    def _namespace(self, namespace: Any) -> str:
        return _checked(self.identifier_to_database(namespace, exceptions.NoSuchNamespaceError))

    def _folders(self, prefix: str) -> list[str]:
        found = self._ref().list(prefix, delimiter="/")
        return [item.path[len(prefix) : -1] for item in found if item.path.endswith("/")]

    def create_namespace(self, namespace: Any, properties: dict[str, str] | None = None) -> None:
        """Create a namespace. Raises ``NamespaceAlreadyExistsError``."""
        path = f"{self._root}{self._namespace(namespace)}/{NAMESPACE_FILE}"
        text = json.dumps(properties or {}, sort_keys=True)
        try:
            self._branch().put(path, text.encode(), content_type="application/json", if_absent=True)
        except PathTaken:
            raise exceptions.NamespaceAlreadyExistsError(f"namespace {excerpt(str(namespace))} exists") from None

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        """The properties of a namespace. Raises ``NoSuchNamespaceError``."""
        path = f"{self._root}{self._namespace(namespace)}/{NAMESPACE_FILE}"
        try:
            self._check_size(path)
        except ObjectNotFound:
            raise exceptions.NoSuchNamespaceError(f"no namespace {excerpt(str(namespace))} at {self._uri}") from None
        try:
            return {str(name): str(value) for name, value in parse_json(self._ref().read(path)).items()}
        except (ValueError, AttributeError):
            raise InvalidInput(f"{excerpt(path)} holds no properties of a namespace; write it anew") from None

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        """List the namespaces. They do not nest."""
        if namespace:
            self.load_namespace_properties(namespace)
            return []
        return [(name,) for name in self._folders(self._root) if _NAME.fullmatch(name) and self.namespace_exists(name)]

    def drop_namespace(self, namespace: Any) -> None:
        """Remove an empty namespace. Raises ``NamespaceNotEmptyError``, ``NoSuchNamespaceError``."""
        if self.list_tables(namespace):
            raise exceptions.NamespaceNotEmptyError(f"namespace {excerpt(str(namespace))} has tables")
        self._branch().delete(f"{self._root}{self._namespace(namespace)}/{NAMESPACE_FILE}")

    def update_namespace_properties(
        self,
        namespace: Any,
        removals: set[str] | None = None,
        updates: dict[str, str] | None = None,
    ) -> PropertiesUpdateSummary:
        """Update the properties of a namespace; the last of concurrent writers wins."""
        before = self.load_namespace_properties(namespace)
        summary, after = self._get_updated_props_and_update_summary(before, removals, updates or {})
        path = f"{self._root}{self._namespace(namespace)}/{NAMESPACE_FILE}"
        self._branch().put(path, json.dumps(after, sort_keys=True).encode(), content_type="application/json")
        return summary

    def drop_view(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the catalog has no views."""
        raise NotImplementedError("this catalog has no views")

    load_view = register_view = drop_view

    def list_views(self, namespace: Any) -> list[tuple[str, ...]]:
        return []

    def view_exists(self, identifier: Any) -> bool:
        return False


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        said = f"{excerpt(name)} cannot be a namespace or table: no slash, and no dot or _ at its beginning"
        raise InvalidInput(said)
    return name


def _version(location: str) -> int:
    found = _VERSION.fullmatch(location)
    if found is None:
        raise InvalidInput(f"{excerpt(location)} is no metadata file of this catalog")
    return int(found[1])


def _metadata_file(location: str, version: int) -> str:
    return f"{location}/metadata/v{version}.metadata.json"
