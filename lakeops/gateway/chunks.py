"""Bodies that come in chunks (``aws-chunked``), as Java's and C++'s clients send them: Spark's S3A, pyarrow.

A chunk is its size, its signature and its bytes. Each signature covers the one before it, and the first one covers that
of the request's headers, so chunks cannot be changed, left out or put in another order. Behind the last chunk may come
lines with the checksum of the whole body, signed or not. Nothing is kept here but a line that is not complete.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from lakeops.gateway.answers import Refused
from lakeops.gateway.signature import Seed

STREAMING = "STREAMING-"
_ALGORITHM = "AWS4-HMAC-SHA256"
CHECKSUM = "x-amz-checksum-"
_TRAILER_SIGNATURE = "x-amz-trailer-signature"
_KINDS = {
    f"STREAMING-{_ALGORITHM}-PAYLOAD": (True, False),
    f"STREAMING-{_ALGORITHM}-PAYLOAD-TRAILER": (True, True),
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": (False, True),
}
"""Whether the chunks are signed, and whether lines follow the last one."""

_MOST_LINE = 8 << 10
_EMPTY = hashlib.sha256().hexdigest()
_HEADER = re.compile(rb"([0-9a-fA-F]{1,12})(?:;chunk-signature=([0-9a-f]{64}))?")
_CRCS = {"crc32": ("CRC32", 4), "crc32c": ("CRC32C", 4), "crc64nvme": ("CRC64-NVME", 8)}
"""The model of each sum, and how many bytes it has."""


Digest = Any
"""A digest in the making, with the methods ``update`` and ``digest`` of ``hashlib``'s."""


class _Crc:
    def __init__(self, model: str, size: int) -> None:
        import anycrc

        self._model, self._size = anycrc.Model(model), size
        self._sum: int = self._model.calc(b"")

    def update(self, data: bytes, /) -> None:
        self._sum = self._model.calc(data, self._sum)

    def digest(self) -> bytes:
        return self._sum.to_bytes(self._size, "big")


def digests_of(names: Mapping[str, str] | list[str]) -> dict[str, Digest]:
    """A digest for each name of a checksum (``x-amz-checksum-crc32``, ...) or of ``content-md5`` among the names.

    Raises ``Refused`` for a checksum that nobody here can compute.
    """
    found: dict[str, Digest] = {}
    for name in names:
        kind = name.removeprefix(CHECKSUM)
        if name == "content-md5":
            found[name] = hashlib.md5(usedforsecurity=False)
        elif name == kind or kind in {"algorithm", "mode", "type"}:
            continue
        elif kind in _CRCS:
            found[name] = _Crc(*_CRCS[kind])
        elif kind in {"sha1", "sha256"}:
            found[name] = hashlib.new(kind, usedforsecurity=False)
        else:
            raise Refused(501, "NotImplemented", f"this gateway does not know {name}; take CRC64NVME or SHA256")
    return found


def encoded(digest: bytes) -> str:
    """A digest as headers have it."""
    return base64.b64encode(digest).decode()


def check_digest(name: str, digest: bytes, given: str, suffix: str = "") -> None:
    """Compare a digest with the one in base64 that a client gave. Raises ``Refused`` when they differ."""
    if name == "content-md5" and not re.fullmatch(r"[A-Za-z0-9+/]{22}==", given):
        raise Refused(400, "InvalidDigest", "Content-MD5 is not an MD5 in base64")
    if given != encoded(digest) + suffix:
        raise Refused(400, "BadDigest", f"the body is not the one of {name}")


def chunks_of(headers: Mapping[str, str], seed: Seed) -> Chunks | None:
    """The decoder of a request's body. None when the body does not come in chunks. Raises ``Refused``."""
    kind = headers.get("x-amz-content-sha256", "")
    if not kind.startswith(STREAMING):
        if "x-amz-decoded-content-length" in headers:
            raise Refused(400, "InvalidRequest", "a body in chunks needs x-amz-content-sha256: STREAMING-...")
        return None
    if kind not in _KINDS:
        raise Refused(501, "NotImplemented", f"bodies of {kind} are not taken; sign with {_ALGORITHM}")
    size = headers.get("x-amz-decoded-content-length", "")
    if not re.fullmatch(r"[0-9]{1,15}", size):
        raise Refused(411, "MissingContentLength", "a body in chunks needs x-amz-decoded-content-length")
    signed, trailing = _KINDS[kind]
    named = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")] if trailing else []
    return Chunks(seed if signed else None, int(size), digests_of(named) if trailing else None)


class _At(Enum):
    HEADER = auto()
    DATA_END = auto()
    TRAILER = auto()
    LAST_END = auto()
    END = auto()


class Chunks:
    """Takes a body apart while it comes in.

    Args:
        seed: the signature that the first chunk's continues. None for chunks without signatures.
        size: how many bytes the chunks hold in all.
        trailing: the digests whose values follow the last chunk. None where nothing follows.
    """

    def __init__(self, seed: Seed | None, size: int, trailing: dict[str, Digest] | None) -> None:
        self._seed = seed
        self._previous = seed.signature if seed else ""
        self._size = size
        self._trailing = trailing
        self._at = _At.HEADER
        self._held = b""
        self._taken = 0
        self._left = 0
        self._chunk = hashlib.sha256()
        self._signature = ""
        self.trailers: dict[str, str] = {}

    def feed(self, data: bytes) -> bytes:
        """Decode the next bytes of the body; returns those of the object. Raises ``Refused`` for malformed bodies."""
        data = self._held + data
        given: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._taken += len(piece)
                if self._seed is not None:
                    self._chunk.update(piece)
                for digest in (self._trailing or {}).values():
                    digest.update(piece)
                given.append(piece)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                break
            self._line(data[at : end + 1].rstrip(b"\r\n"))
            at = end + 1
        self._held = data[at:]
        if len(self._held) > _MOST_LINE:
            raise _malformed("a line has no end")
        return b"".join(given)

    def end(self) -> None:
        """Check that the body has come to its end. Raises ``Refused``."""
        if self._at is not _At.END or self._held:
            raise Refused(400, "IncompleteBody", "the body ended before its last chunk")
        if self._taken != self._size:
            said = f"the chunks hold {self._taken} bytes, and {self._size} were announced"
            raise Refused(400, "IncompleteBody", said)

    def _line(self, line: bytes) -> None:
        if self._at is _At.HEADER:
            self._begin(line)
        elif self._at is _At.TRAILER:
            self._trailer(line)
        elif line:
            raise _malformed("bytes follow where a chunk has ended")
        elif self._at is _At.DATA_END:
            self._verify_chunk()
            self._at = _At.HEADER
        else:
            self._at = _At.END

    def _begin(self, line: bytes) -> None:
        found = _HEADER.fullmatch(line)
        if found is None or (found[2] is None) != (self._seed is None):
            raise _malformed("a chunk does not begin with its size and its signature")
        self._left = int(found[1], 16)
        self._signature = (found[2] or b"").decode()
        self._chunk = hashlib.sha256()
        if self._taken + self._left > self._size:
            said = f"the chunks hold more than the {self._size} bytes that were announced"
            raise Refused(400, "IncompleteBody", said)
        self._at = _At.DATA_END
        if not self._left:
            self._verify_chunk()
            self._at = _At.LAST_END if self._trailing is None else _At.TRAILER

    def _verify_chunk(self) -> None:
        if self._seed is not None:
            told = (f"{_ALGORITHM}-PAYLOAD", _EMPTY, self._chunk.hexdigest())
            self._verify(self._seed, self._signature, *told)

    def _verify(self, seed: Seed, given: str, algorithm: str, *hashes: str) -> None:
        expected = seed.sign("\n".join((algorithm, seed.timestamp, seed.scope, self._previous, *hashes)))
        if not hmac.compare_digest(expected.encode(), given.encode()):
            raise Refused(403, "SignatureDoesNotMatch", "the signature of a chunk is not that of its contents")
        self._previous = given

    def _trailer(self, line: bytes) -> None:
        if line:
            name, separator, value = line.decode("latin-1").partition(":")
            name = name.strip().lower()
            if not separator or name in self.trailers or len(self.trailers) > len(_CRCS):
                raise _malformed("a line behind the last chunk is not NAME:VALUE")
            self.trailers[name] = value.strip()
        elif self._seed is None or _TRAILER_SIGNATURE in self.trailers:  # an empty line also precedes the signature
            self._at = _At.END
            given = self.trailers.pop(_TRAILER_SIGNATURE, "")
            if self._seed is not None:
                text = "".join(f"{name}:{value}\n" for name, value in self.trailers.items()).encode("latin-1")
                self._verify(self._seed, given, f"{_ALGORITHM}-TRAILER", hashlib.sha256(text).hexdigest())
            if self.trailers.keys() != (self._trailing or {}).keys():
                said = "what follows the last chunk is not what x-amz-trailer names"
                raise Refused(400, "MalformedTrailerError", said)
            for name, digest in (self._trailing or {}).items():
                check_digest(name, digest.digest(), self.trailers[name])


def _malformed(what: str) -> Refused:
    return Refused(400, "InvalidRequest", f"the body is not in chunks as S3 has them: {what}")
