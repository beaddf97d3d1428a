"""Spark's format ``lakeops``: tables of refs through Python workers and lakeops' own stores.

Workers on the driver's machine open the lake and plan. Executors get files, each with its store, and no catalog. Spark
does not tell such a reader which columns are wanted, so all are read. ``lakeops.spark.read`` is quicker where Spark
itself reaches the store.
"""

from __future__ import annotations

import operator
import re
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import datasource as spark_api
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, DateType, DecimalType, DoubleType, IntegerType, LongType, StringType, StructType

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.model.names import LakeUri, as_folder, split_connection
from lakeops.model.sanitising import excerpt
from lakeops.spark.tables import File, Files, files, is_table_file
from lakeops.store import foreign, recorded

if TYPE_CHECKING:
    from lakeops.lake import Lake, Ref
    from lakeops.ops.output import Output, OutputMode

PART_BYTES = 64 << 20
"""Bytes of files that one task reads."""

FILE_BYTES = 1 << 20
"""Bytes that opening a file counts for."""

_OPTIONS = {"home", "ref", "path", "format", "header", "idempotency_key", "on_collision", "startingref"}
_TYPES: dict[str, type[DataType]] = {
    "int": IntegerType,
    "bigint": LongType,
    "double": DoubleType,
    "date": DateType,
    "string": StringType,
}
_COMPARED = {
    spark_api.EqualTo: operator.eq,
    spark_api.EqualNullSafe: operator.eq,
    spark_api.GreaterThan: operator.gt,
    spark_api.GreaterThanOrEqual: operator.ge,
    spark_api.LessThan: operator.lt,
    spark_api.LessThanOrEqual: operator.le,
}
_PUSHED = {*_COMPARED, spark_api.In, spark_api.IsNull, spark_api.IsNotNull}


class LakeopsDataSource(spark_api.DataSource):  # type: ignore[misc]  # pyspark is not followed
    """The format ``lakeops``.

    Options: ``ref``, the URI (or the path that ``load`` and ``save`` are called with). ``format``, when the names of
    the files do not tell it. ``header``, whether CSV files have one (``true``). ``home``, the lake's directory.
    ``on_collision`` and ``idempotency_key``, for appends. ``startingRef``, the commit whose successors a stream gives.
    Options travel to executors, so none of them is the catalog's URL, which may hold a password.
    """

    default_home: ClassVar[str | None] = None
    default_connection: ClassVar[str | None] = None
    default_catalog: ClassVar[str | None] = None
    """The catalog that ``register`` has found, without user and password: no other one is opened in its place."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = {name.lower() for name in options} - _OPTIONS
        if unknown:
            raise InvalidInput(f"option {min(unknown)!r} is not one of {', '.join(sorted(_OPTIONS))}")
        self.uri: str = options.get("ref") or options.get("path") or ""
        if not self.uri:
            raise InvalidInput("the format lakeops needs a table: option('ref', 'lakefs://REPO/REF/PREFIX')")
        self.connection, self.plain_uri = split_connection(self.uri)
        self._pinned: Files | None = None

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
            raise LakeopsError(
                "the format lakeops needs lakeops installed on the driver's machine, and a session that has run no "
                "range work of lakeops",
                kind="unsupported",
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
                raise InvalidInput(
                    f"Spark plans in a process that opens {found}, and the session was registered for "
                    f"{self.default_catalog}: read with lakeops.spark.read, or give that process the connection",
                    kind="invalid_settings",
                )
            yield lake

    @property
    def pinned(self) -> Files:
        """The files, looked up once, so that the reader reads the files that the schema was taken from."""
        if self._pinned is None:
            with self.lake() as lake:
                self._pinned = files(self.plain_uri, lake=lake)
        return self._pinned

    @property
    def file_format(self) -> str:
        """The format of the pinned files."""
        return self.options.get("format") or self.pinned.format()

    @property
    def header(self) -> bool:
        """Tell whether CSV files have a header."""
        return str(self.options.get("header", "true")).lower() == "true"

    def schema(self) -> StructType:
        """The columns of the first file, and the partition columns."""
        found = self.pinned
        with closing(batches_of(found.files[0], self.file_format, None, header=self.header)) as batches:
            from_files = from_arrow_schema(next(batches).schema)
        schema = StructType([field for field in from_files if field.name not in found.columns])
        for name, kind in zip(found.columns, found.types(), strict=True):
            digits = re.fullmatch(r"decimal\((\d+),0\)", kind)
            schema = schema.add(name, DecimalType(int(digits[1]), 0) if digits else _TYPES[kind]())
        return schema

    def reader(self, schema: StructType) -> spark_api.DataSourceReader:
        """A reader of the pinned files."""
        return Reader(self.pinned, self.file_format, schema, header=self.header)

    def streamReader(self, schema: StructType) -> spark_api.DataSourceStreamReader:  # noqa: N802 - Spark's
        """A reader of the files that later commits add."""
        return StreamReader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> spark_api.DataSourceArrowWriter:
        """A writer of Parquet files that are staged in one step."""
        return Writer(self, schema, overwrite=overwrite)


class PruningDataSource(LakeopsDataSource):
    """The format with filters on partition columns pushed down. Spark refuses it where that setting is off."""

    def reader(self, schema: StructType) -> spark_api.DataSourceReader:
        """A reader of the pinned files that meet the pushed filters."""
        return PruningReader(self.pinned, self.file_format, schema, header=self.header)


@dataclass
class FilePartition(spark_api.InputPartition):  # type: ignore[misc]
    """The files that one task reads, and their partition columns."""

    files: tuple[File, ...]
    columns: tuple[str, ...]


class _FileReader:
    def __init__(self, kind: str | None, schema: StructType, *, header: bool) -> None:
        self._kind, self._header = kind, header
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: spark_api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task's files."""
        if not isinstance(partition, FilePartition):  # Spark's own, when there is nothing to read
            return
        for file in partition.files:
            values = dict(zip(partition.columns, file.values, strict=True))
            kind = self._kind or Files("", "", (), (file,)).format()
            for batch in islice(batches_of(file, kind, self._schema, header=self._header), 1, None):
                yield _with_columns(batch, values, self._schema, file.path)


class Reader(_FileReader, spark_api.DataSourceReader):  # type: ignore[misc]
    """Reads files that were pinned when the table was loaded."""

    def __init__(self, found: Files, kind: str, schema: StructType, *, header: bool) -> None:
        super().__init__(kind, schema, header=header)
        self._files = found

    def partitions(self) -> Sequence[spark_api.InputPartition]:
        """The files in tasks of about the same size."""
        return _packed(self._files)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling, without the files: each partition brings its own."""
        return {**self.__dict__, "_files": None}


class PruningReader(Reader):
    """Opens only files whose partition columns meet the conditions that Spark pushes down."""

    def pushFilters(self, filters: list[spark_api.Filter]) -> Iterable[spark_api.Filter]:  # noqa: N802 - Spark's
        """Drop files by the filters on partition columns; returns the filters that Spark has to apply itself."""
        for one in filters:
            name = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None
            if name not in self._files.columns or type(one) not in _PUSHED:
                yield one
                continue
            place = self._files.columns.index(name)
            typed = self._schema.field(name).type
            values = {file.values[place] for file in self._files}
            kept = {value for value in values if _meets(one, _scalar(value, typed).as_py())}
            self._files = replace(self._files, files=tuple(file for file in self._files if file.values[place] in kept))


def _meets(one: spark_api.Filter, value: Any) -> bool:  # noqa: ANN401 - a column's
    if isinstance(one, spark_api.IsNull | spark_api.IsNotNull):
        return (value is None) == isinstance(one, spark_api.IsNull)
    if isinstance(one, spark_api.In):
        return value is not None and value in one.value
    if value is None or one.value is None:
        return isinstance(one, spark_api.EqualNullSafe) and value is one.value
    return bool(_COMPARED[type(one)](value, one.value))


class StreamReader(_FileReader, spark_api.DataSourceStreamReader):  # type: ignore[misc]
    """Reads the files that were added or changed since the last commit that was read. Deletions give no rows."""

    def __init__(self, source: LakeopsDataSource, schema: StructType) -> None:
        repository, ref, prefix = LakeUri.parse(source.plain_uri).with_prefix()
        with source.lake() as lake:
            lake.repository(repository).branch(ref)  # a tag or a commit never moves: raise
            start = source.options.get("startingref")
            self._first = lake.repository(repository).ref(start).commit_id if start else ""
        super().__init__(source.options.get("format"), schema, header=source.header)
        self._source, self._repository, self._ref, self._prefix = source, repository, ref, prefix

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's
        """The empty state, after which the first batch reads all files; or ``startingRef``."""
        return {"commit": self._first}

    def latestOffset(self, start: dict[str, str], limit: object) -> dict[str, str]:  # noqa: N802, ARG002 - Spark's
        """The head commit of the branch."""
        with self._source.lake() as lake:
            return {"commit": lake.repository(self._repository).ref(self._ref).commit_id}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[spark_api.InputPartition]:
        """The files that the later commit added, or whose contents it changed."""
        if start["commit"] == end["commit"]:
            return []
        with self._source.lake() as lake:
            repository = lake.repository(self._repository)
            later = repository.ref(end["commit"])
            folder = as_folder(self._prefix)
            below = (entry.path.removeprefix(folder) for entry in later.list(folder))
            if not any(map(is_table_file, below)) and not (self._prefix and later.exists(self._prefix)):
                return []
            found = files(f"lakefs://{self._repository}/{end['commit']}/{self._prefix}", lake=lake)
            if start["commit"]:
                earlier = repository.ref(start["commit"])
                changes = repository.diff(start["commit"], end["commit"], prefix=self._prefix)
                new = {
                    change.path
                    for change in changes
                    if change.type == "added"
                    # A change of metadata alone brings no new rows.
                    or (change.type == "changed" and _contents(earlier, change.path) != _contents(later, change.path))
                }
                found = replace(found, files=tuple(file for file in found if file.path in new))
        return _packed(found)


@dataclass
class WrittenFiles(spark_api.WriterCommitMessage):  # type: ignore[misc]
    """The names of the files that a task wrote."""

    names: tuple[str, ...]


class Writer(spark_api.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one Parquet file for each task. Only the files of successful attempts become objects."""

    def __init__(self, source: LakeopsDataSource, schema: StructType, *, overwrite: bool) -> None:
        self._source = source
        self._mode: OutputMode = "replace" if overwrite else "append"
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
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


def batches_of(file: File, kind: str, schema: pa.Schema | None, *, header: bool) -> Generator[pa.RecordBatch]:
    """Read a file: first an empty batch with its schema, then its rows, in the columns that ``schema`` has too."""
    what = recorded.Recorded(file.path, file.address, file.size_bytes, file.checksum, file.algorithm)
    with recorded.open_object(file.store, file.key, what) as opened:
        yield from foreign.batches(opened, file.path, file.size_bytes, kind, schema, header=header)


def _contents(ref: Ref, path: str) -> tuple[str, int]:
    entry = ref.stat(path)
    return entry.checksum, entry.size_bytes


def _packed(found: Files) -> list[FilePartition]:
    """Group files, in their order, into tasks of about ``PART_BYTES``."""
    parts: list[list[File]] = []
    room = 0
    for file in found:
        cost = file.size_bytes + FILE_BYTES
        if not parts or cost > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(file)
        room -= cost
    return [FilePartition(tuple(part), found.columns) for part in parts]


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
                raise InvalidInput(
                    f"column {excerpt(field.name)} of {excerpt(path)} is {batch.column(place).type}, and has a value "
                    f"that is no {field.type}; give the table another schema"
                ) from None
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _scalar(value: str | None, kind: pa.DataType) -> pa.Scalar:
    text = value if value is None or pa.types.is_string(kind) else value.removeprefix("+")  # Arrow parses no plus sign
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        raise InvalidInput(f"a folder's value {excerpt(value)} is no {kind}; give the table another schema") from None
