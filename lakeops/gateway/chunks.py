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
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from lakeops.gateway.answers import CHECKSUM, Refused
from lakeops.gateway.signature import ALGORITHM, Seed

STREAMING = "STREAMING-"
_TRAILER_SIGNATURE = "x-amz-trailer-signature"
_KINDS = {
    f"STREAMING-{ALGORITHM}-PAYLOAD": (True, False),
    f"STREAMING-{ALGORITHM}-PAYLOAD-TRAILER": (True, True),
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": (False, True),
}
"""Whether the chunks are signed, and whether lines follow the last one."""

_MOST_LINE = 8 << 10
_EMPTY = hashlib.sha256().hexdigest()
_HEADER = re.compile(rb"([0-9a-fA-F]{1,12})(?:;chunk-signature=([0-9a-f]{64}))?")
_CRCS = {"crc32": ("CRC32", 4), "crc32c": ("CRC32C", 4), "crc64nvme": ("CRC64-NVME", 8)}
"""The model of each sum, and how many bytes it has."""
_BOTH = ("COMPOSITE", "FULL_OBJECT")
TYPES = {"": _BOTH[1:], "crc32": _BOTH, "crc32c": _BOTH, "crc64nvme": _BOTH[1:], "sha1": _BOTH[:1], "sha256": _BOTH[:1]}
"""The types of checksum that an upload in parts has with each algorithm, the usual one first."""


class _Crc:
    def __init__(self, model: str, size: int) -> None:
        import anycrc

        self._model, self._size = anycrc.Model(model), size
        self._sum: int = self._model.calc(b"")

    def update(self, data: bytes, /) -> None:
        self._sum = self._model.calc(data, self._sum)

    def digest(self) -> bytes:
        return self._sum.to_bytes(self._size, "big")


def digests_of(names: Mapping[str, str] | list[str]) -> dict[str, Any]:
    """A digest as ``hashlib`` has them for each name of a checksum (``x-amz-checksum-crc32``) or ``content-md5``.

    Raises ``Refused`` for a checksum that nobody here can compute.
    """
    found: dict[str, Any] = {}
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


def check_digest(name: str, found: str, given: str) -> None:
    """Compare a digest in base64 with the one that a client gave. Raises ``Refused`` when they differ."""
    if name == "content-md5" and not re.fullmatch(r"[A-Za-z0-9+/]{22}==", given):
        raise Refused(400, "InvalidDigest", "Content-MD5 is not an MD5 in base64")
    if given != found:
        raise Refused(400, "BadDigest", f"the body is not the one of {name}")


def chunks_of(headers: Mapping[str, str], seed: Seed) -> Chunks | None:
    """The decoder of a request's body. None when the body does not come in chunks. Raises ``Refused``."""
    kind = headers.get("x-amz-content-sha256", "")
    if "x-amz-trailer" in headers and not kind.endswith("-TRAILER"):
        raise Refused(400, "InvalidRequest", "lines behind a body need x-amz-content-sha256: STREAMING-...-TRAILER")
    if not kind.startswith(STREAMING):
        if "x-amz-decoded-content-length" in headers:
            raise Refused(400, "InvalidRequest", "a body in chunks needs x-amz-content-sha256: STREAMING-...")
        return None
    if kind not in _KINDS:
        raise Refused(501, "NotImplemented", f"bodies of {kind} are not taken; sign with {ALGORITHM}")
    size = headers.get("x-amz-decoded-content-length", "")
    if not re.fullmatch(r"[0-9]{1,15}", size):
        raise Refused(411, "MissingContentLength", "a body in chunks needs x-amz-decoded-content-length")
    signed, trailing = _KINDS[kind]
    named = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")] if trailing else []
    return Chunks(seed if signed else None, int(size), digests_of(named) if trailing else None)


class Chunks:
    """Takes a body apart while it comes in.

    ``seed`` is the signature that the first chunk's continues, None for chunks without signatures. ``trailing`` are the
    digests whose values follow the last chunk, None where nothing follows.
    """

    def __init__(self, seed: Seed | None, size: int, trailing: dict[str, Any] | None) -> None:
        self._seed = seed
        self._previous = seed.signature if seed else ""
        self._size = size
        self._trailing = trailing
        self._data = b""
        self._at = self._taken = 0
        self._given: list[bytes] = []
        self._ended = False
        self._parser = self._parse()
        self.trailers: dict[str, str] = {}

    def feed(self, data: bytes) -> bytes:
        """Decode the next bytes of the body; returns those of the object. Raises ``Refused`` for malformed bodies."""
        self._data, self._at, self._given = self._data[self._at :] + data, 0, []
        next(self._parser)
        if len(self._data) - self._at > _MOST_LINE:
            raise _malformed("a line has no end")
        return b"".join(self._given)

    def end(self) -> None:
        """Check that the body has come to its end. Raises ``Refused``."""
        if not self._ended or self._at < len(self._data):
            raise Refused(400, "IncompleteBody", "the body ended before its last chunk")
        if self._taken != self._size:
            said = f"the chunks hold {self._taken} bytes, and {self._size} were announced"
            raise Refused(400, "IncompleteBody", said)

    def _parse(self) -> Iterator[None]:
        """Take the body apart; waits for more of it at each ``yield``."""
        size = -1
        while size:
            found = _HEADER.fullmatch((yield from self._line()))
            if found is None or (found[2] is None) != (self._seed is None):
                raise _malformed("a chunk does not begin with its size and its signature")
            size = left = int(found[1], 16)
            if self._taken + size > self._size:
                said = f"the chunks hold more than the {self._size} bytes that were announced"
                raise Refused(400, "IncompleteBody", said)
            chunk = hashlib.sha256()
            digests = [*(self._trailing or {}).values(), *([] if self._seed is None else [chunk])]
            while left:
                piece = self._data[self._at : self._at + left]
                if not piece:
                    yield
                self._at, self._taken, left = self._at + len(piece), self._taken + len(piece), left - len(piece)
                for digest in digests:
                    digest.update(piece)
                self._given.append(piece)
            if size:
                yield from self._empty_line()
            self._verify((found[2] or b"").decode(), f"{ALGORITHM}-PAYLOAD", _EMPTY, chunk.hexdigest())
        yield from self._empty_line() if self._trailing is None else self._trailers(self._trailing)
        self._ended = True
        while True:
            yield from self._empty_line()

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._data.find(b"\n", self._at)) < 0:
            yield
        line, self._at = self._data[self._at : end + 1], end + 1
        return line.rstrip(b"\r\n")

    def _empty_line(self) -> Iterator[None]:
        if (yield from self._line()):
            raise _malformed("there are bytes behind the end of a chunk")

    def _trailers(self, digests: dict[str, Any]) -> Iterator[None]:
        # An empty line also precedes the signature.
        while (line := (yield from self._line())) or not (self._seed is None or _TRAILER_SIGNATURE in self.trailers):
            name, separator, value = line.decode("latin-1").partition(":")
            name = name.strip().lower()
            if line and (not separator or name in self.trailers or len(self.trailers) > len(_CRCS)):
                raise _malformed("a line behind the last chunk is not NAME:VALUE")
            if line:
                self.trailers[name] = value.strip()
        given = self.trailers.pop(_TRAILER_SIGNATURE, "")
        text = "".join(f"{name}:{value}\n" for name, value in self.trailers.items()).encode("latin-1")
        self._verify(given, f"{ALGORITHM}-TRAILER", hashlib.sha256(text).hexdigest())
        if self.trailers.keys() != digests.keys():
            said = "the trailer behind the last chunk is not the one that x-amz-trailer names"
            raise Refused(400, "MalformedTrailerError", said)
        for name, digest in digests.items():
            check_digest(name, encoded(digest.digest()), self.trailers[name])

    def _verify(self, given: str, algorithm: str, *hashes: str) -> None:
        """Compare a signature with that of these hashes, where there are signatures."""
        if self._seed is not None:
            told = (algorithm, self._seed.timestamp, self._seed.scope, self._previous, *hashes)
            if not hmac.compare_digest(self._seed.sign("\n".join(told)).encode(), given.encode()):
                raise Refused(403, "SignatureDoesNotMatch", "the signature of a chunk is not that of its contents")
            self._previous = given


def _malformed(what: str) -> Refused:
    return Refused(400, "InvalidRequest", f"the body is not in chunks as S3 has them: {what}")
