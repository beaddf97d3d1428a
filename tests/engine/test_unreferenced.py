"""What nothing refers to, beside the same question asked of Python's sets."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.big_listing import make_ranges
from support.references import listing, names, referring, rows
from support.rows import THOROUGH, Groups, RecordingStore, numbered
from support.rows import built as built_from

from lakeops.engine import antijoin, listed, merged, parts
from lakeops.engine import unreferenced as module
from lakeops.engine.keys import address_keys, ascending, order_of
from lakeops.engine.listed import LISTED_SCHEMA
from lakeops.engine.local import LocalEngine
from lakeops.engine.unreferenced import distinct_ranges, unreferenced
from lakeops.model.errors import Corrupted, InvalidInput, ObjectNotFound, StoreUnavailable, Transient, Unsupported
from lakeops.ranges.metarange import Metarange
from lakeops.store.base import Listing
from lakeops.store.layout import TASKS
from lakeops.testing import Faults

TESTS = Path(__file__).parent.parent
SEED = b"s" * 32


class Elsewhere(Groups):
    """Work that does not see this machine's directories: parts travel through the namespace."""

    @property
    def in_process(self) -> bool:
        return False


class Racing(Elsewhere):
    """Runs tasks in another order, each twice, on copies as another process would have them."""

    def run(self, work, tasks, store):
        for task in reversed(list(tasks)):
            for _ in range(2):
                yield pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(task)), store)))


class Losing(Groups):
    """Loses the result of the second task."""

    def run(self, work, tasks, store):
        yield from (result for result in super().run(work, tasks, store) if result.index != 1)


ENGINES = [LocalEngine(2), Groups(1), Elsewhere(2), Racing(3)]


@pytest.fixture
def short(monkeypatch):
    """Short steps, so that little data takes many of them."""
    monkeypatch.setattr(listed, "CHUNK", 16)
    monkeypatch.setattr(module, "JOINED", 40)
    monkeypatch.setattr(merged, "BATCH", 3)
    monkeypatch.setattr(merged, "PIECE", 9)


@pytest.fixture(params=["in memory", "by parts"])
def way(request, monkeypatch):
    """How the keys of references are kept: in memory, or in parts as if they were too many for that."""
    if request.param == "by parts":
        monkeypatch.setattr(module, "HELD", -1)
    return request.param


def found(store, listed_names, ranges, *, engine=None, batch=7, **options):
    """The rows that nothing refers to, and the object that tells the counts."""
    options.setdefault("engine", engine or Groups(2))
    with unreferenced(store, listing(listed_names, batch), ranges, **options) as result:
        tables = list(result.batches())
        again = list(result.batches())
    assert all(table.num_rows and table.schema.equals(LISTED_SCHEMA) for table in tables)
    assert pa.concat_tables([LISTED_SCHEMA.empty_table(), *again]).equals(
        pa.concat_tables([LISTED_SCHEMA.empty_table(), *tables])
    )
    return [item for table in tables for item in table.to_pylist()], result


def spelled(url: str):
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
    some = data.draw(st.lists(names(), max_size=120))
    if data.draw(st.booleans()):
        some = sorted(set(some), key=str.encode)
    live = [data.draw(st.lists(names() | st.sampled_from(some or ["data/x/y"]), max_size=60)) for _ in range(2)]
    spelling = spelled(store.url)
    outside = ["s3://bucket/data/2026010100/001", "file:///elsewhere/data/2026010100/001"]
    metaranges = [referring(store, [data.draw(spelling)(name) for name in part] + outside) for part in live]
    staged = data.draw(st.lists(names(), max_size=5))
    prefixes = data.draw(st.lists(st.sampled_from(["data/2026010101/out/", "data/2026010100/é", "data/2026010100/0"])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HELD", data.draw(st.sampled_from([-1, 40, module.HELD])))
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
    assert result.referenced == len(referenced | kept)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("engine", ENGINES)
def test_empty_sides(store, engine):
    nothing = Metarange.empty().table
    some = ["data/1/b", "data/1/a"]
    assert found(store, [], nothing, engine=engine)[0] == []
    assert found(store, [], referring(store, some).table, engine=engine)[0] == []
    got, result = found(store, some, nothing, engine=engine)
    assert got == rows(some)
    assert (result.listed, result.referenced, result.kept, result.count) == (2, 0, 0, 2)
    assert found(store, some, referring(store, some).table, engine=engine)[0] == []


@pytest.mark.parametrize("engine", [Groups(2), Elsewhere(2)])
@pytest.mark.parametrize("above", [-1, 0, 1])
def test_references_are_held_in_memory_up_to_a_bound(store, monkeypatch, engine, above):
    some = [f"data/1/{number:03}" for number in range(100)]
    metarange = referring(store, some[::2])
    done = set()

    def noting(work):
        def noted(task, namespace):
            done.add(work.__name__)
            return work(task, namespace)

        return noted

    for work in (antijoin.hold_ranges, antijoin.read_ranges):
        monkeypatch.setattr(module, work.__name__, noting(work))
    monkeypatch.setattr(module, "HELD", metarange.count + above)
    got, result = found(store, some, metarange.table, engine=engine)
    assert done == {"hold_ranges" if above >= 0 and engine.in_process else "read_ranges"}
    assert got == rows(some[1::2])
    assert (result.listed, result.referenced, result.kept, result.count) == (100, 50, 50, 50)


def test_what_is_known_never_goes_over_the_disk(store, tmp_path):
    some = [f"data/1/{number:05}" for number in range(5_000)]
    metarange = referring(store, some[:4_990])
    folder = tmp_path / "scratch"
    folder.mkdir()
    with unreferenced(store, listing(some, 5_000), metarange.table, engine=Groups(4), folder=folder) as result:
        assert result.count == 10
        assert 10 * len(some[0]) < sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 5_000


@pytest.mark.usefixtures("way")
def test_addresses_with_one_key_keep_an_object_and_never_lose_one(store, monkeypatch):
    """Every key is the same: whatever is listed counts as referred to."""
    some = [f"data/1/{number:03}" for number in range(50)]
    for module_with_keys in (antijoin, listed, module):
        monkeypatch.setattr(module_with_keys, "address_keys", lambda column, seed: np.zeros(len(column), np.uint64))
    got, result = found(store, some, referring(store, some[:1]).table)
    assert got == []
    assert result.kept == result.listed == 50


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("bits", [1, 3, 5])
def test_with_short_keys_nothing_that_is_referred_to_is_found(store, monkeypatch, bits):
    real = address_keys
    for module_with_keys in (antijoin, listed, module):
        monkeypatch.setattr(
            module_with_keys, "address_keys", lambda column, seed: real(column, seed) >> np.uint64(64 - bits)
        )
    some = [f"data/1/{number:03}" for number in range(200)]
    got, result = found(store, some[::-1], referring(store, some[:7]).table)
    assert not {item["physical_address"] for item in got} & set(some[:7])
    assert len(got) == result.count == len({item["physical_address"] for item in got})


@pytest.mark.usefixtures("way")
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
    expected = {identifier for metarange in metaranges for identifier in metarange.table["id"].to_pylist()}
    got = distinct_ranges(metaranges).column("id").to_pylist()
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


def test_other_columns_are_refused(store):
    table = pa.table({"name": ["data/1/a"]})
    with (
        pytest.raises(InvalidInput, match="physical_address, size_bytes, mtime"),
        unreferenced(store, [table], Metarange.empty().table, engine=LocalEngine()),
    ):
        pass


def test_what_a_scan_gives():
    scan = [Listing(["_lakefs/x", "data/a"], [1, 2], [3, 4], ["", ""]), Listing(["other"], [5], [6], [""])]
    tables = list(listed.listed(scan, "data/"))
    assert [row for table in tables for row in table.to_pylist()] == [
        {"physical_address": "data/a", "size_bytes": 2, "mtime": 4}
    ]
    assert sum(table.num_rows for table in listed.listed(scan)) == 3


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("engine", [Groups(3), Elsewhere(3)])
def test_a_damaged_or_missing_range_stops_everything(store, engine):
    some = [f"data/1/{number:03}" for number in range(100)]
    metarange = referring(store, some)
    file = store.root / metarange.row(2).key
    file.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=metarange.row(2).file):
        found(store, some, metarange.table, engine=engine)
    file.unlink()
    with pytest.raises(ObjectNotFound, match=metarange.row(2).file):
        found(store, some, metarange.table, engine=engine)
    assert list(store.list(TASKS)) == []


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-8], lambda data: bytes(len(data)), lambda data: data[8:] + data[:8]]
)
def test_damaged_keys_are_not_used(store, monkeypatch, damage):
    """A lost key of a reference would be a lost object."""
    some = [f"data/1/{number:03}" for number in range(100)]

    def damaging(task, namespace):
        result = antijoin.read_ranges(task, namespace)
        file = namespace.root / result.part.key
        file.write_bytes(damage(file.read_bytes()))
        return result

    monkeypatch.setattr(module, "read_ranges", damaging)
    with pytest.raises(Corrupted, match="nothing was deleted"):
        found(store, some, referring(store, some).table, engine=Elsewhere(2))


def test_workers_that_make_other_keys_are_noticed(store, monkeypatch):
    """Another version of this code, say: nothing that is referred to would be known."""
    some = [f"data/1/{number:03}" for number in range(100)]

    def other_version(task, namespace):
        result = antijoin.read_ranges(task, namespace)
        return replace(result, keys_made=antijoin.keys_made(b"another seed"))

    monkeypatch.setattr(module, "read_ranges", other_version)
    with pytest.raises(Unsupported, match="another version"):
        found(store, some, referring(store, some).table, engine=Elsewhere(2))
    assert list(store.list(TASKS)) == []


@pytest.mark.usefixtures("way")
def test_a_lost_result_is_noticed(store):
    some = [f"data/1/{number:03}" for number in range(100)]
    with pytest.raises(Transient, match=r"gave back \d+ of \d+ ranges"):
        found(store, some, referring(store, some).table, engine=Losing(2))


@pytest.mark.usefixtures("short")
def test_a_lost_join_is_noticed(store):
    some = [f"data/1/{number:03}" for number in range(200)]
    with pytest.raises(Transient, match="groups of keys"):
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
    found(store, some, metarange.table, engine=Elsewhere(4), folder=folder)
    effects = [call.operation for call in faults.calls]
    assert len(effects) > 10
    assert effects[-2:] == ["list", "delete"]
    for number in range(1, len(effects) - 1):
        faults.revive()
        faults.fail(at=number, when=when, error=StoreUnavailable("the store answers 503"))
        with pytest.raises(StoreUnavailable):
            found(store, some, metarange.table, engine=Elsewhere(4), folder=folder)
        assert list(inner.list(TASKS)) == []
        assert list(folder.iterdir()) == []
    faults.revive()
    faults.fail("delete", "list", at=None, when=when, error=StoreUnavailable("the store answers 503"))
    got, _ = found(store, some, metarange.table, engine=Elsewhere(4), folder=folder)
    assert got == rows(some[1::2])
    assert len(list(inner.list(TASKS))) >= (when == "before")


def test_a_listing_that_breaks_off_is_no_listing(store, tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()

    def broken():
        yield from listing(["data/1/a", "data/1/b"], 1)
        raise StoreUnavailable("the store answers 503")

    with (
        pytest.raises(StoreUnavailable, match="503"),
        unreferenced(store, broken(), Metarange.empty().table, engine=Elsewhere(2), folder=folder),
    ):
        pass
    assert list(store.list(TASKS)) == []
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("way")
def test_in_process_the_namespace_is_only_read(tmp_path):
    inner = RecordingStore(tmp_path / "namespace")
    some = [f"data/1/{number:03}" for number in range(60)]
    metarange = referring(inner, some[::2])
    inner.forget()
    found(inner, some, metarange.table, engine=LocalEngine(2))
    assert inner.written == []
    assert len(inner.read) == len(metarange)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=70), max_size=40), st.integers(0, 3))
@THOROUGH
def test_a_key_follows_from_the_address_and_the_seed_alone(texts, start):
    column = pa.array(["pad"] * start + texts, pa.string())
    keys = address_keys(column, SEED)[start:]
    assert keys.tolist() == [int(address_keys(pa.array([text], pa.string()), SEED)[0]) for text in texts]
    assert keys.tolist() == address_keys(pa.chunked_array([column]).slice(start), SEED).tolist()
    assert keys.tolist() == address_keys(column.cast(pa.large_string()).slice(start), SEED).tolist()
    assert len({*keys.tolist()}) == len({*texts})
    other = address_keys(column, b"t" * 32)[start:]
    assert not texts or (keys != other).all()


@given(st.integers(0, 40), st.integers(0, 9), st.data())
@THOROUGH
def test_addresses_of_one_length_have_the_keys_that_they_have_among_others(length, before, data):
    """They are taken as they lie, wherever that is, when their bytes are whole words."""
    texts = data.draw(st.lists(st.text("ab\0", min_size=length, max_size=length), min_size=1, max_size=20))
    alike = pa.array(["x" * before, *texts], pa.string()).slice(1)
    mixed = pa.array(["y" * 90, *texts], pa.string())
    assert address_keys(alike, SEED).tolist() == address_keys(mixed, SEED)[1:].tolist()
    assert address_keys(alike.cast(pa.large_string()), SEED).tolist() == address_keys(alike, SEED).tolist()


def test_addresses_that_hardly_differ_have_keys_that_do():
    """Every change of one byte, at every place: the bytes that products forget count too."""
    base = b"data/2026010112/0123456789abcdefghij/part-00000.parquet"
    texts = {base} | {
        base[:place] + bytes([value]) + base[place + 1 :] for place in range(len(base)) for value in range(1, 128)
    }
    texts |= {base + bytes([0]) * more for more in range(9)}
    high = [
        base[:7] + b"%c" % one + base[8:15] + b"%c" % two + base[16:] for one in range(1, 128) for two in range(1, 128)
    ]
    texts |= set(high)
    keys = address_keys(pa.array(sorted(texts), pa.binary()).cast(pa.string()), SEED)
    assert len(np.unique(keys)) == len(texts)
    assert abs(np.bitwise_count(keys).mean() - 32) < 0.5


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=60))
@THOROUGH
def test_sorting_keys(values):
    keys = np.array(values, np.uint64)
    assert ascending(keys).tolist() == sorted(values)
    assert keys[order_of(keys)].tolist() == sorted(values)


def test_parts_are_read_by_the_stretch(store):
    keys = np.sort(np.random.default_rng(1).integers(0, 2**64, 5_000, dtype=np.uint64))
    part = parts.write_part(store, parts.Place("x/"), keys)
    assert len(part) == 5_000
    for start, stop in ((0, 256), (0, 1), (255, 256), (17, 90)):
        stretch = part.stretch(start, stop)
        expected = keys[(keys >> np.uint64(56) >= start) & (keys >> np.uint64(56) < stop)]
        assert stretch.read(store).tolist() == expected.tolist()
        assert len(stretch) == len(expected)


def test_memory_does_not_grow_with_the_listing(tmp_path):
    """Counted in a process of its own: four times the names in the same memory."""
    make_ranges(tmp_path, 300_000)
    peaks = []
    for names_listed in (500_000, 2_000_000):
        done = subprocess.run(
            [sys.executable, "-m", "support.big_listing", str(tmp_path), str(names_listed)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        found_there = json.loads(done.stdout)
        peaks.append(found_there.pop("peak_mb"))
        assert found_there == {
            "listed": names_listed,
            "referenced": 300_000,
            "kept": 300_000,
            "count": names_listed - 300_000,
            "rows": names_listed - 300_000,
        }
    # The rows alone would take 180 MB more.
    assert peaks[1] - peaks[0] < 70
    assert peaks[1] < 450
