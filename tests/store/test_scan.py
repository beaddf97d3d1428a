"""Scanning a location: what a listing gives, without leaving anything out, however it is spread over folders."""

import os
import shutil
import socket
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.parsers import ResponseParserFactory
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.listed import Bucket

from lakeops.model.errors import InvalidInput, ObjectNotFound, StoreError, StoreUnavailable, Transient
from lakeops.store import local
from lakeops.store.base import Listing
from lakeops.store.listing import ParallelListing
from lakeops.store.local import LocalStore
from lakeops.store.s3 import S3Store
from lakeops.store.s3 import scan as s3_scan
from lakeops.store.s3.client import client, moment, take_objects
from lakeops.store.s3.scan import borders


def scanned(store, **options):
    """Key, size and time of every object."""
    found = []
    for listing in store.scan(**options):
        assert len(listing.keys) == len(listing.sizes) == len(listing.mtimes) == len(listing.marks) > 0
        found += zip(listing.keys, listing.sizes, listing.mtimes, strict=True)
    return found


def listed(store):
    return [(item.key, item.size_bytes, item.mtime) for item in store.list()]


KEYS = ["a", "a!", "a.b/1", "a/1", "a/b/c/2", "a/é", "a0/x", "b/" + "x" * 200, "z", "é/ü", "\U0001f600/1"]


def test_a_scan_gives_what_a_listing_gives(store):
    keys = [key for key in KEYS if key != "a" or isinstance(store, S3Store)]
    for number, key in enumerate(keys):
        store.put(key, b"x" * number)
    found = scanned(store, skip_special=True)  # a local store has hidden files of its own
    assert [key for key, _, _ in found] == sorted(keys)
    assert found == listed(store)


def test_marks_on_s3_are_etags(s3):
    s3.put("a/b", b"1")
    (listing,) = s3.scan()
    assert listing.marks == [s3.head("a/b").etag]


def test_nothing_there(s3, tmp_path):
    for store in (s3, LocalStore(tmp_path)):
        assert list(store.scan()) == []


def test_a_bucket_that_is_not_there(s3):
    with pytest.raises(StoreError):
        list(S3Store("no-such-bucket-anywhere", "p", s3.settings).scan())


def test_any_number_of_folders_and_pages(make_s3, monkeypatch, on_event):
    """Pages of three, so that every folder takes several; few and many folders at every level."""
    store = make_s3("moto")
    keys = [
        f"{top}/{middle}/{leaf}/{file}" for top in "ab" for middle in range(4) for leaf in range(5) for file in range(2)
    ]
    keys += ["a/0", "flat", "one/more/deep/level/x", *(f"many/{number:02}/x" for number in range(20))]
    for key in keys:
        store.put(key, b"")
    on_event(store, "provide-client-params.s3.ListObjectsV2", lambda params, **_: params.update(MaxKeys=3))
    for enough, levels in [(16, 3), (1, 1), (100, 100)]:
        monkeypatch.setattr(s3_scan, "_ENOUGH", enough)
        monkeypatch.setattr(s3_scan, "LEVELS", levels)
        assert [key for key, _, _ in scanned(store)] == sorted(keys)


@pytest.fixture
def asked(make_s3, on_event):
    """A bucket whose folders are listed in pages of three, and what every listing asked for."""
    store, asked = make_s3("moto"), []

    def note(params, **_):
        if "Delimiter" not in params or params["Prefix"].endswith("/alone/"):
            params["MaxKeys"] = 3
        asked.append(params)

    on_event(store, "provide-client-params.s3.ListObjectsV2", note)
    return store, asked


def test_no_thread_looks_for_what_may_not_be_there_while_folders_wait(asked):
    """Where a folder's next pages end is guessed only for threads that have nothing else to do."""
    store, asked = asked
    keys = [f"{folder:02}/{file}" for folder in range(40) for file in range(5)]
    for key in keys:
        store.put(key, b"")
    asked.clear()
    assert [key for key, _, _ in scanned(store)] == keys
    assert 1 + 2 * 40 <= len(asked) <= 1 + 4 * 40  # six of each folder, if all were guessed


def test_a_folder_that_holds_up_all_others_is_listed_by_stretches(asked):
    """However many folders wait behind it: what they hold is soon there, and waits for its turn."""
    store, asked = asked
    keys = [*(f"a/{file:03}" for file in range(200)), *(f"b{folder:03}/1" for folder in range(200))]
    for key in keys:
        store.put(key, b"")
    asked.clear()
    assert [key for key, _, _ in scanned(store)] == keys
    assert sum(params["Prefix"].endswith("/a/") and "StartAfter" in params for params in asked) > 10


def test_a_folder_alone_is_listed_by_stretches(asked):
    store, asked = asked
    keys = [f"{file:03}" for file in range(100)]
    for key in keys:
        store.put(f"alone/{key}", b"")
    asked.clear()
    assert [key for key, _, _ in scanned(store, under="alone/")] == [f"alone/{key}" for key in keys]
    beside = [params for params in asked if "StartAfter" in params]
    assert len(beside) > 10
    assert len(asked) < 100  # a third of them at least is needed


def test_a_page_is_parsed_once(make_s3, on_event):
    """botocore looks at every answer whether it is an error. By then the objects are out of it."""
    store, seen = make_s3("moto"), []
    store.put("a", b"")
    on_event(store, "before-parse.s3.*", lambda response_dict, **_: seen.append(response_dict["body"]))
    assert [key for key, _, _ in scanned(store)] == ["a"]
    assert [b"Contents" in body for body in seen] == [False]


def test_a_folder_of_a_bucket_that_vanishes(make_s3, on_event):
    store = make_s3("moto")
    for folder in "abc":
        store.put(f"{folder}/1", b"")
    emptied = []

    def empty(params, **_):
        if params["Prefix"].endswith("/b/") and not emptied:
            emptied.append(store.delete(["b/1"]))

    on_event(store, "provide-client-params.s3.ListObjectsV2", empty)
    with pytest.raises(Transient, match=r"changed while it was listed"):
        list(store.scan())


def test_names_that_no_reader_could_open_are_refused(make_s3):
    store = make_s3("moto")
    # S3Store itself would not write it.
    client(store.settings).put_object(Bucket=store.bucket, Key=f"{store.prefix}/../../../x", Body=b"")
    store.put("good\ufffd", b"")
    with pytest.raises(InvalidInput, match=r"climbs out"):
        list(store.scan())
    assert [key for key, _, _ in scanned(store, skip_special=True)] == ["good\ufffd"]


# --- directories ---
@pytest.fixture
def source(tmp_path):
    for name in ("a/1", "a/2", "b/c/3", ".hidden/x", "4"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return LocalStore(tmp_path / "source")


def test_marks_of_files_tell_changes_and_nothing_else(source):
    os.utime(source.root / "4", ns=(5, 1_234_567_890_123_456_789))
    marks = {key: mark for one in source.scan() for key, mark in zip(one.keys, one.marks, strict=True)}
    assert marks["4"] == "mtime-1234567890123456789-1"


def test_hidden_files_are_files(source):
    assert ".hidden/x" in [key for key, _, _ in scanned(source)]


def _socket(at):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(at))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda at: at.symlink_to("4"), "symbolic link"),
        (lambda at: at.symlink_to("a", target_is_directory=True), "symbolic link"),
        (os.mkfifo, "pipe, socket or device"),
        (_socket, "pipe, socket or device"),
        (lambda at: Path(os.fsdecode(os.fsencode(at.parent) + b"/\xff\xfe")).touch(), "not UTF-8"),
        (lambda at: (at.parent / ".lakeops").mkdir(), "store's own"),
    ],
)
def test_what_is_no_object_is_refused_by_name_or_skipped(source, make, words):
    before = scanned(source)
    make(source.root / "a" / "odd")
    with pytest.raises(InvalidInput, match=words) as refused:
        list(source.scan())
    assert "'a/" in refused.value.message
    assert scanned(source, skip_special=True) == before


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(ObjectNotFound, match="no directory"):
        list(LocalStore(tmp_path / "none").scan())
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is a file"):
        list(LocalStore(tmp_path / "file").scan())


CHANGES = {
    "a file is added": lambda root: (root / "new").touch(),
    "a directory is added": lambda root: (root / "new").mkdir(),
    "all of it moves": lambda root: root.rename(root.with_name("moved")),
}
LATE_CHANGES = CHANGES | {
    "a file goes": lambda root: (root / "a" / "2").unlink(),
    "a file is renamed": lambda root: (root / "a" / "1").rename(root / "a" / "9"),
    "a directory goes": lambda root: shutil.rmtree(root / ".hidden"),
}


@pytest.mark.parametrize(
    ("change", "seen"),
    [*((change, 1) for change in CHANGES.values()), *((change, 3) for change in LATE_CHANGES.values())],
    ids=[*(f"early: {name}" for name in CHANGES), *(f"late: {name}" for name in LATE_CHANGES)],
)
def test_a_change_during_the_scan_is_noticed(source, change, seen):
    """Once its directory was looked at: the root's listing comes first, the one of ``a`` third."""
    for folder in [source.root, *source.root.rglob("*")]:
        os.utime(folder, ns=(0, 0))  # long ago: the clock of the file system is coarse
    listings = source.scan()
    for _ in range(seen):
        next(listings)
    change(source.root)
    with pytest.raises(Transient, match=r"changed while it was listed"):
        list(listings)


def test_a_directory_that_goes_before_it_is_read(source, monkeypatch):
    """It was there when the directory above was read."""
    monkeypatch.setattr(local, "_AHEAD", 1)
    listings = source.scan()
    next(listings)
    shutil.rmtree(source.root / "b")
    os.utime(source.root, ns=(0, 0))
    with pytest.raises(Transient, match=r"'b' is gone"):
        list(listings)


def test_big_directories_are_read_in_pages(source, monkeypatch):
    monkeypatch.setattr(local, "_SCAN_PAGE", 2)
    for number in range(7):
        (source.root / "a" / f"f{number}").touch()
    assert scanned(source) == listed(source)


@given(
    st.sets(
        st.lists(st.sampled_from(["a", "a.", "a0", "b", "é", "!"]), min_size=1, max_size=4).map("/".join), max_size=25
    )
)
@settings(max_examples=examples(10), deadline=None)
def test_order_is_that_of_whole_keys(tmp_path_factory, keys):
    root = tmp_path_factory.mktemp("tree")
    for key in keys:
        path = root / key
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    store = LocalStore(root)
    assert scanned(store) == listed(store)


# --- several requests at a time ---
def tree(depth, path=""):
    """A step that gives its own listing, two further steps, and another listing."""

    def step():
        inner = [tree(depth - 1, f"{path}{name}") for name in "bc"] if depth else []
        return [Listing([f"{path}a"], [0], [0], [""]), *inner, Listing([f"{path}d"], [0], [0], [""])]

    return step


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (4, 1), (3, 5), (8, 64)])
def test_results_come_in_order(threads, ahead):
    keys = [listing.keys[0] for listing in ParallelListing(threads, ahead).run(tree(6))]
    assert len(keys) == 254
    assert keys == sorted(keys)


def test_a_failing_step_ends_it():
    def fail():
        raise StoreUnavailable("no")

    with pytest.raises(StoreUnavailable):
        list(ParallelListing(2).run(lambda: [tree(3), fail]))


class _AtOnce:
    """A pool of threads in which everything is done by the time that it is looked at."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, work):
        done = Future()
        done.set_result(work())
        return done

    def shutdown(self, **_):
        pass


def test_a_last_step_may_give_nothing(monkeypatch):
    monkeypatch.setattr("lakeops.store.listing.ThreadPoolExecutor", _AtOnce)
    one = Listing(["a"], [1], [1], [""])
    assert list(ParallelListing(1).run(lambda: [one, list])) == [one]


def test_a_folder_alone_is_scanned_by_whole_keys(store):
    keys = sorted((key for key in KEYS if key != "a"), key=str.encode)  # a file cannot be a folder, too
    for key in keys:
        store.put(key, b"x")
    for folder in ("a/", "a/b/", "b/", "é/", "none/"):
        inside = [key for key in keys if key.startswith(folder)]
        assert [key for key, _, _ in scanned(store, under=folder, moving=True)] == inside


@pytest.mark.parametrize("moving", [True, False])
def test_a_scan_begins_and_ends_between_any_two_keys(store, moving):
    keys = sorted((key for key in KEYS if key != "a"), key=str.encode)
    for key in keys:
        store.put(key, b"x")
    places = ["", "a!", "a/1", "a/b/", "a/b/c", "a0", "b/", "é/ü", "\U0001f601"]
    for after in places:
        for until in places:
            found = [key for key, _, _ in scanned(store, after=after, until=until, skip_special=True, moving=moving)]
            assert found == [key for key in keys if key > after and (not until or key <= until)], (after, until)


_NAMES = st.sets(st.lists(st.sampled_from("abc!"), min_size=1, max_size=4).map("/".join), max_size=30)


@given(_NAMES, st.text("abc/!\x01", max_size=5), st.text("abc/!\x01", max_size=5), st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_a_part_of_a_bucket_is_what_a_whole_scan_has_there(names, after, until, page):
    bucket = Bucket([f"r/{name}" for name in names], page)
    wanted = [name for name in sorted(names) if name > after and (not until or name <= until)]
    root = {name: f"r/{place}" if place else "" for name, place in (("after", after), ("until", until))}
    assert listed_in(bucket, "r/", **root) == wanted


@pytest.mark.parametrize("after", ["", "03/", "07/2", "z"])
@pytest.mark.parametrize("shape", ["folders", "deeper folders", "flat", "one", "none"])
def test_borders_divide_a_bucket_into_similar_parts_and_nothing_is_lost(shape, after):
    names = {
        "folders": [f"{folder:02}/{file}" for folder in range(40) for file in range(5)],
        "deeper folders": [f"{one}/{two}/{three}/x" for one in "0z" for two in range(3) for three in range(9)],
        "flat": [f"{number:05}" for number in range(2_000)],
        "one": ["0"],
        "none": [],
    }[shape]
    bucket = Bucket([f"r/{name}" for name in names], 20)
    found = [one.removeprefix("r/") for one in borders(bucket, "bucket", "r/", f"r/{after}" if after else "", 8)]
    assert found == sorted(set(found))
    assert all(border > after for border in found)
    assert bucket.requests <= 60
    parts = [
        listed_in(bucket, "r/", after=f"r/{one}" if one else "", until=f"r/{two}" if two else "")
        for one, two in pairwise([after, *found, ""])
    ]
    left = [name for name in sorted(names) if name > after]
    assert [name for part in parts for name in part] == left
    if len(left) > 50:
        assert 4 <= len(found) <= (64 if shape == "flat" else 16)
        assert max(map(len, parts)) <= len(left) / 2


def listed_in(bucket, root, **part):
    found = [key for listing in s3_scan.scan(bucket, "bucket", root, skip_special=True, **part) for key in listing.keys]
    assert found == sorted(found)
    return found


def test_a_scan_of_a_moving_place_holds_what_was_there_all_the_time(store, monkeypatch):
    """A listing may have, or lack, what others write and delete meanwhile."""
    stay = [f"{folder}/{number}" for folder in ("a", "b/c", "d") for number in range(30)]
    for key in [*stay, "b/gone/1", "e/gone"]:
        store.put(key, b"x")
    listings = store.scan(skip_special=True, moving=True)
    found = list(next(listings).keys)
    store.put("a/0new", b"x")
    store.put("z/new", b"x")
    store.delete(["b/gone/1", "e/gone"])
    for listing in listings:
        found += listing.keys
    assert set(stay) <= set(found) <= {*stay, "b/gone/1", "e/gone", "a/0new", "z/new"}
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("method", "where", "gone", "left"),
    [("folder", (b"b",), ["b/1", "b/2"], ["a/1", "a/2"]), ("_files", "a/", ["a/1"], ["a/2", "b/1", "b/2"])],
    ids=["a directory", "a file"],
)
def test_what_vanishes_while_a_moving_place_is_scanned_is_passed_over(tmp_path, monkeypatch, method, where, gone, left):
    store = LocalStore(tmp_path / "root", fsync=False)
    for key in ("a/1", "a/2", "b/1", "b/2"):
        store.put(key, b"x")
    look = getattr(local._LocalScan, method)

    def vanish(self, names, *more):
        if where in (names, *more):
            store.delete(gone)
        return look(self, names, *more)

    monkeypatch.setattr(local._LocalScan, method, vanish)
    assert [key for key, _, _ in scanned(store, moving=True, skip_special=True)] == left


def test_a_place_without_versions_says_so(store):
    assert store.keeps_versions() is False


# --- pages of a listing: read quickly, and as botocore would read them ---

SHAPE = botocore.session.get_session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
SPACES = (' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', "")
NAMES = ["a", "a/b%20c", "\u00e4/\U0001f600", " around ", "a&b<c>", "a\tb", ""]


def body(names, *, space=SPACES[0], drop="", modified="2026-11-23T06:00:00.000Z"):
    parts = {"Key": "", "LastModified": modified, "ETag": '"0123"', "Size": "7", "StorageClass": "STANDARD"}
    items = "".join(
        "<Contents>"
        + "".join(
            f"<{part}>{escape(name if part == 'Key' else text)}</{part}>"
            for part, text in parts.items()
            if part != drop
        )
        + "<Owner><ID>x</ID></Owner></Contents>"
        for name in names
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult{space}><Name>b</Name><IsTruncated>true</IsTruncated>'
        f"{items}<NextContinuationToken>t</NextContinuationToken><CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
        "</ListBucketResult>"
    ).encode()


def read(data, *, quickly, status=200):
    answer, taken = {"status_code": status, "headers": {}, "body": data}, dict[str, object]()
    if quickly:
        take_objects(answer, taken)
    factory = ResponseParserFactory()
    factory.set_parser_defaults(timestamp_parser=moment)
    return factory.create_parser("rest-xml").parse(answer, SHAPE) | taken


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("names", [NAMES, NAMES[:1], []])
def test_a_page_is_what_botocore_makes_of_it(names, space):
    quick, slow = (read(body(names, space=space), quickly=quickly) for quickly in (True, False))
    wanted = ("Key", "LastModified", "ETag", "Size")
    assert quick.pop("Contents", []) == [{part: item[part] for part in wanted} for item in slow.pop("Contents", [])]
    assert quick == slow


@pytest.mark.parametrize("drop", ["Key", "Size", "LastModified", "ETag"])
def test_an_unusual_page_is_left_to_botocore(drop):
    data = body(NAMES, drop=drop)
    assert read(data, quickly=True) == read(data, quickly=False)


def test_an_error_is_left_to_botocore():
    data = b"<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>"
    assert read(data, quickly=True, status=404) == read(data, quickly=False, status=404)


def test_times_are_read_as_botocore_does():
    for text in (
        "2026-11-21T11:44:00.250Z",
        "Sat, 21 Nov 2026 11:44:00 GMT",
        "2026-11-21T11:44:00",
        "2026-11-21 11:44",
    ):
        assert moment(text) == botocore.utils.parse_timestamp(text)
        assert moment(text).replace(microsecond=0).timestamp() == 1795261440
