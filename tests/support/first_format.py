"""Range files of the format's first version, as it wrote them: row groups twice as large, described as JSON."""

from __future__ import annotations

import io
import json
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq

from lakeops.model.records import Split
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.cutter import Cut, cut, with_digests
from lakeops.ranges.format import _RANGE
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.split import group_ends, path_hashes
from lakeops.ranges.write import write_range
from lakeops.store.base import ObjectStore


class FirstCut(Cut):
    """The rows of one whole range, cut and written as the first version did."""

    def encoded(self) -> tuple[bytes, int]:
        sink = io.BytesIO()
        described, start = [], 4
        with pq.ParquetWriter(sink, RANGE_SCHEMA, **_RANGE) as writer:
            for group, digest in zip(self.groups, self.digests, strict=True):
                writer.write_table(group, row_group_size=group.num_rows)
                data = sink.getvalue()[start:]
                described.append([start, len(data), sha256(data).hexdigest(), digest.hex()])
                start += len(data)
            writer.add_key_value_metadata({"lakeops.groups": json.dumps(described, separators=(",", ":"))})
        return sink.getvalue(), len(sink.getvalue()) - start


def built_first(store: ObjectStore, rows: pa.Table, split: Split, attempt: str) -> Metarange:
    """The metarange of these rows, written by the first version."""
    return Metarange.from_rows(_written(store, one, split, attempt) for one in cut([with_digests(rows)], split))


def _written(store: ObjectStore, rows: Cut, split: Split, attempt: str) -> RangeRow:
    ends = group_ends(path_hashes(rows.table["path"]), split, version=1)
    return write_range(store, FirstCut(rows.table, tuple(ends.tolist())), attempt)
