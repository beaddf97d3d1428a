"""An object is read as it was recorded, or the read fails: whatever was done to it, whoever reads, wherever it lies."""

import hashlib
import io
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenes import table

from lakeops import Lake, Repository, Settings, Split
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import Corrupted, FileMissing, LakeopsError
from lakeops.store import recorded
from lakeops.store.open import Stores, StoreSettings

DATA = bytes(range(256)) * 1200
"""More than any buffer on the way holds."""
OTHER = DATA[:-1] + b"!"
LARGE = DATA * 4
"""More than is read whole when it is opened."""

DAMAGE = {
    "emptied": b"",
    "one byte short": DATA[:-1],
    "half": DATA[: len(DATA) // 2],
    "one byte more": DATA + b"x",
    "twice": DATA * 2,
}


@pytest.fixture(params=["local", "moto"])
def repo(request, endpoint_of, buckets, tmp_path):
    namespace, endpoint = None, None
    if request.param != "local":
        endpoint = endpoint_of(request.param)
        namespace = f"s3://{buckets(endpoint)}/{uuid.uuid4().hex}"
    settings = Settings.load(home=tmp_path / "home", s3_endpoint_url=endpoint, fsync=False)
    with Lake.open(settings=settings) as lake:
        yield lake.create_repository("repo", storage_namespace=namespace, split=Split(2, 4, 8))


def replace(repo, path, data):
    store, key = repo._ctx.stores().locate(repo._ctx.policy, repo.ref("main").stat(path).physical_address)
    store.put(key, data)


def in_pieces(file, size=100_003):
    with file:
        return b"".join(iter(lambda: file.read(size), b""))


def by_lines(file):
    with file:
        return b"".join(file)


def filled(file):
    data = bytearray(len(DATA))
    with file:
        return bytes(data[: file.readinto(data)])


def downloaded(fs, place):
    target = place / "deep" / "file"
    try:
        fs.get_file("repo/main/f", str(target))
    except LakeopsError:
        assert not list((place / "deep").iterdir()), "nothing is left of a download that failed"
        raise
    return target.read_bytes()


def copied(fs):
    fs.cp_file("repo/main/f", "repo/main/copy")
    return fs.cat_file("repo/main/copy")


WHOLE: dict[str, Callable[[Repository, LakeopsFileSystem, Path], bytes]] = {
    "read": lambda repo, fs, place: repo.ref("main").read("f"),
    "read of a commit": lambda repo, fs, place: repo.ref("main@").read("f"),
    "open and read": lambda repo, fs, place: repo.ref("main").open("f").read(),
    "pieces": lambda repo, fs, place: in_pieces(repo.ref("main").open("f")),
    "small pieces": lambda repo, fs, place: in_pieces(repo.ref("main").open("f"), 1_001),
    "lines": lambda repo, fs, place: by_lines(repo.ref("main").open("f")),
    "readinto": lambda repo, fs, place: filled(repo.ref("main").open("f")),
    "an entry": lambda repo, fs, place: in_pieces(repo.ref("main").open_entry(repo.ref("main").stat("f"))),
    "fsspec cat": lambda repo, fs, place: fs.cat("repo/main/f"),
    "fsspec open": lambda repo, fs, place: in_pieces(fs.open("repo/main/f")),
    "fsspec get": lambda repo, fs, place: downloaded(fs, place),
    "fsspec copy": lambda repo, fs, place: copied(fs),
    "pyarrow": lambda repo, fs, place: (
        pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs)).open_input_stream("repo/main/f").read()
    ),
}

RANGES: dict[str, Callable[[Repository, LakeopsFileSystem], bytes]] = {
    "seek": lambda repo, fs: seeked(repo.ref("main").open("f"), 5, 20),
    "fsspec range": lambda repo, fs: fs.cat_file("repo/main/f", 5, 25),
    "fsspec range from the end": lambda repo, fs: fs.cat_file("repo/main/f", 5 - len(DATA), 25 - len(DATA)),
    "fsspec ranges": lambda repo, fs: fs.cat_ranges(["repo/main/f"], [5], [25], on_error="raise")[0],
    "fsspec block": lambda repo, fs: fs.read_block("repo/main/f", 5, 20),
    "fsspec head": lambda repo, fs: fs.head("repo/main/f", 25)[5:],
}


def seeked(file, start, size):
    with file:
        file.seek(start)
        return file.read(size)


@pytest.fixture
def fs(repo):
    with Lake.open(settings=repo._ctx.settings) as lake:
        yield LakeopsFileSystem(lake=lake)


@pytest.fixture(autouse=True)
def written(request):
    if "repo" in request.fixturenames:
        repo = request.getfixturevalue("repo")
        repo.branch("main").put("f", DATA)
        repo.branch("main").commit("f")


@pytest.mark.parametrize("read", WHOLE.values(), ids=WHOLE)
def test_a_whole_read(repo, fs, tmp_path, read):
    place = tmp_path / "here"
    place.mkdir()
    assert read(repo, fs, place) == DATA
    for name, data in {**DAMAGE, "other contents": OTHER}.items():
        (place / "deep" / "file").unlink(missing_ok=True)
        replace(repo, "f", data)
        fs.invalidate_cache()  # a small object is remembered for a while
        with pytest.raises(Corrupted, match="'f'") as caught:
            read(repo, fs, place)
        told = caught.value.message
        assert repo.ref("main").stat("f").physical_address in told
        if name == "other contents":
            assert hashlib.sha256(DATA).hexdigest() in told
            assert hashlib.sha256(OTHER).hexdigest() in told
        else:
            assert f"{len(DATA):,} were recorded" in told
            assert f"{len(data):,} bytes" in told
        assert "\n" not in told
    replace(repo, "f", DATA)
    fs.invalidate_cache()
    assert read(repo, fs, place) == DATA


@pytest.mark.parametrize("read", RANGES.values(), ids=RANGES)
def test_a_read_of_a_range(repo, fs, read):
    repo.branch("main").put("f", LARGE)
    assert read(repo, fs) == DATA[5:25]
    for data in DAMAGE.values():
        replace(repo, "f", data)
        with pytest.raises(Corrupted, match="were recorded"):
            read(repo, fs)
    replace(repo, "f", LARGE[:-1] + b"!")
    assert read(repo, fs) == DATA[5:25], "contents of a large object are proved by whole reads alone"


@pytest.mark.parametrize("size", [1, 20_000])
def test_a_small_object_is_proved_before_anything_is_read(repo, fs, size):
    data = DATA[-size:]
    repo.branch("main").put("f", data)
    ref = repo.ref("main")
    with ref.open("f") as file:
        assert (file.size, file.read()) == (size, data)
        assert file.seek(-1, os.SEEK_END) == size - 1
        assert file.read() == data[-1:]
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    for held, told in ((data[:-1], "were recorded"), (data * 2, "were recorded"), (b"!" * size, "other contents")):
        replace(repo, "f", held)
        fs.invalidate_cache()
        for open_ in (lambda: ref.open("f"), lambda: fs.open("repo/main/f"), lambda: fs.cat_file("repo/main/f", 0, 1)):
            with pytest.raises(Corrupted, match=told):
                open_()
    with ref.open("f", verify=False) as file:
        assert file.read() == b"!" * size


def test_an_empty_object(repo, fs, tmp_path):
    repo.branch("main").put("f", b"")
    repo.branch("main").commit("empty")
    for read in WHOLE.values():
        assert read(repo, fs, tmp_path) == b""
        (tmp_path / "deep" / "file").unlink(missing_ok=True)
    replace(repo, "f", b"x")
    for read in WHOLE.values():
        with pytest.raises(Corrupted, match="0 were recorded"):
            read(repo, fs, tmp_path)


def test_the_setting_leaves_the_size_and_downloads(repo, tmp_path):
    settings = Settings.load(**{**repo._ctx.settings.model_dump(), "verify_checksums": False})
    replace(repo, "f", OTHER)
    with Lake.open(settings=settings) as lake:
        ref, fs = lake.repository("repo").ref("main"), LakeopsFileSystem(lake=lake)
        assert ref.read("f") == in_pieces(ref.open("f")) == fs.cat_file("repo/main/f") == OTHER
        for read in (
            lambda: ref.read("f", verify=True),
            lambda: in_pieces(ref.open("f", verify=True)),
            lambda: in_pieces(ref.open_entry(ref.stat("f"), verify=True)),
            lambda: fs.get("repo/main/f", str(tmp_path / "f")),
        ):
            with pytest.raises(Corrupted, match="other contents"):
                read()
        replace(repo, "f", DATA[1:])
        fs.invalidate_cache()
        for read in (lambda: ref.read("f"), lambda: ref.open("f"), lambda: fs.cat_file("repo/main/f", 0, 1)):
            with pytest.raises(Corrupted, match="were recorded"):
                read()


def test_checksums_that_are_no_digests(repo):
    """Whoever stages says what a checksum is: only what looks like a digest of the contents is computed again."""
    address = repo.ref("main").stat("f").physical_address
    for checksum in ("d41d8cd98f00b204e9800998ecf8427e-3", "mtime-1-307200", "v7", hashlib.sha512(DATA).hexdigest()):
        repo.branch("main").stage(table({"g": address}, checksum=[checksum], size_bytes=[len(DATA)]))
        assert repo.ref("main").read("g") == DATA
        assert in_pieces(repo.ref("main").open("g")) == DATA


def test_an_etag_is_checked_where_it_is_a_digest(endpoint_of, buckets, tmp_path):
    endpoint = endpoint_of("moto")
    settings = Settings.load(home=tmp_path / "home", s3_endpoint_url=endpoint, fsync=False)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", storage_namespace=f"s3://{buckets(endpoint)}/{uuid.uuid4().hex}")
        with repo.branch("main").output("out/") as url:
            store = repo._ctx.stores().at(repo.storage_namespace)
            store.put(f"{url.removeprefix(repo.storage_namespace).strip('/')}/part", DATA)
        ref = repo.ref("main")
        entry = ref.stat("out/part")
        assert entry.checksum == hashlib.md5(DATA, usedforsecurity=False).hexdigest()
        assert ref.read("out/part") == in_pieces(ref.open("out/part")) == DATA
        replace(repo, "out/part", OTHER)
        for read in (lambda: ref.read("out/part"), lambda: in_pieces(ref.open("out/part"))):
            with pytest.raises(Corrupted, match="md5"):
                read()


def test_a_missing_object_is_said_to_be_missing(repo, fs, tmp_path):
    store, key = repo._ctx.stores().locate(repo._ctx.policy, repo.ref("main").stat("f").physical_address)
    store.delete([key])
    for read in WHOLE.values():
        with pytest.raises(FileMissing):
            read(repo, fs, tmp_path)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


steps = st.one_of(
    st.tuples(st.just("read"), st.integers(-1, 400_000)),
    st.tuples(st.just("seek"), st.integers(0, 310_000)),
    st.tuples(st.just("readinto"), st.integers(0, 400_000)),
)


@given(steps=st.lists(steps, max_size=12), held=st.sampled_from([DATA, OTHER]))
def test_any_order_of_reads(file, steps, held):
    """A checked file reads as a file does. What was read from the start without a gap, to the end, was proved."""
    store = Stores(StoreSettings(fsync=False)).at(file.as_uri())
    store.put("k", held)
    what = recorded.Recorded("p", "k", len(DATA), hashlib.sha256(DATA).hexdigest(), "sha256")
    plain, proved = io.BytesIO(held), 0
    with recorded.open_object(store, "k", what) as checked:
        try:
            for step, number in steps:
                start = plain.tell()
                if step == "seek":
                    assert checked.seek(number) == plain.seek(number)
                elif step == "read":
                    assert checked.read(number) == plain.read(number)
                else:
                    mine, theirs = bytearray(number), bytearray(number)
                    assert checked.readinto(mine) == plain.readinto(theirs)
                    assert mine == theirs
                assert checked.tell() == plain.tell()
                if step != "seek" and start <= proved:
                    proved = max(proved, plain.tell())
        except Corrupted:
            assert held == OTHER
            with pytest.raises(Corrupted):
                checked.seek(0)
                checked.read()
            return
    assert held == DATA or proved < len(DATA)


def test_a_file_that_shrinks_or_grows_while_it_is_read(tmp_path):
    store = Stores(StoreSettings(fsync=False)).at(tmp_path.as_uri())
    what = recorded.Recorded("p", "k", len(DATA), hashlib.sha256(DATA).hexdigest(), None)
    for size in (len(DATA) + 1, len(DATA) - 1, 0):
        store.put("k", DATA)
        with recorded.open_object(store, "k", what) as file:
            os.truncate(tmp_path / "k", size)
            with pytest.raises(Corrupted, match="were recorded"):
                file.read()
