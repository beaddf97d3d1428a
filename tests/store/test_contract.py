"""Tests of every store's promises, against every store."""

import hashlib
import io
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples

from lakeops.model.errors import AlreadyExists, InvalidInput, InvalidPath, NotFound, ObjectNotFound, Transient
from lakeops.store.base import PutResult
from lakeops.store.open import AddressPolicy, Stores


class Drip(io.RawIOBase):
    """A source that cannot seek and answers with as little as it likes."""

    def __init__(self, data):
        self._rest = data

    def readable(self):
        return True

    def read(self, size=-1):
        size = len(self._rest) if size < 0 else min(size, 70_001)
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


class Cut(io.RawIOBase):
    """A source that breaks after so many bytes."""

    def __init__(self, size):
        self._left = size

    def readable(self):
        return True

    def read(self, size=-1):
        if self._left <= 0:
            raise ConnectionResetError("the source broke")
        size = min(size, self._left)
        self._left -= size
        return b"x" * size


def keys(store, prefix="", after=""):
    return [item.key for item in store.list(prefix, after)]


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 41])
def test_put_then_get(store, data):
    result = store.put("data/h/a", data)
    assert (result.size_bytes, result.checksum) == (len(data), hashlib.sha256(data).hexdigest())
    assert store.get("data/h/a") == data


@pytest.mark.parametrize("wrap", [bytearray, memoryview, io.BytesIO, Drip])
def test_put_takes_bytes_and_binary_files(store, wrap):
    data = os.urandom(300_000)
    assert store.put("k", wrap(data)) == PutResult(300_000, hashlib.sha256(data).hexdigest(), store.head("k").etag)
    assert store.get("k") == data


@pytest.mark.parametrize("source", ["text", io.StringIO("text"), None, 5])
def test_put_refuses_what_is_not_binary(store, source):
    with pytest.raises(InvalidInput):
        store.put("k", source)
    assert keys(store) == []


def test_put_replaces(store):
    store.put("k", b"one")
    store.put("k", b"second")
    assert store.get("k") == b"second"
    assert store.head("k").size_bytes == 6


def test_put_if_absent_refuses_what_is_there(store):
    store.put("k", b"one", if_absent=True)
    with pytest.raises(AlreadyExists, match="k exists"):
        store.put("k", b"two", if_absent=True)
    assert store.get("k") == b"one"
    store.delete(["k"])
    store.put("k", b"three", if_absent=True)
    assert store.get("k") == b"three"


def test_swap_replaces_what_the_caller_has_seen_and_nothing_else(store):
    assert store.swap("k", b"one", expected=None)
    assert store.get("k") == b"one"
    assert not store.swap("k", b"two", expected=None)
    assert not store.swap("k", b"two", expected=b"another")
    assert not store.swap("absent", b"two", expected=b"another")
    assert store.get("k") == b"one"
    assert store.swap("k", b"two", expected=b"one")
    assert store.swap("k", b"two", expected=b"one")  # it is as the caller wants it
    assert store.get("k") == b"two"
    assert [item.key for item in store.list()] == ["k"]


def test_a_stream_of_many_parts(store):
    data = os.urandom(1024) * (12 * 1024) + b"end"
    result = store.put("data/big", Drip(data))
    assert (result.size_bytes, result.checksum) == (len(data), hashlib.sha256(data).hexdigest())
    assert hashlib.sha256(store.get("data/big")).hexdigest() == result.checksum
    assert store.head("data/big").size_bytes == len(data)
    assert store.get_range("data/big", 6 * 1024 * 1024 - 2, 4) == data[6 * 1024 * 1024 - 2 :][:4]


@pytest.mark.parametrize("size", [0, 1000, 7 * 1024 * 1024, 23 * 1024 * 1024])
def test_a_cut_upload_leaves_nothing(store, size):
    with pytest.raises(ConnectionResetError, match="the source broke"):
        store.put("data/h/a", Cut(size))
    assert keys(store) == []
    with pytest.raises(ObjectNotFound):
        store.get("data/h/a")


def test_a_cut_upload_leaves_what_was_there(store):
    store.put("k", b"old")
    with pytest.raises(ConnectionResetError):
        store.put("k", Cut(6 * 1024 * 1024))
    assert store.get("k") == b"old"


def test_ranges(store):
    store.put("k", b"0123456789")
    for start, length in ((0, 3), (2, 5), (8, 100), (9, 1), (10, 1), (99, 5), (3, 0)):
        assert store.get_range("k", start, length) == b"0123456789"[start : start + length], (start, length)
    for start, length in ((-1, 5), (0, -1), (-5, -5)):
        with pytest.raises(InvalidInput):
            store.get_range("k", start, length)
    store.put("k", b"")
    assert store.get_range("k", 0, 10) == b""


def test_what_is_not_there(store):
    store.put("data/a", b"x")
    for missing in ("data", "data/a/b", "data/b", "other"):
        for ask in (store.get, store.head, store.open, lambda key: store.get_range(key, 0, 1)):
            with pytest.raises(ObjectNotFound, match=missing) as raised:
                ask(missing)
            assert isinstance(raised.value, NotFound)
    assert store.get_range("data/a", 0, 0) == b""
    with pytest.raises(ObjectNotFound):
        store.get_range("missing", 0, 0)


def test_head_tells_size_and_time(store):
    before = int(time.time())
    store.put("k", b"12345", content_type="text/csv")
    found = store.head("k")
    assert (found.key, found.size_bytes) == ("k", 5)
    assert before - 2 <= found.mtime <= time.time() + 2
    assert found.content_type in {"", "text/csv"}
    [listed] = store.list()
    assert (listed.key, listed.size_bytes, listed.mtime, listed.etag) == ("k", 5, found.mtime, found.etag)


def test_open_reads_and_seeks(store):
    data = os.urandom(5_000_000)
    store.put("k", data)
    with store.open("k") as file:
        assert file.read(10) == data[:10]
        assert file.seek(-7, os.SEEK_END) == len(data) - 7
        assert file.read() == data[-7:]
        assert file.read() == b""
        assert file.seek(4_500_000) == 4_500_000
        assert file.seek(5, os.SEEK_CUR) == 4_500_005
        assert file.read(400_000) == data[4_500_005:4_900_005]
        file.seek(0)
        assert hashlib.file_digest(file, "sha256").digest() == hashlib.sha256(data).digest()
        assert file.seek(9_000_000) == 9_000_000
        assert file.read(1) == b""
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)


def test_open_serves_parquet(store):
    table = pa.table({"path": [f"p{n}" for n in range(5000)], "size": list(range(5000))})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=1000)
    store.put("t.parquet", sink.getvalue())
    with store.open("t.parquet") as file:
        assert pq.read_table(file, columns=["size"]).equals(table.select(["size"]))


def test_a_reader_never_sees_two_writes_mixed(store):
    """The old contents to the end from a file, a clear error from a bucket; never some of both."""
    old = b"a" * 9_000_000
    store.put("k", old)
    with store.open("k") as file:
        start = file.read(1000)
        store.put("k", b"b" * 9_000_000)
        if store.url.startswith("file"):
            assert start + file.read() == old
        else:
            with pytest.raises(Transient, match="was replaced while it was read"):
                file.read()


def test_list_is_in_byte_order_of_whole_keys(store):
    names = [
        "a/b", "a-b", "a.b", "a0", "a/b c", "a b/c", "Z", "b/", "é", "e\u0301", "z", "\U0001f600", "\uffee", "a/b!/c",
    ]  # fmt: skip
    names = [name for name in names if not name.endswith("/")]
    names += ["a/c/d", "a/c-d", "a/c.d"]
    if store.url.startswith("az"):
        names.remove("\U0001f600")  # Azurite has it before U+FFEE, by UTF-16
    for name in reversed(names):
        store.put(name, b"")
    assert keys(store) == sorted(names, key=lambda key: key.encode())


PREFIXES = ["", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/c/", "b/y", "nope", "c", "cc", "/", "//", "a//", ".", "../"]


@pytest.fixture
def shelf(store):
    names = ["a/b/c", "a/b/d", "a/b-1", "a/bb", "ab", "b/x", "b/y/1", "b/y/2", "c"]
    for name in names:
        store.put(name, name.encode())
    return store, sorted(names)


def test_list_with_a_prefix(shelf):
    store, names = shelf
    for prefix in PREFIXES:
        assert keys(store, prefix) == [name for name in names if name.startswith(prefix)], prefix


def test_list_after_a_key(shelf):
    store, names = shelf
    for prefix in ("", "a/b", "b/"):
        for after in (*PREFIXES, "a/b/cc", "b", "b/y/1", "b/z", "zz", "\U0001f600"):
            expected = [name for name in names if name.startswith(prefix) and name > after]
            assert keys(store, prefix, after) == expected, (prefix, after)


def test_list_goes_on_over_pages_of_a_directory(local):
    names = [f"data/{n // 1100}/{n:05d}" for n in range(2203)]
    for name in names:
        (local.root / name).parent.mkdir(parents=True, exist_ok=True)
        (local.root / name).touch()
    assert keys(local) == names
    assert keys(local, after=names[1050]) == names[1051:]


def test_list_goes_on_over_pages_of_a_bucket(s3, on_event):
    store = s3
    names = [f"data/{n // 15}/{n:05d}" for n in range(40)]
    for name in names:
        store.put(name, b"")
    pages = []

    def small_pages(params, **_):
        pages.append(params)
        params["MaxKeys"] = 7

    on_event(store, "before-parameter-build.s3.ListObjectsV2", small_pages)
    assert keys(store) == names
    assert len(pages) == 6
    assert keys(store, after=names[10]) == names[11:]


def test_list_refuses_lone_surrogates(store):
    for arguments in (("\ud800",), ("", "\ud800")):
        with pytest.raises(InvalidPath):
            list(store.list(*arguments))


def test_listing_survives_deletes_on_the_way(store):
    names = [f"d/{n}/f" for n in range(10, 40)]
    for name in names:
        store.put(name, b"")
    seen = []
    for item in store.list():
        seen.append(item.key)
        assert store.delete([item.key]) == []
    assert seen == names
    assert keys(store) == []


def test_delete_many(store):
    names = [f"d/{n}" for n in range(30)]
    for name in names:
        store.put(name, b"")
    assert store.delete(name for name in [*names[:20], "missing", "d/0/under", "d"]) == []
    assert keys(store) == sorted(names[20:])
    assert store.delete([]) == []
    assert store.delete(["d/0", "d/0"]) == []


def test_delete_takes_more_than_one_batch(store):
    store.put("last", b"")
    assert store.delete([*(f"gone/{n}" for n in range(1001)), "last"]) == []
    assert keys(store) == []


def test_delete_reports_what_it_refuses_and_goes_on(store):
    for name in ("a", "b"):
        store.put(name, b"")
    [failure] = store.delete(["a", "../../b", "b"])
    assert failure.key == "../../b"
    assert failure.reason
    assert keys(store) == []


def test_checksum_tells_contents_apart(store):
    for name, data in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        store.put(name, data)
    a, b, c = (store.checksum(item) for item in store.list())
    assert a != b
    if store.url.startswith(("file", "s3")):  # Azure's ETag tells writes apart, and so does that in memory
        assert a == c
    assert store.checksum(store.head("a")) == a


def test_probe_finds_what_this_store_can_and_cleans_up(store):
    found = store.probe()
    assert found.conditional_put
    assert found.range_reads
    assert found.batch_delete
    assert found.metadata_case == found.etag_is_md5 == store.url.startswith("s3")
    assert keys(store) == []


def test_url_opens_the_same_store(store):
    store.put("data/a b", b"x")
    if "in-memory" in store.url:
        return  # it is no place that another store could open
    stores = Stores(getattr(store, "settings", None))
    assert stores.at(store.url).get("data/a b") == b"x"
    assert stores.at(store.url).url == store.url
    other, key = stores.locate(
        AddressPolicy("file:///nowhere"), store.url + "/data/a%20b" if "file" in store.url else store.url + "/data/a b"
    )
    assert other.get(key) == b"x"
    same, key = stores.locate(AddressPolicy(store.url), "data/a b")
    assert same.get(key) == b"x"


segments = st.text(st.sampled_from("ab-./ 0é\U0001f600"), min_size=1, max_size=6)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(segments, max_size=8), prefix=st.one_of(st.just(""), segments), after=st.one_of(st.just(""), segments)
)
def test_listing_equals_a_sorted_set(local, names, prefix, after):
    """On the local store, whose order is its own work."""
    kept = set()
    for name in names:
        try:
            local.put(name, b"")
        except InvalidPath:
            continue
        kept.add(name)
    try:
        expected = sorted((k for k in kept if k.startswith(prefix) and k.encode() > after.encode()), key=str.encode)
        assert keys(local, prefix, after) == expected
    finally:
        assert local.delete(kept) == []
        assert keys(local) == []
