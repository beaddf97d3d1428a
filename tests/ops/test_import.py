"""Importing: what lies elsewhere becomes a prefix of a branch, in one commit, without a copy."""

import gzip
import io
import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv
from services.s3 import S3_KINDS
from support.budget import examples
from support.errors import raising
from support.scenes import open_faulty, tree
from support.soundness import assert_sound

from lakeops import Branch, Lake, Settings, Split
from lakeops.engine.base import LocalEngine
from lakeops.model import errors
from lakeops.ops import listed
from lakeops.ranges import build as building
from lakeops.ranges.build import build
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.store import layout
from lakeops.store.base import StoreSettings
from lakeops.store.local import LocalStore
from lakeops.store.s3 import S3Store
from lakeops.store.s3.client import client
from lakeops.testing import Crash, Faults, ManualClock


def write(root, files):
    """Files below a directory; its URL."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"file://{layout.quote_path(str(root))}"


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "source", {f"{folder}/f{n:02}": f"{folder}{n}" for folder in "abc" for n in range(10)})


@pytest.fixture
def main(repo, fill):
    fill(repo, "main", **{f"{name}{n:02}": "old" for name in ("a/", "raw/", "z/") for n in range(12)})
    return repo.branch("main")


def paths(branch, prefix=""):
    return [item.path for item in branch.list(prefix)]


# --- what it does ---
def test_the_prefix_is_replaced_and_nothing_else(repo, main, source):
    before = {path: data for path, data in tree(repo, "main").items() if not path.startswith("raw/")}
    commit = main.import_objects(source, "raw", "take over", {"by": "me"})
    assert main.head == commit
    assert len(commit.parents) == 1
    assert {path: data for path, data in tree(repo, "main").items() if not path.startswith("raw/")} == before
    inside = {path: data for path, data in tree(repo, "main").items() if path.startswith("raw/")}
    assert inside == {f"raw/{folder}/f{n:02}": f"{folder}{n}".encode() for folder in "abc" for n in range(10)}
    assert list(main.uncommitted()) == []
    assert dict(commit.metadata) == {
        "by": "me",
        "lakeops.import.source": source,
        "lakeops.import.prefix": "raw/",
        "lakeops.import.objects": "30",
        "lakeops.import.bytes": str(sum(len(f"{folder}{n}") for folder in "abc" for n in range(10))),
    }
    assert repo.reflog("main")[0].action == "import"


def test_nothing_is_copied_or_staged(repo, main, source, tmp_path):
    namespace = LocalStore(Path(repo.record.storage_namespace.removeprefix("file://")))
    before = {item.key for item in namespace.list(layout.DATA)}
    main.import_objects(source, "raw", "m")
    assert {item.key for item in namespace.list(layout.DATA)} == before
    entry = main.stat("raw/a/f00")
    assert entry.physical_address == f"{source}/a/f00"
    info = (tmp_path / "source/a/f00").stat()
    assert entry.checksum == f"mtime-{info.st_mtime_ns}-{info.st_size}"
    assert entry.mtime == int(info.st_mtime)


def test_hard_names_are_read_back(repo, main, tmp_path):
    names = ["ö/a b%20c#d?.x", "100%", "$(x)", "a'b\"c", "[1]", "back\\slash", "\U0001f600", "new\nline"]
    url = write(tmp_path / "odd ü%", dict.fromkeys(names, "odd"))
    main.import_objects(url, "x", "m")
    assert paths(main, "x/") == sorted(f"x/{name}" for name in names)
    assert all(main.read(path) == b"odd" for path in paths(main, "x/"))


def test_again_brings_changes_only(repo, main, source, tmp_path):
    first = main.import_objects(source, "raw", "first")
    with pytest.raises(errors.NoChanges):
        main.import_objects(source + "/", "raw/", "again")
    write(tmp_path / "source", {"a/f03": "changed", "d": "new"})
    (tmp_path / "source/b/f05").unlink()
    second = main.import_objects(source, "raw", "second")
    changes = [(change.type.value, change.path) for change in repo.diff(first.id, second.id)]
    assert changes == [("changed", "raw/a/f03"), ("removed", "raw/b/f05"), ("added", "raw/d")]


def test_an_empty_source(repo, main, tmp_path):
    url = write(tmp_path / "empty", {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.ObjectNotFound, match="nothing at"):
        main.import_objects(url, "raw", "m")
    main.import_objects(url, "raw", "m", allow_empty_source=True)
    assert paths(main, "raw/") == []
    assert len(paths(main)) == 24


def test_a_key_gives_the_first_commit_and_lists_nothing(repo, main, source, tmp_path):
    first = main.import_objects(source, "raw", "m", idempotency_key="k")
    shutil.rmtree(tmp_path / "source")
    assert main.import_objects(source, "raw", "m", idempotency_key="k") == first
    with pytest.raises(errors.KeyReused):
        main.import_objects(source, "other", "m", idempotency_key="k")


@given(st.data())
@settings(max_examples=examples(8), deadline=None)
def test_an_import_is_a_build_from_scratch(tmp_path_factory, data):
    names = st.sampled_from([f"{folder}{n:02}" for folder in ("", "a/", "m/", "m/x/") for n in range(30)])
    before, inside = data.draw(st.sets(names)), data.draw(st.sets(names, min_size=1))
    prefix = data.draw(st.sampled_from(["", "a", "m", "m/x", "zz"]))
    home = tmp_path_factory.mktemp("home")
    with Lake.open(settings=Settings.load(home=home / "lake", fsync=False), clock=ManualClock()) as lake:
        repo = lake.create_repository("repo", split=Split(2, 4, 8))
        main = repo.branch("main")
        for number, files in enumerate((before, inside)):
            if files:
                url = write(home / str(number), dict.fromkeys(files, "x"))
                main.import_objects(url, prefix if number else "", "m")
        expected = {path for path in before if not path.startswith(prefix + "/") and prefix}
        expected |= {f"{prefix}/{path}" if prefix else path for path in inside}
        assert paths(main) == sorted(expected)
        scratch = LocalStore(home / "scratch", fsync=False)
        table = repo._ctx.reader.scan(repo._ctx.metarange(main.head), "")
        assert build(scratch, table, Split(2, 4, 8), "x").id == main.head.meta_range_id


# --- what it refuses; nothing is published then ---
@pytest.fixture
def refused(repo, main):
    """Checks that an import raises, and that nothing is to be seen of it."""
    head, shown = main.head, paths(main)

    def check(error, url, prefix="raw", match=None, **options):
        with raising(error, match=match):
            main.import_objects(url, prefix, "m", **options)
        assert main.head == head
        assert paths(main) == shown

    return check


def test_sources_that_are_no_location(refused):
    for url in ("", "raw", "ftp://x/y", "file:///", "file://host/x", "s3://", "s3://bucket/../x", "file:///a/../b"):
        refused("invalid_uri", url)


def test_a_source_that_is_not_there(refused, tmp_path):
    refused(errors.ObjectNotFound, f"file://{tmp_path}/none", match="no directory")
    (tmp_path / "file").touch()
    refused(errors.InvalidInput, f"file://{tmp_path}/file/", match="is a file")


def test_managed_objects_are_not_imported(lake, repo, refused, tmp_path):
    own = repo.record.storage_namespace
    alias = tmp_path / "alias"
    alias.symlink_to(Path(own.removeprefix("file://")))
    for url in (
        own,
        f"{own}/data",
        f"{own}/anything",
        own.rsplit("/", 1)[0],
        f"file://{alias}",
        f"file://{alias}/data",
    ):
        refused(errors.InvalidInput, url, match="overlaps")
    other = lake.create_repository("other", f"file://{tmp_path}/shared")
    refused(errors.InvalidInput, f"file://{tmp_path}/shared/data/2026", match="'other'")
    url = write(tmp_path / "shared/incoming", {"x": "1"})
    repo.branch("main").import_objects(url, "raw", "beside another's data is fine")
    assert other.id == "other"


def test_paths_that_get_too_long(refused, tmp_path):
    url = write(tmp_path / "long", {f"{n}/" + "/".join(["x" * 200] * 5): "1" for n in range(5)})
    refused(errors.InvalidPath, url, prefix="p" * 100, match=r"1024 is the limit.*; .*; .*; \.\.\.; nothing was")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"marks": ["e\r\nSet-Cookie: x"]}, "'raw/a': checksum"),
        ({"marks": ["e" * 257]}, "'raw/a': checksum"),
        ({"sizes": [-1]}, "'raw/a': size_bytes"),
        ({"mtimes": [1_790_000_000_000]}, "'raw/a': mtime"),
    ],
)
def test_what_a_listing_says_of_objects_is_checked(refused, tmp_path, monkeypatch, told, says):
    url = write(tmp_path / "odd", {"a": "1"})
    scanned = LocalStore.scan

    def odd(self, **given):
        return (replace(listing, **told) for listing in scanned(self, **given))

    monkeypatch.setattr(LocalStore, "scan", odd)
    refused(errors.InvalidInput, url, match=says)


LINKS = {
    "to a file": "good",
    "to a directory": "folder",
    "to a link": "other link",
    "to nothing": "gone",
    "to itself": "link",
    "out of the tree, to a file": "../outside/secret",
    "out of the tree, to a directory": "../outside",
    "absolute": "/etc/hostname",
    "upwards": "..",
}


@pytest.mark.parametrize("skip", [False, True], ids=["refused", "skipped"])
@pytest.mark.parametrize("below", ["", "folder/", "folder/deeper/"])
def test_whatever_an_import_lists_can_be_read(main, refused, tmp_path, below, skip):
    """A link inside the source is no object: it is named, or left out, and nothing that it leads to comes in."""
    write(tmp_path / "outside", {"secret": "s"})
    url = write(tmp_path / "in", {"good": "1", "folder/file": "2", "folder/deeper/file": "3"})
    (tmp_path / "in" / below / "other link").symlink_to("file")
    link = tmp_path / "in" / below / "link"
    for number, target in enumerate(LINKS.values()):
        link.symlink_to(target)
        if skip:
            main.import_objects(url, f"raw{number}", "m", skip_special=True)
            assert {path: main.read(path) for path in paths(main, f"raw{number}/")} == {
                f"raw{number}/good": b"1",
                f"raw{number}/folder/file": b"2",
                f"raw{number}/folder/deeper/file": b"3",
            }, target
        else:
            refused(errors.InvalidInput, url, match="'" + below + "link' .a symbolic link.")
        link.unlink()


@pytest.mark.parametrize("on_the_way", ["the source", "above it"])
def test_a_link_to_the_source_is_followed_once(main, tmp_path, on_the_way):
    """A committed object stays as it is when the link leads elsewhere, and also when it is gone."""
    write(tmp_path / "v1", {"t/part": "1", "t/sub/part": "1"})
    write(tmp_path / "v2", {"t/part": "2", "t/sub/part": "2"})
    current = tmp_path / "current"
    current.symlink_to("v1/t" if on_the_way == "the source" else "v1")
    source = f"file://{current}" + ("" if on_the_way == "the source" else "/t")
    first = main.import_objects(source, "raw", "v1")
    assert [item.physical_address for item in main.list("raw/")] == [
        f"file://{tmp_path}/v1/t/part",
        f"file://{tmp_path}/v1/t/sub/part",
    ]
    current.unlink()
    assert main.read("raw/part") == b"1"
    current.symlink_to("v2/t" if on_the_way == "the source" else "v2")
    assert main.read("raw/part") == main.read("raw/sub/part") == b"1"
    assert main.import_objects(source, "raw", "v2").id != first.id
    assert main.read("raw/part") == main.read("raw/sub/part") == b"2"


def test_links_that_lead_nowhere_are_no_source(refused, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "dangling").symlink_to("none")
    (tmp_path / "to a file").symlink_to("file")
    (tmp_path / "file").touch()
    refused(errors.ObjectNotFound, f"file://{tmp_path}/dangling", match="no directory")
    refused((errors.ObjectNotFound, errors.InvalidInput), f"file://{tmp_path}/circle")
    refused(errors.InvalidInput, f"file://{tmp_path}/to%20a%20file/", match="is a file")


def test_a_dirty_branch(repo, main, source):
    main.put("elsewhere", b"1")
    head = main.head
    with raising("dirty_branch", "'elsewhere'"):
        main.import_objects(source, "raw", "m")
    assert main.head == head
    assert [change.path for change in main.uncommitted()] == ["elsewhere"]


def test_protected_and_read_only(repo, main, refused, source):
    repo.protect("main")
    refused("protected_branch", source)
    repo.unprotect("main")
    repo.set_read_only()
    refused("read_only_repository", source)


@pytest.mark.parametrize("message", ["", " ", "a\0b"])
def test_messages(refused, source, message, main):
    with pytest.raises(errors.InvalidInput):
        main.import_objects(source, "raw", message)


def test_refs_that_are_no_branch(repo, main, source):
    with pytest.raises(errors.RefNotFound):
        Branch(repo._ctx, "none").import_objects(source, "raw", "m")
    with raising("invalid_ref"):
        Branch(repo._ctx, "main~1").import_objects(source, "raw", "m")


# --- others at the same time ---
@pytest.fixture
def faulty(settings, main):
    faults = Faults()
    with open_faulty(settings, faults) as lake:
        yield lake.repository("repo"), faults


def test_a_source_that_changes_while_it_is_listed(faulty, source, tmp_path, monkeypatch):
    """It changes when the first range is written."""
    repo, faults = faulty
    monkeypatch.setattr(listed, "_BATCH", 20)
    head = repo.branch("main").head
    faults.hook("put", prefix=layout.RANGES, action=lambda _: (tmp_path / "source/new").touch())
    write(tmp_path / "source", {f"more/{n:04}": "" for n in range(300)})
    with pytest.raises(errors.Transient, match="changed while it was listed"):
        repo.branch("main").import_objects(source, "raw", "m")
    assert repo.branch("main").head == head


@pytest.mark.parametrize("error", [errors.StoreUnavailable("503"), errors.StoreError("403")])
def test_a_source_that_cannot_be_looked_up_is_not_empty(faulty, source, tmp_path, error):
    """It may be one object."""
    repo, faults = faulty
    main = repo.branch("main")
    main.import_objects(source, "raw", "m")
    head = main.head
    (tmp_path / "empty").mkdir()
    faults.fail("head", at=None, error=error)
    with raising(type(error)):
        main.import_objects((tmp_path / "empty").as_uri(), "raw", "m", allow_empty_source=True)
    assert main.head == head


def test_a_branch_that_moves_meanwhile_keeps_both(faulty, source):
    """Another commit lands between the plan and the transaction; the listing is not made again."""
    repo, faults = faulty
    main = repo.branch("main")

    def interfere(_call):
        main.put("a/new", b"theirs")
        main.put("raw/theirs", b"theirs")
        main.commit("theirs")

    faults.hook("publish", action=interfere)
    commit = main.import_objects(source, "raw", "ours")
    assert [one.message for one in repo.log("main")][:2] == ["ours", "theirs"]
    assert len(paths(main, "raw/")) == 30
    assert main.read("a/new") == b"theirs"
    assert faults.counts["scan"] == 1
    assert commit == main.head


def test_an_import_that_takes_longer_than_the_deadline(settings, main, source, clock):
    """A collection could take what it wrote first: a later attempt does not make it younger."""
    faults = Faults()
    with open_faulty(settings, faults, clock=clock) as lake:
        late = lake.repository("repo").branch("main")
        head = late.head
        faults.hook("put", prefix=layout.METARANGES, action=lambda _: clock.advance(hours=13))
        faults.hook("seal", action=lambda _: clock.advance(hours=13))
        with pytest.raises(errors.AttemptExpired):
            late.import_objects(source, "raw", "m")
        assert late.head == head


# --- buckets ---
@pytest.fixture(params=S3_KINDS)
def bucket(request, endpoint_of, buckets, tmp_path):
    endpoint = endpoint_of(request.param)
    settings = Settings.load(home=tmp_path / "lake", s3_endpoint_url=endpoint)
    name, place = buckets(endpoint), uuid.uuid4().hex
    with Lake.open(settings=settings, clock=ManualClock()) as lake:
        namespace = f"s3://{name}/{place}/lake"
        repo = lake.create_repository("repo", storage_namespace=namespace, split=Split(2, 4, 8))
        yield repo, S3Store(name, f"{place}/source", StoreSettings(endpoint_url=endpoint))


def test_a_prefix_of_a_bucket(bucket):
    repo, source = bucket
    names = [f"{folder}/f{n}" for folder in ("a", "b/c", "ö x%") for n in range(7)] + ["top", "a/", "x//y"]
    for name in names:
        source.put(name, name.encode())
    store = client(source.settings)
    store.put_object(Bucket=source.bucket, Key=f"{source.prefix}/", Body=b"")  # a console's folder marker
    store.put_object(Bucket=source.bucket, Key=f"{source.prefix}-not/x", Body=b"")
    main = repo.branch("main")
    commit = main.import_objects(source.url + "/", "raw/", "m")
    assert paths(main) == sorted(f"raw/{name}" for name in names)
    assert all(main.read(f"raw/{name}") == name.encode() for name in names)
    entry = main.stat("raw/b/c/f3")
    assert entry.physical_address == f"{source.url}/b/c/f3"
    assert entry.checksum == source.head("b/c/f3").etag
    assert commit.metadata["lakeops.import.objects"] == str(len(names))
    source.delete(["top"])
    main.import_objects(source.url, "raw/", "again")
    assert paths(main) == sorted(f"raw/{name}" for name in names if name != "top")


def test_what_a_bucket_refuses(bucket):
    repo, source = bucket
    main = repo.branch("main")
    with pytest.raises(errors.ObjectNotFound, match="nothing at"):
        main.import_objects(source.url, "raw", "m")
    with pytest.raises(errors.InvalidInput, match="overlaps"):
        main.import_objects(repo.record.storage_namespace, "raw", "m")
    with pytest.raises(errors.StoreError, match="does not exist"):
        main.import_objects("s3://no-such-bucket-anywhere/x", "raw", "m")
    assert len(list(repo.log("main"))) == 1


@pytest.mark.parametrize("name", [layout.CLAIM, ".lakeops-local/index.json", "x" * 900])
def test_a_bucket_that_is_refused_is_no_single_object(bucket, name):
    """An object that has the name of the folder stands beside it."""
    repo, source = bucket
    source.put("in", b"beside")
    source.put(f"in/{name}", b"{}")
    main = repo.branch("main")
    with raising(errors.InvalidInput, "in"):
        main.import_objects(f"{source.url}/in", "long/" * 30, "m")
    assert len(list(repo.log("main"))) == 1


# --- inventories ---
def inventory_rows(source, *, known):
    """The S3 Inventory of a bucket, with the objects of other folders, older versions and deleted ones."""
    items = [*source.list()]
    keys = [f"{source.prefix}/{item.key}" for item in items]
    rows = pa.table({"bucket": [source.bucket] * len(keys), "key": keys})
    if known:
        times = pa.array([item.mtime for item in items], pa.timestamp("s", "UTC")).cast(pa.timestamp("ms", "UTC"))
        rows = rows.append_column("size", pa.array([item.size_bytes for item in items], pa.int64()))
        rows = rows.append_column("last_modified_date", times)
        rows = rows.append_column("e_tag", pa.array([item.etag for item in items]))
    rows = rows.append_column("is_latest", pa.array([True] * len(keys)))
    rows = rows.append_column("is_delete_marker", pa.array([False] * len(keys)))
    noise = rows.slice(0, 3)
    old = noise.set_column(noise.schema.get_field_index("is_latest"), "is_latest", pa.array([False] * 3))
    dead = noise.set_column(noise.schema.get_field_index("is_delete_marker"), "is_delete_marker", pa.array([True] * 3))
    elsewhere = noise.set_column(1, "key", pa.array([f"{source.prefix}-not/{n}" for n in range(3)]))
    return pa.concat_tables([rows.slice(5), old, dead, elsewhere, rows.slice(0, 5)])


def save(rows, kind, folder, source):
    """Write an inventory; its path or URL."""
    if kind == "parquet":
        pq.write_table(rows, folder / "inventory.parquet")
        return str(folder / "inventory.parquet")
    text = rows.set_column(1, "key", pc.cast(rows["key"], pa.string()))
    if "last_modified_date" in rows.column_names:
        place = rows.schema.get_field_index("last_modified_date")
        text = text.set_column(
            place, "last_modified_date", pc.strftime(rows["last_modified_date"], "%Y-%m-%dT%H:%M:%SZ")
        )
    if kind.startswith("csv"):
        with pa.output_stream(folder / f"inventory.{kind}") as file:
            csv.write_csv(text, file)
        return f"file://{folder}/inventory.{kind}"
    data, store = io.BytesIO(), client(source.settings)
    text = text.set_column(1, "key", pa.array([quote_plus(key) for key in rows["key"].to_pylist()]))
    csv.write_csv(text, data, csv.WriteOptions(include_header=False))
    part = f"{source.prefix}-inventory/data/1.csv.gz"
    store.put_object(Bucket=source.bucket, Key=part, Body=gzip.compress(data.getvalue()))
    manifest = {
        "destinationBucket": f"arn:aws:s3:::{source.bucket}",
        "fileFormat": "CSV",
        "fileSchema": ", ".join(name.title().replace("_", "") for name in text.column_names),
        "files": [{"key": part, "size": 1}],
    }
    named = f"{source.prefix}-inventory/manifest.json"
    store.put_object(Bucket=source.bucket, Key=named, Body=json.dumps(manifest).encode())
    return f"s3://{source.bucket}/{named}"


@pytest.mark.parametrize("known", [True, False], ids=["all of an object", "keys alone"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz", "manifest"])
def test_an_inventory_stands_for_a_listing(bucket, tmp_path, kind, known):
    repo, source = bucket
    names = [f"{folder}/f{n}" for folder in ("a", "b/c", "ö x%+") for n in range(7)] + ["top", "007", "x//y"]
    for name in names:
        source.put(name, name.encode())
    client(source.settings).put_object(Bucket=source.bucket, Key=f"{source.prefix}/", Body=b"")
    file = save(inventory_rows(source, known=known), kind, tmp_path, source)
    listed = repo.branch("main").import_objects(source.url, "raw", "listed")
    with pytest.raises(errors.NoChanges):
        repo.branch("main").import_objects(source.url, "raw", "from an inventory", inventory=file)
    assert listed.metadata["lakeops.import.objects"] == str(len(names))


@pytest.mark.parametrize("known", [True, False], ids=["all of an object", "keys alone"])
@pytest.mark.parametrize("change", ["gone", "changed"])
def test_an_inventory_that_the_bucket_has_outgrown_is_refused(bucket, tmp_path, known, change):
    repo, source = bucket
    for number in range(9):
        source.put(f"f{number}", b"1")
    file = save(inventory_rows(source, known=known), "parquet", tmp_path, source)
    if change == "gone":
        source.delete(["f4"])
    else:
        source.put("f4", b"another")
    main = repo.branch("main")
    if change == "changed" and not known:
        main.import_objects(source.url, "raw", "m", inventory=file)
        assert main.read("raw/f4") == b"another"
        return
    with pytest.raises(errors.InvalidInput, match=r"older than what it lists: 'f4'"):
        main.import_objects(source.url, "raw", "m", inventory=file)
    assert paths(main) == []


def test_an_inventory_of_a_directory(lake, main, source, tmp_path):
    """It says how many objects there will be, which no listing does."""
    told = []
    lake.progress = lambda *report: told.append(report)
    (tmp_path / "keys.csv").write_text("Key\na/f01\nc/f09\n")
    main.import_objects(source, "raw", "m", inventory=str(tmp_path / "keys.csv"))
    assert paths(main, "raw/") == ["raw/a/f01", "raw/c/f09"]
    assert ("import", 2, 2) in told
    (tmp_path / "keys.csv").write_text("Key\na/f01\nc/none\n")
    with pytest.raises(errors.InvalidInput, match="older than what it lists: 'c/none'"):
        main.import_objects(source, "raw", "m", inventory=str(tmp_path / "keys.csv"))
    (tmp_path / "keys.csv").write_text("Key\n")
    with pytest.raises(errors.ObjectNotFound, match=r"nothing at .*/source to import$"):
        main.import_objects(source, "raw", "m", inventory=str(tmp_path / "keys.csv"))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("column", ["is_latest", "key", "is_delete_marker"])
def test_an_inventory_that_lacks_a_value_is_refused(main, source, tmp_path, column, kind):
    rows = {"is_latest": [True, True], "key": ["a/f01", "c/f09"], "is_delete_marker": [False, False]}
    rows[column][1] = None
    file = save(pa.table(rows), kind, tmp_path, None)
    with pytest.raises(errors.InvalidInput, match="lacks a value of is_latest, key, is_delete_marker in some"):
        main.import_objects(source, "raw", "m", inventory=file)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("i.csv", "path,size\na,1\n", "has no column key"),
        ("i.csv", "", "cannot be read"),
        ("i.csv", "key\na/f01\na/f01\n", "names 'a/f01' twice"),
        ("i.parquet", "key\na\n", "cannot be read"),
        ("i.txt", "key\na\n", "must end in"),
        ("i.csv.gz", "key\na\n", "cannot be read"),
        ("i.csv", "key,is_latest\na/f01,yes\n", "yes"),
        ("manifest.json", "[1]", "no manifest"),
        ("manifest.json", "{", "no manifest"),
        ("manifest.json", '{"fileSchema": "Key", "fileFormat": "ORC", "destinationBucket": "b", "files": []}', "orc"),
    ],
)
def test_a_file_that_is_no_inventory(main, source, tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(errors.InvalidInput, match=says):
        main.import_objects(source, "raw", "m", inventory=str(tmp_path / name))
    with pytest.raises(errors.ObjectNotFound):
        main.import_objects(source, "raw", "m", inventory=str(tmp_path / "none.csv"))


# --- one object ---
@pytest.mark.parametrize(
    ("to", "path"), [("raw/model.bin", "raw/model.bin"), ("models/", "models/f 1%.bin"), ("", "f 1%.bin")]
)
def test_one_file(repo, main, tmp_path, to, path):
    write(tmp_path / "in", {"f 1%.bin": "weights", "f 1%.bin.bak": "old", "other": "x"})
    before = tree(repo, "main")
    source = f"file://{layout.quote_path(str(tmp_path / 'in' / 'f 1%.bin'))}"
    commit = main.import_objects(source, to, "m")
    assert tree(repo, "main") == before | {path: b"weights"}
    assert commit.metadata["lakeops.import.objects"] == "1"
    with pytest.raises(errors.NoChanges):
        main.import_objects(source, to, "again")


def test_an_engine_is_chosen_for_the_listing_of_a_bucket_alone(bucket, tmp_path):
    repo, source = bucket
    asked = []

    class Asked(LocalEngine):
        def for_work(self, seconds):
            asked.append(seconds)
            return self

    repo._ctx.engine.__self__._engine = Asked(1)
    source.put("a", b"1")
    keys = tmp_path / "keys.csv"
    keys.write_text(f"key\n{source.prefix}/a\n")
    main = repo.branch("main")
    main.import_objects(source.url, "named", "m", inventory=str(keys))
    assert not asked
    main.import_objects(source.url, "listed", "m")
    assert asked[0] > 4 * 32 * RANGE_SECONDS


# --- killed, and called again ---
@pytest.fixture(params=["files", "bucket"])
def killed(request, endpoint_of, buckets, tmp_path, clock, monkeypatch):
    """A repository, a bucket of 300 objects, faults to kill an import of it by, and the keys that are listed."""
    endpoint, seen, scan = endpoint_of("moto"), [], S3Store.scan
    settings, name = Settings.load(home=tmp_path / "home", s3_endpoint_url=endpoint), buckets(endpoint)
    place = uuid.uuid4().hex
    source = S3Store(name, f"{place}/source", StoreSettings(endpoint_url=endpoint))
    for number in range(300):
        source.put(f"{number % 3}/{number:03}", b"x" * number)

    def scanned(store, **how):
        for listing in scan(store, **how):
            seen.extend(listing.keys)
            yield listing

    monkeypatch.setattr(S3Store, "scan", scanned)
    monkeypatch.setattr(building, "_FIRST", 4)
    monkeypatch.setattr(listed, "_BATCH", 20)
    faults = Faults()
    with open_faulty(settings, faults, clock=clock) as lake:
        namespace = f"s3://{name}/{place}/lake" if request.param == "bucket" else None
        repo = lake.create_repository("repo", storage_namespace=namespace, split=Split(2, 4, 8))
        yield repo, source, faults, seen


def import_killed(repo, url, faults, **how):
    faults.crash(at=50, operations=("put",), prefix=layout.RANGES)
    with pytest.raises(Crash):
        repo.branch("main").import_objects(url, "raw", "m", **how)
    faults.revive()


@pytest.mark.parametrize("inventory", [None, True, False], ids=["listing", "inventory", "inventory of keys"])
def test_a_killed_import_goes_on_where_it_was(killed, tmp_path, inventory):
    repo, source, faults, seen = killed
    how = {"idempotency_key": "k"}
    if inventory is not None:
        how["inventory"] = save(inventory_rows(source, known=inventory), "parquet", tmp_path, source)
    import_killed(repo, source.url, faults, **how)
    seen.clear()
    commit = repo.branch("main").import_objects(source.url, "raw", "m", **how)
    assert len(seen) <= 200
    assert sum(call.operation == "put" and call.key.startswith(layout.RANGES) for call in faults.calls) <= 50  # of 75
    assert faults.counts["head"] <= 200
    whole = repo.create_branch("whole", commit.parents[0]).import_objects(source.url, "raw", "whole")
    assert commit.meta_range_id == whole.meta_range_id
    assert commit.metadata["lakeops.import.objects"] == "300"
    assert not repo._ctx.catalog.retention.roots("repo").uploads
    assert_sound(repo)


@pytest.mark.parametrize(
    ("killed", "why"),
    [
        ("bucket", "no key"),
        ("files", "another call"),
        ("files", "another inventory"),
        ("bucket", "later than an hour"),
        ("bucket", "later than the grace period"),
        ("bucket", "an error"),
        ("bucket", "its ranges are gone"),
        ("files", "a directory"),
    ],
    indirect=["killed"],
)
def test_a_killed_import_begins_anew(killed, tmp_path, clock, why):
    repo, source, faults, _ = killed
    url, how = source.url, {"idempotency_key": None if why == "no key" else "k"}
    if why == "a directory":
        url = write(tmp_path / "source", {f"{number:03}": "x" for number in range(300)})
    if why == "another inventory":
        how["inventory"] = save(inventory_rows(source, known=False), "parquet", tmp_path, source)
    import_killed(repo, url, faults, **how)
    if why == "another call":
        how["skip_special"] = True
    elif why.startswith("later"):
        clock.advance(hours=2 if why.endswith("hour") else 13)
    elif why == "an error":
        source.put("2/zzz/.lakeops-local/index.json", b"")
        with raising(errors.InvalidPath):
            repo.branch("main").import_objects(url, "raw", "m", **how)
        source.delete(["2/zzz/.lakeops-local/index.json"])
    elif why == "its ranges are gone":
        store = repo._ctx.store
        store.delete([item.key for item in store.list(layout.METARANGES)])
    if url == source.url:
        source.put("0/0", b"new")  # before all that was listed
    else:
        write(tmp_path / "source", {"0": "new"})
    if "inventory" in how:
        save(inventory_rows(source, known=False), "parquet", tmp_path, source)
    commit = repo.branch("main").import_objects(url, "raw", "m", **how)
    assert commit.metadata["lakeops.import.objects"] == "301"
    assert len(paths(repo.branch("main"))) == 301
    assert_sound(repo)


def test_one_object_takes_the_place_of_one(bucket):
    repo, source = bucket
    for name in ("in/model.bin", "in/model.bin.bak", "in/both", "in/both/x"):
        source.put(name, name.encode())
    main = repo.branch("main")
    for path in ("m/a", "m/model.bin", "m/model.bin.bak", "m/model.bin/x"):
        main.put(path, b"old")
    main.commit("old")
    main.import_objects(f"{source.url}/in/model.bin", "m/model.bin", "one")
    assert {path: main.read(path) for path in paths(main)} == {
        "m/a": b"old",
        "m/model.bin": b"in/model.bin",
        "m/model.bin.bak": b"old",
        "m/model.bin/x": b"old",
    }
    assert main.stat("m/model.bin").physical_address == f"{source.url}/in/model.bin"
    main.import_objects(f"{source.url}/in/both", "b", "a folder before an object")
    assert paths(main, "b/") == ["b/x"]
    with pytest.raises(errors.ObjectNotFound, match=r"did you mean .*/in/model\.bin"):
        main.import_objects(f"{source.url}/in/modl.bin", "m", "typo")
