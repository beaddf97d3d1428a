"""A patched range is, row for row and id for id, what the changed rows would be cut into; or there is no patch."""

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic
from support.rows import THOROUGH, applied, attempt, built, byte_order, numbered, staged_table, summed

from lakeops.engine.build import build
from lakeops.model.records import Split
from lakeops.model.schema import STAGED_SCHEMA
from lakeops.ranges import patch as patching
from lakeops.ranges.changed import changed_ranges
from lakeops.ranges.cutter import with_digests
from lakeops.ranges.fetch import fetch_range, open_range, read_range
from lakeops.ranges.outline import NotOutlined
from lakeops.ranges.patch import Patch, encoded_together, patched
from lakeops.ranges.split import group_ends, path_hashes
from lakeops.ranges.verify import verify_range
from lakeops.ranges.write import write_range
from lakeops.store.layout import range_key

SPLIT = Split(16, 40, 200, row_groups=20)
"""Row groups of three rows on average: most edits leave some of a range's untouched."""

REPOSITORY = numbered(range(250))


@pytest.fixture(scope="module")
def store(fresh_store):
    return fresh_store()


@pytest.fixture(scope="module")
def base(store):
    return built(store, REPOSITORY, SPLIT)


def within(base, index):
    """The paths of one range."""
    row = base.row(index)
    return [path for path in byte_order(REPOSITORY) if row.first_path <= path <= row.last_path]


def patch_of(store, row, staged, split=SPLIT, *, last=False, on_overlaid=lambda _: None) -> Patch | None:
    """The patch of one range with changes, if there is one."""
    ((changed,),) = changed_ranges(store, [(row, staged.num_rows)], staged, split, on_overlaid)
    return patched(changed, split, last=last)


def try_patch(store, base, index, changes, on_overlaid=lambda _: None) -> Patch | None:
    last = index == len(base) - 1
    return patch_of(store, base.row(index), staged_table(changes), last=last, on_overlaid=on_overlaid)


def check(store, base, index, changes, repository=REPOSITORY) -> bool:
    """Whether there was a patch; if so, it is what building gives."""
    overlaid = []
    patch = try_patch(store, base, index, changes, overlaid.append)
    rows = base.rows(0, len(base))
    expected = built(store, applied(repository, changes), SPLIT)
    if patch is None:
        return False
    found = write_range(store, patch, attempt())
    told = expected.row(index)
    names = ("id", "first_path", "last_path", "count", "size_bytes")
    assert [getattr(found, name) for name in names] == [getattr(told, name) for name in names]
    assert len(expected) == len(rows)
    assert [one.summary for one in overlaid] == [summed(repository, applied(repository, changes))]
    checked = verify_range(store, found, SPLIT, ("path",))
    assert not checked.flaws
    assert read_range(store, found).equals(read_range(store, told))
    return True


@st.composite
def edits(draw, paths, *, last=False):
    """A few changes of one range: new contents, the same contents, deletions, new paths, in a few places.

    What is new comes after the range's last path only where no other range follows.
    """
    changes = {}
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(paths) - 1))
        for path in paths[at : at + draw(st.integers(1, 6))]:
            what = draw(st.sampled_from(["change", "same", "delete", "add"]))
            if what == "add" and (last or path != paths[-1]):
                changes[path + "!"] = ("new", draw(st.integers(0, 9)))
            else:
                changes[path] = {"change": ("9", 9), "same": REPOSITORY[path], "delete": None, "add": ("8", 8)}[what]
    return changes


@given(st.data())
@THOROUGH
def test_a_patch_is_what_building_gives(store, base, data):
    index = data.draw(st.integers(0, len(base) - 1))
    check(store, base, index, data.draw(edits(within(base, index))))


@given(st.data())
@THOROUGH
def test_a_patch_at_the_end_of_a_repository_is_what_building_gives(store, base, data):
    """It may end right where a range does; what is added after that begins another range."""
    index = data.draw(st.integers(0, len(base) - 1))
    repository = {path: REPOSITORY[path] for number in range(index + 1) for path in within(base, number)}
    shorter = built(store, repository, SPLIT)
    check(store, shorter, index, data.draw(edits(within(base, index), last=True)), repository)


def test_nearly_every_small_edit_is_a_patch(store, base):
    """The tests above would hold if there never was one."""
    tried = done = 0
    for index in range(len(base)):
        paths = within(base, index)
        for path in paths[:-1:40]:
            for change in ({path: ("9", 9)}, {path: None}, {path + "!": ("9", 9)}):
                tried += 1
                done += check(store, base, index, change)
    assert done > 0.8 * tried


def test_the_last_range_may_end_anywhere(store, base):
    last = len(base) - 1
    end = within(base, last)[-1]
    assert check(store, base, last, {end: ("9", 9)})
    assert check(store, base, last, {end + "!": ("9", 9)})


def test_a_range_that_loses_its_end_is_not_patched(store, base):
    ends = [within(base, index)[-1] for index in range(len(base) - 1)]
    assert not any(check(store, base, index, {end: None}) for index, end in enumerate(ends))


def test_rows_pushed_past_the_least_size_may_end_a_range(store):
    """A path that ends no range at row 15 may end one at row 16."""
    met = 0
    for seed in range(20):
        repository = numbered(range(seed * 1_000, seed * 1_000 + 300))
        ranges = built(store, repository, SPLIT)
        paths = byte_order(repository)
        for row in ranges.rows(0, len(ranges) - 1):
            within = [path for path in paths if row.first_path <= path <= row.last_path]
            hashes = path_hashes(read_range(store, row)["path"])[: SPLIT.min_entries - 1]
            limit = np.uint64((1 << 64) // SPLIT.target_entries - 1)
            if not (early := np.flatnonzero(hashes <= limit)).size:
                continue
            pushed = SPLIT.min_entries - 1 - int(early[-1])
            added = {f"{within[0]}!{number:02}": ("9", 9) for number in range(pushed)}
            patch = patch_of(store, row, staged_table(added))
            if patch is not None:
                expected = built(store, repository | added, SPLIT)
                assert patch.row.id in expected.table["id"].to_pylist()
            met += patch is None
    assert met > 5


def test_changes_that_change_nothing_keep_the_range(store, base):
    paths = within(base, 1)
    overlaid = []
    patch = try_patch(store, base, 1, {paths[2]: REPOSITORY[paths[2]], paths[5] + "?": None}, overlaid.append)
    assert patch.row.id == base.row(1).id
    assert [one.summary.total for one in overlaid] == [0]


def test_most_row_groups_may_be_touched_but_not_all(store, base):
    firsts = [path.decode() for path in open_range(store, base.row(1)).first_paths]
    assert 7 <= len(firsts) <= SPLIT.target_entries / 2
    assert check(store, base, 1, dict.fromkeys(firsts[1:-1], ("9", 9)))
    assert try_patch(store, base, 1, dict.fromkeys(firsts, ("9", 9))) is None


def test_row_groups_that_changes_leave_as_they_are_keep_their_bytes(store, base):
    """Staging again what is there touches a row group, and changes nothing about it."""
    firsts = [path.decode() for path in open_range(store, base.row(1)).first_paths]
    changes = {firsts[1]: REPOSITORY[firsts[1]], firsts[3]: ("9", 9)}
    assert check(store, base, 1, changes)
    parts = try_patch(store, base, 1, changes).parts
    assert [number for number, part in enumerate(parts) if not isinstance(part, int)] == [3]


def test_what_follows_a_range_that_its_paths_end_is_no_part_of_it(store, base):
    """A repository may end where a range has to end; a path after that begins another range."""
    paths = within(base, 0)
    alone = built(store, {path: REPOSITORY[path] for path in paths}, SPLIT)
    assert [row.id for row in alone.rows(0, 9)] == [base.row(0).id]
    for changes in ({paths[-1] + "!": ("9", 9)}, {paths[-1] + "!": ("9", 9), paths[0]: None}):
        assert try_patch(store, alone, 0, changes) is None


def test_many_changes_are_no_case_for_a_patch(store, base):
    paths = within(base, 1)
    assert try_patch(store, base, 1, {f"{paths[0]}!{number:02}": ("9", 9) for number in range(21)}) is None


def test_new_row_groups_of_several_ranges_are_encoded_together(store, base, monkeypatch):
    """To the bytes that each would have alone. Those of a range that is known are not encoded."""
    patches = [try_patch(store, base, index, {within(base, index)[3]: ("9", 9)}) for index in range(len(base))]
    patches[2] = None
    alone = [patch and patch.encoded() for patch in patches]
    calls = []
    encode_range = patching.encode_range
    monkeypatch.setattr(patching, "encode_range", lambda *args: calls.append(args) or encode_range(*args))
    some = encoded_together(patches, lambda patch: patch is patches[1])
    assert [sum(map(len, args)) for args in calls] == [2 * sum(len(patch.new) for patch in (patches[0], *patches[3:]))]
    assert [patch and patch.fresh is not None for patch in some] == [True, False, None, *[True] * (len(some) - 3)]
    calls.clear()
    together = [patch and patch.encoded() for number, patch in enumerate(some) if number != 1]
    assert together == [alone[0], *alone[2:]]
    assert calls == []
    assert encoded_together([None], lambda _: False) == [None]


def test_new_row_groups_that_no_outline_fits_are_encoded_with_their_ranges(store, base, monkeypatch):
    def refuse(_: bytes) -> None:
        raise NotOutlined("as of another version of the writer")

    patches = [try_patch(store, base, index, {within(base, index)[3]: ("9", 9)}) for index in range(4)]
    monkeypatch.setattr(patching, "outline", refuse)
    assert encoded_together(patches, lambda _: False) == patches
    rows = [write_range(store, patch, attempt()) for patch in patches]
    changes = {within(base, index)[3]: ("9", 9) for index in range(4)}
    expected = built(store, applied(REPOSITORY, changes), SPLIT)
    assert [row.id for row in rows] == [expected.row(index).id for index in range(4)]


def test_a_file_of_another_writer_is_encoded_anew(store, base, monkeypatch):
    """Its bytes may mean other things than ours; the rows and the id are the same."""
    from lakeops.ranges import format as written

    with monkeypatch.context() as patch:
        patch.setitem(written._RANGE, "write_page_index", True)
        foreign = built(store, REPOSITORY, SPLIT)
    assert foreign.id == base.id
    paths = within(base, 1)
    change = staged_table({paths[3]: ("9", 9)})
    ours, theirs = (patch_of(store, ranges.row(1), change) for ranges in (base, foreign))
    kept, anew = (write_range(store, one, attempt()) for one in (ours, theirs))
    assert kept.id == anew.id
    assert read_range(store, kept).equals(read_range(store, anew))


@pytest.fixture(scope="module")
def big(store):
    """A metarange of one range of the usual size, and its rows."""
    rows = synthetic.entries(np.arange(25_000, dtype=np.uint64))
    return build(store, [rows], Split(20_000, 1 << 62, 30_000, row_groups=20), attempt()), with_digests(rows)


def test_untouched_row_groups_keep_their_bytes_and_any_reader_reads_the_file(store, big, tmp_path):
    metarange, rows = big
    split = Split(20_000, 1 << 62, 30_000, row_groups=20)
    file = fetch_range(store, metarange.row(0))
    assert file.groups >= 5
    middle = int(file.starts[2]) + 7
    change = rows.slice(middle, 1).drop_columns(["digest"]).set_column(2, rows.schema.field(2), [["f" * 64]])
    staged = change.add_column(1, STAGED_SCHEMA.field("tombstone"), [[False]]).cast(STAGED_SCHEMA)
    row = write_range(store, patch_of(store, metarange.row(0), staged, split, last=True), attempt())
    after = fetch_range(store, row)
    digests = [[mark.file_digest for mark in one.marks] for one in (file, after)]
    assert [one == other for one, other in zip(*digests, strict=True)].count(False) == 1
    assert after.marks[-1].start != file.marks[-1].start  # what follows lies elsewhere now
    assert [mark.end for mark in after.marks[:-1]] == [mark.start for mark in after.marks[1:]]
    ends = group_ends(path_hashes(rows["path"]), split).tolist()
    assert after.starts[1:].tolist() == ends

    plain = tmp_path / "range.parquet"
    plain.write_bytes(store.get(range_key(row.file)))
    expected = read_range(store, row)
    assert expected.num_rows == 25_000
    assert expected["checksum"][middle].as_py() == "f" * 64
    assert pl.read_parquet(plain)["path"].to_list() == expected["path"].to_pylist()
    found = duckdb.sql(f"select count(*), sum(size_bytes), min(path), max(checksum) from '{plain}'").fetchall()[0]
    columns = (expected["size_bytes"].to_pylist(), expected["path"].to_pylist(), expected["checksum"].to_pylist())
    assert found == (25_000, sum(columns[0]), min(columns[1]), max(columns[2]))
