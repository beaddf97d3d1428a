"""The physical files of a table at a ref, and the partition columns that its folders stand for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lakeops.model.errors import InvalidInput, InvalidSettings, ObjectNotFound
from lakeops.model.text import excerpt
from lakeops.model.uris import LakeUri

if TYPE_CHECKING:
    from lakeops.lake import Lake
    from lakeops.store.base import ObjectStore

NULL = "__HIVE_DEFAULT_PARTITION__"
"""How a folder spells a value that is not there."""

FORMATS = ("parquet", "csv", "json", "text", "orc", "avro")

MOST_DIGITS = 38
"""Digits of Spark's longest numbers."""


@dataclass(frozen=True, slots=True)
class File:
    """One physical file.

    Attributes:
        path: the object's path.
        address: where it lies, as a URL.
        size_bytes: how large it is.
        values: the values of the partition columns, as the folders spell them. None for a null.
        store: the store that it lies in.
        key: its key there.
        checksum: the checksum that was recorded.
        algorithm: how the checksum is computed from the contents. None where it cannot be.
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
        """The address as Spark takes paths: nothing is percent-encoded, and buckets have the scheme ``s3``."""
        return spark_path(self.address, s3)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table, pinned.

    Attributes:
        uri: what was asked for.
        commit_id: the commit that the ref meant.
        columns: the partition columns, in the order of the folders.
        files: the files by path.
    """

    uri: str
    commit_id: str
    columns: tuple[str, ...]
    files: tuple[File, ...]

    def __iter__(self) -> Iterator[File]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def urls(self, s3: str = "s3a") -> list[str]:
        """Each file's URL as Spark takes paths, each once."""
        return list(dict.fromkeys(file.url(s3) for file in self.files))

    def types(self) -> tuple[str, ...]:
        """The Spark SQL type of each partition column, by its values as Spark judges them."""
        columns = zip(*(file.values for file in self.files), strict=True)
        return tuple(_type({value for value in column if value is not None}) for column in columns)

    def format(self) -> str:
        """The format that the files' names tell. Raises ``InvalidInput``."""
        found = {_format(file.path) for file in self.files}
        if len(found) == 1 and (only := found.pop()) is not None:
            return only
        raise InvalidInput(f"the names of the files at {self.uri!r} tell no single format; say format='parquet'")


def files(uri: str, *, lake: Lake | None = None, check: bool = True) -> Files:
    """The physical files of a table at a ref, or the one file at a path.

    They are pinned: what moves the ref later changes nothing of it. Files that Spark ignores, whose names begin with
    ``_`` or ``.``, are left out.

    Args:
        uri: ``lakefs://REPO/REF/PREFIX``.
        lake: where the repository is. What the settings say when left out.
        check: compare the size of each file with what was recorded.

    Raises:
        InvalidUri: the text is no such URI.
        RepositoryNotFound, RefNotFound, CommitExpired: there is nothing to read.
        ObjectNotFound: there is no file, or the store lacks one.
        Corrupted: a file has another size than was recorded.
        InvalidInput: the folders of the files stand for different partition columns.
    """
    repository, ref, prefix = LakeUri.parse(uri).with_prefix()
    with opened(lake) as found:
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
def opened(lake: Lake | None) -> Iterator[Lake]:
    """The lake that was given, or the one of the settings for as long as the block runs."""
    if lake is not None:
        yield lake
        return
    from lakeops.lake import Lake

    with Lake.open() as found:
        yield found


def spark_path(url: str, s3: str) -> str:
    """A URL as Spark takes paths: it decodes nothing, and knows buckets by the schemes of its connectors.

    Raises ``InvalidSettings`` for a container of Azure whose account no variable names.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return "file:" + unquote(rest)
    if scheme == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise InvalidSettings("Spark names Azure's account with each path; set AZURE_STORAGE_ACCOUNT_NAME")
        container, _, path = rest.partition("/")
        return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"
    return f"{s3}://{rest}" if scheme == "s3" else url


def is_table_file(name: str) -> bool:
    """Whether Spark reads a file of a table, by its path below the table's folder."""
    return not any(_ignored(part) for part in name.split("/"))


def _ignored(name: str) -> bool:
    return name.startswith((".", "_")) and "=" not in name


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
