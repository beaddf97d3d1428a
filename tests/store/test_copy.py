"""Copies between stores: whole, right, and by the server where it can."""

import hashlib
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from services.s3 import S3_KINDS
from support.http_answers import Answers, answer, error

from lakeops.model.errors import Corrupted, ObjectNotFound, StoreError, Transient
from lakeops.model.records import Credentials
from lakeops.ops.mirror import replicate
from lakeops.store.base import MIN_PART_BYTES
from lakeops.store.copy import copy_object
from lakeops.store.local import LocalStore
from lakeops.store.reader import CheckedFile, EtagProof
from lakeops.store.s3 import S3Store
from lakeops.store.s3.client import client
from lakeops.store.s3.upload import part_count
from lakeops.testing import Faults

BIG = bytes(range(256)) * 4096 * 11  # 11 MiB: three parts of the smallest size


def listed(store, key):
    (item,) = (item for item in store.list(key) if item.key == key)
    return item


def in_parts(store, key, sizes):
    """Upload in parts of exactly these sizes, as other programs do."""
    asked, target = client(store.settings), {"Bucket": store.bucket, "Key": f"{store.prefix}/{key}"}
    upload = asked.create_multipart_upload(**target, ContentType="text/csv", Metadata={"k": "v"})["UploadId"]
    data, parts = b"", []
    for number, size in enumerate(sizes, 1):
        piece = bytes([number]) * size
        sent = asked.upload_part(**target, UploadId=upload, PartNumber=number, Body=piece)
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        data += piece
    asked.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts})
    return data


@pytest.fixture
def places(make_s3, local, tmp_path, two_buckets):
    """Pairs of stores by name."""

    def pair(name):
        match name:
            case "file to file":
                return local, LocalStore(tmp_path / "other", fsync=False)
            case "file to s3":
                return local, make_s3("moto")
            case "s3 to file":
                return make_s3("moto"), local
            case "s3 to s3":
                return make_s3("moto"), make_s3("moto")
            case "s3 to s3 on a real server":
                return make_s3("real"), make_s3("real")
            case "real server to file":
                return make_s3("real"), local
            case "s3 to another server":
                return make_s3("moto"), two_buckets("ministack")[1]
            case _:
                return two_buckets("ministack")

    return pair


REAL = ["s3 to s3 on a real server", "real server to file"]
PAIRS = [
    *("file to file", "file to s3", "s3 to file", "s3 to s3", "s3 to another server", "s3 to s3 on ministack"),
    *(pytest.param(name, marks=pytest.mark.s3) for name in REAL),
]


@pytest.mark.parametrize("data", [b"", b"abc", BIG], ids=["empty", "small", "big"])
@pytest.mark.parametrize("pair", PAIRS)
def test_what_arrives_is_what_was_there(places, pair, data):
    source, destination = places(pair)
    source.put("data/h/a b", data, content_type="text/csv")
    copy_object(source, destination, item := listed(source, "data/h/a b"))
    assert destination.get("data/h/a b") == data
    if pair.startswith("s3 to s3"):
        found = listed(destination, "data/h/a b")
        assert part_count(found.etag) == 0 or found.etag == item.etag
    if "s3" in pair and "file" not in pair:
        assert destination.head("data/h/a b").content_type == "text/csv"


@pytest.mark.parametrize("sizes", [[MIN_PART_BYTES, 7], [MIN_PART_BYTES] * 2, [6 << 20, MIN_PART_BYTES, 9], [3]])
@pytest.mark.parametrize("kind", S3_KINDS)
def test_a_copy_by_the_server_keeps_the_parts(make_s3, sizes, kind):
    source, destination = make_s3(kind), make_s3(kind)
    data = in_parts(source, "data/x", sizes)
    copy_object(source, destination, item := listed(source, "data/x"))
    assert part_count(item.etag) == len(sizes)
    assert listed(destination, "data/x").etag == item.etag
    assert destination.get("data/x") == data
    head = client(destination.settings).head_object(Bucket=destination.bucket, Key=f"{destination.prefix}/data/x")
    assert (head["ContentType"], head["Metadata"]) == ("text/csv", {"k": "v"})


def test_the_server_reads_nothing_out(play, make_s3):
    source, gets = play("GetObject", error(500, "InternalError"))
    destination = S3Store(source.bucket, "copied", source.settings)
    source.put("data/x", b"abc")
    copy_object(source, destination, listed(source, "data/x"))
    assert gets.requests == []


def test_a_server_that_cannot_copy_is_read_and_written(play):
    source, copies = play("CopyObject", error(501, "NotImplemented"))
    destination = S3Store(source.bucket, "copied", source.settings)
    source.put("data/x", b"abc", content_type="text/csv")
    copy_object(source, destination, listed(source, "data/x"))
    assert len(copies.requests) == 1
    assert destination.get("data/x") == b"abc"
    assert destination.head("data/x").content_type == "text/csv"


def test_a_destination_whose_key_may_not_read_the_source(play):
    destination, copies = play("CopyObject", error(403, "AccessDenied"), credentials=Credentials("theirs", "secret"))
    source = S3Store(destination.bucket, "source", replace(destination.settings, credentials=None))
    source.put("data/x", b"abc")
    copy_object(source, destination, listed(source, "data/x"))
    assert copies.requests == []
    assert destination.get("data/x") == b"abc"


@pytest.mark.parametrize("pair", ["file to file", "s3 to file", "s3 to s3"])
def test_what_is_gone(places, pair):
    source, destination = places(pair)
    source.put("data/x", b"abc")
    item = listed(source, "data/x")
    source.delete(["data/x"])
    with pytest.raises(ObjectNotFound):
        copy_object(source, destination, item)
    assert not [*destination.list()]


@pytest.mark.parametrize(
    "pair",
    [
        "s3 to file",
        "s3 to s3",
        "s3 to s3 on ministack",
        pytest.param("s3 to s3 on a real server", marks=pytest.mark.s3),
    ],
)
@pytest.mark.parametrize("data", [b"ABC", b"longer"])
def test_what_was_replaced_since_it_was_listed(places, pair, data):
    source, destination = places(pair)
    source.put("data/x", b"abc")
    item = listed(source, "data/x")
    source.put("data/x", data)
    with pytest.raises(Transient):
        copy_object(source, destination, item)
    assert not [*destination.list()]


def test_a_file_that_grew_since_it_was_listed(local, make_s3):
    destination = make_s3("moto")
    local.put("data/x", b"abc")
    item = listed(local, "data/x")
    local.put("data/x", b"abcd")
    with pytest.raises(Transient, match="4 bytes instead of 3"):
        copy_object(local, destination, item)
    assert not [*destination.list()]


def flipped(body, **headers):
    return answer(200, body, content_type="text/csv", **headers)


@pytest.mark.parametrize("data", [b"abc", BIG], ids=["whole", "in parts"])
def test_contents_that_do_not_match_the_etag_are_never_named(make_s3, local, on_event, data):
    source = make_s3("moto", connect_timeout=4.75)
    source.put("data/x", data)
    item = listed(source, "data/x")
    on_event(source, "before-send.s3.GetObject", wrong := Answers(_with_a_wrong_byte))
    with pytest.raises(Corrupted, match="does not match its checksum"):
        copy_object(source, local, item)
    assert not [*local.list()]
    assert wrong.requests


def _with_a_wrong_byte(request):
    from botocore.httpsession import URLLib3Session

    real = URLLib3Session().send(request.prepare() if hasattr(request, "prepare") else request)
    body = bytearray(real.content)
    body[-1] ^= 1
    kept = {name.lower().replace("-", "_"): value for name, value in real.headers.items()}
    kept.pop("content_length", None)
    kept.pop("transfer_encoding", None)
    return answer(real.status_code, bytes(body), **kept)


def test_etags_of_encrypted_objects_are_no_checksums(make_s3, local):
    source = make_s3("moto")
    name = {"Bucket": source.bucket, "Key": f"{source.prefix}/data/x"}
    client(source.settings).put_object(**name, Body=b"abc", ServerSideEncryption="aws:kms")
    item = listed(source, "data/x")
    copy_object(source, local, replace(item, etag=""))
    assert local.get("data/x") == b"abc"
    assert source.open_checked(replace(item, etag="")).file._proof is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("refusal", [None, 501, 400])
@pytest.mark.parametrize("by_server", [True, False])
def test_servers_that_do_not_tell_of_parts(play, local, refusal, by_server):
    """The size has to do then; the copy's ETag is another one."""

    def answers(request):
        if "partNumber" not in request.url:
            return None
        return (
            error(refusal, "NotImplemented")
            if refusal
            else answer(200, content_length="3", etag='"x"', last_modified="Thu, 01 Jan 2026 00:00:00 GMT")
        )

    source, heads = play("HeadObject", answers)
    data = in_parts(source, "data/x", [MIN_PART_BYTES, 3])
    destination = S3Store(source.bucket, f"{source.prefix}-copied", source.settings) if by_server else local
    copy_object(source, destination, listed(source, "data/x"))
    assert destination.get("data/x") == data
    assert sum("partNumber" in request.url for request in heads.requests) in {1, 2}


def test_a_copy_with_another_etag_is_removed(play):
    body = b"<CopyObjectResult><ETag>&quot;ffffffffffffffffffffffffffffffff&quot;</ETag></CopyObjectResult>"
    source, _ = play("CopyObject", answer(200, body, content_type="application/xml"))
    destination = S3Store(source.bucket, "copied", source.settings)
    source.put("data/x", b"abc")
    destination.put("data/x", b"abd")
    with pytest.raises(Corrupted, match="removed again"):
        copy_object(source, destination, listed(source, "data/x"))
    assert not [*destination.list()]


def test_a_part_that_fails_leaves_nothing(play):
    source, _ = play("UploadPartCopy", None, error(403, "AccessDenied"))
    destination = S3Store(source.bucket, f"{source.prefix}-copied", source.settings)
    in_parts(source, "data/x", [MIN_PART_BYTES, MIN_PART_BYTES, 1])
    with pytest.raises(StoreError, match="denied"):
        copy_object(source, destination, listed(source, "data/x"))
    assert not [*destination.list()]
    asked = client(source.settings).list_multipart_uploads(Bucket=source.bucket, Prefix=destination.prefix)
    assert not asked.get("Uploads")


def test_a_copy_by_the_server_is_one_request(make_s3, on_event):
    source = make_s3("moto", connect_timeout=4.6)
    destination = S3Store(source.bucket, "one-request", source.settings)
    source.put("data/x", b"abc")
    item = listed(source, "data/x")
    on_event(source, "before-send.s3", requests := Answers(None))
    copy_object(source, destination, item)
    assert len(requests.requests) == 1


def test_a_copy_by_the_server_is_one_effect(make_s3):
    source, destination = make_s3("moto"), make_s3("moto")
    source.put("data/x", b"abc")
    faults = Faults()
    copy_object(faults.around(source), faults.around(destination), listed(source, "data/x"))
    assert dict(faults.counts) == {"copy_from": 1}
    assert faults.effects == 1


# --- what an ETag proves ---
@given(sizes=st.lists(st.integers(1, 9), max_size=5), cuts=st.lists(st.integers(1, 7), min_size=1), data=st.data())
def test_proofs_hold_for_the_contents_alone(sizes, cuts, data):
    contents = data.draw(st.binary(min_size=sum(sizes), max_size=sum(sizes))) if sizes else data.draw(st.binary())
    etag, start, digests = hashlib.md5(contents).hexdigest(), 0, b""
    for size in sizes:
        digests += hashlib.md5(contents[start : start + size]).digest()
        start += size
    if sizes:
        etag = f"{hashlib.md5(digests).hexdigest()}-{len(sizes)}"

    def holds(found):
        proof, at = EtagProof(etag, sizes), 0
        for number in range(len(found)):
            if at >= len(found):
                break
            step = cuts[number % len(cuts)]
            proof.update(found[at : at + step])
            at += step
        return proof.holds()

    assert holds(contents)
    assert not holds(contents + b"x")
    if contents:
        assert not holds(contents[:-1])
        assert not holds(bytes([contents[0] ^ 1]) + contents[1:])


@pytest.mark.parametrize(
    ("etag", "count"),
    [("0" * 32, 0), ("0" * 32 + "-1", 1), ("0" * 32 + "-10000", 10_000), ("0" * 32 + "-0", 0), ("v1-3", 0), ("", 0)],
)
def test_part_counts(etag, count):
    assert part_count(etag) == count


def test_a_checked_file_reads_all_at_once_too():
    with CheckedFile(io.BytesIO(b"abc"), "here", 3) as file:
        assert (file.readable(), file.read()) == (True, b"abc")
    with CheckedFile(io.BytesIO(b"abc"), "here", 4) as file, pytest.raises(Transient, match="3 bytes instead of 4"):
        file.read()


@pytest.mark.parametrize("kind", ["local", "moto"])
def test_replication_knows_of_an_object_all_that_the_store_tells(kind, tmp_path, make_s3):
    """A copy rests on it: another object of the same name and size has another ETag."""
    store = LocalStore(tmp_path / "place", fsync=False) if kind == "local" else make_s3("moto")
    for number in range(3):
        store.put(f"data/{number}/x", b"x" * number)
    listed = list(replicate._listed(store, "data/"))
    assert listed == list(store.list("data/"))
    assert [bool(item.etag) for item in listed] == [store.remote] * 3
