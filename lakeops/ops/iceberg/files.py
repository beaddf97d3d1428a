"""Files of Iceberg tables: read and written through the lake's own store, and decoded under a limit."""

from __future__ import annotations

import zlib
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from pyiceberg.io import FileIO, InputFile, OutputFile

from lakeops.model.errors import InvalidInput, ObjectNotFound
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.ops.tables import TableFiles

MOST_METADATA, MOST_DECODED = 64 << 20, 256 << 20
"""Bytes of the largest metadata file or manifest that is read, and what a manifest may decode to."""
_SPOOL_BYTES = 8 << 20


class TableFileIO(FileIO):  # type: ignore[misc] # pyiceberg's classes are not typed here
    """Files below the locations of one repository's tables. Nothing is deleted: other refs may need it.

    Garbage collection takes what no ref needs.
    """

    def __init__(self, files: TableFiles) -> None:
        super().__init__({})
        self.files = files

    def new_input(self, location: str) -> TableFile:
        return TableFile(location, self.files)

    new_output = new_input

    def delete(self, location: Any) -> None:
        pass


class TableFile(InputFile, OutputFile):  # type: ignore[misc]
    """One file of a table."""

    def __init__(self, location: str, files: TableFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return self._files.size(self.location)

    def exists(self) -> bool:
        try:
            return len(self) >= 0
        except ObjectNotFound:
            return False

    def open(self, seekable: bool = True) -> Any:
        if not self.location.endswith((".avro", ".json")):
            return self._files.open(self.location)
        try:
            data = self._files.read(self.location, MOST_METADATA)
        except ObjectNotFound:
            raise FileNotFoundError(self.location) from None
        if self.location.endswith(".avro"):
            check_manifest(data, self.location)  # pyiceberg decodes manifests without a limit
        return BytesIO(data)

    def to_input_file(self) -> TableFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return _Upload(self._files, self.location)


class _Upload(SpooledTemporaryFile[bytes]):
    """A file that is uploaded when it is closed. Half of one is garbage, since no commit of a table names it."""

    def __init__(self, files: TableFiles, location: str) -> None:
        super().__init__(_SPOOL_BYTES)
        self._files, self._location = files, location

    def close(self) -> None:
        if not self.closed:
            try:
                self.seek(0)
                self._files.write(self._location, cast("BinaryIO", self))
            finally:
                super().close()

    def __exit__(self, *_: object) -> None:
        self.close()


def check_manifest(data: bytes, path: str) -> None:
    """Raise ``InvalidInput`` for an Avro file that decodes to too much, has an unknown codec, or is none."""
    left = MOST_DECODED if len(data) <= MOST_METADATA else -1
    file = BytesIO(data)
    try:
        if file.read(4) != b"Obj\x01":
            raise ValueError
        header: dict[str, bytes] = {}
        while count := _avro_long(file):  # blocks of keys and values, of which an empty one is the last
            if count < 0:  # its size in bytes follows
                count = -count
                _avro_long(file)
            if count > MOST_METADATA:
                raise ValueError
            for _ in range(count):
                key, value = (file.read(max(0, _avro_long(file))) for _ in range(2))
                if not key:
                    raise ValueError
                header[key.decode()] = value
        codec = header.get("avro.codec", b"null")
        file.read(16)
        while left >= 0 and file.tell() < len(data):
            count, size = _avro_long(file), _avro_long(file)
            if not 0 <= size <= len(data):
                raise ValueError
            decoded = _decoded_size(codec, file.read(size), left + 1)
            # A record takes a byte at least, so a block holds no more records than bytes.
            left = left - decoded if 0 <= count <= decoded else -1
            file.read(16)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{excerpt(path)} is no Avro file that can be read {str(error)[:80]}".rstrip()) from None
    if left < 0:
        raise InvalidInput(f"{excerpt(path)} is too large to decode: it takes more than {MOST_DECODED >> 20:,} MiB")


def _avro_long(file: BytesIO) -> int:
    """An Avro long: seven bits a byte, the lowest first, and the sign in the lowest bit of all."""
    value = shift = 0
    while True:
        (byte,) = file.read(1) or b"\0"
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1)
        if shift > 63:
            raise ValueError


def _decoded_size(codec: bytes, block: bytes, most: int) -> int:
    import pyarrow as pa

    if codec == b"null":
        return len(block)
    if codec == b"deflate":
        return len(zlib.decompressobj(-15).decompress(block, most))
    if codec in {b"zstandard", b"bzip2"}:
        kind = {b"zstandard": "zstd", b"bzip2": "bz2"}[codec]
        with pa.CompressedInputStream(pa.BufferReader(block), kind) as stream:
            return len(stream.read(most))
    raise ValueError(f"(codec {excerpt(codec.decode('latin-1'))})")
