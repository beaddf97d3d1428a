"""Copying and deleting objects as plain tasks: in threads of this process or on a cluster.

A task brings the store that it copies from, and is given the one that it copies to. What fails is told, object by
object, and the rest goes on. Only when a store refuses again and again a task gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeVar

from lakeops.engine.base import RANGE_SECONDS
from lakeops.model.errors import LakeopsError, ObjectNotFound, StoreError, StoreUnavailable, Unsupported
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.copy import Known, check_nobody_owns, copy_object
from lakeops.store.in_flight import in_flight

GIVE_UP = 20
"""Refusals of a store, in one task or one run, after which nothing more is tried."""

MOST_OBJECTS = 200
MOST_BYTES = 256 * 1024 * 1024
"""What one task holds at most. One object may be larger."""

_BATCH = 1000
_THREADS = 8
_OBJECT_SECONDS = 0.02
_BYTES_PER_SECOND = 50e6

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """An object that was not copied or not deleted, and why."""

    key: str
    error: LakeopsError


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Objects to copy from ``source``, as they were listed there. ``known`` owner records there mean nothing."""

    index: int
    source: ObjectStore
    items: tuple[StoredObject, ...]
    known: Known = frozenset()


@dataclass(frozen=True, slots=True)
class DeleteTask:
    """Keys to delete, unless ``source`` has them after all. ``known`` owner records there mean nothing."""

    index: int
    source: ObjectStore
    keys: tuple[str, ...]
    known: Known = frozenset()


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a task: objects and bytes copied or deleted, how many the source had no longer, and failures."""

    index: int
    objects: int = 0
    size_bytes: int = 0
    vanished: int = 0
    failures: tuple[CopyFailure, ...] = ()


def copy_objects(task: CopyTask, destination: ObjectStore) -> Moved:
    """Copy a task's objects, several at a time.

    Raises ``PreconditionFailed`` (``not_the_owner``) once a catalog writes to the destination.
    """
    check_nobody_owns(destination, task.known)

    def copy(item: StoredObject) -> bool:
        try:
            copy_object(task.source, destination, item)
        except ObjectNotFound:
            if _is_there(task.source, item.key):
                raise
            return False
        return True

    copied, failures = _do_each(copy, task.items)
    done = [item for item, was_there in copied if was_there]
    size = sum(item.size_bytes for item in done)
    return Moved(task.index, len(done), size, len(copied) - len(done), tuple(failures))


def delete_objects(task: DeleteTask, destination: ObjectStore) -> Moved:
    """Delete what the source does not have, having asked for each key once more.

    Raises ``PreconditionFailed`` (``not_the_owner``).
    """
    asked, failures = _do_each(lambda key: _is_there(task.source, key), task.keys)
    doomed = [key for key, is_there in asked if not is_there]
    check_nobody_owns(destination, task.known)
    refused = destination.delete(doomed) if doomed else []
    failures += [CopyFailure(one.key, StoreError(f"could not be deleted: {one.reason}")) for one in refused]
    return Moved(task.index, objects=len(doomed) - len(refused), failures=tuple(failures))


def copy_tasks(source: ObjectStore, items: Iterable[StoredObject], known: Known = frozenset()) -> Iterator[CopyTask]:
    """Objects divided into tasks of a moderate size, in order."""
    index, held, size = 0, list[StoredObject](), 0
    for item in items:
        if held and (len(held) >= MOST_OBJECTS or size + item.size_bytes > MOST_BYTES):
            yield CopyTask(index, source, tuple(held), known)
            index, held, size = index + 1, [], 0
        held.append(item)
        size += item.size_bytes
    if held:
        yield CopyTask(index, source, tuple(held), known)


def delete_tasks(source: ObjectStore, keys: Iterable[str], known: Known = frozenset()) -> Iterator[DeleteTask]:
    """Keys divided into tasks of one batch delete each."""
    remaining = iter(keys)
    for index in count():
        some = tuple(islice(remaining, _BATCH))
        if not some:
            return
        yield DeleteTask(index, source, some, known)


def gives_up(failures: Sequence[CopyFailure]) -> bool:
    """Whether trying more is in vain: it was the store that refused so often, and not single objects that failed."""
    refusals = (StoreError, StoreUnavailable, Unsupported)
    return sum(isinstance(failure.error, refusals) for failure in failures) >= GIVE_UP


def worth_in_ranges(items: Sequence[StoredObject]) -> int:
    """How many ranges' rewriting takes about as long as copying these objects. What engines are chosen by."""
    seconds = len(items) * _OBJECT_SECONDS + sum(item.size_bytes for item in items) / _BYTES_PER_SECOND
    return int(seconds / RANGE_SECONDS)


def _do_each(do: Callable[[Item], bool], items: Sequence[Item]) -> tuple[list[tuple[Item, bool]], list[CopyFailure]]:
    """Call ``do`` for each item. Returns results and failures. After ``GIVE_UP`` refusals the rest is left out."""
    done: list[tuple[Item, bool]] = []
    failures: list[CopyFailure] = []

    def attempt(item: Item) -> None:
        if len(failures) >= GIVE_UP and gives_up(failures):
            return
        try:
            done.append((item, do(item)))
        except LakeopsError as error:
            failures.append(CopyFailure(item.key if isinstance(item, StoredObject) else str(item), error))

    for _ in in_flight(attempt, items, _THREADS):
        pass
    return done, failures


def _is_there(source: ObjectStore, key: str) -> bool:
    try:
        source.head(key)
    except ObjectNotFound:
        return False
    return True


SHARE = 0.3
"""The share of all objects that may be deleted without a word."""

FLOOR = 100
"""How many objects may always be deleted: where there are few, a share says little."""


def exceeded(deleted: int, total: int) -> bool:
    """Whether deleting so many of all objects needs somebody's consent."""
    return deleted > max(FLOOR, SHARE * total)
