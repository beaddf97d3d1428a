"""Small files that decode to gigabytes cost no more than the budget, and are said to be too large."""

import io
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.programs import answer_of

from lakeops.model.errors import InvalidInput
from lakeops.model.records import Entry
from lakeops.store import foreign
from lakeops.web.objects import MOST_BYTES, preview

TOO_LARGE = {f"{name}.parquet" for name in ("zstd", "gzip", "snappy", "columns", "plain", "nested")}
PROCESS = 256 << 20
"""Bytes that Python and Arrow take before anything is decoded, with room."""


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    answer_of("support.bombs", folder, "make")
    assert all(file.stat().st_size < 4 << 20 for file in folder.iterdir())
    return folder


def test_a_preview_of_a_bomb_takes_the_budget_at_most(bombs):
    found = answer_of("support.bombs", bombs, "preview")
    assert {name for name, one in found.items() if "too large to show" in one["note"]} == TOO_LARGE
    assert max(one["peak"] for one in found.values()) < foreign.PAGE_BYTES + PROCESS
    assert max(one["text"] for one in found.values()) <= MOST_BYTES
    assert found["nulls.parquet"]["rows"] == 50
    assert found["deep.parquet"]["note"].startswith("This is no Parquet file that can be read")


def test_rows_of_a_bomb_take_the_budget_at_most(bombs):
    found = answer_of("support.bombs", bombs, "rows")
    too_large = {name for name, one in found.items() if "too large to decode" in one.get("error", "")}
    assert {f"{name}.parquet" for name in ("zstd", "gzip", "snappy", "columns")} <= too_large
    assert max(one["peak"] for one in found.values()) < foreign.FILE_BYTES + (64 << 20) + PROCESS


class Counting(io.BytesIO):
    """A file that counts the bytes that are read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_the_first_rows_of_a_large_file_cost_their_own_pages():
    """A hundred megabytes in one row group, which used to be too large to show."""
    columns = {"id": np.arange(4_000_000), **{name: np.random.default_rng(7).random(4_000_000) for name in "abc"}}
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written, row_group_size=4_000_000, compression="none")
    size = written.getbuffer().nbytes
    assert size > 100 << 20
    file = Counting(written.getvalue())
    shown = preview(file, Entry("large.parquet", "k", "x", size, 0, "application/octet-stream", {}))
    assert [row[0] for row in shown.rows] == [str(number) for number in range(50)]
    assert shown.note == "The first 50 rows."
    assert file.taken < 16 << 20


def test_a_reader_that_fails_is_the_callers_error():
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise InvalidInput("the store said no")

    with pytest.raises(InvalidInput, match="said no"):
        foreign.first_rows(Broken(b"x" * 100), 100, rows=1, columns=1, cell=1)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_limit_ends_with_its_block():
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(InvalidInput, match="it is too large to decode"), foreign.memory_limit(64 << 20, "it"):
        bytearray(1 << 30)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(256 << 20)) == 256 << 20
