"""Files that fsspec's programs write: staged when they are closed, unless the writing failed."""

from __future__ import annotations

import inspect
import io
import logging
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

SPOOL_BYTES = 8 << 20
"""Bytes of a written file that stay in memory before they spill to a temporary file."""

_log = logging.getLogger(__name__)


class StagedFile(io.BufferedIOBase):
    """A file being written, which closing (or with no ``autocommit`` a transaction) stages unless the writing failed.

    Wrappers call ``close`` alone, whether the block that wrote ended well or not. So the file looks itself: an error
    that is in flight when it is closed, and was not when it was opened, means that the writing failed. It is raised
    again: an error that is handled where the file is closed looks alike, and no write may be lost in silence.
    """

    mode = "wb"

    def __init__(self, name: str, put: Callable[[BinaryIO], None], *, autocommit: bool = True) -> None:
        self.name = name
        self._put = put
        self._autocommit = autocommit
        self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - closed with the file
        for method in ("seek", "tell"):
            setattr(self, method, getattr(self._spool, method))
        self._known = _in_flight(opening=True)
        self._process = os.getpid()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if os.getpid() != self._process:
            raise OSError(f"{self.name} was opened by another process, which alone can write it")
        try:
            return self._spool.write(data)
        except BaseException:
            self.discard()
            raise

    def seekable(self) -> bool:
        return True  # text in UTF-16 begins with its mark only where this is so

    def truncate(self, size: int | None = None, /) -> int:
        size = self.tell() if size is None else size
        self._spool.truncate(size)
        return size

    def close(self) -> None:
        """Close the file, and stage it unless the writing failed or an fsspec transaction decides later."""
        if not self.closed:
            super().close()
            self._check()
            if self._autocommit:
                self.commit()

    def commit(self) -> None:
        """Put the written bytes to the staging area, once, unless the writing failed."""
        self._check()
        if not self._spool.closed:
            with self._spool as spool:
                spool.seek(0)
                self._put(cast("BinaryIO", spool))

    def discard(self) -> None:
        """Drop the written bytes."""
        self._spool.close()

    def _check(self) -> None:
        """Drop the written bytes and raise the error in flight when the writing failed."""
        if self._spool.closed or os.getpid() != self._process:  # the process that opened it stages it
            self.discard()
            return
        new = [one for one in _in_flight() if not any(one is known for known in self._known)]
        if new:
            self.discard()
        for error in new[:1]:
            if isinstance(error, BaseException):
                error.add_note(
                    f"{self.name} was closed while this error was in flight, so nothing was staged. If the error is "
                    "handled and the file is complete, close the file after the handler."
                )
                raise error
            _log.warning(_NEVER_CLOSED, self.name)

    def __exit__(self, *raised: object) -> None:
        if raised[0] is not None:
            self.discard()
        self.close()

    def _dealloc_warn(self, _: object = None) -> None:
        """Drop the written bytes. Python calls this when a wrapper of the file is collected that nobody closed."""
        if not self._spool.closed and os.getpid() == self._process:
            _log.warning(_NEVER_CLOSED, self.name)
        self.discard()

    __del__ = _dealloc_warn


_NEVER_CLOSED = "%s was never closed, so nothing was staged. Write it in a `with` block, or close it."


class CompressedFile(io.BufferedIOBase):
    """A staged file that is written through a compressor and closed with it, where most compressors leave it open."""

    def __init__(self, inner: Any, staged: StagedFile) -> None:
        self._inner, self._staged = inner, staged
        for name in ("write", "seekable", "seek", "tell"):
            setattr(self, name, getattr(inner, name))

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            try:
                self._inner.close()
            finally:
                self._staged.close()

    def _dealloc_warn(self, _: object = None) -> None:
        self._staged.__del__()

    __del__ = _dealloc_warn


_LEAVING = ("__exit__", "__aexit__")


def _in_flight(*, opening: bool = False) -> list[object]:
    """The errors that this thread handles now, and the frames of the finalizers that it runs."""
    found, told = list[object](), list[object]()
    closing = False
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_name
        if name in _LEAVING:  # an ExitStack leaves its contexts after it caught an error
            values = (value if isinstance(value, tuple) else (value,) for value in frame.f_locals.values())
            told.extend(one for several in values for one in several if isinstance(one, BaseException))
        if name == "__del__" or (name == "close" and getattr(frame.f_locals.get("self"), "_finalizing", False)):
            found.append(frame)
        if name == "close" or name in _LEAVING:
            closing = closing or str(frame.f_globals.get("__name__")).startswith("fsspec.")
        frame = frame.f_back
    # At the end of a process that is not a person's session, functions run after an error that nobody handled.
    error = sys.exc_info()[1] or (None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    while error is not None and error not in found:
        found.append(error)
        error = error.__context__
    # fsspec's caches write a local file and open this one when that is closed. Nothing tells when the error began.
    return [] if opening and closing else [*found, *told]
