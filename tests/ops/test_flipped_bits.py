"""One flipped bit in what a store gives never passes, whoever wrote the object, and whatever the store says of it."""

import hashlib
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from support.flipping import Flips
from support.served import KEYS, s3_client

from lakeops import Lake, Repository, Settings
from lakeops.fs import LakeopsFileSystem
from lakeops.gateway.app import Gateway, listening
from lakeops.model.errors import Corrupted
from lakeops.ops.fsck.findings import Severity
from lakeops.serving import server_of
from lakeops.store.s3.client import client

SMALL = b"id,name\n" + b"1,Ada Lovelace\n" * 6 + b"2,Grace Hop\n"
LARGE = b"id,name\n" + b"3,Barbara Liskov\n" * 530_000
"""9 MB: more than one request of a reader."""
NAMES = ("small.csv", "large.csv", "table.parquet")


@dataclass
class Scene:
    """A repository behind a proxy that flips bits. ``contents`` are what was written, by path."""

    lake: Lake
    repo: Repository
    flips: Flips
    contents: dict[str, bytes]
    home: Path
    how: str

    @property
    def ref(self):
        return self.repo.ref("main")

    def flip(self, path, times=None):
        """Flip a bit of whatever is read of a path's object."""
        self.flips.names = (self.ref.stat(path).physical_address.rpartition("/")[2],)
        self.flips.left, self.flips.done = times, 0


def _table(folder):
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(50)), "name": ["Ada"] * 50}), folder / "table.parquet")
    return (folder / "table.parquet").read_bytes()


@pytest.fixture
def scene(request, moto_endpoint, buckets, tmp_path):
    """Objects that an engine wrote (ETags), or ``put`` (SHA-256), or an engine under an encryption."""
    how = getattr(request, "param", "engine")
    namespace = f"s3://{buckets(moto_endpoint)}/{uuid.uuid4().hex}"
    contents = dict(zip(NAMES, (SMALL, LARGE, _table(tmp_path)), strict=True))
    with Flips(moto_endpoint) as flips:
        settings = Settings.load(home=tmp_path / "home", s3_endpoint_url=flips.url, fsync=False)
        with Lake.open(settings=settings) as lake:
            repo = lake.create_repository("repo", storage_namespace=namespace)
            main = repo.branch("main")
            if how == "put":
                for name, data in contents.items():
                    main.put(f"t/{name}", data)
            else:
                with main.output("t/") as url:
                    store = repo._ctx.store
                    _write(store, f"{url.removeprefix(namespace).strip('/')}/", contents, how)
            main.commit("Load")
            yield Scene(lake, repo, flips, {f"t/{name}": data for name, data in contents.items()}, tmp_path, how)


def _write(store, folder, contents, how):
    """Write as engines do, each object in one request, or in two parts."""
    asked = client(store.settings)
    for name, data in contents.items():
        target: dict[str, Any] = {"Bucket": store.bucket, "Key": f"{store.prefix}/{folder}{name}"}
        if how == "parts" and len(data) > 6 << 20:
            upload = asked.create_multipart_upload(**target)["UploadId"]
            pieces = [data[: 5 << 20], data[5 << 20 :]]
            sent = [
                asked.upload_part(**target, UploadId=upload, PartNumber=number, Body=piece)["ETag"]
                for number, piece in enumerate(pieces, 1)
            ]
            parts: Any = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(sent, 1)]}
            asked.complete_multipart_upload(**target, UploadId=upload, MultipartUpload=parts)
        elif how.startswith("aws"):
            asked.put_object(**target, Body=data, ServerSideEncryption=how)
        else:
            asked.put_object(**target, Body=data)


@pytest.fixture
def sealed_etags(monkeypatch):
    """The ETag of an object under KMS is no digest of it, as in AWS."""
    from moto.s3.models import FakeKey

    plain = FakeKey.etag.fget

    def etag(key):
        found = plain(key)
        if not (key.encryption or "").startswith("aws:"):
            return found
        return f'"{hashlib.md5(found.encode(), usedforsecurity=False).hexdigest()}"'

    monkeypatch.setattr(FakeKey, "etag", property(etag))


def damage(scene):
    return [(one.kind, one.where) for one in scene.repo.fsck(data=True) if one.severity is not Severity.INFO]


def in_pieces(file):
    with file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def through_gateway(scene, path):
    """A GET of the gateway. An answer that is cut short is no answer."""
    server = server_of(Gateway(scene.lake, KEYS))
    with listening("127.0.0.1", 0, keys=KEYS) as opened:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            with s3_client(f"http://127.0.0.1:{opened.getsockname()[1]}") as asked:
                return asked.get_object(Bucket="repo", Key=f"main/{path}")["Body"].read()
        finally:
            server.should_exit = True
            thread.join()


def by_spark(scene, path):
    from pyspark.sql.types import LongType, StringType, StructType

    from lakeops.spark.source import Reader
    from lakeops.spark.tables import files

    schema = StructType().add("id", LongType()).add("name", StringType())
    reader = Reader(files(f"lakefs://repo/main/{path}", lake=scene.lake), schema, skip=False)
    (task,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(task)) > 0
    return scene.contents[path]


def by_fs(scene):
    return LakeopsFileSystem(lake=scene.lake, skip_instance_cache=True)


def downloaded(scene, path):
    by_fs(scene).get_file(f"repo/main/{path}", str(scene.home / "got"))
    return (scene.home / "got").read_bytes()


READS: dict[str, Callable[[Scene, str], bytes]] = {
    "read": lambda scene, path: scene.ref.read(path),
    "open and read": lambda scene, path: scene.ref.open(path).read(),
    "open in pieces": lambda scene, path: in_pieces(scene.ref.open(path)),
    "fsspec, whole": lambda scene, path: by_fs(scene).cat_file(f"repo/main/{path}"),
    "fsspec, in pieces": lambda scene, path: in_pieces(by_fs(scene).open(f"repo/main/{path}")),
    "fsspec, download": downloaded,
    "the gateway": through_gateway,
    "the format lakeops": by_spark,
}
PATHS = [f"t/{name}" for name in NAMES]


@pytest.mark.parametrize("scene", ["engine", "put"], indirect=True)
def test_no_read_takes_a_flipped_bit(scene):
    pytest.importorskip("pyspark")
    passed = []
    for name, read in READS.items():
        for path in PATHS[-1:] if read is by_spark else PATHS:
            assert read(scene, path) == scene.contents[path]
            scene.flip(path)
            try:
                read(scene, path)
                passed.append((name, path))
            except Exception as error:
                wrong = isinstance(error, Corrupted) or name == "the gateway"
                assert wrong, f"{name} of {path}: {error!r}"
            assert scene.flips.done
            scene.flips.names = ()
    assert passed == []


def test_what_went_wrong_on_the_way_is_fetched_again(scene):
    for read in (READS["read"], READS["open and read"]):
        scene.flip("t/small.csv", times=1)
        assert read(scene, "t/small.csv") == SMALL
        assert scene.flips.done == 1
    scene.flip("t/large.csv", times=1)
    assert scene.ref.read("t/large.csv") == LARGE


@pytest.mark.parametrize("scene", ["aws:kms", "aws:kms:dsse"], indirect=True)
def test_an_encrypted_object_is_never_called_damaged(sealed_etags, scene):
    """Its ETag looks like an MD5 and is none, in a bucket whose other ETags are."""
    pytest.importorskip("pyspark")
    digests = {hashlib.md5(data, usedforsecurity=False).hexdigest() for data in scene.contents.values()}
    assert not {scene.ref.stat(path).checksum for path in PATHS} & digests
    for read in READS.values():
        for path in PATHS[-1:] if read is by_spark else PATHS:
            assert read(scene, path) == scene.contents[path]
    assert damage(scene) == []


def test_an_encrypted_object_that_was_replaced_is_not_the_recorded_one(sealed_etags, scene):
    address = scene.ref.stat("t/small.csv").physical_address
    store, key = scene.repo._ctx.stores().locate(scene.repo._ctx.policy, address)
    target = {"Bucket": store.bucket, "Key": f"{store.prefix}/{key}"}
    client(store.settings).put_object(**target, Body=SMALL[::-1], ServerSideEncryption="aws:kms")
    for name in ("read", "open and read"):
        with pytest.raises(Corrupted, match="other contents"):
            READS[name](scene, "t/small.csv")


@pytest.mark.parametrize("scene", ["engine", "put", "parts"], indirect=True)
@pytest.mark.parametrize("path", PATHS)
def test_fsck_reads_what_it_says_that_it_has_looked_at(scene, path):
    assert damage(scene) == []
    scene.flip(path)
    assert damage(scene) == [("object_checksum_mismatch", f"object {path}")]


@pytest.mark.parametrize("scene", ["engine", "parts"], indirect=True)
@pytest.mark.parametrize("path", PATHS)
def test_a_copy_is_not_made_of_a_flipped_bit(scene, path, tmp_path):
    from lakeops.store.copy import copy_object
    from lakeops.store.local import LocalStore

    store, key = scene.repo._ctx.stores().locate(scene.repo._ctx.policy, scene.ref.stat(path).physical_address)
    there = LocalStore(tmp_path / "there", fsync=False)
    scene.flip(path)
    with pytest.raises(Corrupted):
        copy_object(store, there, store.head(key))
    assert [*there.list()] == []
    scene.flips.names = ()
    copy_object(store, there, store.head(key))
    assert there.get(key) == scene.contents[path]
