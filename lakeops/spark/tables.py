"""Tables through Spark's own readers and writers, with whatever options they have.

An executor opens the physical files itself, so Spark needs to reach the storage namespace. The folders of a path need
not be in the address of a file. So the values of partition columns come from a small table that is joined by address.
Where all files have the same values, they are literals. Where one job wrote all files, and the folders with them, Spark
finds the values there, which is quicker than a join.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fnmatch import translate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

from lakeops.model.errors import InvalidInput, ObjectNotFound, PathTaken, invalid_settings, unsupported
from lakeops.model.names import TABLE_FORMATS, LakeUri, is_table_file, split_connection, table_format
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakeops.lake import Lake
    from lakeops.ops.output import OnCollision, OutputMode
    from lakeops.store.base import ObjectStore

NULL = "__HIVE_DEFAULT_PARTITION__"
"""How Spark and Hive spell a null in the name of a folder."""

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
        found = {table_format(file.path) for file in self.files}
        if len(found) == 1 and (only := found.pop()) is not None:
            return only
        raise InvalidInput(f"the names of the files at {self.uri!r} tell no single format; say format='parquet'")


def files(
    uri: str, *, lake: Lake | None = None, check: bool = True, recursive: bool = False, leave_out: Collection[str] = ()
) -> Files:
    """The physical files of a table at a ref, or the one file at a path.

    The list is pinned to the commit: later moves of the ref do not change it. It has the files that Spark reads below
    a folder: not those whose names begin with ``_`` or ``.``, no markers of folders, and where folders are not columns,
    only the files that lie directly in the folder.

    Arguments and errors are those of ``read``. With ``recursive`` the files of all folders are listed, and no folder is
    taken for a column. Paths to ``leave_out`` are not listed.
    """
    with opened(uri, lake) as (found, place):
        repository, ref, prefix = place.with_prefix()
        try:
            shown = found.repository(repository).ref(ref).snapshot(prefix, check=check)
        except ObjectNotFound:
            if not re.search(r"[*?{\[]", prefix):
                raise
            raise InvalidInput(f"{uri!r} is no path: read the folder above, with where= or pathGlobFilter=") from None
    inside = len(shown.folder) if shown.folder.endswith("/") or not shown.folder else shown.folder.rfind("/") + 1
    columns: tuple[str, ...] | None = None
    above: list[str] = []
    listed, deeper = [], []
    folders: dict[str, tuple[tuple[str, ...], tuple[str | None, ...], list[str]]] = {}
    rows = shown.entries.select(["path", "physical_address", "size_bytes", "checksum"]).to_pylist()
    for row, (store, key), algorithm in zip(rows, shown.sources, shown.algorithms, strict=True):
        path, address, size, checksum = row.values()
        if path.startswith("_spark_metadata/", inside) and path not in leave_out:
            log = f"{uri!r} has a stream's log, {excerpt(path)}, which tells the files that count; delete it if all do"
            raise unsupported(log)
        if not is_table_file(path[inside:]) or path in leave_out:
            continue
        folder = path[: path.rfind("/") + 1]
        if folder not in folders:
            folders[folder] = ((), (), []) if recursive else _in_folders(path, inside)
        names, values, root = folders[folder]
        file = File(path, address, size, values, store, key, checksum, algorithm)
        if not names and not recursive and "/" in path[inside:]:
            deeper.append(file)
            continue
        if columns is not None and (names, root) != (columns, above):
            one, other = (", ".join(told) or "none" for told in (columns, names))
            raise InvalidInput(
                f"{uri!r} has files with different partition columns, {one} and {other}: {excerpt(path)} is one; "
                "read the folders one by one"
            )
        columns, above = names, root
        listed.append(file)
    if deeper and (columns or not listed):
        raise InvalidInput(
            f"{uri!r} has files in folders that are no columns, {excerpt(deeper[0].path)} is one; name such a "
            "folder, or say recursiveFileLookup=True"
        )
    if columns is None:
        raise ObjectNotFound(f"there are no files of a table at {uri!r}, only names that Spark ignores")
    return Files(uri, shown.commit_id, columns, tuple(listed))


def _in_folders(path: str, inside: int) -> tuple[tuple[str, ...], tuple[str | None, ...], list[str]]:
    """The partition columns of a file, their values, and the folders above these, as Spark discovers them."""
    if "//" in "/" + path[inside:]:
        raise InvalidInput(f"{excerpt(path)} has an empty part, which Spark takes for none; give it another path")
    folders = path[inside:].split("/")[:-1]
    while folders and "=" not in folders[-1]:
        folders.pop()
    root = next((at for at in range(len(folders), 0, -1) if "=" not in folders[at - 1]), 0)
    # Spark and Hive write a byte each, whatever the encoding.
    pairs = [tuple(unquote(text, "latin-1") for text in part.split("=", 1)) for part in folders[root:]]
    names = tuple(name for name, _ in pairs)
    if len({*map(str.lower, names)}) < len(names):
        raise InvalidInput(f"two folders of {excerpt(path)} stand for one column; read the folders below")
    if not all(name and value for name, value in pairs):
        raise InvalidInput(f"a folder of {excerpt(path)} stands for a column, and its name or its value is empty")
    return names, tuple(None if value == NULL else value for _, value in pairs), folders[:root]


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
    if re.search(r"/(/|\.{1,2}(/|$))", unquote(rest)):
        raise unsupported(f"Spark takes {excerpt(url)} for another path; copy the object")
    if scheme == "file":
        return "file:" + unquote(rest)
    if scheme == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise invalid_settings("Spark names Azure's account with each path; set AZURE_STORAGE_ACCOUNT_NAME")
        container, _, path = rest.partition("/")
        return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"
    return f"{s3}://{rest}" if scheme == "s3" else url


def _type(values: set[str]) -> str:
    kinds = {*map(_kind, values)}
    digits = {int(kind[8:-3]) for kind in kinds if kind.startswith("decimal")}
    whole = {kind for kind in kinds if not kind.startswith("decimal")}
    if whole <= {"int", "bigint"} and digits:
        return f"decimal({max(digits | {_DIGITS[kind] for kind in whole})},0)"
    for kind, others in (("void", set()), ("bigint", {"int"}), ("double", {"int"}), ("timestamp", {"date"})):
        if kinds <= {kind, *others} and (kind in kinds or not kinds):
            return kind
    return kinds.pop() if len(kinds) == 1 else "string"


_DIGITS = {"int": 10, "bigint": 20}


def _kind(value: str) -> str:
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?0*\d{1,9})?", value):  # more is a double
        if re.fullmatch(r"[+-]?\d+", value) and -(1 << 63) <= int(value) < 1 << 63:
            return "int" if -(1 << 31) <= int(value) < 1 << 31 else "bigint"
        number = Decimal(value).as_tuple()
        digits = len(number.digits) + int(number.exponent)
        if int(number.exponent) >= 0 and digits <= MOST_DIGITS:
            return f"decimal({digits},0)"
    if re.fullmatch(r"[\0- ]*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)[\0- ]*", value):
        return "double"
    found = re.fullmatch(r"([0-9]{4}-[0-9]{2}-[0-9]{2})( [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9])?)?", value)
    if found:
        with suppress(ValueError):  # it looks like a date, and may be none
            datetime.fromisoformat(value)
            return "timestamp" if found[2] else "date"
    return "string"


SaveMode = Literal["error", "append", "overwrite", "ignore"]

_SERVED = {"pathglobfilter", "recursivefilelookup"}
"""Options of Spark's reader that lakeops serves, by the names that paths have."""
_NO_OPTIONS = {
    "basepath": "read the table's folder, where='day = 1' opens the files of that day alone",
    "path": "the URI tells which files",
    "paths": "the URI tells which files",
    "modifiedbefore": "read an older ref",
    "modifiedafter": "read an older ref, or a stream from a commit on",
}
"""Options that speak of names and times of physical files, and what does that here."""
_NO_FORMATS = {"binaryfile", "image", "lakeops"}

_ADDRESS = "__lakeops_address"
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate", ".xz")
_DECOMPRESSED_BY_NAME = ("csv", "json", "text", "xml")


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
        **options: the reader's, such as ``header=True``. ``pathGlobFilter`` and ``recursiveFileLookup`` go by the
            names in the repository.

    Raises:
        InvalidInput: ``invalid_uri``: the URI, the condition, an option or the format makes no sense.
        RepositoryNotFound, RefNotFound, CommitExpired, ObjectNotFound: there is nothing to read.
        Corrupted: a file has another size than was recorded.
        LakeopsError: ``unsupported``: a folder that a stream of Spark wrote, whose log tells which files count, or
            compressed text whose address does not tell how, so that Spark would read it as it is.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does
    from pyspark.sql.types import StructType

    given = {name.lower(): value for name, value in options.items() if value is not None}  # Spark ignores these
    for name in given.keys() & _NO_OPTIONS:
        raise InvalidInput(f"option {name} goes by physical files: {_NO_OPTIONS[name]}")
    if re.search(r"[{}\\^]|\[!", str(given.get("pathglobfilter"))):
        raise InvalidInput("pathGlobFilter may have *, ? and [...] alone")
    passed = {name: value for name, value in options.items() if name.lower() not in _SERVED}
    found = files(uri, lake=lake, check=check, recursive=is_true(given, "recursiveFileLookup"))
    wanted = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
    folded = str if _is_on(spark, "spark.sql.caseSensitive") else str.lower
    declared = {folded(field.name): field for field in wanted or ()}
    infers = _is_on(spark, "spark.sql.sources.partitionColumnTypeInference.enabled", default="true")
    types: dict[str, str] = {}
    for name, of_values in zip(found.columns, found.types(), strict=True):
        if (field := declared.get(folded(name))) is not None:
            told = field.dataType.simpleString()
            types[field.name] = "timestamp_ltz" if told == "timestamp" else told  # which some sessions take for ntz
        else:
            types[name] = of_values if infers or of_values == "void" else "string"
    zone = spark.conf.get("spark.sql.session.timeZone")
    if {"timestamp", "timestamp_ltz"} & {*types.values()} and given.get("timezone", zone) != zone:
        raise InvalidInput(f"folders of {uri!r} are times, which option timeZone moves: set the session's time zone")
    found = replace(found, columns=tuple(types))
    if "pathglobfilter" in given:
        pattern = re.compile(translate(str(given["pathglobfilter"])))
        found = replace(found, files=tuple(one for one in found if pattern.match(one.path.rpartition("/")[2])))
    if not found.files:
        raise ObjectNotFound(f"no file at {uri!r} matches pathGlobFilter {excerpt(given['pathglobfilter'])}")
    kind = format or found.format()
    _check_names(found, kind)
    kept = found if where is None else _pruned(spark, found, types, where)
    nothing = not kept.files
    if nothing:
        kept = replace(found, files=found.files[:1])  # tells the columns
    data = None if wanted is None else StructType([field for field in wanted if field.name not in types])

    def load(paths: str | list[str], **how: Any) -> DataFrame:  # noqa: ANN401 - the reader's own
        reader = spark.read.format(kind).options(**passed, **how)
        return (reader if data is None else reader.schema(data)).load(paths)

    merged = str(given.get("mergeschema", _is_on(spark, "spark.sql.parquet.mergeSchema"))).lower() == "true"
    first = replace(found, files=found.files[:1])
    if data is None and kind.lower() == "parquet" and not merged and first.urls(s3) != [min(kept.urls(s3))]:
        data = load(_spark_patterns(first, s3)).schema  # Spark takes that of the first file
    logs = kind.lower() in TABLE_FORMATS and hasattr(spark, "_sc")  # Connect plans elsewhere, and again for each action
    folder = _folder_of_one_job(kept, s3)
    frame = None if folder is None else _loaded(load, kept, s3, folder, logs=logs)
    if frame is None or frame.dtypes[-len(types) :] != [*types.items()]:  # not the types asked for
        frame = _with_values(spark, _loaded(load, kept, s3, logs=logs), kept, types, s3)
    none = frame.where(F.lit(False))
    return none if nothing else frame.union(none)  # which has no _metadata: that speaks of physical files


def is_true(given: Mapping[str, Any], option: str) -> bool:
    """Tell whether an option is true, of options by their names in lower case. Raises ``InvalidInput``."""
    told = str(given.get(option.lower(), False)).lower()
    if told not in {"true", "false"}:
        raise InvalidInput(f"{option} is true or false, not {excerpt(told)}")
    return told == "true"


def _is_on(spark: SparkSession, setting: str, *, default: str = "false") -> bool:
    return str(spark.conf.get(setting, default)).lower() == "true"


def _spark_patterns(found: Files, s3: str) -> list[str]:
    return [re.sub(r"([\[\]{}*?\\])", r"\\\1", url) for url in found.urls(s3)]  # Spark sees no pattern in them


def _loaded(
    load: Callable[..., DataFrame], found: Files, s3: str, folder: str | None = None, *, logs: bool
) -> DataFrame:
    """Load files of which Spark looks none up: their list is a log, as one of Spark's streams leaves it in its folder.

    Without ``logs``, and where Spark does not take the log, it gets the path of each file.
    """
    if logs:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        sizes = {_spark_name(file, s3): file.size_bytes for file in found}
        about = {"isDir": False, "modificationTime": 0, "blockReplication": 1, "blockSize": 1 << 25, "action": "add"}
        lines = (json.dumps({"path": name, "size": size, **about}) for name, size in sizes.items())
        with TemporaryDirectory(prefix="lakeops-") as place, suppress(PySparkException, Py4JJavaError):
            Path(place, "_spark_metadata").mkdir()
            Path(place, "_spark_metadata", "0").write_text("\n".join(["v1", *lines]), encoding="utf-8")
            # Columns of folders are found up to the first folder that is none.
            frame = load(f"file:{place}", recursiveFileLookup=folder is None)
            if _names(frame) == sizes.keys():
                return frame
    return load(_spark_patterns(found, s3), **({} if folder is None else {"basePath": folder}))


def _names(frame: DataFrame) -> set[str]:
    """The names that Spark has for the files of a frame."""
    if (plan := getattr(frame, "_jdf", None)) is None:
        names = frame.inputFiles()
    else:  # Python would fetch each name by itself
        java = frame.sparkSession._jvm.org.apache.hadoop.util.StringUtils  # noqa: SLF001
        names = java.join("\n", plan.inputFiles()).split("\n")
    return {re.sub("^file:/+", "file:/", name) for name in names}


# Java's URIs percent-encode some ASCII characters, controls and spaces, and keep letters of other scripts.
_SPECIAL = [one for one in map(chr, range(0x3001)) if one < "\xa0" or one.isspace()]
_ENCODED = str.maketrans({one: quote(one, safe="/:@!$&'()*+,;=~") for one in _SPECIAL})


def _spark_name(file: File, s3: str) -> str:
    return file.url(s3).translate(_ENCODED)


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
        if len(roots) > 1 or directory in roots or "=" in min(roots).rpartition("/")[2]:
            return None
    return roots.pop()


def _with_values(spark: SparkSession, frame: DataFrame, found: Files, types: Mapping[str, str], s3: str) -> DataFrame:
    """Add the partition columns to a frame, and repeat the rows of a physical file for each path that it has."""
    from pyspark.sql import functions as F  # noqa: N812

    folded = str if _is_on(spark, "spark.sql.caseSensitive") else str.lower
    # A column that files have too stands where it stands there.
    held = {folded(name): name for name in types}
    order = [held.pop(folded(name), name) for name in frame.columns] + [*held.values()]
    plain = frame.drop(*types)
    if len({file.values for file in found}) == 1 and len({file.address for file in found}) == len(found):
        literals = zip(types.items(), found.files[0].values, strict=True)
        # Spark would know that a plain literal is no null, which it does not of a folder.
        values = {name: _cast(F.nullif(F.lit(value), F.lit(NULL)), type_of) for (name, type_of), value in literals}
        return plain.withColumns(values).select(*map(_quoted, order))
    named = [_spark_name(file, s3) for file in found]
    strangers = _names(frame) ^ {*named}
    if strangers:  # a file that the join does not know would lose its rows
        raise unsupported(
            f"Spark calls a file of {found.uri!r} by a name that lakeops does not expect, {excerpt(min(strangers))}: "
            "read it with spark.read.format('lakeops') where it is Parquet"
        )
    values = _typed(spark, named, [file.values for file in found], types)
    address = plain.metadataColumn("_metadata")["file_path"]  # the files may have a column of that name
    joined = plain.withColumn(_ADDRESS, address).join(F.broadcast(values), _ADDRESS)
    return joined.select(*map(_quoted, order))


def _typed(
    spark: SparkSession, keys: list[Any], values: Sequence[Sequence[Any]], types: Mapping[str, str]
) -> DataFrame:
    """A frame of partition values of some types, each row with its key as ``_ADDRESS``."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    columns = [pa.array(column, pa.string()) for column in zip(*values, strict=True)]
    frame = spark.createDataFrame(pa.table([pa.array(keys), *columns], names=[_ADDRESS, *types]))
    return frame.select(_ADDRESS, *(_cast(F.col(_quoted(name)), kind).alias(name) for name, kind in types.items()))


def _cast(column: Column, kind: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if kind == "void":
        return F.lit(None)
    error = F.raise_error(F.concat(F.lit(f"a folder's value is no {kind}: "), column))
    return F.coalesce(column.try_cast(kind), F.when(column.isNotNull(), error))  # without ANSI a cast gives a null


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _pruned(spark: SparkSession, found: Files, types: Mapping[str, str], where: str | Column) -> Files:
    """The files whose partition columns meet a condition, as Spark evaluates it."""
    from pyspark.errors import AnalysisException

    if not types:
        raise InvalidInput(f"where needs partition columns, and {found.uri!r} has none; filter the DataFrame")
    distinct = list(dict.fromkeys(file.values for file in found))
    table = _typed(spark, [*range(len(distinct))], distinct, types)
    try:
        rows = table.where(where).select(_ADDRESS).collect()
    except AnalysisException as error:
        reason = str(error).splitlines()[0].partition(" Did you mean")[0]  # which names this table's other column
        raise InvalidInput(
            f"where may use the partition columns {', '.join(types)} of {found.uri!r} and nothing else: {reason}"
        ) from None
    kept = {distinct[row[0]] for row in rows}
    return replace(found, files=tuple(file for file in found if file.values in kept))


def _check_names(found: Files, kind: str) -> None:
    """Raise ``unsupported`` where Spark would go by the names of physical files."""
    if kind.lower() in _NO_FORMATS:
        raise unsupported(f"the format {kind} tells of physical files; read the objects by fsspec")
    for file in found:
        if not is_table_file(file.address.rpartition("/")[2]):
            raise unsupported(
                f"{excerpt(file.path)} lies at {excerpt(file.address)}, and Spark reads no file of such a name; "
                "publish it with output()"
            )
    for file in found if kind.lower() in _DECOMPRESSED_BY_NAME else ():
        asked, held = (next(filter(name.endswith, _COMPRESSED), "") for name in (file.path, file.address))
        if asked != held:
            raise unsupported(
                f"{excerpt(file.path)} is {'' if asked else 'not '}compressed, and Spark goes by its address, "
                f"{excerpt(file.address)}; publish it with output()"
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
        allow_empty: let ``overwrite`` empty the prefix with a job that wrote no file, as one that partitions no rows.
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
    given = {name.lower(): str(value) for name, value in options.items()}
    how = frame.sparkSession.conf.get("spark.sql.sources.partitionOverwriteMode", "static")
    if mode == "overwrite" and partition_by and str(given.get("partitionoverwritemode", how)).lower() == "dynamic":
        raise unsupported(
            "lakeops overwrites all that is under the prefix, and partitionOverwriteMode is 'dynamic'; overwrite the "
            "folder of each partition, or say partitionOverwriteMode='static'"
        )
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
            allow_empty |= empty and bool(partition_by)  # of no rows Spark makes no folder
            return branch.link_output(output, kind, on_collision, empty=empty, allow_empty=allow_empty)
        except BaseException as error:
            branch.abandon_output(output)
            if mode == "ignore" and isinstance(error, PathTaken):
                return 0
            raise
