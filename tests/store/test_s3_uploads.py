"""Big uploads: parts side by side, little memory, nothing left behind."""

from __future__ import annotations

import hashlib
import io
import threading

import pytest
from support.http_answers import error

from lakeops.model.errors import AlreadyExists, StoreUnavailable
from lakeops.store.base import MIN_PART_BYTES as PART
from lakeops.store.s3.client import client
from lakeops.store.s3.upload import _growing_parts


class Meter(io.RawIOBase):
    """An endless-looking source that knows how much was taken from it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.size - self.taken)
        self.taken += size
        return b"m" * size


def unfinished(store) -> list[str]:
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
        def read(self, size: int = -1) -> bytes:
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
