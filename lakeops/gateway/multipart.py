"""An object that comes in parts: where its parts lie until it is complete, and how a client says that it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from threading import Lock
from typing import BinaryIO, cast

from lakeops.gateway.answers import Refused

PIECE = 1 << 20
"""Bytes that are copied at a time."""


def no_such_upload() -> Refused:
    """The refusal of a request about an upload that is over, or never was."""
    return Refused(404, "NoSuchUpload", "no such upload of this key is under way; begin again")


def _file() -> BinaryIO:
    return cast("BinaryIO", TemporaryFile())


@dataclass(frozen=True)
class Completion:
    """How a client wants an upload to end: the key, the upload's id, and the parts with their ETags.

    One that comes again has the first answer: the object is there, and another one may be in its place by now.
    """

    place: tuple[str, str]
    upload: str
    parts: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class UploadPart:
    """A part of an upload: where it lies in the upload's file, and its ETag without quotes."""

    start: int
    size: int
    etag: str


@dataclass
class MultipartUpload:
    """An object on its way in parts, one behind the other in a file without a name, which ends with the process.

    Whoever ends the upload, with an object or without, holds ``ending``.
    """

    place: tuple[str, str]
    content_type: str | None
    metadata: dict[str, str]
    file: BinaryIO = field(default_factory=_file)
    lock: Lock = field(default_factory=Lock)
    ending: Lock = field(default_factory=Lock)
    parts: dict[int, UploadPart] = field(default_factory=dict)

    def add(self, number: int, body: Iterable[bytes]) -> str:
        """Keep a part, which takes the place of an earlier one. Returns its ETag. Raises ``Refused`` after the end."""
        digest = hashlib.sha256()
        with self.lock:
            self.require_open()
            start = self.file.seek(0, os.SEEK_END)
            for piece in body:
                digest.update(piece)
                self.file.write(piece)
            part = self.parts[number] = UploadPart(start, self.file.tell() - start, digest.hexdigest())
        return f'"{part.etag}"'

    def require_open(self) -> None:
        """Raise ``Refused`` once the upload has ended."""
        if self.file.closed:
            raise no_such_upload()

    def join(self, parts: list[UploadPart], whole: BinaryIO) -> None:
        """Write parts one behind the other to a file. Raises ``Refused`` after the end."""
        with self.lock:
            self.require_open()
            for part in parts:
                self.file.seek(part.start)
                whole.writelines(self.file.read(min(PIECE, part.size - at)) for at in range(0, part.size, PIECE))

    def listed(self, told: Completion) -> list[UploadPart]:
        """The parts that a client has listed. Raises ``Refused`` for others than were uploaded."""
        numbers = [number for number, _ in told.parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise Refused(400, "InvalidPartOrder", "the parts are listed in ascending order, and there is at least one")
        known = dict(self.parts)
        if any(number not in known or known[number].etag != mark for number, mark in told.parts):
            raise Refused(400, "InvalidPart", "a part that is listed was not uploaded, or was uploaded again since")
        return [known[number] for number in numbers]
