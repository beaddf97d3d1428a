"""Managed output: any engine writes files to a fresh directory, and they are staged under a prefix all at once.

The directory is recorded as an upload in flight while it is written to. On success the files are listed and staged in
one transaction that also ends the upload; after an exception, or a crash, nothing is staged and garbage collection
takes the files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.base import BranchState
from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.model.names import as_folder, check_path
from lakeops.model.records import DEFAULT_CONTENT_TYPE
from lakeops.model.schema import STAGED_SCHEMA
from lakeops.model.text import excerpt
from lakeops.ops.context import Context
from lakeops.ops.resolve import require_stageable
from lakeops.ops.stage import branch_paths, put_consistently, tombstones
from lakeops.ops.unlinked import link_held_back
from lakeops.store import layout


class OutputUrl(str):
    """The directory's URL, a plain string. ``file`` gives the URL of one file in it, ready to be written."""

    __slots__ = ("_prepare",)
    _prepare: Callable[[], None]

    @classmethod
    def of(cls, url: str, prepare: Callable[[], None]) -> OutputUrl:
        """The URL of a directory that ``prepare`` makes where it is not there yet."""
        made = cls(url)
        made._prepare = prepare
        return made

    def file(self, name: str) -> str:
        """The URL of a file in the directory, which exists from then on whatever writes to it."""
        self._prepare()
        return f"{self}/{name}"


@contextmanager
def output(ctx: Context, branch: str, prefix: str, mode: Literal["replace", "append"]) -> Iterator[OutputUrl]:
    """A fresh directory to write to; see ``Branch.output``.

    Yields:
        The directory's URL, without a trailing slash. It exists, except where a Spark session is active: Spark makes
        its own directories and refuses to write to one that is there.
    """
    if mode not in ("replace", "append"):
        raise InvalidInput(f"mode {excerpt(mode)} is not one of 'replace' and 'append'")
    folder = as_folder(prefix)
    require_stageable(ctx, branch)
    upload = ctx.ids.new()
    named = ctx.catalog.now()
    address = layout.output_prefix(named, ctx.ids)
    started = min(named, ctx.catalog.begin_upload(ctx.repository_id, branch, address, upload=upload))
    try:
        url = layout.absolute(ctx.repository.storage_namespace, address.rstrip("/"))
        if not _spark_is_active():
            ctx.store.make_directory(address)
        yield OutputUrl.of(url, lambda: ctx.store.make_directory(address))
        _link(ctx, branch, folder, address, mode, started, upload)
    except BaseException:
        with suppress(LakeopsError):  # the first error is the one to show; an upload left open only delays collection
            ctx.catalog.end_upload(ctx.repository_id, upload)
        raise


def _spark_is_active() -> bool:
    """Whether this process has a Spark session, classic or Connect; imports nothing to find out.

    A context without a session, such as the Spark engine's own, writes no tables.
    """
    modules = (sys.modules.get(name) for name in ("pyspark.sql.session", "pyspark.sql.connect.session"))
    return any(module is not None and module.SparkSession.getActiveSession() is not None for module in modules)


def _link(ctx: Context, branch: str, folder: str, address: str, mode: str, started: datetime, upload: str) -> None:
    files = _files(ctx, folder, address)
    link_held_back(ctx, branch)

    def rows(state: BranchState) -> pa.Table:
        if mode == "append":
            return files
        before = branch_paths(ctx, state, folder)
        gone = before.filter(pc.invert(pc.is_in(before, value_set=files.column("path"))))
        return pa.concat_tables([files, tombstones(gone)]).sort_by("path")

    put_consistently(ctx, branch, rows, started=started, upload=upload)


def _files(ctx: Context, folder: str, address: str) -> pa.Table:
    """What was written, as staged rows sorted by path."""
    columns: dict[str, list[object]] = {name: [] for name in STAGED_SCHEMA.names}
    items = [item for item in ctx.store.list(address) if not _scratch(item.key[len(address) :])]
    ctx.store.sync(item.key for item in items)
    for item in items:
        row = {
            "path": check_path(folder + item.key[len(address) :]),
            "tombstone": False,
            "physical_address": item.key,
            "checksum": ctx.store.checksum(item),
            "size_bytes": item.size_bytes,
            "mtime": item.mtime,
            "content_type": item.content_type or DEFAULT_CONTENT_TYPE,
            "metadata": {},
        }
        for column, value in row.items():
            columns[column].append(value)
    columns["metadata"] = [list(value.items()) for value in columns["metadata"] if isinstance(value, dict)]
    return pa.table(columns, schema=STAGED_SCHEMA)


def _scratch(name: str) -> bool:
    """Whether a file is an engine's own bookkeeping: unfinished task output, or Hadoop's local checksum files."""
    parts = name.split("/")
    return "_temporary" in parts[:-1] or (parts[-1].startswith(".") and parts[-1].endswith(".crc"))
