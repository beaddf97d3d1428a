"""Decoding files that somebody else wrote, within a budget of decoded bytes and rows.

A file of two kilobytes may hold a million times one long text. How much it decodes to is known for sure only when it
has been decoded: what its footer says of that is its writer's word. So decoding happens under a limit of memory that
the kernel keeps: in a process of its own where other work would suffer (``first_rows``, for pages), and else in the
process that asked, which is a worker of Spark's with nothing beside it (``batches``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from lakeops.model.errors import Corrupted, InvalidInput, LakeopsError
from lakeops.model.sanitising import excerpt, one_line
from lakeops.store.reader import ObjectReader

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PAGE_BYTES = 256 << 20
"""Memory that the first rows of a file may take."""
PAGE_SECONDS = 10
"""Seconds of CPU that they may take."""
FILE_BYTES, FILE_TIMES = 1 << 30, 16
"""Memory that a batch of a file may take, and how many times the file's own bytes come on top of it."""
ROWS, BATCH_BYTES = 65_536, 64 << 20
"""Rows and bytes of a batch, at most."""

MAGIC = b"PAR1"
_MOST_FOOTER = 8 << 20
_MOST_ANSWER = 4 << 20
_BUFFER = 1 << 20
"""Bytes of a column that are fetched at a time, so that the first rows of a large file cost no more than those."""

_limiting = threading.Lock()


@contextmanager
def memory_limit(more: int, what: str) -> Iterator[None]:
    """Let this process take so many bytes more, for a ``with``. Raises ``InvalidInput`` when that is not enough.

    Other threads of the process are under the limit too. Systems other than Linux do not tell what a process takes, and
    have no limit.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with _limiting:  # of two at once, the second would take the first one's limit for that of the process
        before, most = resource.getrlimit(resource.RLIMIT_AS)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        bounds = [one for one in (taken + more, before, most) if one != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(bounds), most))
        try:
            yield
        except MemoryError:
            raise InvalidInput(f"{what} is too large to decode: it takes more than {more >> 20:,} MiB") from None
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, most))


# --- all of a file, batch by batch ---


@contextmanager
def _decoding(path: str, size: int) -> Iterator[None]:
    import pyarrow as pa

    try:
        with memory_limit(FILE_BYTES + FILE_TIMES * size, excerpt(path)):
            yield
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, LakeopsError):
            raise
        raise Corrupted(f"{excerpt(path)} cannot be read as Parquet: {one_line(error, 300)}") from None


def open_parquet(opened: IO[bytes], path: str, size: int) -> pq.ParquetFile:
    """Decode the footer of a Parquet file of ``size`` bytes. Timestamps have microseconds.

    Raises ``Corrupted`` with the path, and ``InvalidInput`` for what is too large to decode.
    """
    import pyarrow.parquet as pq

    with _decoding(path, size):
        return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def batches(parquet: pq.ParquetFile, path: str, size: int, columns: list[str]) -> Generator[pa.RecordBatch]:
    """Decode the rows of a Parquet file. Raises as ``open_parquet``."""
    about = parquet.metadata
    large = max((about.row_group(at).total_byte_size for at in range(about.num_row_groups)), default=0)
    rows = max((about.row_group(at).num_rows for at in range(about.num_row_groups)), default=0)
    at_once = max(1, min(ROWS, BATCH_BYTES * rows // max(large, 1)))
    found = parquet.iter_batches(at_once, columns=columns, use_threads=False)
    while True:
        with _decoding(path, size):
            batch = next(found, None)
        if batch is None:
            return
        yield batch


# --- the first rows of a Parquet file, in a process of its own ---

_at_once = threading.BoundedSemaphore(4)
"""Such processes of this one."""


def first_rows(file: IO[bytes], size: int, *, rows: int, columns: int, cell: int) -> dict[str, Any]:
    """The schema and the first rows of a Parquet file of ``size`` bytes, values cut to ``cell`` characters and one.

    Gives ``rows``, ``columns`` and ``groups`` (how many the file has), ``schema`` (names and types), ``header`` and
    ``cells`` (the rows, as texts), and ``flaw`` (why it is no Parquet file). What is too large is not there.
    """
    command = [sys.executable, "-P", "-m", "lakeops.store.foreign", *map(str, (size, rows, columns, cell))]
    places = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONPATH": places}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    found: dict[str, Any] = {}
    with _at_once, subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=nothing) as child:
        to, out = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
        served = 0
        with suppress(BrokenPipeError), closing(to), ExitStack() as at_the_end:
            at_the_end.callback(child.kill)
            while (line := out.readline(_MOST_ANSWER)).endswith(b"\n") and served <= PAGE_BYTES:
                if line.startswith(b"{"):
                    found |= json.loads(line)
                    continue
                start, length = map(int, line.split())
                file.seek(start)
                data = file.read(min(length, PAGE_BYTES))
                served += len(data)
                to.write(len(data).to_bytes(8, "big") + data)
                to.flush()
    return found


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - to the parent


def _fetch(start: int, length: int) -> bytes:
    """Bytes of the file, which the parent has."""
    _say(f"{start} {length}")
    return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "big"))


def _tell(size: int, rows: int, columns: int, cell: int) -> None:
    """The child's part of ``first_rows``: say the schema, then the rows."""
    import pyarrow.parquet as pq

    file: Any = ObjectReader(size, _fetch)
    with memory_limit(PAGE_BYTES, "it"):
        file.seek(max(0, size - 8))
        tail = file.read(8)
        if tail[4:] != MAGIC or int.from_bytes(tail[:4], "little") > _MOST_FOOTER:
            _say(json.dumps({"flaw": "Its footer is missing, or too large to show."}))
            return
        parquet = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
        about, schema = parquet.metadata, parquet.schema_arrow
        names = [one.name for one in islice(schema, columns)]
        told = {"rows": about.num_rows, "columns": len(schema), "groups": about.num_row_groups, "header": names}
        _say(json.dumps({**told, "schema": [(one.name, str(one.type)[:cell]) for one in schema]}))
        groups = [at for at in range(about.num_row_groups) if about.row_group(at).num_rows][:1]
        first = next(parquet.iter_batches(rows, row_groups=groups, columns=names, use_threads=False), None)
        values = [] if first is None else [(_cell(one, cell) for one in column) for column in first.columns]
        header = names if first is None else first.schema.names
        _say(json.dumps({"header": header, "cells": [*zip(*values, strict=True)]}))


def _cell(value: Any, most: int) -> str:  # noqa: ANN401 - a scalar of Arrow's
    try:
        found = value.as_py()
    except (OverflowError, ValueError) as error:  # a date after the year 9999, a text that is no UTF-8
        return f"({type(error).__name__})"
    return "" if found is None else str(found)[: most + 1]


def _main() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (PAGE_SECONDS, PAGE_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _tell(*map(int, sys.argv[1:]))
    except InvalidInput:
        return
    except Exception as error:  # noqa: BLE001 - whatever Arrow says of a file that is damaged or hostile
        _say(json.dumps({"flaw": f"This is no Parquet file that can be read ({type(error).__name__})."}))


if __name__ == "__main__":
    _main()
