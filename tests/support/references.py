"""Repositories that say only which objects they refer to, and listings of a namespace."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from support.rows import SMALL, attempt
from support.synthetic import hex_text, padded

from lakeops.model.arrow import ENTRY_SCHEMA
from lakeops.ops.gc.unreferenced import LISTED_SCHEMA, Scratch, Unreferenced, scratching, unreferenced
from lakeops.ranges.build import build
from lakeops.ranges.metarange import Metarange
from lakeops.store.base import ObjectStore

_FILES_A_JOB = 50
_JOBS_AN_HOUR = 10_000
_UUID = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)]


def spark_addresses(which: np.ndarray) -> pa.Array:
    """Addresses as jobs leave them that write into output directories, about 100 bytes; numbers order as they do."""
    job = which // _FILES_A_JOB
    text = hex_text(which, 32, salt=62)
    uuid = pc.binary_join_element_wise(*(pc.utf8_slice_codeunits(text, *cut) for cut in _UUID), "-")
    folder = pc.binary_join_element_wise(padded(job % _JOBS_AN_HOUR, 8), hex_text(job, 12, salt=61), "")
    file = pc.binary_join_element_wise(padded(which % _FILES_A_JOB, 5), uuid, "c000.snappy.parquet", "-")
    return pc.binary_join_element_wise("data/", padded(job // _JOBS_AN_HOUR, 10), "/", folder, "/part-", file, "")


def referring(store: ObjectStore, addresses: Sequence[str]) -> Metarange:
    """A metarange whose n-th path has the n-th of these addresses."""
    rows = [
        {
            "path": f"p/{number:06}",
            "physical_address": address,
            "checksum": "c",
            "size_bytes": 1,
            "mtime": 0,
            "content_type": "text/plain",
            "metadata": [],
        }
        for number, address in enumerate(addresses)
    ]
    return build(store, [pa.Table.from_pylist(rows, ENTRY_SCHEMA)], SMALL, attempt())


def listing(names: Sequence[str], batch: int = 7) -> Iterator[pa.Table]:
    """The names as a store lists them, a batch at a time; sizes and times follow from the names."""
    for start in range(0, len(names), batch):
        yield pa.Table.from_pylist([row(name) for name in names[start : start + batch]], LISTED_SCHEMA)


def row(name: str) -> dict[str, str | int]:
    """The row of a listing for a name."""
    return {"physical_address": name, "size_bytes": len(name), "mtime": sum(name.encode())}


def rows(names: Iterable[str]) -> list[dict[str, str | int]]:
    """The rows expected for these names, in order."""
    return [row(name) for name in sorted(names, key=str.encode)]


def names() -> st.SearchStrategy[str]:
    """Few names, some of them hard: of one length and of many, a prefix of another, not ASCII."""
    keys = st.one_of(
        st.integers(0, 300).map("{:03}".format),
        st.integers(0, 9).map("out/part-{}.parquet".format),
        st.integers(0, 40).map(lambda size: "x" * size + "y"),
        st.sampled_from(["é", "é/\U0001f600", "z" * 900, "\uffff", "a b", "q\n", "~", "%41", "A", "a%b", "out", "ou"]),
    )
    return st.builds("data/{}/{}".format, st.sampled_from(["2026010100", "2026010101"]), keys)


ALIKE = [
    ("data/1/\u00e9", "data/1/e\u0301"),
    ("data/1/a", "data/1/A"),
    ("data/1/a", "data/1/a "),
    ("data/1/a", "data/1/a/"),
    ("data/1/a", "data/1/a\t"),
    ("data/1/a", "data/1/a\u00a0"),
    ("data/1/a", "data/1/\uff41"),
    ("data/1/a", "data/1/a\u200b"),
    ("data/1/\u00df", "data/1/ss"),
    ("data/1/\u0130", "data/1/i"),
    ("data/1/\ufb01", "data/1/fi"),
    ("data/1/\U0001f600", "data/1/\U0001f601"),
    ("data/1/%41", "data/1/A"),
    ("data/1/a*", "data/1/a?"),
    ("data/1/'a'", 'data/1/"a"'),
    ("data/1/1", "data/1/1.0"),
    ("data/1/" + "x" * 1_000 + "y", "data/1/" + "x" * 1_000 + "z"),
    ("data/1/" + "x" * 10_000, "data/1/" + "x" * 10_001),
]
"""Addresses that some comparison of texts takes for one; they are two."""

LISTED = [f"data/2026010100/{number:04}" for number in range(1_500)]


@contextmanager
def searched(store, tables, ranges, *, engine, folder=None, **options) -> Iterator[tuple[Unreferenced, Scratch]]:
    """The objects of a listing in tables that nothing refers to, and the scratch files, inside the block."""
    with scratching(store, folder) as scratch:
        chunks = [chunk for table in tables for chunk in scratch.write_chunks(table)]
        yield unreferenced(scratch, chunks, ranges, engine=engine, **options), scratch


def found(store, engine, some, ranges, **options):
    """The rows of a listing that nothing refers to, and the counts: listed, kept."""
    with searched(store, listing(some, 400), ranges, engine=engine, **options) as (result, _):
        tables = list(result.batches())
    return [item for table in tables for item in table.to_pylist()], result.listed, result.kept
