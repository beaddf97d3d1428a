"""Requests that change a key at the same time as others: copies beside writes, an upload's end beside another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.served import KEYS, lake, s3_client

from lakeops import Branch, Lake
from lakeops.gateway.writing import LEAST_PART

__all__ = ["lake"]

pytestmark = pytest.mark.usefixtures("no_home")
KEY = {"Bucket": "shop", "Key": "main/new"}


@pytest.fixture
def main(lake: Lake) -> Branch:
    return lake.create_repository("shop").branch("main")


@pytest.fixture
def s3(lake: Lake, main: Branch, serve: Callable[..., str]) -> Iterator[Any]:
    with s3_client(serve(lake, KEYS, write=True)) as client:
        yield client


Before = Callable[[str, Callable[[], object]], None]


@pytest.fixture
def before(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Before:
    """Does something once, when the catalog is called next for this."""

    def arrange(name: str, act: Callable[[], object]) -> None:
        inner = getattr(lake.catalog.staging, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(lake.catalog.staging, name, inner)
            act()
            return inner(*args, **kwargs)

        monkeypatch.setattr(lake.catalog.staging, name, call)

    return arrange


def status_of(work: Callable[[], Any]) -> int:
    try:
        answer = work()
    except ClientError as failed:
        answer = failed.response
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


@pytest.mark.parametrize(
    ("key", "moment"), [("main/old", "pin"), ("main/old", "put_staged"), ("main/new", "put_staged")]
)
def test_a_copy_on_a_condition_is_one_of_the_object_that_was_named(
    main: Branch, s3: Any, before: Before, key: str, moment: str
) -> None:
    """Whenever its source is replaced."""
    mark = s3.put_object(Bucket="shop", Key="main/old", Body=b"1")["ETag"]
    before(moment, lambda: main.put("old", b"2"))
    asked = {"CopySource": "shop/main/old", "CopySourceIfMatch": mark, "MetadataDirective": "REPLACE"}
    done = status_of(lambda: s3.copy_object(Bucket="shop", Key=key, Metadata={"of": "1"}, **asked))
    assert main.read("old") == b"2", "the write was acknowledged"
    assert main.stat("old").metadata == {}
    assert done == (412 if key == "main/old" else 200)
    if done == 200:
        assert (main.read("new"), main.stat("new").metadata) == (b"1", {"of": "1"})


def test_a_copy_is_there_with_its_own_metadata_or_not_at_all(main: Branch, s3: Any, lake: Lake) -> None:
    """A copy's metadata does not describe an object that another program puts to its path."""
    main.put("old", b"1", metadata={"of": "old"})
    inner = lake.catalog.staging.put_staged
    seen: list[dict[str, str]] = []

    def put_staged(*args: Any, **kwargs: Any) -> Any:
        answer = inner(*args, **kwargs)
        lake.catalog.staging.put_staged = inner  # type: ignore[method-assign]
        seen.append(main.stat("new").metadata)
        main.put("new", b"2")
        return answer

    lake.catalog.staging.put_staged = put_staged  # type: ignore[method-assign]
    s3.copy_object(**KEY, CopySource="shop/main/old", MetadataDirective="REPLACE", Metadata={"of": "new"})
    assert seen == [{"of": "new"}]
    assert (main.read("new"), main.stat("new").metadata) == (b"2", {})


def test_a_copy_to_itself_goes_on_with_what_another_one_wrote(main: Branch, s3: Any, before: Before) -> None:
    main.put("new", b"1", metadata={"of": "1"})
    before("put_staged", lambda: main.put("new", b"2", metadata={"of": "2", "more": "2"}))
    s3.copy_object(**KEY, CopySource="shop/main/new", MetadataDirective="REPLACE", Metadata={"k": "v"})
    assert (main.read("new"), main.stat("new").metadata) == (b"2", {"k": "v"})


PART = b"1" * LEAST_PART


class Upload:
    """An upload in parts of one letter each."""

    def __init__(self, s3: Any, *parts: bytes) -> None:
        self.s3 = s3
        self.where = {**KEY, "UploadId": s3.create_multipart_upload(**KEY)["UploadId"]}
        self.marks = [self.put(number, body) for number, body in enumerate(parts, 1)]

    def put(self, number: int, body: bytes) -> dict[str, Any]:
        done = self.s3.upload_part(**self.where, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": done["ETag"]}

    def complete(self) -> Any:
        return self.s3.complete_multipart_upload(**self.where, MultipartUpload={"Parts": self.marks})

    def abort(self) -> Any:
        return self.s3.abort_multipart_upload(**self.where)


def test_an_end_that_is_asked_for_again_has_the_first_answer(main: Branch, s3: Any) -> None:
    """A client whose answer was lost asks again. Another one may have written to the key meanwhile."""
    upload = Upload(s3, PART, b"2")
    first = upload.complete()
    main.put("new", b"later")
    assert upload.complete()["ETag"] == first["ETag"]
    assert main.read("new") == b"later"
    upload.marks.pop()
    assert status_of(upload.complete) == 404, "that is another end"
    assert status_of(upload.abort) == 404


def test_an_upload_ends_once(main: Branch, s3: Any, before: Before) -> None:
    """Who was told that it is aborted finds no object of it later."""
    with ThreadPoolExecutor(2) as pool:
        for other in ("complete", "abort"):
            upload, late = Upload(s3, PART, b"2"), []
            ask = partial(pool.submit, status_of, getattr(upload, other))
            before("put_staged", lambda ask=ask, late=late: late.append(ask()))
            assert status_of(upload.complete) == 200
            assert late.pop().result() == (200 if other == "complete" else 404)
            assert main.read("new") == PART + b"2"


def test_a_part_that_comes_again_while_an_upload_ends_is_not_in_the_object(main: Branch, s3: Any, monkeypatch) -> None:
    from lakeops.gateway.writing import MultipartUpload

    upload, inner = Upload(s3, PART, b"2"), MultipartUpload.join

    def join(self: MultipartUpload, *args: Any) -> None:
        self.add(1, [b"3"])
        inner(self, *args)

    monkeypatch.setattr(MultipartUpload, "join", join)
    upload.complete()
    assert main.read("new") == PART + b"2"
