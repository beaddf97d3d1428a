"""The store that fails on demand does what tests rely on."""

import io
import threading

import pyarrow.parquet as pq
import pytest

from lakeops.model.errors import StoreUnavailable
from lakeops.testing import Crash, Faults, FaultyStore


@pytest.fixture
def faulty(local):
    return FaultyStore(local)


def test_it_passes_everything_on(faulty, local):
    result = faulty.put("data/a", io.BytesIO(b"abc"), if_absent=True, content_type="x/y")
    assert result.size_bytes == 3
    assert faulty.get("data/a") == local.get("data/a")
    assert faulty.get_range("data/a", 1, 1) == b"b"
    assert faulty.head("data/a") == local.head("data/a")
    assert [item.key for item in faulty.list("data/", "")] == ["data/a"]
    assert faulty.checksum(faulty.head("data/a")) == result.checksum
    assert faulty.probe().conditional_put
    assert faulty.delete(key for key in ("data/a", "none")) == []
    assert faulty.url == local.url
    assert faulty.faults.counts == {
        "put": 1, "get": 1, "get_range": 1, "head": 2, "list": 1, "checksum": 1, "probe": 1, "delete": 1,
    }  # fmt: skip
    assert faulty.faults.effects == 2


def test_it_counts_objects_that_were_read_where(faulty):
    for key in ("_lakefs/ranges/a", "_lakefs/ranges/b", "_lakefs/metaranges/m", "data/x"):
        faulty.put(key, b"0123456789")
    faults = faulty.faults
    assert faults.opened() == 0
    faulty.get("_lakefs/ranges/a")
    faulty.get("_lakefs/ranges/a")
    faulty.get_range("_lakefs/ranges/b", 8, 5)
    with faulty.open("_lakefs/metaranges/m") as file:
        assert file.read(3) == b"012"
        assert file.seek(8) == 8
        assert file.readinto(bytearray(5)) == 2
        assert file.tell() == 10
        assert file.read() == b""
    assert faults.opened("_lakefs/ranges/") == 3
    assert faults.keys_opened("_lakefs/") == {"_lakefs/ranges/a", "_lakefs/ranges/b", "_lakefs/metaranges/m"}
    assert faults.opened("data/") == 0


def test_parquet_reads_through_it(faulty, local):
    import pyarrow as pa

    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(1000)}), sink)
    faulty.put("t", sink.getvalue())
    with faulty.open("t") as file:
        assert pq.read_table(file).num_rows == 1000


def test_it_fails_the_nth_call(faulty):
    faulty.faults.fail("put", at=2)
    faulty.put("a", b"1")
    with pytest.raises(StoreUnavailable, match="b: put was made to fail"):
        faulty.put("b", b"2")
    faulty.put("b", b"3")
    assert faulty.get("b") == b"3"


def test_before_means_no_effect_and_after_means_a_lost_answer(faulty, local):
    faulty.faults.fail("put", at=1)
    faulty.faults.fail("put", at=2, when="after", error=TimeoutError("lost"))
    with pytest.raises(StoreUnavailable):
        faulty.put("a", b"1")
    with pytest.raises(TimeoutError, match="lost"):
        faulty.put("b", b"2")
    assert [item.key for item in local.list()] == ["b"]


def test_rules_can_name_keys_and_last(faulty):
    faulty.faults.fail(prefix="_lakefs/", at=None)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            faulty.put("_lakefs/ranges/x", b"")
        with pytest.raises(StoreUnavailable):
            faulty.list("_lakefs/")
    faulty.put("data/x", b"")


def test_every_crash_point_can_be_visited(local):
    """Tests of crash enumeration, on an operation of three effects."""

    def operation(store):
        store.put("a", b"1")
        try:
            store.put("b", b"2")
        finally:
            store.delete(["a"])

    rehearsal = FaultyStore(local)
    operation(rehearsal)
    assert rehearsal.faults.effects == 3
    local.delete(["a", "b"])

    states = []
    for at in range(1, 4):
        for when in ("before", "after"):
            faults = Faults()
            faults.crash(at=at, when=when)
            store = faults.around(local)
            with pytest.raises(Crash):
                operation(store)
            with pytest.raises(Crash):
                store.get("a")
            faults.revive()
            states.append("".join(item.key for item in store.list()))
            assert faults.counts == {"list": 1}
            local.delete(["a", "b"])
    assert states == ["", "a", "a", "ab", "ab", "b"], "a dead process cleans nothing up"


def test_a_crash_passes_handlers_of_ordinary_errors(faulty):
    faulty.faults.crash(at=1)
    with pytest.raises(Crash):
        try:
            faulty.put("a", b"")
        except Exception:
            pytest.fail("swallowed")


def test_something_can_happen_at_that_very_moment(faulty, local):
    faulty.faults.hook("get", action=lambda call: local.put(call.key, b"changed"))
    faulty.put("a", b"first")
    assert faulty.get("a") == b"changed"
    assert faulty.get("a") == b"changed"


def test_calls_can_be_held_up(faulty, monkeypatch):
    waited = []
    monkeypatch.setattr("lakeops.testing.faults.pause", waited.append)
    faulty.faults.delay("put", seconds=3.5, prefix="slow/")
    faulty.put("slow/a", b"")
    faulty.put("quick/a", b"")
    assert waited == [3.5]


def test_threads_share_a_script(local):
    faults = Faults()
    stores = [faults.around(local) for _ in range(4)]
    faults.fail("put", at=50)
    failures = []

    def work(store, number):
        for turn in range(25):
            try:
                store.put(f"{number}/{turn}", b"")
            except StoreUnavailable:
                failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(store, number)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults.counts["put"] == 100
    assert len(failures) == 1
    assert len(list(local.list())) == 99
