"""What is measured on: half partitioned tables with UUIDs in their names, half images, and changes to them.

Everything follows from an entry's number, so both sides get the same paths without a file between them. Numbers order
as paths do. Addresses, checksums and UUIDs are random, as real ones are: nothing here compresses better than life.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from support.synthetic import hex_text, padded, random_words

from lakeops.model.arrow import ENTRY_SCHEMA, METADATA_TYPE, STAGED_SCHEMA

Numbers = npt.NDArray[np.uint64]

BATCH = 65_536
BLOBS = 4_096
"""Blobs that exist in git for changed paths; base entries refer to blobs that do not exist."""

_IMAGES_A_CLASS = 1_300
_FILES_AN_HOUR = 50
_FIRST_DAY = np.datetime64("2000-01-01")


class Kind(StrEnum):
    """How changed paths lie among the others."""

    CLUSTERED = "clustered"
    RANDOM = "random"


@dataclass(frozen=True)
class Changes:
    """Changed paths in order: rows for lakeops, and what git's fast-import reads."""

    staged: pa.Table
    version: int

    def commands(self) -> bytes:
        """``M`` and ``D`` lines; which blob stands for a content depends on the version."""
        paths, dead = self.staged["path"].to_pylist(), self.staged["tombstone"].to_pylist()
        lines = [
            f"D {path}\n" if gone else f"M 100644 {blob_id(number + 37 * self.version)} {path}\n"
            for number, (path, gone) in enumerate(zip(paths, dead, strict=True))
        ]
        return "".join(lines).encode()


class DataSet:
    """A repository of ``size`` entries."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._images = size // 2

    def batches(self) -> Iterator[Numbers]:
        """All numbers, in order."""
        for start in range(0, self.size, BATCH):
            yield np.arange(start, min(start + BATCH, self.size), dtype=np.uint64)

    def paths(self, which: Numbers) -> pa.Array:
        """Paths of about 42 bytes (images) and 110 bytes (tables)."""
        border = np.searchsorted(which, self._images)
        parts = (_image_paths(which[:border]), _table_paths(which[border:] - np.uint64(self._images), self.size))
        return pa.concat_arrays([part.cast(pa.string()) for part in parts])

    def entries(self, which: Numbers, version: int = 0) -> pa.Table:
        """These entries; another version has other contents. The repository holds version 0, so changes start at 1."""
        salt = 10 * version
        count = len(which)
        numbers = random_words(which, 2, salt=salt + 1)
        columns = [
            self.paths(which),
            pc.binary_join_element_wise("data/2026010112/", hex_text(which, 32, salt=salt + 2)[:count], ""),
            hex_text(which, 32, salt=salt + 3),
            pa.array((numbers[:, 0] >> np.uint64(40)).astype(np.int64)),
            pa.array((1_760_000_000 + (numbers[:, 1] >> np.uint64(48))).astype(np.int64)),
            pa.repeat("application/octet-stream", count),
            _metadata(numbers[:, 1]),
        ]
        return pa.table(columns, schema=ENTRY_SCHEMA)

    def git_ids(self, which: Numbers) -> pa.Array:
        """A random blob id for each entry."""
        return hex_text(which, 40, salt=9)

    def clustered(self, count: int, version: int, at: float = 0.75) -> Changes:
        """``count`` neighbours, from this share of the repository on."""
        start = min(int(self.size * at), self.size - count)
        return self._changes(np.arange(start, start + count, dtype=np.uint64), version)

    def random(self, count: int, version: int) -> Changes:
        """``count`` paths from anywhere; two versions share none."""
        chosen = np.random.default_rng(7).permutation(self.size)[(version % 50) * count :][:count]
        return self._changes(np.sort(chosen).astype(np.uint64), version)

    def places(self, count: int, places: int, version: int) -> Changes:
        """``count`` paths in evenly spread clusters."""
        starts = np.linspace(self.size * 0.003, self.size * 0.997, places).astype(np.int64)
        chosen = (starts[:, None] + np.arange(count // places)).ravel()
        return self._changes(chosen.astype(np.uint64), version)

    def load(self, count: int, version: int) -> Changes:
        """``count`` new paths, evenly spread over the whole repository: every range is rewritten."""
        owner = (np.arange(count) * self.size // count).astype(np.uint64)
        table = self.entries(owner, version)
        suffix = padded(np.arange(count), 7)
        table = table.set_column(0, ENTRY_SCHEMA.field(0), pc.binary_join_element_wise(table["path"], suffix, "."))
        return Changes(_staged(table, np.zeros(count, np.bool_)), version)

    def _changes(self, which: Numbers, version: int) -> Changes:
        """Of five paths three get other contents, one gets a new neighbour, one is deleted."""
        table = self.entries(which, version)
        kinds = np.arange(len(which)) % 5
        added = pc.binary_join_element_wise(table["path"], "1", ".")
        paths = pc.if_else(pa.array(kinds == 3), added, table["path"])
        staged = _staged(table.set_column(0, ENTRY_SCHEMA.field(0), paths), kinds == 4)
        return Changes(staged.sort_by("path").combine_chunks(), version)


def blob_id(number: int) -> str:
    """The id of one of the blobs that exist."""
    return _BLOB_IDS[number % BLOBS]


def blob(number: int) -> bytes:
    """What it holds."""
    return b"%d\n" % number


def _blob_ids() -> list[str]:
    import hashlib

    contents = [blob(number) for number in range(BLOBS)]
    return [hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() for data in contents]


_BLOB_IDS = _blob_ids()


def _staged(table: pa.Table, dead: npt.NDArray[np.bool_]) -> pa.Table:
    alive = pa.array(~dead)
    columns = [pc.if_else(alive, column.combine_chunks(), None) for column in table.columns[1:-1]]
    metadata = table["metadata"].combine_chunks()
    metadata = metadata.take(pa.array(np.arange(len(table)), mask=dead))
    return pa.table([table["path"], pa.array(dead), *columns, metadata], schema=STAGED_SCHEMA)


def _image_paths(which: Numbers) -> pa.Array:
    group = pc.binary_join_element_wise("n", padded(which // _IMAGES_A_CLASS, 8), "")
    number = padded(which % _IMAGES_A_CLASS, 5)
    name = pc.binary_join_element_wise(group, number, "_")
    return pc.binary_join_element_wise("images/train", group, pc.binary_join_element_wise(name, "JPEG", "."), "/")


def _table_paths(which: Numbers, salt: int) -> pa.Array:
    hours = which // _FILES_AN_HOUR
    days = pa.array(_FIRST_DAY + (hours // 24).astype("timedelta64[D]")).cast(pa.string())
    text = hex_text(which, 32, salt=salt % 1_000 + 20)
    cuts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)]
    uuid = pc.binary_join_element_wise(*(pc.utf8_slice_codeunits(text, *cut) for cut in cuts), "-")
    folder = pc.binary_join_element_wise("warehouse/clicks/date=", days, "/hour=", padded(hours % 24, 2), "")
    part = padded(which % _FILES_AN_HOUR, 5)
    return pc.binary_join_element_wise(folder, "/part-", part, "-", uuid, "-c000.snappy.parquet", "")


def _metadata(random: Numbers) -> pa.Array:
    """Two pairs for one entry in twenty."""
    has = random % 20 == 0
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(2 * has, dtype=np.int32)])
    values = pa.array(random[has] % 1_000).cast(pa.string())
    pairs = len(values)
    keys = pa.array(["owner", "rows"] * pairs, pa.string())
    items = pc.binary_join_element_wise("team-", pa.array(np.repeat(np.arange(pairs) % 7, 2)).cast(pa.string()), "")
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items).cast(METADATA_TYPE)
