"""Spark's format ``lakeops``: tables of refs through Python workers and lakeops' own stores.

Spark asks a data source in processes of their own: on the driver's machine for the plan, on executors for the rows.
Those on the driver's machine open the lake. Executors get files, each with the store that it lies in, and no catalog.

Spark does not tell a reader of this kind which columns are wanted, so all are read. ``lakeops.spark.read`` is quicker
where Spark itself reaches the store.
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
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, DateType, DecimalType, DoubleType, IntegerType, LongType, StringType, StructType

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, Unsupported
from lakeops.model.names import as_folder
from lakeops.model.text import excerpt
from lakeops.model.uris import LakeUri
from lakeops.spark.tables import File, Files, files, is_table_file
from lakeops.store import foreign, recorded

if TYPE_CHECKING:
    from lakeops.lake import Lake, Ref
    from lakeops.ops.output import Output

PART_BYTES = 64 << 20
"""Bytes of files that one task reads."""

FILE_BYTES = 1 << 20
"""What opening a file counts as."""

_OPTIONS = {"home", "ref", "path", "format", "header", "idempotency_key", "on_collision", "startingref"}
_TYPES: dict[str, type[DataType]] = {
    "int": IntegerType,
    "bigint": LongType,
    "double": DoubleType,
    "date": DateType,
    "string": StringType,
}
_COMPARED = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


class LakeopsDataSource(DataSource):  # type: ignore[misc]  # pyspark is not followed
    """The format ``lakeops``.

    Options: ``ref``, the URI (or the path that ``load`` and ``save`` are called with). ``format``, when the names of
    the files do not tell it. ``header``, whether CSV files have one (``true``). ``home``, the lake's directory.
    ``on_collision`` and ``idempotency_key``, for appends. ``startingRef``, the commit whose successors a stream gives.

    Options travel to executors, so none of them is the catalog's URL, which may hold a password.
    """

    default_home: ClassVar[str | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = {name.lower() for name in options} - _OPTIONS
        if unknown:
            raise InvalidInput(f"option {min(unknown)!r} is not one of {', '.join(sorted(_OPTIONS))}")
        self.uri: str = options.get("ref") or options.get("path") or ""
        if not self.uri:
            raise InvalidInput("the format lakeops needs a table: option('ref', 'lakefs://REPO/REF/PREFIX')")
        self._pinned: Files | None = None

    @classmethod
    def name(cls) -> str:
        """What Spark calls it."""
        return "lakeops"

    @contextmanager
    def lake(self) -> Iterator[Lake]:
        """The lake in the directory of the option ``home``, else that of the settings."""
        try:
            from lakeops.lake import Lake
        except ModuleNotFoundError:  # the workers' part of the code, sent along by range work, hides the whole
            raise Unsupported(
                "the format lakeops needs lakeops installed on the driver's machine, and a session that has run no "
                "range work of lakeops"
            ) from None

        with Lake.open(home=self.options.get("home", self.default_home)) as lake:
            yield lake

    @property
    def pinned(self) -> Files:
        """The files, looked up once: what comes after the schema reads the same ones."""
        if self._pinned is None:
            with self.lake() as lake:
                self._pinned = files(self.uri, lake=lake)
        return self._pinned

    def format_of(self, found: Files) -> str:
        """What the files hold."""
        return self.options.get("format") or found.format()

    @property
    def header(self) -> bool:
        """Whether CSV files have one."""
        return str(self.options.get("header", "true")).lower() == "true"

    def schema(self) -> StructType:
        """The columns of the first file, and those of the folders."""
        found = self.pinned
        from_files = from_arrow_schema(schema_of(found.files[0], self.format_of(found), header=self.header))
        schema = StructType([field for field in from_files if field.name not in found.columns])
        for name, kind in zip(found.columns, found.types(), strict=True):
            schema = schema.add(name, _type_called(kind))
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the pinned files."""
        return Reader(self.pinned, self.format_of(self.pinned), schema, header=self.header)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Reads what commits add."""
        return StreamReader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Writes Parquet files that are staged in one step."""
        return Writer(self, schema, overwrite=overwrite)


def _type_called(name: str) -> DataType:
    digits = re.fullmatch(r"decimal\((\d+),0\)", name)
    return DecimalType(int(digits[1]), 0) if digits else _TYPES[name]()


class PruningDataSource(LakeopsDataSource):
    """A reader that leaves out files by conditions on partition columns. Spark refuses it where its setting is off."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the pinned files that conditions leave."""
        return PruningReader(self.pinned, self.format_of(self.pinned), schema, header=self.header)


@dataclass
class FilePartition(InputPartition):  # type: ignore[misc]
    """The files that one task reads."""

    files: tuple[File, ...]


class _FileReader:
    """Reads files on executors."""

    def __init__(self, columns: tuple[str, ...], kind: str | None, schema: StructType, *, header: bool) -> None:
        self._columns, self._kind, self._header = columns, kind, header
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilePartition):  # Spark's own, when there is nothing to read
            return
        for file in partition.files:
            values = dict(zip(self._columns, file.values, strict=True))
            kind = self._kind or Files("", "", (), (file,)).format()
            for batch in islice(batches_of(file, kind, self._schema, header=self._header), 1, None):
                yield _with_columns(batch, values, self._schema, file.path)


class Reader(_FileReader, DataSourceReader):  # type: ignore[misc]
    """Reads files that were pinned when the table was loaded."""

    def __init__(self, found: Files, kind: str, schema: StructType, *, header: bool) -> None:
        super().__init__(found.columns, kind, schema, header=header)
        self._files = found

    def partitions(self) -> Sequence[InputPartition]:
        """Tasks of about the same size."""
        return _packed(self._files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's files."""
        return self._read(partition)

    def __getstate__(self) -> dict[str, Any]:
        """Without the files: each task brings its own."""
        return {**self.__dict__, "_files": None}


class PruningReader(Reader):
    """Opens only files whose partition columns meet the conditions that Spark pushes down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Leave out files. Gives back the conditions that Spark has to check."""
        for one in filters:
            name = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None
            if name not in self._files.columns or type(one) not in {*_COMPARED, In, IsNull, IsNotNull}:
                yield one
                continue
            place = self._files.columns.index(name)
            typed = self._schema.field(name).type
            values = {file.values[place] for file in self._files}
            kept = {value for value in values if _meets(one, _scalar(value, typed).as_py())}
            self._files = replace(self._files, files=tuple(file for file in self._files if file.values[place] in kept))


def _meets(one: Filter, value: Any) -> bool:  # noqa: ANN401 - a column's
    if isinstance(one, IsNull | IsNotNull):
        return (value is None) == isinstance(one, IsNull)
    if isinstance(one, In):
        return value is not None and value in one.value
    if value is None or one.value is None:
        return isinstance(one, EqualNullSafe) and value is one.value
    return bool(_COMPARED[type(one)](value, one.value))


class StreamReader(_FileReader, DataSourceStreamReader):  # type: ignore[misc]
    """Gives the files that were added or changed since the last commit that was read. Deletions give nothing."""

    def __init__(self, source: LakeopsDataSource, schema: StructType) -> None:
        repository, ref, prefix = LakeUri.parse(source.uri).with_prefix()
        with source.lake() as lake:
            lake.repository(repository).branch(ref)  # a tag or a commit gets no commits
            start = source.options.get("startingref")
            self._first = lake.repository(repository).ref(start).commit_id if start else ""
        super().__init__((), source.options.get("format"), schema, header=source.header)
        self._source, self._repository, self._ref, self._prefix = source, repository, ref, prefix

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's
        """Before the first commit, so that the first batch has what is there already; or ``startingRef``."""
        return {"commit": self._first}

    def latestOffset(self, start: dict[str, str], limit: object) -> dict[str, str]:  # noqa: N802, ARG002 - Spark's
        """The branch's head."""
        with self._source.lake() as lake:
            return {"commit": lake.repository(self._repository).ref(self._ref).commit_id}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """The files that the later commit has and the earlier one lacks, or has with other contents."""
        if start["commit"] == end["commit"]:
            return []
        with self._source.lake() as lake:
            repository = lake.repository(self._repository)
            later = repository.ref(end["commit"])
            if not _has_files(later, self._prefix):
                return []
            found = files(f"lakefs://{self._repository}/{end['commit']}/{self._prefix}", lake=lake)
            if start["commit"]:
                earlier = repository.ref(start["commit"])
                changes = repository.diff(start["commit"], end["commit"], prefix=self._prefix)
                new = {
                    change.path
                    for change in changes
                    if change.type == "added"
                    # Other metadata is a change, and no new rows.
                    or (change.type == "changed" and _contents(earlier, change.path) != _contents(later, change.path))
                }
                found = replace(found, files=tuple(file for file in found if file.path in new))
        return [StreamPartition(part.files, found.columns) for part in _packed(found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's files."""
        if isinstance(partition, StreamPartition):
            self._columns = partition.columns
        return self._read(partition)


@dataclass
class StreamPartition(FilePartition):
    """The files that one task of a micro-batch reads, and their partition columns."""

    columns: tuple[str, ...]


@dataclass
class WrittenFiles(WriterCommitMessage):  # type: ignore[misc]
    """The files that a task wrote."""

    names: tuple[str, ...]


class Writer(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one Parquet file a task. Only files that the winning tries report become objects."""

    def __init__(self, source: LakeopsDataSource, schema: StructType, *, overwrite: bool) -> None:
        self._source, self._overwrite = source, overwrite
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._repository, branch, prefix = LakeUri.parse(source.uri).with_prefix()
        self._on_collision: Any = source.options.get("on_collision", "refuse")
        key = source.options.get("idempotency_key")
        with source.lake() as lake:
            handle = lake.repository(self._repository).branch(branch)
            self._output: Output = handle.open_output(prefix, self._mode, self._on_collision, idempotency_key=key)

    @property
    def _mode(self) -> Any:  # noqa: ANN401 - a literal
        return "replace" if self._overwrite else "append"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write a task's rows. The name has never been used, so no try meets another one's file."""
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

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Stage what the tasks wrote, in one step."""
        names = [name for message in messages if isinstance(message, WrittenFiles) for name in message.names]
        with self._source.lake() as lake:
            branch = lake.repository(self._repository).branch(self._output.branch)
            branch.link_output(self._output, self._mode, self._on_collision, names=names)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Stage nothing."""
        with self._source.lake() as lake:
            lake.repository(self._repository).branch(self._output.branch).abandon_output(self._output)


def schema_of(file: File, kind: str, *, header: bool) -> pa.Schema:
    """The columns of a file."""
    with closing(batches_of(file, kind, None, header=header)) as batches:
        schema: pa.Schema = next(batches).schema
    return schema


def batches_of(file: File, kind: str, schema: pa.Schema | None, *, header: bool) -> Generator[pa.RecordBatch]:
    """A batch without rows, then the rows of a file, of those columns that the schema has too."""
    what = recorded.Recorded(file.path, file.address, file.size_bytes, file.checksum, file.algorithm)
    with recorded.open_object(file.store, file.key, what) as opened:
        yield from foreign.batches(opened, file.path, file.size_bytes, kind, schema, header=header)


def _has_files(ref: Ref, prefix: str) -> bool:
    """Whether a ref has a table, or one object, at a prefix: names that Spark ignores are none."""
    folder = as_folder(prefix)
    below = (entry.path.removeprefix(folder) for entry in ref.list(folder))
    return any(map(is_table_file, below)) or (bool(prefix) and ref.exists(prefix))


def _contents(ref: Ref, path: str) -> tuple[str, int]:
    entry = ref.stat(path)
    return entry.checksum, entry.size_bytes


def _packed(found: Files) -> list[FilePartition]:
    """Files in their order, in tasks of about ``PART_BYTES``."""
    parts: list[list[File]] = []
    room = 0
    for file in found:
        cost = file.size_bytes + FILE_BYTES
        if not parts or cost > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(file)
        room -= cost
    return [FilePartition(tuple(part)) for part in parts]


def _with_columns(batch: pa.RecordBatch, values: dict[str, str | None], schema: pa.Schema, path: str) -> pa.RecordBatch:
    """The columns of a schema: from the folders, from the file, or null. Raises ``InvalidInput``."""
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if field.name in values:
            columns.append(pa.repeat(_scalar(values[field.name], field.type), batch.num_rows))
        elif place >= 0:
            columns.append(_cast(batch.column(place), field, path))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(
            f"column {excerpt(field.name)} of {excerpt(path)} is {column.type}, and has a value that is no "
            f"{field.type}; give the table another schema"
        ) from None


def _scalar(value: str | None, kind: pa.DataType) -> pa.Scalar:
    text = value if value is None or pa.types.is_string(kind) else value.removeprefix("+")  # Arrow knows no such sign
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        raise InvalidInput(f"a folder's value {excerpt(value)} is no {kind}; give the table another schema") from None
