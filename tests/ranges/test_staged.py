from hypothesis import given
from hypothesis import strategies as st
from support.rows import THOROUGH, applied, built, change_sets, numbered, repositories, staged_table

from lakeops.model.records import Change
from lakeops.ranges.diff import DIFF_SCHEMA, changes, diff, staged_changes
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


@given(st.data())
@THOROUGH
def test_staged_rows_change_what_committing_them_would(fresh_store, data):
    store = fresh_store()
    repository = data.draw(repositories())
    edits = data.draw(change_sets(repository))
    base, after = built(store, repository), built(store, applied(repository, edits))
    tables = list(staged_changes(RangeReader(store), base, staged_table(edits)))
    assert all(table.num_rows and table.schema.equals(DIFF_SCHEMA) for table in tables)
    expected = [change for table in diff(RangeReader(store), base, after) for change in changes(table)]
    assert [change for table in tables for change in changes(table)] == expected


def test_nothing_is_there_yet(reader):
    (table,) = staged_changes(reader, Metarange.empty(), staged_table({"a": ("12", 0), "b": None}))
    assert changes(table) == [Change("added", "a", 2)]


def test_only_touched_ranges_are_opened(store, reader):
    base = built(store, numbered(range(1_000)))
    store.forget()
    list(staged_changes(reader, base, staged_table({"a/00000": None, "b/00999": ("1", 0)})))
    assert len(store.read) == 2
