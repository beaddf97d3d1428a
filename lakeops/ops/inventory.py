"""Inventories: lists of a bucket's objects that somebody made before, which an import reads in place of a listing.

An inventory is a Parquet or CSV file of keys, or the ``manifest.json`` of an Amazon S3 Inventory, which names several
such files. With size, time and ETag of each object no request is made for it; a few are asked for, so that an inventory
that the bucket has outgrown is refused. Without them every object is asked for.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import InvalidInput, ObjectNotFound
from lakeops.model.records import Progress, quiet
from lakeops.model.sanitising import excerpt
from lakeops.store.base import Listing, ObjectStore, StoredObject
from lakeops.store.foreign import FILE_BYTES, FILE_TIMES, memory_limit
from lakeops.store.in_flight import in_flight
from lakeops.store.open import Stores, parse_location
from lakeops.store.reader import parse_json, read_small

_COLUMNS = {
    "key": ("key",),
    "size": ("size", "sizebytes"),
    "mtime": ("lastmodifieddate", "lastmodified", "mtime"),
    "mark": ("etag",),
    "latest": ("islatest",),
    "deleted": ("isdeletemarker",),
    "bucket": ("bucket",),
}
"""Names of columns, without case and underscores. The first are those of an S3 Inventory."""
_TYPES = {"key": pa.string(), "size": pa.int64(), "mtime": pa.int64(), "mark": pa.string()}
_BATCH = 50_000
_SAMPLE = 32
_MOST_MANIFEST = 64 << 20


def inventory(
    stores: Stores, file: str, source: str, store: ObjectStore, after: str = "", progress: Progress = quiet
) -> tuple[int, Iterator[Listing]]:
    """The objects of a source that an inventory names: how many, and in path order what a scan would give of them.

    The scan begins behind the key ``after``.

    ``file`` is a path or URL: ``.parquet``, ``.csv``, ``.csv.gz`` (with a header), or an S3 Inventory's manifest. Keys
    are those of the source's bucket, and what lies elsewhere in it is left out. Keys of a directory are relative to it.

    Raises ``InvalidInput`` when the file is no inventory, names a key twice, or is older than what lies in the bucket;
    ``ObjectNotFound`` when there is no such file.
    """
    place = parse_location(source).url
    bucket, _, prefix = place.partition("://")[2].partition("/")
    prefix = f"{prefix}/" if prefix and store.remote else ""
    tables = [_relevant(table, file, bucket, prefix) for table in _tables(stores, file, progress)]
    names = set.intersection(*(set(table.column_names) for table in tables)) if tables else {"key"}
    known = [name for name in _TYPES if name in names] if store.remote and names >= _TYPES.keys() else ["key"]
    empty = pa.schema([(name, _TYPES[name]) for name in known]).empty_table()
    found = pa.concat_tables([empty, *(table.select(known) for table in tables)]).sort_by("key").combine_chunks()
    keys = found["key"]
    twice = pc.index(pc.equal(keys[1:], keys[:-1]), value=True).as_py() if len(keys) > 1 else -1
    if twice >= 0:
        raise InvalidInput(f"inventory {excerpt(file)} names {excerpt(keys[twice].as_py())} twice")
    total = len(keys)
    if not store.remote:
        return total, _listed(store, keys)
    if known != ["key"]:
        _check_some(store, found)
    found = found.filter(pc.greater(found["key"], after))
    if known == ["key"]:
        heads = in_flight(partial(_head, store), (key.as_py() for chunk in found["key"].chunks for key in chunk))
        return total, (Listing([one.key], [one.size_bytes], [one.mtime], [one.etag]) for one in heads)
    columns = (map(batch.column, _TYPES) for batch in found.to_batches(_BATCH))
    return total, (Listing(*(column.to_pylist() for column in some)) for some in columns)


def _listed(store: ObjectStore, keys: pa.ChunkedArray) -> Iterator[Listing]:
    """A directory's objects that are named. It is listed as quickly as it is asked for each."""
    missing = set(keys.to_pylist())
    for listing in store.scan(skip_special=True):
        rows = [row for row, key in enumerate(listing.keys) if key in missing]
        missing.difference_update(listing.keys)
        columns = (listing.keys, listing.sizes, listing.mtimes, listing.marks)
        yield Listing(*([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]
    if missing:
        raise _outgrown(min(missing), "it is not there")


def _head(store: ObjectStore, key: str) -> StoredObject:
    try:
        return store.head(key)
    except ObjectNotFound:
        raise _outgrown(key, "it is not there") from None


def _check_some(store: ObjectStore, found: pa.Table) -> None:
    """Ask for a few objects, evenly spread. Raise ``InvalidInput`` when one is gone or is another one by now."""
    rows = found.num_rows
    some = found.take(sorted({rows * part // _SAMPLE for part in range(_SAMPLE)})) if rows else found
    for row, head in zip(some.to_pylist(), in_flight(partial(_head, store), some["key"].to_pylist()), strict=True):
        if (row["size"], row["mark"]) != (head.size_bytes, head.etag):
            raise _outgrown(row["key"], "it has changed")


def _outgrown(key: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"the inventory is older than what it lists: {excerpt(key)}: {why}; take a newer inventory, or import without "
        "one. Nothing was published"
    )


def _tables(stores: Stores, file: str, progress: Progress) -> Iterator[pa.Table]:
    """The rows of all files of an inventory, with the file's own columns."""
    folder, name = place(stores, file)
    if not name.endswith(".json"):
        yield _table(folder, name, None)
        return
    try:
        manifest = parse_json(read_small(folder, name, _MOST_MANIFEST))
        schema = [str(one).strip() for one in str(manifest["fileSchema"]).split(",")]
        kind = str(manifest["fileFormat"]).lower()
        bucket = str(manifest["destinationBucket"]).rpartition(":")[2]
        keys = [str(one["key"]) for one in manifest["files"]]
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"{excerpt(file)} is no manifest of an S3 Inventory") from None
    if kind not in {"csv", "parquet"}:
        raise InvalidInput(f"the inventory {excerpt(file)} is {excerpt(kind)}; lakeops reads CSV and Parquet")
    for done, key in enumerate(keys):
        progress("reading the inventory", done, len(keys))
        yield _table(stores.at(f"s3://{bucket}"), key, schema if kind == "csv" else None)


def place(stores: Stores, file: str) -> tuple[ObjectStore, str]:
    """The store and the key of an inventory."""
    if "://" not in file:
        path = Path(file).resolve()
        return stores.at(path.parent.as_uri()), path.name
    folder, _, name = file.rpartition("/")
    if not name:
        raise InvalidInput(f"{excerpt(file)} names no file of an inventory")
    return stores.at(folder), name


def _table(store: ObjectStore, name: str, headless: list[str] | None) -> pa.Table:
    """The rows of one file. ``headless`` names the columns of an S3 Inventory's CSV, whose keys are URL-encoded."""
    from pyarrow import csv
    from pyarrow import parquet as pq

    size = store.head(name).size_bytes
    with ExitStack() as opened:
        file: IO[bytes] = opened.enter_context(tempfile.TemporaryFile())
        with store.open(name) as remote:
            copyfileobj(remote, file)
        file.seek(0)
        opened.enter_context(memory_limit(FILE_BYTES + FILE_TIMES * size, excerpt(name)))
        try:
            if name.endswith(".parquet"):
                with pq.ParquetFile(file) as parquet:
                    return parquet.read([one for one in parquet.schema_arrow.names if _column_of(one)])
            if not re.search(r"\.csv(\.gz)?$", name):
                raise InvalidInput(f"{excerpt(name)} is no inventory: it must end in .parquet, .csv, .csv.gz or .json")
            names = headless or _csv(file, name).schema.names
            # A key or an ETag that consists of digits is no number.
            text = dict.fromkeys(names, pa.string())
            kept = csv.ConvertOptions(column_types=text, null_values=[""], strings_can_be_null=True)
            columns = _csv(file, name, csv.ReadOptions(column_names=headless), kept).read_all()
        except (OSError, pa.ArrowException) as error:
            raise InvalidInput(f"{excerpt(name)} cannot be read: {' '.join(str(error).split()):.300}") from None
    if headless:
        place = next((at for at, one in enumerate(headless) if _column_of(one) == "key"), None)
        if place is not None:
            decoded = pa.array([key and unquote_plus(key) for key in columns[headless[place]].to_pylist()], pa.string())
            columns = columns.set_column(place, headless[place], decoded)
    return columns


def _csv(file: IO[bytes], name: str, read: Any = None, convert: Any = None) -> Any:  # noqa: ANN401 - pyarrow is not typed
    from pyarrow import csv

    file.seek(0)
    if name.endswith(".gz"):
        file = pa.CompressedInputStream(os.fdopen(os.dup(file.fileno()), "rb"), "gzip")  # it closes what it reads
    return csv.open_csv(file, read, None, convert)


def _column_of(name: str) -> str | None:
    plain = name.lower().replace("_", "").replace(" ", "")
    return next((column for column, spelled in _COLUMNS.items() if plain in spelled), None)


def _relevant(table: pa.Table, file: str, bucket: str, prefix: str) -> pa.Table:
    """The rows below the source that are objects now, with keys relative to it, in columns named and typed as ours."""
    columns = {column: table[name] for name in table.column_names if (column := _column_of(name))}
    if "key" not in columns:
        raise InvalidInput(
            f"inventory {excerpt(file)} has no column key; it has {excerpt(', '.join(table.column_names))}"
        )
    keys = columns["key"].cast(pa.string())
    keep = pc.starts_with(keys, prefix)
    try:
        for name, wanted in (("bucket", bucket), ("latest", True), ("deleted", False)):
            if name in columns:
                keep = pc.and_kleene(keep, pc.equal(columns[name].cast(pa.scalar(wanted).type), wanted))
        found = pa.table({"key": keys} | {name: columns[name] for name in _TYPES if name in columns and name != "key"})
        found = found.filter(keep)
        typed = {"key": pc.utf8_slice_codeunits(found["key"], len(prefix))}
        if "size" in columns:
            typed["size"] = found["size"].cast(pa.int64())
        if "mtime" in columns:
            typed["mtime"] = _seconds(found["mtime"])
        if "mark" in columns:
            typed["mark"] = pc.utf8_trim(found["mark"].cast(pa.string()), characters='"')
    except pa.ArrowException as error:
        raise InvalidInput(f"inventory {excerpt(file)}: {' '.join(str(error).split()):.300}") from None
    if any(column.null_count for column in (keep, *typed.values())):
        names = ", ".join(filter(_column_of, table.column_names))
        raise InvalidInput(f"inventory {excerpt(file)} lacks a value of {names} in some row")
    return pa.table(typed).filter(pc.not_equal(typed["key"], ""))


def _seconds(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unix seconds of times: timestamps, texts of ISO 8601, or seconds."""
    if pa.types.is_integer(moments.type):
        return moments.cast(pa.int64())
    if not pa.types.is_timestamp(moments.type):
        moments = pc.replace_substring_regex(moments.cast(pa.string()), r"(\.\d+)?(Z|\+00:00)?$", "")
        moments = pc.strptime(pc.replace_substring(moments, " ", "T"), format="%Y-%m-%dT%H:%M:%S", unit="s")
    return pc.floor_temporal(moments, unit="second").cast(pa.timestamp("s")).cast(pa.int64())
