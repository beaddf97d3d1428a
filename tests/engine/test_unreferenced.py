"""Tests of unreferenced objects, beside the answer of Python's sets."""

import errno
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.big_listing import make_ranges
from support.errors import raising
from support.programs import answer_of
from support.references import ALIKE, listing, names, referring, rows, searched
from support.rows import THOROUGH, Elsewhere, Groups, Losing, Racing, RecordingStore, numbered
from support.rows import built as built_from

from lakeops.engine.base import Engine, LocalEngine
from lakeops.model.errors import Corrupted, FileMissing, StoreUnavailable, Transient
from lakeops.ops.gc import unreferenced as module
from lakeops.ops.gc.unreferenced import (
    KINDS,
    LISTED_SCHEMA,
    Cutter,
    Scratch,
    Slices,
    StoreListing,
    distinct_ranges,
    list_store,
    read_chunks,
    scratching,
)
from lakeops.ranges.metarange import Metarange
from lakeops.store import layout
from lakeops.store.layout import TASKS
from lakeops.store.local import LocalStore
from lakeops.testing.faults import Faults

ENGINES = [LocalEngine(2), Groups(1), Racing(3)]


@pytest.fixture
def short(monkeypatch):
    """Short slices and tasks, so that little data takes many of them."""
    monkeypatch.setattr(module, "SLICE", 16)
    monkeypatch.setattr(module, "_TOGETHER", 1)


def found(store, listed_names, ranges, *, engine=None, batch=7, **options):
    """The rows that nothing refers to, and the object that tells the counts."""
    options.setdefault("engine", engine or Groups(2))
    with searched(store, listing(listed_names, batch), ranges, **options) as (result, _):
        tables = list(result.batches())
        again = list(result.batches())
    assert all(table.num_rows and table.schema.equals(LISTED_SCHEMA) for table in tables)
    assert pa.concat_tables([LISTED_SCHEMA.empty_table(), *again]).equals(
        pa.concat_tables([LISTED_SCHEMA.empty_table(), *tables])
    )
    return [item for table in tables for item in table.to_pylist()], result


def spelled(url):
    """Other ways to write an address of the namespace."""
    return st.sampled_from(
        [
            lambda name: name,
            lambda name: f"{url}/{name}".replace("%", "%25").replace("\n", "%0A"),
            lambda name: f"{url}/{name}".replace("%", "%25").replace("data/", "d%61ta/").replace("\n", "%0a"),
            lambda name: (
                f"{url}//{name}".replace("%", "%25").replace("\n", "%0A").replace("file:///", "file://localhost/")
            ),
        ]
    )


@given(st.data())
@THOROUGH
@pytest.mark.usefixtures("short")
def test_it_is_the_difference_of_sets(fresh_store, data):
    store = fresh_store()
    some = sorted(data.draw(st.sets(names(), max_size=120)), key=str.encode)
    live = [data.draw(st.lists(names() | st.sampled_from(some or ["data/x/y"]), max_size=60)) for _ in range(2)]
    spelling = spelled(store.url)
    outside = ["s3://bucket/data/2026010100/001", "file:///elsewhere/data/2026010100/001"]
    metaranges = [referring(store, [data.draw(spelling)(name) for name in part] + outside) for part in live]
    staged = data.draw(st.lists(names(), max_size=5))
    prefixes = data.draw(st.lists(st.sampled_from(["data/2026010101/out/", "data/2026010100/é", "data/2026010100/0"])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICES", data.draw(st.sampled_from([1, 2, 256])))
        got, result = found(
            store,
            some,
            distinct_ranges(metaranges),
            engine=data.draw(st.sampled_from(ENGINES)),
            batch=data.draw(st.integers(1, 60)),
            addresses=[pa.array([data.draw(spelling)(name) for name in staged], pa.string())] if staged else [],
            prefixes=prefixes,
        )

    referenced = {name for part in live for name in part} | set(staged)
    kept = {name for name in some if name in referenced or name.startswith(tuple(prefixes))}
    assert got == rows(set(some) - kept)
    assert (result.listed, result.kept, result.count) == (len(set(some)), len(kept), len(set(some) - kept))


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_sides(store, engine):
    nothing = Metarange.empty().table
    some = ["data/1/a", "data/1/b"]
    assert found(store, [], nothing, engine=engine)[0] == []
    assert found(store, [], referring(store, some).table, engine=engine)[0] == []
    got, result = found(store, some, nothing, engine=engine)
    assert got == rows(some)
    assert (result.listed, result.kept, result.count) == (2, 0, 2)
    assert found(store, some, referring(store, some).table, engine=engine)[0] == []


@pytest.mark.usefixtures("short")
def test_each_slice_takes_its_own_references_alone(store, monkeypatch):
    """So a join holds one slice, and no reference is read again for another one."""
    some = [f"data/1/{number:03}" for number in range(100)]
    seen = []
    joined = module.join_slices

    def noting(tasks, place, *, scratch, prefixes):
        for task in tasks:
            references = [name for part in module._read_pieces(place, task.referenced) for name in part[0].to_pylist()]
            listed = [name for part in read_chunks(place, task.listed) for name in part[0].to_pylist()]
            seen.append((listed, references))
        return joined(tasks, place, scratch=scratch, prefixes=prefixes)

    monkeypatch.setattr(module, "join_slices", noting)
    got, _ = found(store, some, referring(store, ["data/0", *some[::3], "data/2"]).table)
    assert got == rows(set(some) - set(some[::3]))
    seen.sort()
    assert [name for part, _ in seen for name in part] == some
    assert len(seen) > 5
    for part, references in seen:
        assert sorted(references) == [name for name in some[::3] if name in part]


def test_what_is_below_the_first_slice_or_in_no_slice_is_left_out(store, tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    some = [f"data/1/{number:05}" for number in range(5_000)]
    with searched(
        store, listing(some[4_000:], 5_000), referring(store, some).table, engine=Groups(4), folder=folder
    ) as (result, scratch):
        assert (result.count, result.kept) == (0, 1_000)
        slices = Slices(scratch, scratch.write_chunks(next(listing(some[4_000:]))))
        assert slices.cutter.cut([*some[:4_000], "data/2"]) == []


@pytest.mark.usefixtures("short")
def test_addresses_are_compared_byte_by_byte(store):
    for pair in ALIKE:
        for one, other in (pair, pair[::-1]):
            got, result = found(store, sorted(pair, key=str.encode), referring(store, [one]).table)
            assert got == rows([other])
            assert result.kept == 1


@pytest.mark.parametrize("size", [1, 3, 11, 12, 13, 4_000, 70_000])
def test_the_join_tells_any_text_apart(tmp_path, size):
    start = "x" * size
    some = [
        start + end
        for end in ("", "\0", "\0\0", "\t", "\n", " ", "A", "a", "\x7f", "\xc3", "\xe9", "e\u0301", "\uffff")
    ]
    table = pa.table([sorted(some), [1] * len(some), [2] * len(some)], schema=LISTED_SCHEMA)
    place = LocalStore(tmp_path, fsync=False)
    scratch = Scratch(place, place, "", tmp_path)
    cutter, chunks = Cutter(scratch, pa.array([start, start + "\U0001f600"])), tuple(scratch.write_chunks(table))
    for one in some:
        pieces = cutter.cut([one, start + "y"])
        free = module.join_slices([module.JoinTask(chunks, tuple(pieces))], place, scratch=scratch, prefixes=())
        assert sorted({*some} - {name for rows in read_chunks(place, free) for name in rows[0].to_pylist()}) == [one]


@pytest.mark.parametrize("some", [["data/1/b", "data/1/a"], ["data/1/a", "data/1/a"]])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_listing_out_of_order_stops_everything(store, some, batch):
    with pytest.raises(Transient, match="out of order; nothing was deleted"):
        found(store, some, Metarange.empty().table, batch=batch)


def test_slices_are_bounded_by_text_too(store, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", 10_000)
    some = [f"data/1/{number:03}/" + "x" * 900 for number in range(100)]
    with scratching(store) as scratch:
        chunks = [chunk for rows in listing(some, 2) for chunk in scratch.write_chunks(rows)]
        borders = Slices(scratch, chunks).cutter.borders.to_pylist()
    sizes = [sum(one.size_bytes for one in chunks if first <= one.first < end) for first, end in pairwise(borders)]
    assert len(sizes) > 8
    assert max(sizes) < 13_000


def test_references_that_are_cut_off_or_changed_stop_everything(store, monkeypatch):
    some = [f"data/1/{number:03}" for number in range(100)]
    live = referring(store, some).table
    real = LocalStore.get_range

    def damaged(self, key, *asked, damage):
        data = real(self, key, *asked)
        return damage(data) if key.startswith(TASKS) else data

    def gone(self, key, *asked):
        return real(self, f"{key}.gone" if key.startswith(TASKS) else key, *asked)

    for damage in (lambda data: data[:-1], lambda data: data[:-9] + b"x" + data[-8:], lambda data: b""):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "get_range", partialmethod(damaged, damage=damage))
            with pytest.raises(Corrupted, match="not what was written there; nothing was deleted"):
                found(store, some, live)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "get_range", gone)
        with raising("object_not_found", "there is no object .*_lakefs/tasks/"):
            found(store, some, live)


def test_a_disk_that_takes_nothing_is_one_clear_error(store, monkeypatch):
    live = referring(store, ["data/1/a"]).table

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with raising("engine_unavailable", r"No space left on device; see that .* has room"):
        found(store, ["data/1/a", "data/1/b"], live)


def test_every_range_file_is_opened_once(store):
    """However many metaranges share it, and whatever its attempts are called."""
    repository = numbered(range(300))
    one, two = built_from(store, repository), built_from(store, repository)
    grown = built_from(store, repository | numbered(range(1_000, 1_050)))
    assert one.row(0).file != two.row(0).file
    ranges = distinct_ranges([one, two, grown, one])
    store.forget()
    progress = []
    found(store, ["data/1/x"], ranges, on_progress=lambda *step: progress.append(step))
    opened = [key for key in store.read if key.endswith(".parquet")]
    assert len(opened) == len(set(opened)) == len(set(one.table["id"].to_pylist()) | set(grown.table["id"].to_pylist()))
    assert progress[-1] == (len(opened), len(opened))
    store.forget()
    found(store, ["data/1/x"], pa.concat_tables([one.table, two.table]))
    assert len([key for key in store.read if key.endswith(".parquet")]) == len(one)


def test_distinct_ranges_of_many_metaranges(store, monkeypatch):
    monkeypatch.setattr(module, "_COMPACT", 5)
    metaranges = [built_from(store, numbered(range(20 * number))) for number in range(1, 12)]
    expected = {file for metarange in metaranges for file in metarange.table["file"].to_pylist()}
    got = distinct_ranges(metaranges).column("file").to_pylist()
    assert len(got) == len(expected)
    assert set(got) == expected
    assert distinct_ranges([]).num_rows == 0


def test_a_link_to_the_namespace_is_the_namespace(tmp_path, store):
    link = tmp_path / "link"
    Path(store.root).mkdir(exist_ok=True)
    link.symlink_to(store.root)
    some = ["data/1/a", "data/1/b", "data/1/c"]
    metarange = referring(store, [f"{link.as_uri()}/data/1/a", f"{tmp_path.as_uri()}/data/1/b"])
    assert found(store, some, metarange.table)[0] == rows(some[1:])


def test_on_a_bucket_addresses_are_taken_byte_for_byte(store, monkeypatch):
    monkeypatch.setattr(RecordingStore, "url", property(lambda _: "s3://bucket/space"))
    some = ["data/1/a b", "data/1/a%20b", "data/1/c"]
    metarange = referring(
        store, ["s3://bucket/space/data/1/a%20b", "s3://bucket/spaced/data/1/c", "s3://bucket/data/1/c", "file:///x/y"]
    )
    assert found(store, some, metarange.table)[0] == rows(["data/1/a b", "data/1/c"])


@pytest.mark.parametrize("engine", [Groups(3), LocalEngine(2)])
def test_a_damaged_or_missing_range_stops_everything(store, engine):
    some = [f"data/1/{number:03}" for number in range(100)]
    metarange = referring(store, some)
    file = store.root / metarange.row(2).key
    file.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=metarange.row(2).file):
        found(store, some, metarange.table, engine=engine)
    file.unlink()
    with pytest.raises(FileMissing, match=metarange.row(2).file):
        found(store, some, metarange.table, engine=engine)


def test_a_lost_result_is_noticed(store, monkeypatch):
    monkeypatch.setattr(module, "_TOGETHER", 1)
    some = [f"data/1/{number:03}" for number in range(100)]
    with pytest.raises(Transient, match=r"gave back \d+ of \d+ results"):
        found(store, some, referring(store, some).table, engine=Losing(2))
    monkeypatch.setattr(module, "SLICE", 16)
    with pytest.raises(Transient, match=r"gave back \d+ of \d+ results"):
        found(store, some, Metarange.empty().table, engine=Losing(2))


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_left_behind_whatever_fails(tmp_path, when):
    inner = RecordingStore(tmp_path / "namespace")
    some = [f"data/1/{number:03}" for number in range(300)]
    metarange = referring(inner, some[::2])
    folder = tmp_path / "scratch"
    folder.mkdir()
    faults = Faults()
    store = faults.around(inner)
    found(store, some, metarange.table, folder=folder)
    effects = [call.operation for call in faults.calls]
    assert len(effects) > 5
    for number in range(1, len(effects) + 1):
        faults.revive()
        faults.fail(at=number, when=when, error=StoreUnavailable("the store answers 503"))
        with pytest.raises(StoreUnavailable):
            found(store, some, metarange.table, folder=folder)
        assert list(folder.iterdir()) == []
    faults.revive()
    got, _ = found(store, some, metarange.table, folder=folder)
    assert got == rows(some[1::2])
    assert list(folder.iterdir()) == []


def test_a_listing_that_breaks_off_is_no_listing(store, tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()

    def broken():
        yield from listing(["data/1/a", "data/1/b"], 1)
        raise StoreUnavailable("the store answers 503")

    with (
        pytest.raises(StoreUnavailable, match="503"),
        searched(store, broken(), Metarange.empty().table, engine=Groups(2), folder=folder),
    ):
        pass
    assert list(folder.iterdir()) == []


def test_in_process_the_namespace_is_only_read(tmp_path):
    inner = RecordingStore(tmp_path / "namespace")
    some = [f"data/1/{number:03}" for number in range(60)]
    metarange = referring(inner, some[::2])
    inner.forget()
    found(inner, some, metarange.table, engine=LocalEngine(2))
    assert inner.written == []
    assert len(inner.read) == len(metarange)


def test_memory_does_not_grow_with_the_listing(tmp_path):
    """Counted in a process of its own: four times the names in the same memory."""
    make_ranges(tmp_path, 300_000)
    peaks = []
    for names_listed in (500_000, 2_000_000):
        found_there = answer_of("support.big_listing", tmp_path, names_listed, seconds=250)
        peaks.append(found_there.pop("peak_mb"))
        assert found_there == {
            "listed": names_listed,
            "kept": 300_000,
            "count": names_listed - 300_000,
            "rows": names_listed - 300_000,
        }
    # The rows alone would take 180 MB more.
    assert peaks[1] - peaks[0] < 110
    assert peaks[1] < 450


# --- a namespace is listed in parts as it is listed whole ---


class Later(Elsewhere):
    """An engine that takes the work over once there is so much of it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(2)
        self._seconds = seconds

    def for_work(self, seconds: float) -> Engine:
        return self if seconds >= self._seconds else LocalEngine(2)


@pytest.mark.parametrize("seconds", [0.0, 1e-4, 3e-4])
def test_a_listing_in_parts_is_the_whole_listing(store, monkeypatch, seconds):
    monkeypatch.setattr(module, "_BATCH", 16)
    keys = [f"data/20260101{hour:02}/{number:04}{'0' * 20}" for hour in range(12) for number in range(9)]
    keys += ["data/20260101/stray", "data/a/b", "zzz/stray", f"{TASKS}killed/1.arrow", f"{layout.PROBE}0", "data/y"]
    for key in keys:
        store.put(key, b"123")
    listings = []
    for engine in (LocalEngine(2), Later(seconds)):
        told = []
        with scratching(store) as scratch:
            listing = StoreListing(datetime.now(UTC) + timedelta(hours=1))
            place = list_store(store, listing, engine, scratch, told.append)
            assert place.in_process == (engine.for_work(1).in_process)
            slices = Slices(scratch, listing.chunks)
            names = [name for rows in read_chunks(scratch.place, listing.chunks) for name in rows[0].to_pylist()]
            assert slices.count == len(names) == 108
        assert told[-1] == listing.names == len(keys)
        files = {kind: listing.old(kind)["physical_address"].to_pylist() for kind in KINDS}
        listings.append((names, files, listing.listed, listing.young, listing.strays))
    assert listings[0] == listings[1]
    assert [item.key for item in store.list(TASKS)] == [f"{TASKS}killed/1.arrow"], "a killed driver's, for a mark"
