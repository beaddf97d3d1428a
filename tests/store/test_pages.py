"""Pages of a listing: read quickly, and as botocore would read them."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.parsers import ResponseParserFactory

from lakeops.store.s3.client import moment, take_objects

SHAPE = botocore.session.get_session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
SPACES = (' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', "")
NAMES = ["a", "a/b%20c", "\u00e4/\U0001f600", " around ", "a&b<c>", "a\tb", ""]


def body(
    names: list[str], *, space: str = SPACES[0], drop: str = "", modified: str = "2026-11-23T06:00:00.000Z"
) -> bytes:
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


def read(data: bytes, *, quickly: bool, status: int = 200) -> Any:
    answer, taken = {"status_code": status, "headers": {}, "body": data}, dict[str, object]()
    if quickly:
        take_objects(answer, taken)
    factory = ResponseParserFactory()
    factory.set_parser_defaults(timestamp_parser=moment)
    return factory.create_parser("rest-xml").parse(answer, SHAPE) | taken


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("names", [NAMES, NAMES[:1], []])
def test_a_page_is_what_botocore_makes_of_it(names: list[str], space: str) -> None:
    quick, slow = (read(body(names, space=space), quickly=quickly) for quickly in (True, False))
    wanted = ("Key", "LastModified", "ETag", "Size")
    assert quick.pop("Contents", []) == [{part: item[part] for part in wanted} for item in slow.pop("Contents", [])]
    assert quick == slow


@pytest.mark.parametrize("drop", ["Key", "Size", "LastModified", "ETag"])
def test_an_unusual_page_is_left_to_botocore(drop: str) -> None:
    data = body(NAMES, drop=drop)
    assert read(data, quickly=True) == read(data, quickly=False)


def test_an_error_is_left_to_botocore() -> None:
    data = b"<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>"
    assert read(data, quickly=True, status=404) == read(data, quickly=False, status=404)


def test_times_are_read_as_botocore_does() -> None:
    for text in ("2026-11-23T06:00:00.123Z", "Mon, 23 Nov 2026 06:00:00 GMT", "2026-11-23T06:00:00"):
        assert moment(text) == botocore.utils.parse_timestamp(text)
