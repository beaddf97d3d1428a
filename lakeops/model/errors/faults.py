"""Files, stores, databases and engines that refuse or do not answer: exit code 1."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from lakeops.model.errors.base import LakeopsError, Transient


class Corrupted(LakeopsError):
    """A file is not what was recorded: metadata or an object of another size, digest or form. It was not used."""

    kind = "corrupted"


class ReplicaMismatch(LakeopsError):
    """An object arrived at a mirror with another size or checksum than the source recorded."""

    kind = "replica_mismatch"


class RecordRefused(LakeopsError):
    """What a mirror's source, or a dump, says cannot be so: a commit, a ref's name, an entry. It was not taken over."""

    kind = "record_refused"


class ReplicaMissing(LakeopsError):
    """Nothing arrives at a mirror any more of what it waits for."""

    kind = "replica_missing"


class NotAllReplicated(LakeopsError):
    """Some objects could not be copied to, or deleted at, a mirror's storage namespace. The others were.

    ``failures`` has the key and the error of each that was tried in vain, ``done`` says how many succeeded.
    """

    kind = "not_all_replicated"

    def __init__(self, message: str, failures: Sequence[tuple[str, LakeopsError]] = (), done: int = 0) -> None:
        self.failures: tuple[tuple[str, LakeopsError], ...] = tuple(failures)
        self.done = done
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.failures, self.done))

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object of the public contract, with the objects that failed."""
        shown = [{"key": key, "kind": error.kind, "message": error.message} for key, error in self.failures]
        return {**super().to_json(), "failures": shown, "done": self.done}


class StoreError(LakeopsError):
    """The object store refused: access denied, no such bucket, no space left."""

    kind = "store_error"


class SweepIncomplete(StoreError):
    """The store refused to delete some of a mark's files. The rest are gone, and another sweep tries again.

    ``failures`` are some of them, key and reason. ``count`` is how many there are.
    """

    kind = "sweep_incomplete"

    def __init__(self, mark: str, failures: list[tuple[str, str]], count: int) -> None:
        self.mark = mark
        self.failures = failures
        self.count = count
        key, reason = failures[0]
        super().__init__(
            f"the store refused to delete {count} of the files of mark {mark}: {key} ({reason}) for one; "
            "mend that and sweep the mark again"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.mark, self.failures, self.count))

    def to_json(self) -> dict[str, Any]:
        """The ``error`` object, with the failures."""
        failures = [{"key": key, "reason": reason} for key, reason in self.failures]
        return {**super().to_json(), "failures": failures, "failure_count": self.count}


class CatalogError(LakeopsError):
    """The database refused: no permission, no space left, not a database."""

    kind = "catalog_error"


class PermissionDenied(CatalogError):
    """The database's login may not do this."""

    kind = "permission_denied"
    exit_code = 5


class Unsupported(LakeopsError):
    """This store or engine cannot do what was asked."""

    kind = "unsupported"


class StoreUnavailable(Transient):
    """The object store did not answer, or answered with an error of its own, after all retries."""

    kind = "store_unavailable"


class OutOfResources(Transient):
    """This process has no memory or no file descriptor left for the call."""

    kind = "out_of_resources"


class CatalogUnavailable(Transient):
    """The database did not answer, or is locked by others for too long."""

    kind = "catalog_unavailable"


class EngineUnavailable(Transient):
    """Spark did not answer, gave no workers, or gave up on a task after all retries."""

    kind = "engine_unavailable"


class CollectionRunning(Transient):
    """Garbage collection is deciding about objects that the call wants to link."""

    kind = "collection_running"


class BranchMoved(Transient):
    """The branch's head or staging changed while the call was at work, more often than it would try again."""

    kind = "branch_moved"


class MirrorOvertaken(Transient):
    """A later pass over the same mirror has taken over. It goes on from where this one was."""

    kind = "mirror_overtaken"


P = ParamSpec("P")
R = TypeVar("R")

_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


def out_of_resources(error: BaseException | None) -> OutOfResources | None:
    """An error that says that memory or descriptors ran out, in lakeops' words. None for any other error.

    A module that is imported late when no descriptor is free ends in an ``ImportError``, sometimes with no cause, so
    whether one is free is tried out.
    """
    if isinstance(error, LakeopsError):
        return None
    if isinstance(error, MemoryError):
        return OutOfResources(
            "this process has no memory left for that; give it more (a commit of a million changes takes about 1 GB), "
            "or commit in smaller parts"
        )
    if (isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR) or (
        isinstance(error, ImportError) and not _has_free_descriptor()
    ):
        return OutOfResources("too many files are open in this process; raise the limit (ulimit -n)")
    return None


def _has_free_descriptor() -> bool:
    try:
        with open("/dev/null", "rb"):  # noqa: PTH123 - a path object may have to be imported
            return True
    except OSError as error:
        return error.errno not in _NO_DESCRIPTOR


def naming_what_ran_out(function: Callable[P, R]) -> Callable[P, R]:
    """The function, raising ``OutOfResources`` where Python's own errors say that memory or descriptors ran out."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (MemoryError, OSError, ImportError) as error:
            found = out_of_resources(error)
            if found is None:
                raise
        raise found

    return call
