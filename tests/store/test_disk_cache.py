"""Immutable files kept on this machine's disk, and puts in the background."""

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.far import FarStore, Requests

from lakeops.model.errors import ObjectNotFound, StoreUnavailable
from lakeops.store import disk_cache
from lakeops.store.disk_cache import FOLDERS, DiskCache, background_writes, with_cache, with_scratch
from lakeops.store.local import LocalStore
from lakeops.testing import Faults

MIB = 1024 * 1024


def digest(data):
    return hashlib.sha256(data).digest()


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "cache", 64 * MIB)


def files(cache):
    return [path for path in cache.folder.rglob("*") if path.is_file()]


def test_a_file_comes_back_in_another_process(cache, tmp_path):
    cache.put(digest(b"data"), b"data")
    assert DiskCache(tmp_path / "cache", 64 * MIB).get(digest(b"data")) == b"data"
    assert cache.get(digest(b"other")) is None


@pytest.mark.parametrize("damage", [b"", b"dat", b"date", b"data and more"])
def test_a_damaged_file_is_forgotten(cache, damage):
    cache.put(digest(b"data"), b"data")
    files(cache)[0].write_bytes(damage)
    assert cache.get(digest(b"data")) is None
    assert files(cache) == []


def test_the_folder_is_the_users_alone(cache):
    cache.put(digest(b"data"), b"data")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert files(cache)[0].stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_read_is_not_used(cache):
    cache.folder.mkdir(mode=0o755)
    cache.folder.chmod(0o755)
    cache.put(digest(b"data"), b"data")
    assert not cache.is_usable()
    assert files(cache) == []


def test_a_place_where_no_folder_can_be_made_is_in_nobodys_way(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache", 64 * MIB)
    cache.put(digest(b"data"), b"data")
    assert cache.get(digest(b"data")) is None
    assert cache.usage().files == 0


def test_a_full_disk_is_in_nobodys_way(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lakeops.store.disk_cache.os.fdopen", full)
    cache.put(digest(b"data"), b"data")
    assert cache.get(digest(b"data")) is None
    assert files(cache) == []


def test_what_was_used_longest_ago_goes_first(cache):
    share = cache.max_bytes // FOLDERS
    piece = share // 4
    first = bytes([7])  # one folder
    names = [first + digest(str(number).encode())[1:] for number in range(200)]
    now = time.time()
    for number, name in enumerate(names):
        cache.put(name, bytes([number]) * piece)
        for path in files(cache):
            if path.name == name.hex():
                os.utime(path, (now - 10_000 + number,) * 2)
    cache._trim(cache.folder / "v1" / "07")
    assert sorted(path.name for path in files(cache)) == sorted(name.hex() for name in names[-4:])


def test_all_files_stay_within_bounds(tmp_path):
    cache = DiskCache(tmp_path / "cache", 8 * MIB)
    for number in range(4_000):
        data = number.to_bytes(4, "big") * 2_000  # 31 MiB in all
        cache.put(digest(data), data)
    assert 4 * MIB < cache.usage().size_bytes < 10 * MIB


def test_a_file_in_use_is_noted_at_most_once_an_hour(cache):
    cache.put(digest(b"data"), b"data")
    [path] = files(cache)
    old = time.time() - 7_200
    os.utime(path, (old, old))
    assert cache.get(digest(b"data")) == b"data"
    noted = path.stat().st_mtime_ns
    assert noted > (old + 3_600) * 1e9
    cache.get(digest(b"data"))
    assert path.stat().st_mtime_ns == noted


def test_leftovers_of_killed_processes_go(cache):
    cache.put(digest(b"data"), b"data")
    folder = files(cache)[0].parent
    left, fresh = folder / ".0123456789abcdef", folder / ".fedcba9876543210"
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (time.time() - 7_200,) * 2)
    cache._trim(folder)
    assert not left.exists()
    assert fresh.exists()  # somebody may be at it
    assert cache.get(digest(b"data")) == b"data"


WRITER = """
import hashlib, itertools, sys
from pathlib import Path
from lakeops.store.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), 1024 * 1024 * int(sys.argv[2]))
for number in itertools.count():
    data = (sys.argv[3] + str(number % 500)).encode() * 400
    cache.put(hashlib.sha256(data).digest(), data)
    found = cache.get(hashlib.sha256(data).digest())
    assert found in (None, data)
    if number == 500:
        print("busy", flush=True)
"""


def test_two_processes_that_evict_and_are_killed(cache):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(cache.folder), "1", str(name)], stdout=subprocess.PIPE, text=True
        )
        for name in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "busy\n"
    for writer in writers:
        assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    found = [path for path in files(cache) if not path.name.startswith(".")]
    assert found
    for path in found:
        assert digest(path.read_bytes()).hex() == path.name


def test_clearing_says_how_much_it_was(cache):
    cache.put(digest(b"data"), b"data")
    cache.put(digest(b"0123456789"), b"0123456789")
    cleared = cache.clear()
    assert (cleared.files, cleared.size_bytes) == (2, 14)
    assert cache.usage().files == 0
    cache.put(digest(b"data"), b"data")
    assert cache.get(digest(b"data")) == b"data"


# --- puts in the background ---
@pytest.fixture
def requests():
    return Requests(0.1)


@pytest.fixture
def far(tmp_path, requests):
    return FarStore(tmp_path / "far", requests)


def test_what_is_on_its_way_can_be_read(far):
    with background_writes(far) as store:
        store.put("k", b"data")
        assert store.get("k") == b"data"
        store.put("l", b"0123456789")
        assert store.get_range("l", 2, 3) == b"234"
        store.put("m", b"0123456789")
        assert store.get_range("m", 8, 5) == b"89"
        with pytest.raises(ObjectNotFound):
            store.get("n")


def test_the_end_raises_what_a_put_raised(far):
    faults = Faults()
    faults.fail("put", at=2)
    with pytest.raises(StoreUnavailable), background_writes(faults.around(far)) as store:
        for number in range(4):
            store.put(f"k{number}", b"data")


def test_an_error_waits_for_what_is_on_its_way(far):
    with pytest.raises(ZeroDivisionError), background_writes(far) as store:
        store.put("k", b"data")
        raise ZeroDivisionError
    assert far.get("k") == b"data"


def test_only_so_many_bytes_are_on_their_way(far, monkeypatch):
    monkeypatch.setattr(disk_cache, "MOST_HELD", 10)
    faults, most, now = Faults(), [0], [0]
    lock = threading.Lock()

    def count(by):
        def counted(_):
            with lock:
                now[0] += by
                most[0] = max(most[0], now[0])

        return counted

    faults.hook("put", at=None, action=count(4))
    faults.hook("put", at=None, when="after", action=count(-4))
    with background_writes(faults.around(far)) as store:
        for number in range(8):
            store.put(f"k{number}", b"data")
        store.put("large", b"x" * 100)  # more than may be held, so it travels alone
    assert most[0] == 8
    assert far.head("large").size_bytes == 100


def test_a_near_store_is_left_as_it_is(store_at_hand):
    with background_writes(store_at_hand) as store:
        assert store is store_at_hand
    assert with_cache(store_at_hand, DiskCache(store_at_hand.root, 1 << 30)) is store_at_hand


@pytest.fixture
def store_at_hand(tmp_path):
    from lakeops.store.local import LocalStore

    return LocalStore(tmp_path)


def test_elsewhere_it_is_the_plain_store(tmp_path):
    from lakeops.store.s3 import S3Store

    inner = S3Store("bucket", "prefix")
    store = with_cache(inner, DiskCache(tmp_path, 1 << 30))
    assert getattr(store, "disk_cache", None) is not None
    with background_writes(store) as travelling:
        found = pickle.loads(pickle.dumps(travelling))
    assert isinstance(found, S3Store)
    assert found.url == inner.url
    assert getattr(found, "disk_cache", None) is None


# --- files in memory laid over a namespace, which is never written ---


def test_writes_stay_here_and_reads_find_both(tmp_path):
    namespace = LocalStore(tmp_path / "namespace", fsync=False)
    namespace.put("a/1", b"theirs")
    over = with_scratch(namespace)
    assert (over.url, over.remote) == (namespace.url, namespace.remote)
    assert over.get("a/1") == b"theirs"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: over.put(f"b/{number}", b"mine"), range(40)))
    assert over.get("b/7") == b"mine"
    assert over.get_range("b/7", 1, 2) == b"in"
    assert over.get_range("a/1", 0, 5) == b"their"
    assert [item.key for item in namespace.list("")] == ["a/1"]
    for missing in ("b/41", "c"):
        with pytest.raises(ObjectNotFound):
            over.get(missing)
