"""Tables through Spark's own readers and writers, with whatever options they have.

An executor opens the physical files itself, so Spark needs to reach the storage namespace. The folders of a path need
not be in the address of a file. So the values of partition columns come from a small table that is joined by address.
Where all files have the same values, they are literals. Where one job wrote all files, and the folders with them, Spark
finds the values there, which is quicker than a join.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

from lakeops.model.errors import InvalidInput, LakeopsError, ObjectNotFound, PathTaken
from lakeops.model.names import LakeUri, split_connection
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakeops.lake import Lake
    from lakeops.ops.output import OnCollision, OutputMode
    from lakeops.store.base import ObjectStore

NULL = "__HIVE_DEFAULT_PARTITION__"
"""How Spark and Hive spell a null in the name of a folder."""
FORMATS = ("parquet", "csv", "json", "text", "orc", "avro")

MOST_DIGITS = 38
"""Digits of Spark's longest numbers."""


@dataclass(frozen=True, slots=True)
class File:
    """One physical file of a table: its object's path, physical address (a URL) and recorded checksum, and its store.

    ``values`` are those of the partition columns, as the folders spell them; None for a null. ``algorithm`` is None
    where the checksum cannot be computed.
    """

    path: str
    address: str
    size_bytes: int
    values: tuple[str | None, ...]
    store: ObjectStore
    key: str
    checksum: str
    algorithm: str | None

    def url(self, s3: str = "s3a") -> str:
        """The address as Spark takes paths: not percent-encoded, and with the scheme ``s3`` for buckets."""
        return spark_path(self.address, s3)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table at one commit, by path, with its partition columns in the order of the folders."""

    uri: str
    commit_id: str
    columns: tuple[str, ...]
    files: tuple[File, ...]

    def __iter__(self) -> Iterator[File]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def urls(self, s3: str = "s3a") -> list[str]:
        """The distinct URLs of the files, as Spark takes paths."""
        return list(dict.fromkeys(file.url(s3) for file in self.files))

    def types(self) -> tuple[str, ...]:
        """The Spark SQL type of each partition column, inferred from its values as Spark infers it."""
        columns = zip(*(file.values for file in self.files), strict=True)
        return tuple(_type({value for value in column if value is not None}) for column in columns)

    def format(self) -> str:
        """The format that the files' extensions name. Raises ``InvalidInput``."""
        found = {_format(file.path) for file in self.files}
        if len(found) == 1 and (only := found.pop()) is not None:
            return only
        raise InvalidInput(f"the names of the files at {self.uri!r} tell no single format; say format='parquet'")


def files(uri: str, *, lake: Lake | None = None, check: bool = True) -> Files:
    """The physical files of a table at a ref, or the one file at a path.

    The list is pinned to the commit: later moves of the ref do not change it. Files that Spark ignores, whose names
    begin with ``_`` or ``.``, are left out.

    Args:
        uri: ``lakefs://[CONNECTION@]REPO/REF/PREFIX``.
        lake: the lake; when left out that of the URI's connection, of ``lakeops_default`` in Airflow, or the settings'.
        check: compare the size of each file with the recorded one.

    Raises:
        InvalidInput: ``invalid_uri``: the text is no such URI.
        RepositoryNotFound, RefNotFound, CommitExpired: there is nothing to read.
        ObjectNotFound: there is no file, or the store lacks one.
        Corrupted: a file has another size than was recorded.
        InvalidInput: the folders of the files stand for different partition columns.
    """
    with opened(uri, lake) as (found, place):
        repository, ref, prefix = place.with_prefix()
        shown = found.repository(repository).ref(ref).snapshot(prefix, check=check)
    inside = len(shown.folder) if shown.folder.endswith("/") or not shown.folder else shown.folder.rfind("/") + 1
    columns: tuple[str, ...] | None = None
    listed = []
    rows = shown.entries.select(["path", "physical_address", "size_bytes", "checksum"]).to_pylist()
    for row, (store, key), algorithm in zip(rows, shown.sources, shown.algorithms, strict=True):
        if not is_table_file(row["path"][inside:]):
            continue
        parts = row["path"][inside:].split("/")
        pairs = [part.split("=", 1) for part in parts[:-1] if "=" in part]
        names = tuple(unquote(name) for name, _ in pairs)
        if len({*names}) < len(names):
            raise InvalidInput(f"two folders of {excerpt(row['path'])} stand for one column; read the folders below")
        if columns is not None and names != columns:
            raise InvalidInput(
                f"{uri!r} has files with different partition columns, {_name_columns(columns)} and "
                f"{_name_columns(names)}: {excerpt(row['path'])} is one; read the folders one by one"
            )
        columns = names
        values = tuple(None if value == NULL else unquote(value) for _, value in pairs)
        path, address, size, checksum = row.values()
        listed.append(File(path, address, size, values, store, key, checksum, algorithm))
    if columns is None:
        raise ObjectNotFound(f"there are no files of a table at {uri!r}, only names that Spark ignores")
    return Files(uri, shown.commit_id, columns, tuple(listed))


@contextmanager
def opened(uri: str, lake: Lake | None) -> Iterator[tuple[Lake, LakeUri]]:
    """Open the lake that a URI means for the block, or take the one that was passed; with the URI's parts.

    What is not found says in which lake. Raises ``InvalidInput``.
    """
    from lakeops.settings import LakeAddress

    connection, plain = split_connection(uri)
    place = LakeUri.parse(plain)
    if lake is not None:
        if connection and LakeAddress(connection).settings().catalog_url != lake.settings.catalog_url:
            raise InvalidInput(
                f"{uri!r} is in the lake of connection {connection!r}, and lake is another one", kind="invalid_uri"
            )
        yield lake, place
        return
    from lakeops.lake import Lake

    address = LakeAddress.of(connection)
    with address.open(Lake.open) as found, address.naming(found.catalog.database.shown):
        yield found, place


def spark_path(url: str, s3: str) -> str:
    """Translate a URL to a Spark path: percent-decoded, with the scheme of Spark's own connector.

    Raises ``InvalidInput`` for a container of Azure whose account no variable names.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return "file:" + unquote(rest)
    if scheme == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise InvalidInput(
                "Spark names Azure's account with each path; set AZURE_STORAGE_ACCOUNT_NAME", kind="invalid_settings"
            )
        container, _, path = rest.partition("/")
        return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"
    return f"{s3}://{rest}" if scheme == "s3" else url


def is_table_file(name: str) -> bool:
    """Tell whether Spark reads a file of a table, by its path below the table's folder."""
    return not any(part.startswith((".", "_")) and "=" not in part for part in name.split("/"))


def _name_columns(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "none"


def _format(path: str) -> str | None:
    for part in reversed(path.rpartition("/")[2].lower().split(".")[1:]):
        found = {"jsonl": "json", "ndjson": "json", "parq": "parquet", "txt": "text"}.get(part, part)
        if found in FORMATS:
            return found
    return None


def _type(values: set[str]) -> str:
    if values and all(re.fullmatch(r"[+-]?[0-9]+", value) for value in values):
        numbers = {abs(int(value)) for value in values}
        if max(numbers) < 1 << 63:
            return "int" if max(numbers) < 1 << 31 else "bigint"
        least = 20 if any(1 << 31 <= number < 1 << 63 for number in numbers) else 10
        if (digits := max(least, len(str(max(numbers))))) <= MOST_DIGITS:
            return f"decimal({digits},0)"
    if values and all(re.fullmatch(r"[+-]?([0-9]+\.[0-9]*|\.?[0-9]+)([eE][+-]?[0-9]+)?", value) for value in values):
        return "double"
    return "date" if values and all(_is_date(value) for value in values) else "string"


def _is_date(value: str) -> bool:
    try:
        return bool(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value)) and bool(date.fromisoformat(value))
    except ValueError:
        return False


SaveMode = Literal["error", "append", "overwrite", "ignore"]

FILES_A_TASK = 32
"""Files that one task looks up: on a bucket one request each, one after the other."""

_LOOK_UP_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_looking_up = Lock()
"""Held while that setting of a session differs, so that two threads do not restore each other's value."""

_FOLDER_OPTIONS = {"basepath", "recursivefilelookup"}
"""Options of Spark's reader that change how it reads partition folders."""

_ADDRESS = "__lakeops_address"
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate", ".xz")
_DECOMPRESSED_BY_NAME = ("csv", "json", "text")


def read(
    spark: SparkSession,
    uri: str,
    *,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    schema: StructType | str | None = None,
    where: str | Column | None = None,
    lake: Lake | None = None,
    check: bool = True,
    s3: str = "s3a",
    **options: Any,  # noqa: ANN401 - the reader's own
) -> DataFrame:
    """Read a table at a ref, or one file, with Spark's own reader. Later moves of the ref do not change it.

    Args:
        spark: the session, of this process or Spark Connect.
        uri: ``lakefs://[CONNECTION@]REPO/REF/PREFIX``.
        format: ``parquet``, ``csv``, ``json`` or whatever Spark reads; by the files' names when left out.
        schema: the columns, those of the folders included or not.
        where: a condition on partition columns. Files that it rules out are not opened.
        lake: the lake; when left out that of the URI's connection, of ``lakeops_default`` in Airflow, or the settings'.
        check: compare the size of each file with the recorded one before Spark reads it.
        s3: the scheme of Spark's S3 connector.
        **options: the reader's, such as ``header=True``.

    Raises:
        InvalidInput: ``invalid_uri``: the URI, the condition or the format makes no sense.
        RepositoryNotFound, RefNotFound, CommitExpired, ObjectNotFound: there is nothing to read.
        Corrupted: a file has another size than was recorded.
        LakeopsError: ``unsupported``: compressed text whose address does not tell how, so that Spark would read it as
            it is.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does

    found = files(uri, lake=lake, check=check)
    kind = format or found.format()
    _check_names(found, kind)
    wanted = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
    declared = {field.name: field.dataType.simpleString() for field in wanted or ()}
    types = {name: declared.get(name, kind) for name, kind in zip(found.columns, found.types(), strict=True)}
    kept = found if where is None else _pruned(spark, found, types, where)
    nothing = not kept.files
    if nothing:
        kept = replace(found, files=found.files[:1])  # tells the columns
    paths = [re.sub(r"([\[\]{}*?\\])", r"\\\1", url) for url in kept.urls(s3)]  # Spark sees no pattern in them

    def load(**how: str) -> DataFrame:
        reader = spark.read.format(kind).options(**options, **how)
        if wanted is not None:
            from pyspark.sql.types import StructType

            reader = reader.schema(StructType([field for field in wanted if field.name not in types]))
        return reader.load(paths)

    with _looked_up_together(spark, len(paths)):
        folder = None if _FOLDER_OPTIONS.intersection(map(str.lower, options)) else _folder_of_one_job(kept, s3)
        frame = None if folder is None else load(basePath=folder)
        if frame is None or frame.dtypes[-len(types) :] != [*types.items()]:  # not the types asked for
            frame = _with_values(spark, load(), kept, types, s3)
    return frame.where(F.lit(False)) if nothing else frame


@contextmanager
def _looked_up_together(spark: SparkSession, files: int) -> Iterator[None]:
    """Let Spark look files up in tasks of ``FILES_A_TASK`` for the block.

    By default Spark runs a task for each of more than 32 paths, which takes longer than to read small files.
    """
    with _looking_up:
        before = spark.conf.get(_LOOK_UP_TASKS, None)
        wanted = -(-files // FILES_A_TASK)
        spark.conf.set(_LOOK_UP_TASKS, str(wanted if before is None else min(wanted, int(before))))
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_LOOK_UP_TASKS)
            else:
                spark.conf.set(_LOOK_UP_TASKS, before)


def _folder_of_one_job(found: Files, s3: str) -> str | None:
    """The directory below which each file's folders spell its partition values; None without one."""
    if len({file.values for file in found}) < 2 or len({file.address for file in found}) < len(found):
        return None
    roots: set[str] = set()
    for file in found:
        texts = [NULL if value is None else value for value in file.values]
        end = "".join(f"/{name}={text}" for name, text in zip(found.columns, texts, strict=True))
        directory = file.url(s3).rpartition("/")[0]
        roots.add(directory.removesuffix(end))
        if len(roots) > 1 or directory in roots:
            return None
    return roots.pop()


def _with_values(spark: SparkSession, frame: DataFrame, found: Files, types: Mapping[str, str], s3: str) -> DataFrame:
    """Add the partition columns to a frame, and repeat the rows of a physical file for each path that it has."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    plain = frame.drop(*types)
    if len({file.values for file in found}) == 1 and len({file.address for file in found}) == len(found):
        literals = zip(types.items(), found.files[0].values, strict=True)
        return plain.withColumns({name: F.lit(value).cast(type_of) for (name, type_of), value in literals})
    # Java's URIs percent-encode some ASCII characters and keep letters of other scripts.
    encoded = str.maketrans({one: quote(one, safe="/:@!$&'()*+,;=~") for one in map(chr, range(0x80))})
    named = [file.url(s3).translate(encoded) for file in found]
    strangers = {re.sub("^file:/+", "file:/", one) for one in frame.inputFiles()} ^ {*named}
    if strangers:  # a file that the join does not know would lose its rows
        raise LakeopsError(
            f"Spark calls a file of {found.uri!r} by a name that lakeops does not expect, {excerpt(min(strangers))}: "
            "read it with spark.read.format('lakeops')",
            kind="unsupported",
        )
    columns = [list(column) for column in zip(*(file.values for file in found), strict=True)]
    arrays = [pa.array(column, pa.string()) for column in (named, *columns)]
    values = _typed(spark.createDataFrame(pa.table(arrays, names=[_ADDRESS, *found.columns])), types)
    return plain.withColumn(_ADDRESS, F.col("_metadata.file_path")).join(F.broadcast(values), _ADDRESS).drop(_ADDRESS)


def _typed(frame: DataFrame, types: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    quoted = {name: "`" + name.replace("`", "``") + "`" for name in types}
    return frame.select(_ADDRESS, *(F.col(quoted[name]).cast(kind).alias(name) for name, kind in types.items()))


def _pruned(spark: SparkSession, found: Files, types: Mapping[str, str], where: str | Column) -> Files:
    """The files whose partition columns meet a condition, as Spark evaluates it."""
    import pyarrow as pa
    from pyspark.errors import AnalysisException

    if not types:
        raise InvalidInput(f"where needs partition columns, and {found.uri!r} has none; filter the DataFrame")
    distinct = list(dict.fromkeys(file.values for file in found))
    arrays = [pa.array(column, pa.string()) for column in zip(*distinct, strict=True)]
    number = pa.array(range(len(distinct)), pa.int64())
    table = spark.createDataFrame(pa.table([number, *arrays], names=[_ADDRESS, *found.columns]))
    try:
        rows = _typed(table, types).where(where).select(_ADDRESS).collect()
    except AnalysisException as error:
        reason = str(error).splitlines()[0].partition(" Did you mean")[0]  # which names this table's other column
        raise InvalidInput(
            f"where may use the partition columns {', '.join(types)} of {found.uri!r} and nothing else: {reason}"
        ) from None
    kept = {distinct[row[0]] for row in rows}
    return replace(found, files=tuple(file for file in found if file.values in kept))


def _check_names(found: Files, kind: str) -> None:
    """Raise ``unsupported`` for compressed text whose address lacks the extension by which Spark decompresses."""
    for file in found if kind in _DECOMPRESSED_BY_NAME else ():
        ending = next((one for one in _COMPRESSED if file.path.endswith(one)), "")
        if ending and not file.address.endswith(ending):
            raise LakeopsError(
                f"{excerpt(file.path)} is compressed, and its address does not end in {ending}, which Spark goes by: "
                "read it with spark.read.format('lakeops'), or publish it with output()",
                kind="unsupported",
            )


def write(
    frame: DataFrame,
    uri: str,
    mode: SaveMode = "error",
    *,
    format: str = "parquet",  # noqa: A002 - as Spark calls it
    partition_by: str | Sequence[str] = (),
    on_collision: OnCollision = "refuse",
    success_file: bool = False,
    idempotency_key: str | None = None,
    allow_empty: bool = False,
    lake: Lake | None = None,
    s3: str = "s3a",
    **options: Any,  # noqa: ANN401 - the writer's own
) -> int:
    """Write a DataFrame under a prefix of a branch with Spark's own writer. Returns the number of staged files.

    The files are staged in one step after the job has succeeded, and not at all after an error. Nothing is committed.

    Args:
        frame: the rows.
        uri: ``lakefs://[CONNECTION@]REPO/BRANCH/PREFIX``.
        mode: ``append`` adds files, ``overwrite`` replaces all that is under the prefix, ``error`` wants it empty when
            the files are staged, ``ignore`` stages nothing when it is not empty then.
        format: ``parquet``, ``csv``, ``json`` or whatever Spark writes.
        partition_by: columns whose values become folders.
        on_collision: what ``append`` does with a path that is taken, see ``Branch.output``.
        success_file: keep the file ``_SUCCESS``.
        idempotency_key: ``append`` replaces the files that it has added under this key, see ``Branch.output``.
        allow_empty: let a job that wrote no file empty the prefix, as one does that partitions no rows.
        lake: the lake; when left out that of the URI's connection, of ``lakeops_default`` in Airflow, or the settings'.
        s3: the scheme of Spark's S3 connector.
        **options: the writer's, such as ``compression="zstd"``.

    Raises:
        InvalidInput: ``invalid_uri``: the URI or the mode makes no sense.
        RepositoryNotFound, RefNotFound, InvalidInput: ``invalid_ref``: there is no such branch. Tags and commits
            cannot be written to.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no changes.
        PathTaken: there are objects that the mode does not allow.
        LakeopsError: ``unsupported``: Spark is told to overwrite only the partitions that the DataFrame has.
    """
    if mode not in ("error", "append", "overwrite", "ignore"):
        raise InvalidInput(f"mode {excerpt(mode)} is not one of 'error', 'append', 'overwrite' and 'ignore'")
    if mode == "overwrite" and partition_by:
        _check_overwrite(frame.sparkSession, options)
    kind: OutputMode = "append" if mode == "append" else "replace"
    with opened(uri, lake) as (found, place):
        repository, ref, prefix = place.with_prefix()
        branch = found.repository(repository).branch(ref)
        output = branch.open_output(prefix, kind, on_collision, idempotency_key=idempotency_key)
        try:
            if mode in ("error", "ignore") and next(iter(branch.list(output.folder)), None) is not None:
                raise PathTaken(f"there are objects under {uri!r}; say mode='append' or mode='overwrite'")
            writer = frame.write.format(format).options(**options)
            writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", success_file)
            if partition_by:
                writer = writer.partitionBy(*([partition_by] if isinstance(partition_by, str) else partition_by))
            writer.save(spark_path(output.url, s3))
            empty = mode in ("error", "ignore")
            return branch.link_output(output, kind, on_collision, empty=empty, allow_empty=allow_empty)
        except BaseException as error:
            branch.abandon_output(output)
            if mode == "ignore" and isinstance(error, PathTaken):
                return 0
            raise


def _check_overwrite(spark: SparkSession, options: Mapping[str, object]) -> None:
    given = {name.lower(): str(value) for name, value in options.items()}
    how = given.get("partitionoverwritemode") or spark.conf.get("spark.sql.sources.partitionOverwriteMode", "static")
    if str(how).lower() == "dynamic":
        raise LakeopsError(
            "lakeops overwrites all that is under the prefix, and partitionOverwriteMode is 'dynamic'; overwrite the "
            "folder of each partition, or say partitionOverwriteMode='static'",
            kind="unsupported",
        )
