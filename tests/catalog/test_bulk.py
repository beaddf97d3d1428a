from __future__ import annotations

import subprocess
import sys

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.catalogs import REPO, an_entry, create, everything, gone, put, seal, table_of
from support.errors import has_kind

from lakeops.catalog.records import Staged
from lakeops.model.arrow import STAGED_SCHEMA
from lakeops.model.records import Entry

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["NULL", "\\N", "\\.", '""', '"', "'", ",", "\n", "\r", "\r\n", "\t", "t", "f", "true", "é", "é", "😀", "{}"]
)
ENTRY = st.builds(
    Entry,
    path=TEXT.filter(bool),
    physical_address=TEXT,
    checksum=TEXT,
    size_bytes=st.integers(0, 2**63 - 1),
    mtime=st.integers(-(2**40), 2**40),
    content_type=TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=2),
)
ROWS = st.lists(
    st.one_of(ENTRY.map(lambda e: Staged(e.path, e)), TEXT.filter(bool).map(gone)),
    max_size=12,
    unique_by=lambda r: r.path,
)


def rows_of(table) -> list[Staged]:
    assert table.schema.equals(STAGED_SCHEMA)
    table.validate(full=True)
    found = []
    for row in table.to_pylist():
        tombstone = row.pop("tombstone")
        if tombstone:
            assert {value for name, value in row.items() if name != "path"} == {None}
            found.append(gone(row["path"]))
        else:
            found.append(Staged(row["path"], Entry(**{**row, "metadata": dict(row["metadata"])})))
    return found


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(older=ROWS, newer=ROWS, bulk=st.tuples(st.booleans(), st.booleans()))
def test_bulk_and_single_rows_are_the_same_rows(catalog, older, newer, bulk):
    catalog.staging.reset(REPO, "main", actor="ada")
    for rows, at_once in zip((older, newer), bulk, strict=True):
        catalog.staging.put_staged(REPO, "main", table_of(rows) if at_once else rows, started=catalog.now())
        seal(catalog)
    expected = sorted(({r.path: r for r in older} | {r.path: r for r in newer}).values(), key=lambda r: r.path.encode())
    assert catalog.staging.staged_page(REPO, "main").rows == expected
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == expected
    for row in expected:
        assert catalog.staging.staged_one(REPO, "main", row.path)[1] == row


def test_bulk_replaces_rows_of_the_active_token(catalog):
    put(catalog, an_entry("a", "1", k="v"), an_entry("b", "1"), gone("c"), an_entry("z", "1"))
    again = [an_entry("c", "2"), an_entry("a", "2"), gone("b"), an_entry("d", "2", x="y")]
    state = catalog.staging.put_staged(REPO, "main", table_of(again), started=catalog.now())
    assert state == catalog.refs.branch(REPO, "main")
    table = catalog.staging.staged_table(REPO, "main").staged
    assert rows_of(table) == [again[1], again[2], again[0], again[3], an_entry("z", "1")]


def test_of_a_path_that_is_twice_in_a_table_the_last_row_counts(catalog):
    rows = [an_entry("b", "1"), an_entry("a", "1"), an_entry("b", "2", k="v"), gone("a"), an_entry("b", "3")]
    catalog.staging.put_staged(REPO, "main", table_of(rows), started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == [gone("a"), an_entry("b", "3")]


def test_an_empty_table_is_nothing(catalog):
    before = everything(catalog)
    catalog.staging.put_staged(REPO, "main", table_of([]), started=catalog.now())
    assert everything(catalog) == before
    assert catalog.staging.staged_table(REPO, "main").staged.equals(STAGED_SCHEMA.empty_table())


def test_chunks_slices_and_wider_types_are_taken(catalog):
    rows = [an_entry(f"p{number}", str(number % 10), **({"k": "v"} if number % 3 else {})) for number in range(50)]
    table = pa.concat_tables([table_of(rows[:20]).slice(5), table_of(rows[20:])])
    wide = table.cast(pa.schema([f.with_type(pa.large_string()) if f.type == pa.string() else f for f in table.schema]))
    catalog.staging.put_staged(REPO, "main", wide.append_column("extra", pa.nulls(45)), started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == sorted(rows[5:], key=lambda row: row.path)


def test_a_bulk_load_that_is_refused_leaves_nothing(catalog):
    catalog.refs.protect(REPO, "main")
    before = everything(catalog)
    from lakeops.model.errors import PreconditionFailed

    with pytest.raises(PreconditionFailed, check=has_kind("protected_branch")):
        catalog.staging.put_staged(REPO, "main", table_of([an_entry("a")]), started=catalog.now())
    assert everything(catalog) == before
    catalog.refs.unprotect(REPO, "main")
    catalog.staging.put_staged(REPO, "main", table_of([an_entry("a")]), started=catalog.now())


def test_a_hundred_thousand_rows_go_in_and_out(catalog):
    count = 100_000
    numbers = pa.array(range(count))
    text = numbers.cast(pa.string())
    table = pa.table(
        {
            "path": text,
            "tombstone": pa.array([False] * count),
            "physical_address": text,
            "checksum": text,
            "size_bytes": numbers,
            "mtime": numbers,
            "content_type": pa.array(["x"] * count),
            "metadata": pa.array([[]] * count, STAGED_SCHEMA.field("metadata").type),
        },
        STAGED_SCHEMA,
    )
    catalog.staging.put_staged(REPO, "main", table, started=catalog.now())
    found = catalog.staging.staged_table(REPO, "main").staged
    assert found.combine_chunks() == table.sort_by("path").combine_chunks()


def test_batches_without_rows_are_fine(catalog):
    """A table may hold some, at its beginning or as all there is."""
    rows = table_of([an_entry("a")])
    for table in (pa.concat_tables([rows.slice(1), rows]), rows.slice(1), STAGED_SCHEMA.empty_table()):
        catalog.staging.put_staged(REPO, "main", table, started=catalog.now())
    staged = catalog.staging.staged_table(REPO, "main").staged
    assert staged["path"].to_pylist() == ["a"]


def test_rows_of_any_size_are_read_in_bulk(catalog):
    """Also such as no entry point lets in any more: one row must not lose a branch."""
    rows = [
        Staged(path, Entry(path, address, "c", 1, 2, "t", {"k": value}))
        for path, address, value in (
            ("a", "data/a", "v"),
            ("b", "data/b", 'a "quoted"\nline' * 900_000),
            ("c", "data/" + "c" * (9 << 20), "v"),
            ("d", "data/d", "v"),
        )
    ]
    catalog.staging.put_staged(REPO, "main", rows, started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == rows


def test_a_row_larger_than_any_block_is_read(catalog):
    """Rows that were staged before their size was bounded hold up neither commits nor collection."""
    large = Entry("large", "data/x", "c", 1, 0, metadata={"k": '"' * (20 << 20)})
    rows = [Staged("large", large), an_entry("a"), an_entry("z")]
    catalog.staging.put_staged(REPO, "main", rows, started=catalog.now())
    assert rows_of(catalog.staging.staged_table(REPO, "main").staged) == sorted(rows, key=lambda row: row.path)
    assert "data/x" in catalog.retention.roots(REPO).staged["physical_address"].to_pylist()


# --- how much memory a process needs to read what is staged on postgresql ---


MANY = 200_000
EXTRA = 390 << 20
"""Bytes of address space beyond what is taken before. With all of the text in memory it takes 446 MiB, else 335."""

FILL = """
INSERT INTO lakeops_staged (repository_id, token, path, tombstone, physical_address, checksum, size_bytes, mtime,
content_type, metadata, changes) SELECT 'repo', %s, 'folder/' || lpad(n::text, 80, '0'), false,
'data/' || lpad(n::text, 60, '0'), repeat('a', 64), n, n, 'application/octet-stream', NULL, 1
FROM generate_series(1, %s) AS n
"""
READ = """
import resource, sys
import psutil, pyarrow.compute, pyarrow.csv
from lakeops.catalog.open import open_catalog
from lakeops.testing import ManualClock
catalog = open_catalog(sys.argv[1], clock=ManualClock())
catalog.staging.staged_table("repo", "main", prefix="zzz")
most = psutil.Process().memory_info().vms + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(catalog.staging.staged_table("repo", "main").staged.num_rows)
"""


def test_staged_rows_are_read_without_their_text_beside_them(postgres_url, opened):
    catalog = opened(postgres_url)
    create(catalog)
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as conn:
        conn.execute(FILL, [catalog.refs.branch(REPO, "main").staging_token, MANY])
    ran = subprocess.run(
        [sys.executable, "-c", READ, postgres_url, str(EXTRA)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"{MANY}\n"), ran.stderr
