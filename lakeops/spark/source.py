"""Spark's format ``lakeops``: Parquet tables of refs through Python workers and lakeops' own stores.

Workers on the driver's machine open the lake and plan. Executors get files, each with its store, and no catalog. Spark
does not tell such a reader which columns are wanted, so all are read. ``lakeops.spark.read`` is quicker where Spark
itself reaches the store.

The rows are those that Spark's own reader gives, or there is an error that names ``lakeops.spark.read``. So nothing is
converted here: a column of a file has the type that the table has, and the same name. Workers do not see the session's
settings, so what depends on them is refused.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import datasource as spark_api
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
from pyspark.sql.types import StructType

from lakeops.model.clock import Ids
from lakeops.model.errors import (
    Corrupted,
    InvalidInput,
    LakeopsError,
    ObjectNotFound,
    StoreError,
    Transient,
    invalid_settings,
    unsupported,
)
from lakeops.model.names import LakeUri, split_connection
from lakeops.model.sanitising import excerpt, one_line
from lakeops.spark.tables import MOST_DIGITS, File, Files, files, is_true
from lakeops.store import foreign, recorded

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from lakeops.lake import Lake, Repository
    from lakeops.ops.output import Output, OutputMode

PART_BYTES = 64 << 20
"""Bytes of files that one task reads."""

FILE_BYTES = 1 << 20
"""Bytes that opening a file counts for."""

_OPTIONS = {"home", "ref", "path", "format", "idempotency_key", "on_collision", "startingref", "ignorecorruptfiles"}
_TYPES = {
    "BOOLEAN NONE": "boolean",
    "INT32 NONE": "integer",
    "INT32 DATE": "date",
    "INT64 NONE": "long",
    "INT96 NONE": "timestamp",
    "FLOAT NONE": "float",
    "DOUBLE NONE": "double",
    "BYTE_ARRAY NONE": "binary",
    "BYTE_ARRAY STRING": "string",
}
"""Spark's types of Parquet's physical and logical ones."""
_INTEGERS = {8: "byte", 16: "short", 32: "integer", 64: "long"}
_FOLDERS = {"int": "integer", "bigint": "long", "double": "double", "date": "date", "string": "string"}
"""Types that a folder's value is read as, as Spark writes them in SQL and in JSON."""
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark keeps a table's own schema in the footer of a file."""
_OLD_DATES = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
_ELSE = "lakeops.spark.read"
USUAL_SETTINGS = {
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
}
"""Settings of a session that give a table other columns or values, and the values that this format reads by."""

_log = logging.getLogger(__name__)


class LakeopsDataSource(spark_api.DataSource):  # type: ignore[misc]  # pyspark is not followed
    """The format ``lakeops``.

    Options: ``ref``, the URI (or the path that ``load`` and ``save`` are called with). ``format``, ``parquet`` when the
    names of the files do not tell it. ``home``, the lake's directory. ``ignoreCorruptFiles``, to skip what cannot be
    read of damaged files, with a line in the executor's log. ``on_collision`` and ``idempotency_key``, for appends.
    ``startingRef``, the commit whose successors a stream gives. Options travel to executors, so none of them is the
    catalog's URL, which may hold a password.
    """

    default_home: ClassVar[str | None] = None
    default_connection: ClassVar[str | None] = None
    default_catalog: ClassVar[str | None] = None
    """The catalog that ``register`` has found, without user and password: no other one is opened in its place."""
    unusual_settings: ClassVar[str] = ""
    """The settings of the session that ``register`` has found not to be those of ``USUAL_SETTINGS``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = {name.lower() for name in options} - _OPTIONS
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise InvalidInput(f"option {min(unknown)!r} is not one of {known}; {_ELSE} takes those of Spark's reader")
        self.uri: str = options.get("ref") or options.get("path") or ""
        if not self.uri:
            raise InvalidInput("the format lakeops needs a table: option('ref', 'lakefs://REPO/REF/PREFIX')")
        self.connection, self.plain_uri = split_connection(self.uri)

    @classmethod
    def name(cls) -> str:
        """The name of the format in Spark."""
        return "lakeops"

    @contextmanager
    def lake(self) -> Iterator[Lake]:
        """The lake of the URI's connection, of the option ``home``, or else the one of the process that registered.

        Raises ``InvalidInput`` where this process would open another one.
        """
        try:
            from lakeops.lake import Lake
            from lakeops.settings import LakeAddress
        except ModuleNotFoundError:  # the workers' part of the code, sent along by range work, hides the whole
            raise unsupported(
                "the format lakeops needs lakeops installed on the driver's machine, and a session that has run no "
                "range work of lakeops"
            ) from None

        home, own = self.options.get("home"), self.connection
        if home or own:
            address = LakeAddress.of(own, home=home)
        elif self.default_connection:
            address = LakeAddress(self.default_connection)
        else:
            address = LakeAddress(home=self.default_home)
        with address.open(Lake.open) as lake, address.naming(found := lake.catalog.database.shown):
            if self.default_catalog not in (None, found) and not (home or own):
                raise invalid_settings(
                    f"Spark plans in a process that opens {found}, and the session was registered for "
                    f"{self.default_catalog}: read with lakeops.spark.read, or give that process the connection"
                )
            yield lake

    @cached_property
    def pinned(self) -> Files:
        """The files, looked up once, so that the reader reads the files that the schema was taken from."""
        with self.lake() as lake:
            return self.parquet_files(self.plain_uri, lake)

    def parquet_files(
        self, uri: str, lake: Lake, *, check: bool = True, leave_out: frozenset[str] = frozenset()
    ) -> Files:
        """The files of a table. Raises ``unsupported`` for anything but Parquet, and where Spark reads otherwise."""
        if self.unusual_settings:
            raise _refused(f"the format lakeops reads without {self.unusual_settings}, which the session has")
        found = files(uri, lake=lake, check=check, leave_out=leave_out)
        if (kind := self.options.get("format") or found.format()) != "parquet":
            raise _refused(f"the format lakeops reads Parquet and not {excerpt(kind)}")
        return found

    def schema(self) -> StructType:
        """The columns of the first file that can be read, and the partition columns."""
        found = self.pinned
        for file in found:
            with _reported(file.path, skip=self.ignores_corrupt), _opened(file) as parquet:
                columns = _columns(parquet, file.path)
                break
        else:
            raise Corrupted(f"none of the files at {excerpt(self.uri)} can be read")
        for name, kind in zip(found.columns, found.types(), strict=True):
            if kind == "timestamp":
                raise _refused(f"folders {excerpt(name)} are timestamps, which depend on the session's time zone")
            columns[name] = None if name in columns else _field(name, _FOLDERS.get(kind, kind))
        for name, field in columns.items():
            if field is None:
                raise _refused(f"column {excerpt(name)} of {excerpt(file.path)} is also a folder, or of a foreign type")
        return StructType.fromJson({"fields": [*columns.values()]}).toNullable()

    @property
    def ignores_corrupt(self) -> bool:
        """Whether damaged files are skipped."""
        return is_true(self.options, "ignoreCorruptFiles")

    def reader(self, schema: StructType) -> spark_api.DataSourceReader:
        """A reader of the pinned files. It takes no filters: Spark would keep what they left for other scans."""
        return Reader(self.pinned, schema, skip=self.ignores_corrupt)

    def streamReader(self, schema: StructType) -> spark_api.DataSourceStreamReader:  # noqa: N802 - Spark's
        """A reader of the files that later commits add."""
        return StreamReader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> spark_api.DataSourceArrowWriter:
        """A writer of Parquet files that are staged in one step."""
        return Writer(self, schema, overwrite=overwrite)


@dataclass
class FilePartition(spark_api.InputPartition):  # type: ignore[misc]
    """The files that one task reads, and their partition columns."""

    files: tuple[File, ...]
    columns: tuple[str, ...]
    replaced: frozenset[str] = frozenset()
    """Paths that the branch of a stream has other contents at by now, or none."""


class _FileReader:
    def __init__(self, schema: StructType, *, skip: bool) -> None:
        if schema != schema.toNullable() or "EXISTS_DEFAULT" in schema.json():
            raise _refused("the format lakeops reads columns that may hold nulls and have no default; declare them so")
        _check_names(schema.names)
        self._declared: dict[str, Any] = {field.name: _bare(field.jsonValue()["type"]) for field in schema}
        self._schema, self._skip = _arrow(schema), skip

    def check_partition(self, found: Files) -> None:
        """Raise ``unsupported`` unless the schema ends with the partition columns, as Spark's does."""
        types = dict(zip(found.columns, found.types(), strict=True))
        last = [*self._declared.items()][len(self._declared) - len(types) :]
        if [name for name, _ in last] != [*types] or any(
            kind not in _FOLDERS.values() and (kind != types[name] or kind == "timestamp") for name, kind in last
        ):
            wanted = ", ".join(f"{name} {kind}" for name, kind in types.items())
            raise _refused(f"the schema of {excerpt(found.uri)} has to end with its partition columns, {wanted}")

    def read(self, partition: spark_api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task's files."""
        if not isinstance(partition, FilePartition):  # Spark's own, when there is nothing to read
            return
        for file in partition.files:
            values = dict(zip(partition.columns, file.values, strict=True))
            replaced = file.path in partition.replaced
            with _reported(file.path, skip=self._skip, replaced=replaced):
                for _ in self._rows(file, values) if replaced else ():
                    pass  # all of it or nothing
                yield from self._rows(file, values)

    def _rows(self, file: File, values: dict[str, str | None]) -> Iterator[pa.RecordBatch]:
        with _opened(file) as parquet:
            held = _columns(parquet, file.path)
            folded = {name.lower(): name for name in held}
            for name, kind in self._declared.items():
                there = None if name in values else folded.get(name.lower())
                if there is not None and (there != name or held[name] is None or _bare(held[name]["type"]) != kind):
                    raise _refused(
                        f"column {excerpt(there)} of {excerpt(file.path)} has another type or name in the table"
                    )
            names = [name for name in self._declared if name in held and name not in values]
            for batch in foreign.batches(parquet, file.path, file.size_bytes, names):
                yield _with_columns(batch, values, self._schema, file.path)


class Reader(_FileReader, spark_api.DataSourceReader):  # type: ignore[misc]
    """Reads files that were pinned when the table was loaded."""

    def __init__(self, found: Files, schema: StructType, *, skip: bool) -> None:
        super().__init__(schema, skip=skip)
        self.check_partition(found)
        self._files = found

    def partitions(self) -> Sequence[spark_api.InputPartition]:
        """The files in tasks of about the same size."""
        return _packed(self._files)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling, without the files: each partition brings its own."""
        return {**self.__dict__, "_files": None}


class StreamReader(_FileReader, spark_api.DataSourceStreamReader, AvailableNow):  # type: ignore[misc]
    """Reads the files that were added or changed since the last commit that was read. Deletions give no rows."""

    def __init__(self, source: LakeopsDataSource, schema: StructType) -> None:
        self._source, self._last, self._refusal = source, "", None
        try:
            super().__init__(schema, skip=source.ignores_corrupt)
            self._repository, self._ref, self._prefix = LakeUri.parse(source.plain_uri).with_prefix()
        except LakeopsError as error:  # Spark shows an UnboundLocalError in place of one that is raised here
            self._refusal = error

    @contextmanager
    def _opened(self) -> Iterator[tuple[Lake, Repository]]:
        """The lake and the repository. Raises what is wrong with the options or the schema, or with the ref."""
        if self._refusal is not None:
            raise self._refusal
        with self._source.lake() as lake:
            repository = lake.repository(self._repository)
            repository.branch(self._ref)  # a tag or a commit never moves: raise
            yield lake, repository

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's
        """The empty state, after which the first batch reads all files; or ``startingRef``."""
        start = self._source.options.get("startingref")
        with self._opened() as (_, repository):
            try:
                return {"commit": "" if start is None else repository.ref(start).commit_id}
            except LakeopsError as error:
                raise InvalidInput(f"option startingRef {excerpt(start)}: {error.message}") from None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Let the query end at the head of now, after as many batches as it takes to get there."""
        self._last = self.latestOffset({}, None)["commit"]

    def latestOffset(self, start: dict[str, str], limit: object) -> dict[str, str]:  # noqa: N802, ARG002 - Spark's
        """The head commit of the branch."""
        with self._opened() as (_, repository):
            return {"commit": self._last or repository.ref(self._ref).commit_id}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[spark_api.InputPartition]:
        """The files that the later commit added, or whose contents it changed.

        Files that are no longer on the branch as they were in that commit give their rows, or are skipped with a line
        in the log where they cannot be read. So a stream that stopped at a bad file goes on after a repair.
        """
        if start["commit"] == end["commit"]:
            return []
        with self._opened() as (lake, repository):
            replaced = self._changed(repository, end["commit"], repository.ref(self._ref).commit_id)
            try:
                found = self._at(end["commit"], lake, replaced)
            except ObjectNotFound:  # no file of a table
                return []
            if start["commit"]:
                new = self._changed(repository, start["commit"], end["commit"])
                found = replace(found, files=tuple(file for file in found if file.path in new))
        return _packed(found, replaced)

    def _changed(self, repository: Repository, first: str, second: str) -> frozenset[str]:
        """The paths that differ between two commits. A change of metadata alone brings no rows, and mends none."""
        stats = repository.ref(first).stat, repository.ref(second).stat
        return frozenset(
            change.path
            for change in repository.diff(first, second, prefix=self._prefix)
            if change.type != "changed"
            or len({(entry.checksum, entry.size_bytes) for entry in (stat(change.path) for stat in stats)}) > 1
        )

    def _at(self, commit: str, lake: Lake, replaced: frozenset[str]) -> Files:
        """The files of a commit. Where they are no table, the ``replaced`` ones in some folders are left out."""
        uri = f"lakefs://{self._repository}/{commit}/{self._prefix}"
        columns = {path: re.sub("=[^/]*/", "/", path[: path.rfind("/") + 1]) for path in replaced}
        kept = sorted({*columns.values()})
        leave_out = frozenset[str]()
        while True:
            try:
                found = self._source.parquet_files(uri, lake, check=False, leave_out=leave_out)
                self.check_partition(found)
            except LakeopsError as error:
                # A repair mends the files of a table, and no store and no catalog.
                mended = isinstance(error, (InvalidInput, ObjectNotFound)) or error.kind == "unsupported"
                if not mended or leave_out == replaced:
                    raise
                some = kept.pop() if kept else None
                leave_out = frozenset(path for path in replaced if columns[path] != some)
                told = len(leave_out), len(replaced), error
                _log.warning("left out %d of %d files that the branch has replaced since: %s", *told)
            else:
                return found


@dataclass
class WrittenFiles(spark_api.WriterCommitMessage):  # type: ignore[misc]
    """The names of the files that a task wrote."""

    names: tuple[str, ...]


class Writer(spark_api.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one Parquet file for each task. Only the files of successful attempts become objects."""

    def __init__(self, source: LakeopsDataSource, schema: StructType, *, overwrite: bool) -> None:
        self._source = source
        self._mode: OutputMode = "replace" if overwrite else "append"
        # Spark's own reader finds the same columns in the files.
        self._schema = _arrow(schema).with_metadata({_SPARK_SCHEMA: schema.json()})
        self._repository, branch, prefix = LakeUri.parse(source.plain_uri).with_prefix()
        self._on_collision: Any = source.options.get("on_collision", "refuse")
        key = source.options.get("idempotency_key")
        with source.lake() as lake:
            handle = lake.repository(self._repository).branch(branch)
            self._output: Output = handle.open_output(prefix, self._mode, self._on_collision, idempotency_key=key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of a task, to a new name for each attempt."""
        import pyarrow.parquet as pq
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context else 0
        first = next(iterator, None)
        if first is None and number:
            return WrittenFiles(())
        name = f"part-{number:05}-{Ids().new()}.parquet"
        rows = chain([] if first is None else [first], iterator)
        with tempfile.TemporaryDirectory(prefix="lakeops-") as folder:
            local = Path(folder, name)
            with pq.ParquetWriter(local, self._schema) as file:
                for batch in rows:
                    file.write_batch(batch.rename_columns(self._schema.names).cast(self._schema))
            with pq.ParquetFile(local) as written:
                for column, kind in _columns(written, self._output.folder).items():
                    if kind is None:
                        raise _refused(f"column {excerpt(column)} has a foreign type", "lakeops.spark.write")
            with local.open("rb") as contents:
                self._output.store.put(self._output.address + name, contents)
        return WrittenFiles((name,))

    def commit(self, messages: list[spark_api.WriterCommitMessage | None]) -> None:
        """Stage the files of all tasks in one step."""
        names = [name for message in messages if isinstance(message, WrittenFiles) for name in message.names]
        with self._source.lake() as lake:
            branch = lake.repository(self._repository).branch(self._output.branch)
            branch.link_output(self._output, self._mode, self._on_collision, names=names)

    def abort(self, messages: list[spark_api.WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Abandon the output: nothing is staged."""
        with self._source.lake() as lake:
            lake.repository(self._repository).branch(self._output.branch).abandon_output(self._output)


@contextmanager
def _opened(file: File) -> Iterator[pq.ParquetFile]:
    what = recorded.Recorded(file.path, file.address, file.size_bytes, file.checksum, file.algorithm)
    with (
        recorded.open_object(file.store, file.key, what) as opened,
        foreign.open_parquet(opened, file.path, file.size_bytes) as parquet,
    ):
        yield parquet


@contextmanager
def _reported(path: str, *, skip: bool, replaced: bool = False) -> Iterator[None]:
    try:
        yield
    except (StoreError, Transient):
        raise
    except LakeopsError as error:
        if not replaced and not (skip and isinstance(error, Corrupted)):
            raise
        _log.warning("skipped the rest of %s: %s", excerpt(path), error)


def _refused(what: str, instead: str = _ELSE) -> LakeopsError:
    return unsupported(f"{what}; use {instead}")


def _check_names(names: list[str]) -> None:
    if len({name.lower() for name in names}) < len(names):
        raise _refused(f"two of the columns {', '.join(map(excerpt, names))} differ in case alone, or not at all")


def _arrow(schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise _refused(f"the format lakeops lacks a type: {one_line(error, 200)}") from None


def _columns(parquet: pq.ParquetFile, path: str) -> dict[str, Any]:
    """The JSON of the columns of a file as Spark has them. None for one that Spark may read as another type."""
    about = parquet.metadata.metadata or {}
    version = about.get(b"org.apache.spark.version", b"")
    if {*about} & _OLD_DATES or version.startswith((b"1.", b"2.", b"3.0.")):
        raise _refused(f"{excerpt(path)} may have the dates of an old calendar")
    leaves = iter([parquet.schema.column(at) for at in range(len(parquet.schema))])
    fields = [_field(field.name, _kind(field.type, leaves)) for field in parquet.schema_arrow]
    _check_names(parquet.schema_arrow.names)
    try:
        told = json.loads(about[_SPARK_SCHEMA])["fields"] if _SPARK_SCHEMA in about else fields
        # Other types than these may be told of there: intervals, and those of users, whose code would be loaded.
        same = [_bare(one) for one in told] == [_bare(one) for one in fields] and "__C" not in json.dumps(told)
    except (ValueError, TypeError, KeyError, RecursionError):
        same = False
    if next(leaves, None) is not None or not same:
        raise _refused(f"{excerpt(path)} has columns of types that Parquet lacks")
    return {one["name"]: one if mine["type"] else None for one, mine in zip(told, fields, strict=True)}


def _field(name: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _kind(arrow: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a type, from Arrow's for what is nested and Parquet's for what is not. None for any other."""
    if pa.types.is_struct(arrow):
        fields = [_field(one.name, _kind(one.type, leaves)) for one in arrow]
        distinct = len({one.name.lower() for one in arrow}) == len(fields)
        return {"type": "struct", "fields": fields} if distinct and all(one["type"] for one in fields) else None
    if pa.types.is_map(arrow):
        key, item = _kind(arrow.key_type, leaves), _kind(arrow.item_type, leaves)
        told = {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": True}
        return told if key and item else None
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        element = _kind(arrow.value_type, leaves)
        return {"type": "array", "elementType": element, "containsNull": True} if element else None
    if (leaf := next(leaves, None)) is None:
        return None
    logical = json.loads(leaf.logical_type.to_json())
    match logical["Type"]:
        case "Int":
            return _INTEGERS[logical["bitWidth"]] if logical["isSigned"] else None
        case "Timestamp" if logical["timeUnit"] != "nanoseconds":
            return "timestamp" if logical["isAdjustedToUTC"] else "timestamp_ntz"
        case "Decimal" if leaf.precision <= MOST_DIGITS:
            return f"decimal({leaf.precision},{leaf.scale})"
        case other:
            return _TYPES.get(f"{leaf.physical_type} {other.upper()}")


def _bare(kind: Any) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a type without what says nothing of the form of its values."""
    if isinstance(kind, list):
        return [*map(_bare, kind)]
    left_out = {"nullable", "metadata", "containsNull", "valueContainsNull"}
    return {name: _bare(kind[name]) for name in kind.keys() - left_out} if isinstance(kind, dict) else kind


def _packed(found: Files, replaced: frozenset[str] = frozenset()) -> list[FilePartition]:
    parts: list[list[File]] = []
    room = 0
    for file in found:
        cost = file.size_bytes + FILE_BYTES
        if not parts or cost > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(file)
        room -= cost
    return [FilePartition(tuple(part), found.columns, replaced) for part in parts]


def _with_columns(batch: pa.RecordBatch, values: dict[str, str | None], schema: pa.Schema, path: str) -> pa.RecordBatch:
    """Build the columns of a schema from partition values, from the file, or as nulls. Raises ``InvalidInput``."""
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if field.name in values:
            columns.append(pa.repeat(_scalar(values[field.name], field.type), batch.num_rows))
        elif place >= 0:
            try:
                columns.append(batch.column(place).cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise _refused(
                    f"column {excerpt(field.name)} of {excerpt(path)} has a value that is no {field.type}"
                ) from None
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _scalar(value: str | None, kind: pa.DataType) -> pa.Scalar:
    if value is None:
        return pa.scalar(None, kind)
    if pa.types.is_string(kind):
        return pa.scalar(value, kind)
    try:
        if not re.fullmatch(r"[+-]?[0-9.][0-9.eE+-]*|NaN|[+-]?Infinity", value):  # Arrow takes 0x10 and inf too
            raise pa.ArrowInvalid
        return pa.scalar(value.removeprefix("+"), pa.string()).cast(kind)  # Arrow parses no plus sign
    except pa.ArrowInvalid:
        raise _refused(f"a folder's value {excerpt(value)} is no {kind}") from None
