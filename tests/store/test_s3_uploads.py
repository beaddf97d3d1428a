"""Big uploads: parts side by side, little memory, nothing left behind."""

import base64
import hashlib
import io
import threading
import uuid
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from services.s3 import QUICK, S3_KINDS
from support.http_answers import error
from support.lying_s3 import LyingServer

from lakeops.model.errors import AlreadyExists, StoreUnavailable
from lakeops.store.base import MIN_PART_BYTES as PART
from lakeops.store.copy import copy_object
from lakeops.store.s3 import S3Store
from lakeops.store.s3.client import client
from lakeops.store.s3.upload import _growing_parts


class Meter(io.RawIOBase):
    """An endless-looking source that knows how much was taken from it."""

    def __init__(self, size):
        self.size = size
        self.taken = 0

    def readable(self):
        return True

    def read(self, size=-1):
        size = min(size, self.size - self.taken)
        self.taken += size
        return b"m" * size


def unfinished(store):
    """Multipart uploads below the store that were begun and neither completed nor aborted."""
    found = client(store.settings).list_multipart_uploads(Bucket=store.bucket, Prefix=store.prefix)
    return [upload["Key"] for upload in found.get("Uploads", ())]


@pytest.mark.parametrize("size", [PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 17])
def test_sizes_around_the_edges_of_parts(s3, size):
    result = s3.put("k", Meter(size))
    assert result.size_bytes == size
    assert result.checksum == hashlib.sha256(b"m" * size).hexdigest()
    assert s3.head("k").size_bytes == size
    assert s3.checksum(s3.head("k")) == result.etag
    assert result.etag.endswith("-" + str(-(-size // PART))) == (size > PART)
    assert unfinished(s3) == []


def test_bytes_are_sent_in_parts_too(s3):
    data = bytes(PART) + b"end"
    assert s3.put("k", data).etag.endswith("-2")
    assert s3.get_range("k", PART - 1, 10) == b"\0end"


def test_the_content_type_is_kept(s3):
    s3.put("small", b"x", content_type="text/csv")
    s3.put("big", Meter(PART + 1), content_type="text/csv")
    assert [s3.head(key).content_type for key in ("small", "big")] == ["text/csv"] * 2


def test_parts_travel_together_and_memory_stays_bounded(make_s3, on_event):
    store = make_s3("moto", parallel_parts=2)
    source, together, ahead, done = Meter(7 * PART), threading.Barrier(2, timeout=30), [], []

    def sending(request, **_):
        ahead.append(source.taken - len(done) * PART)
        if len(ahead) <= 2:
            together.wait()

    on_event(store, "before-send.s3.UploadPart", sending)
    on_event(store, "after-call.s3.UploadPart", lambda **_: done.append(1))
    store.put("k", source)
    assert len(done) == 7
    assert max(ahead) <= (2 + 2) * PART, "two parts travel, one waits, one was read to see whether there is more"


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
@pytest.mark.parametrize("if_absent", [False, True])
def test_a_failed_upload_leaves_nothing(s3, on_event, operation, if_absent):
    turns = []

    def refuse(request, **_):
        turns.append(1)
        return error(500, "InternalError") if operation != "UploadPart" or len(turns) > 1 else None

    on_event(s3, f"before-send.s3.{operation}", refuse)
    with pytest.raises(StoreUnavailable):
        s3.put("k", Meter(4 * PART), if_absent=if_absent)
    assert list(s3.list()) == []
    assert unfinished(s3) == []


@pytest.mark.parametrize("error_type", [ConnectionResetError, KeyboardInterrupt, MemoryError])
def test_a_source_that_breaks_leaves_nothing(s3, error_type):
    class Breaking(Meter):
        def read(self, size=-1):
            if self.taken >= 3 * PART:
                raise error_type
            return super().read(size)

    with pytest.raises(error_type):
        s3.put("k", Breaking(9 * PART))
    assert list(s3.list()) == []
    assert unfinished(s3) == []


def test_a_key_that_is_taken_while_a_big_upload_travels(s3, on_event):
    """Also where the server ignores conditions on the last request: then the look just before it tells."""

    def taken(request, **_):
        if not list(s3.list()):
            s3.put("k", b"other")

    on_event(s3, "before-send.s3.UploadPart", taken)
    with pytest.raises(AlreadyExists):
        s3.put("k", Meter(2 * PART), if_absent=True)
    assert s3.get("k") == b"other"
    assert unfinished(s3) == []


def test_a_failed_abort_does_not_hide_what_happened(make_s3, on_event):
    store = make_s3("moto", max_attempts=1)
    on_event(store, "before-send.s3.UploadPart", lambda request, **_: error(503, "SlowDown"))
    on_event(store, "before-send.s3.AbortMultipartUpload", lambda request, **_: error(403, "AccessDenied"))
    with pytest.raises(StoreUnavailable, match="SlowDown"):
        store.put("k", Meter(2 * PART))


def test_parts_grow_so_that_ten_thousand_reach_the_largest_object():
    sizes = [len(part) for part in _growing_parts(iter([b"x"] * (1000 + 2 * 1000 + 4 * 3 + 1)))]
    assert sizes == [1] * 1000 + [2] * 1000 + [4, 4, 4, 1]
    assert sum(2 ** (number // 1000) for number in range(10_000)) * 8 * 1024 * 1024 > 5 * 1024**4


def test_a_write_is_one_round_trip(s3, on_event):
    asked = []
    on_event(s3, "before-send.s3", lambda request, **_: asked.append(request.headers.get("Expect")))
    s3.put("small", b"x")
    s3.put("big", Meter(PART + 1))
    assert len(asked) >= 5  # the small one, and begin, two parts and end of the big one
    assert set(asked) == {None}


CHECKSUMS = {
    "content-md5": lambda body: hashlib.md5(body).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
}

WRITES: dict[str, Callable[[S3Store, S3Store], object]] = {
    "bytes": lambda store, _: store.put("new", b"x"),
    "nothing": lambda store, _: store.put("new", b""),
    "a new key": lambda store, _: store.put("new", b"x", if_absent=True),
    "a type": lambda store, _: store.put("new", b"x", content_type="text/csv"),
    "a name that obstore changes": lambda store, _: store.put("new /./k", b"x"),
    "a stream": lambda store, _: store.put("new", io.BytesIO(b"x")),
    "one part": lambda store, _: store.put("new", Meter(PART)),
    "parts": lambda store, _: store.put("new", Meter(2 * PART + 1)),
    "parts of a new key": lambda store, _: store.put("new", bytes(2 * PART), if_absent=True),
    "the first of a swap": lambda store, _: store.swap("new", b"x", expected=None),
    "a swap": lambda store, _: store.swap("old", b"x", expected=b"old"),
    "a copy by the server": lambda store, _: copy_object(
        store, S3Store(store.bucket, "to", store.settings), listed(store)
    ),
    "a copy by hand": lambda store, other: copy_object(other, store, listed(other)),
    "deletions": lambda store, _: store.delete(["old", "none"]),
    "a probe": lambda store, _: store.probe(),
}


def listed(store):
    return next(store.list("old"))


@pytest.fixture(params=["directly", *S3_KINDS])
def watched(request, endpoint_of, buckets):
    """Makes stores behind a proxy that keeps their requests, by obstore and botocore, and by botocore alone."""
    kind = request.param
    if kind == "directly":
        request.getfixturevalue("directly")
    endpoint = endpoint_of("moto" if kind == "directly" else kind)
    bucket, prefix = buckets(endpoint), f"t/{uuid.uuid4().hex}"
    with LyingServer(endpoint) as proxy:
        yield lambda **more: S3Store(bucket, prefix, replace(QUICK, endpoint_url=proxy.url, **more)), proxy


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_body_that_is_written_has_a_checksum(watched, make_s3, write):
    """Buckets with Object Lock and default retention refuse any other."""
    make, proxy = watched
    store, other = make(), make_s3("moto")
    for one in (store, other):
        one.put("old", b"old")
    proxy.asked.clear()
    write(store, other)
    written = [asked for asked in proxy.asked if asked.operation in {"put", "part", "delete many"}]
    assert written or any(asked.operation == "copy" for asked in proxy.asked)
    for asked in written:
        given = {name: asked.headers[name] for name in CHECKSUMS if name in asked.headers}
        assert given, f"{asked.method} {asked.path} has no checksum"
        assert given == {name: base64.b64encode(CHECKSUMS[name](asked.body)).decode() for name in given}


READS: dict[str, Callable[[S3Store, S3Store], object]] = {
    "read": lambda store, _: store.get("old"),
    "read a range": lambda store, _: store.get_range("old", 1, 1),
    "open": lambda store, _: store.open("old").read(),
    "open checked": lambda store, _: store.open_checked(listed(store)).file.read(),
    "describe": lambda store, _: store.head("old"),
    "list": lambda store, _: list(store.list()),
    "scan": lambda store, _: list(store.scan()),
}


def named_by_requester(asked):
    return asked.headers.get("x-amz-request-payer") == "requester"


PAID = READS | {name: WRITES[name] for name in ("bytes", "parts", "a swap", "a copy by the server", "deletions")}


@pytest.mark.parametrize("verb", PAID.values(), ids=PAID)
def test_who_pays_for_requests_says_so_in_each(watched, make_s3, verb):
    make, proxy = watched
    store, other = make(requester_pays=True), make_s3("moto")
    for one in (store, other):
        one.put("old", b"old")
    verb(store, other)
    assert all(map(named_by_requester, proxy.asked)), [one.path for one in proxy.asked if not named_by_requester(one)]
    assert "x-amz-request-payer=requester" in store.presign("old")
    asked = len(proxy.asked)
    make().put("new", b"x")
    assert not any(map(named_by_requester, proxy.asked[asked:]))
