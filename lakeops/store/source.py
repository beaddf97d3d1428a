"""What a put reads from: bytes, or any binary file, as pieces of one size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from lakeops.model.errors import InvalidInput


def pieces(data: bytes | BinaryIO, size: int) -> Iterator[bytes | memoryview]:
    """The contents in pieces of ``size`` bytes, the last one shorter; nothing at all for empty contents.

    A file may answer with less than it was asked for, as pipes and sockets do. What it raises passes through.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), size):
            yield view[start : start + size]
        return
    if not hasattr(data, "read"):
        raise InvalidInput(f"contents must be bytes or a binary file, not {type(data).__name__}")
    while piece := _read(data, size):
        yield piece


def _read(file: BinaryIO, size: int) -> bytes:
    first = _read_some(file, size)
    if len(first) in {0, size}:
        return first
    parts, missing = [first], size - len(first)
    while missing and (part := _read_some(file, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _read_some(file: BinaryIO, size: int) -> bytes:
    part = file.read(size)
    if not isinstance(part, bytes):
        raise InvalidInput(f"contents must come from a binary file in blocking mode, not {type(part).__name__}")
    return part
