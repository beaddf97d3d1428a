import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import QUICK, built, byte_order, contents, entry_table, numbered, paths, repositories

from lakeops.model.names import next_prefix
from lakeops.ranges.metarange import upper_bound
from lakeops.ranges.read import EntryCursor, RangeCache, RangeReader, entries

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def first_behind(reader, metarange, key):
    """The first path behind a key."""
    cursor = EntryCursor(reader, metarange)
    cursor.seek(key)
    return cursor.path


@pytest.mark.usefixtures("leaves")
@given(repositories(), st.lists(paths() | texts, max_size=8), texts)
@QUICK
def test_reading_agrees_with_a_dictionary(fresh_store, repository, probes, prefix):
    store = fresh_store()
    metarange, reader = built(store, repository), RangeReader(store)
    ordered = byte_order(repository)
    assert contents(store, metarange) == repository
    assert metarange.count == len(repository)
    for probe in [*probes, *ordered[::50], *(path[:-1] for path in ordered[::60])]:
        found = reader.stat(metarange, probe)
        assert (found and (found.checksum, found.mtime)) == repository.get(probe)
        assert first_behind(reader, metarange, probe) == next(
            (path for path in ordered if path.encode() > probe.encode()), None
        )
        for start in (prefix, probe[:2]):
            expected = [
                path for path in ordered if path.startswith(start) and (not probe or path.encode() > probe.encode())
            ]
            tables = list(reader.scan(metarange, start, probe))
            assert all(table.num_rows for table in tables)
            assert [path for table in tables for path in table["path"].to_pylist()] == expected
            columns = ["path", "size_bytes"]
            some = list(reader.scan(metarange, start, probe, columns=columns))
            assert some == [table.select(columns) for table in tables]


@pytest.mark.usefixtures("leaves")
@given(repositories(), st.lists(st.none() | paths() | st.tuples(st.none() | paths()), max_size=30))
@QUICK
def test_a_cursor_walks_and_jumps_like_an_index_into_the_sorted_paths(fresh_store, repository, moves):
    """It advances (None), goes behind a path, or gives entries before a path (a tuple of it, or of None: no limit)."""
    store = fresh_store()
    ordered = byte_order(repository)
    cursor, at = EntryCursor(RangeReader(store), built(store, repository)), len(ordered)
    assert cursor.path is None
    for move in ["", *moves]:
        if move is None:
            cursor.advance()
            at = min(at + 1, len(ordered))
        elif isinstance(move, tuple):
            below = move[0]
            taken = [entry.path for entry in cursor.take(below)]
            assert taken == ordered[at : at + len(taken)]
            here = at < len(ordered) and (below is None or ordered[at].encode() < below.encode())
            assert bool(taken) == here
            assert below is None or all(path.encode() < below.encode() for path in taken)
            at += len(taken)
        else:
            cursor.seek(move)
            at = sum(path.encode() <= move.encode() for path in ordered)
        assert cursor.path == (ordered[at] if at < len(ordered) else None)


def test_a_whole_record_comes_back(store, reader):
    repository = {"a": ("3", 7), "b": ("0", 8)}
    metarange = built(store, repository)
    expected = entries(entry_table(repository))
    assert [reader.stat(metarange, path) for path in "ab"] == expected
    assert expected[0].metadata == {"c": "3"}


def test_reading_opens_only_what_it_needs(store, reader):
    metarange = built(store, numbered(range(1_000)))
    store.forget()
    reader.stat(metarange, "a/00500")
    assert len(store.read) == 1
    reader.stat(metarange, "a/00500x")
    reader.stat(metarange, "zzz")
    reader.stat(metarange, "")
    assert len(store.read) == 1
    store.forget()
    page = next(RangeReader(store).scan(metarange, after="a/00800"))
    assert page.num_rows
    assert len(store.read) == 1


def test_a_listing_skips_whole_ranges_under_a_common_prefix(store, reader):
    metarange = built(store, numbered(range(2_000)))
    store.forget()
    cursor, folders = EntryCursor(reader, metarange), []
    cursor.seek("")
    while cursor.path is not None:
        folders.append(cursor.path.split("/")[0] + "/")
        cursor.seek(next_prefix(folders[-1]))
    assert folders == ["a/", "b/"]
    assert len(store.read) <= 3


def test_a_scan_that_ends_early_leaves_ranges_unread(store, reader):
    metarange = built(store, numbered(range(4_000)))
    store.forget()
    scan = reader.scan(metarange)
    list(itertools.islice(scan, 3))
    scan.close()
    assert len(metarange) > 100
    assert len(store.read) <= 12


def test_threads_share_a_reader(store):
    repository = numbered(range(600))
    metarange, reader = built(store, repository), RangeReader(store, RangeCache(40_000))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda path: reader.stat(metarange, path).path, list(repository) * 3))
    assert found == list(repository) * 3


def test_the_cache_is_bounded_and_forgets_what_was_not_used_longest():
    cache = RangeCache(100)
    made = []

    def value(key, size):
        return cache.get(key, lambda: made.append(key) or np.zeros(size, np.uint8))

    value("a", 40), value("b", 40), value("a", 40)
    value("c", 40)
    assert made == ["a", "b", "c"]
    assert cache.nbytes == 80
    value("a", 40)
    assert made == ["a", "b", "c"]
    value("b", 40)
    assert made == ["a", "b", "c", "b"]
    assert len(value("huge", 1_000)) == 1_000
    assert cache.nbytes <= 100
    value("huge", 1_000)
    assert made[-2:] == ["huge", "huge"]


@given(texts, texts)
def test_bounds_of_a_prefix(prefix, path):
    above, following = upper_bound(prefix), next_prefix(prefix)
    under = path.startswith(prefix)
    assert (path.encode() >= prefix.encode() and (above is None or path.encode() < above)) == under
    if following is not None:
        assert not following.startswith(prefix)
        assert (path.encode() >= prefix.encode() and path.encode() < following.encode()) == under


@pytest.mark.parametrize("read", ["stat", "cursor", "scan", "open"])
def test_a_file_that_is_gone_is_not_read_in_place_of_its_twin(store, read):
    """Two attempts wrote the same bytes; one of the files was collected after this process had read it."""
    repository = numbered(range(300))
    first, second = built(store, repository), built(store, repository)
    assert first.id == second.id
    assert first.row(0).file != second.row(0).file
    reader = RangeReader(store)
    for row in first.rows(0, len(first)):
        reader.open(row)
        store.delete([row.key])
    path = byte_order(repository)[0]
    if read == "stat":
        assert reader.stat(second, path).path == path
    elif read == "cursor":
        assert first_behind(reader, second, "") is not None
    elif read == "scan":
        assert next(reader.scan(second, after="a")).num_rows
    else:
        assert reader.open(second.row(0)).read().num_rows == second.row(0).count
