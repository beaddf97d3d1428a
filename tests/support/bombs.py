"""Small files that decode to gigabytes, one of each kind, and what decoding them takes, which a program prints."""

import gzip
import io
import json
import resource
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MANY = 50_000
LONG = 8 << 20
"""Bytes of one value: fifty of them are 400 MB, and a batch of them more than any machine has."""


def parquet(table: pa.Table, **options) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, store_schema=False, **options)
    return file.getvalue()


def repeated(rows: int, long: int = LONG) -> pa.Array:
    """One long text, so many times, kept once."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array(["x" * long]))


def bombs() -> dict[str, bytes]:
    """Files by name."""
    texts = pa.table({"a": repeated(MANY)})
    several = pa.table({f"c{number}": repeated(MANY, LONG // 8) for number in range(10)})
    nested = pa.ListArray.from_arrays(pa.array([0, 20 * MANY * 20], pa.int32()), pa.nulls(20 * MANY * 20))
    deep = pa.array([1])
    for _ in range(60):
        deep = pa.ListArray.from_arrays(pa.array([0, len(deep)], pa.int32()), deep)
    return {
        "zstd.parquet": parquet(texts, compression="zstd"),
        "gzip.parquet": parquet(texts, compression="gzip"),
        "snappy.parquet": parquet(texts, compression="snappy"),
        "columns.parquet": parquet(several, compression="zstd"),
        "plain.parquet": parquet(pa.table({"a": ["y" * LONG] * 20}), use_dictionary=False, compression="zstd"),
        "nested.parquet": parquet(pa.table({"a": nested})),
        "deep.parquet": parquet(pa.table({"a": deep})),
        "nulls.parquet": parquet(pa.table({"a": pa.nulls(20 * MANY)})),
        "line.csv": b"id\n" + b"x" * (3 << 20),
        "fields.csv": b"," * (1 << 20),
        "zeros.csv.gz": gzip.compress(bytes(64 << 20), 1),
        "zeros.json.gz": gzip.compress(b'{"a": "' + b"0" * (64 << 20) + b'"}', 1),
        "deep.json": b"[" * 60_000,
        "indent.json": (json.dumps([json.loads("[" * 800 + "]" * 800)] * 38).encode()),
        "number.json": b'{"a": 1' + b"0" * 60_000 + b"}",
        "exponent.json": b'{"a": 1e999999999}',
    }


def peak() -> int:
    """Most bytes that this process or one of its children has had in memory.

    ``ru_maxrss`` of this process would count what the process had that started it.
    """
    status = Path("/proc/self/status").read_text()
    here = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return max(here, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10


def _main(folder: Path, how: str) -> None:
    from lakeops.model.errors import LakeopsError
    from lakeops.model.records import Entry

    if how == "make":
        for name, data in bombs().items():
            (folder / name).write_bytes(data)
        return
    found = {}
    for file in sorted(folder.iterdir()):
        if how == "rows" and not file.name.endswith(".parquet"):
            continue
        began, size = time.monotonic(), file.stat().st_size
        if how == "preview":
            from lakeops.web.objects import preview

            with file.open("rb") as opened:
                shown = preview(opened, Entry(file.name, "k", "x", size, 0, "application/octet-stream", {}))
            said = {"kind": shown.kind, "note": shown.note, "text": len(shown.text or ""), "rows": len(shown.rows)}
        else:
            from lakeops.store import foreign

            try:
                with file.open("rb") as opened, foreign.open_parquet(opened, file.name, size) as parquet:
                    found_rows = foreign.batches(parquet, file.name, size, parquet.schema_arrow.names)
                    rows = sum(one.num_rows for one in found_rows)
                said = {"rows": rows}
            except LakeopsError as error:
                said = {"error": str(error)}
        found[file.name] = {**said, "peak": peak(), "seconds": time.monotonic() - began, "size": size}
    print(json.dumps(found))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
