"""Pages of a listing, read by the XML parser of the standard library.

botocore turns each element into Python step by step, which takes 20 ms a page and most of the time of an import. So the
objects are taken out of the answer before botocore reads it. What is left, and an answer that looks unusual, is
botocore's. It also decodes the names afterwards, as it always does.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from xml.etree import ElementTree as ET

from botocore.utils import parse_timestamp

OK = 200


def moment(value: str) -> datetime:
    """A time in an answer. botocore's own parser takes most of the time of a listing. This one knows its spelling."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return parse_timestamp(value)
    return found if found.tzinfo is not None else parse_timestamp(value)


def take_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """A handler of botocore's event ``before-parse``: the objects of a page, as botocore would give them."""
    if response_dict["status_code"] != OK:
        return
    try:
        root = ET.fromstring(response_dict["body"])  # noqa: S314 - botocore parses it with the same parser
        spaces = root.tag[: root.tag.rindex("}") + 1] if "}" in root.tag else ""
        name, modified, etag, size = (f"{spaces}{part}" for part in ("Key", "LastModified", "ETag", "Size"))
        contents = f"{spaces}Contents"
        objects = []
        for item in root.iterfind(contents):
            said = {part.tag: part.text or "" for part in item}
            objects.append(
                {
                    "Key": said[name],
                    "LastModified": moment(said[modified]),
                    "ETag": said[etag],
                    "Size": int(said[size]),
                }
            )
    except (ET.ParseError, KeyError, ValueError):
        return
    if objects:
        root[:] = [item for item in root if item.tag != contents]
        response_dict["body"] = ET.tostring(root)
        customized_response_dict["Contents"] = objects
