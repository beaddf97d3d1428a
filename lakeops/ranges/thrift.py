"""The few values of Thrift's compact protocol that footers are put together from, and Parquet's mark."""

from __future__ import annotations

from typing import Final

MARK: Final = b"PAR1"
"""What a Parquet file begins with and ends with."""

CLOSING: Final = 8
"""Bytes behind Parquet's metadata: its size, and the mark."""

STRUCT: Final = 12
"""The type of a struct, in the headers of fields and lists."""

LONG_LIST: Final = 15
"""From so many elements on their number follows a list's header."""


def integer(value: int) -> bytes:
    """A number that is not negative, as a field holds it."""
    return unsigned(2 * value)


def sized(data: bytes) -> bytes:
    """Bytes after their length."""
    return unsigned(len(data)) + data


def list_of(count: int) -> bytes:
    """The header of a list of structs."""
    return bytes([count << 4 | STRUCT]) if count < LONG_LIST else bytes([0xF0 | STRUCT]) + unsigned(count)


def unsigned(value: int) -> bytes:
    """A number of any size, seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def metadata_at(footer: bytes) -> int:
    """Where Parquet's ``FileMetaData`` begins in the bytes at a file's end."""
    return len(footer) - CLOSING - int.from_bytes(footer[-CLOSING : -len(MARK)], "little")


def closed(metadata: bytes) -> bytes:
    """The end of a file with this ``FileMetaData``: it, its size, the mark."""
    return metadata + len(metadata).to_bytes(4, "little") + MARK
