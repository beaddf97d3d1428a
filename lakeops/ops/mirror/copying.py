"""Copying objects as plain tasks, in threads of this process or on a cluster; and deleting them.

A task brings the store that it copies from, and is given the one that it copies to. An object that fails is reported,
and the rest goes on. A task gives up only when a store refuses again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from lakeops.model.errors import LakeopsError, ObjectNotFound, StoreError, StoreUnavailable
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.copy import Known, check_nobody_owns, copy_object
from lakeops.store.in_flight import in_flight
from lakeops.store.layout import CLAIM
from lakeops.store.listing import look_up

GIVE_UP = 20
"""Refusals of a store, in one task or one run, after which nothing more is tried."""

MOST_OBJECTS = 200
MOST_BYTES = 256 * 1024 * 1024
"""Objects and bytes of one task at most. One object may be larger."""

_BATCH = 1000
_THREADS = 8
_OBJECT_SECONDS = 0.02
_BYTES_PER_SECOND = 50e6

Item = TypeVar("Item")


Failure = tuple[str, LakeopsError]
"""The key of an object that was not copied or not deleted, and why."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Objects to copy from ``source``, as they were listed there. ``known`` owner records there mean nothing."""

    source: ObjectStore
    items: tuple[StoredObject, ...]
    known: Known = frozenset()


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a task: objects and bytes copied or deleted, how many the source had no longer, and failures."""

    objects: int = 0
    size_bytes: int = 0
    vanished: int = 0
    failures: tuple[Failure, ...] = ()


def copy_objects(task: CopyTask, destination: ObjectStore) -> Moved:
    """Copy a task's objects, several at a time.

    Raises ``PreconditionFailed`` (``not_the_owner``) once a catalog writes to the destination.
    """
    check_nobody_owns(destination, task.known)

    def copy(item: StoredObject) -> bool:
        try:
            copy_object(task.source, destination, item)
        except ObjectNotFound:
            if look_up(task.source, item.key) is not None:
                raise
            task.source.head(CLAIM)  # else the source itself is gone, or not mounted where this runs
            return False
        return True

    copied, failures = _do_each(copy, task.items)
    done = [item for item, was_there in copied if was_there]
    size = sum(item.size_bytes for item in done)
    return Moved(len(done), size, len(copied) - len(done), tuple(failures))


def delete_objects(
    source: ObjectStore, destination: ObjectStore, keys: Iterable[str], known: Known = frozenset()
) -> Iterator[Moved]:
    """Delete objects that the source lacks, a batch at a time, having asked for each key once more.

    Raises ``PreconditionFailed`` (``not_the_owner``), and ``ObjectNotFound`` when the source itself is gone.
    """
    remaining = iter(keys)
    while some := tuple(islice(remaining, _BATCH)):
        asked, failures = _do_each(lambda key: look_up(source, key) is not None, some)
        doomed = [key for key, is_there in asked if not is_there]
        source.head(CLAIM)  # else the source itself is gone, or not mounted any more
        check_nobody_owns(destination, known)
        refused = destination.delete(doomed) if doomed else []
        failures += [(one.key, StoreError(f"could not be deleted: {one.reason}")) for one in refused]
        yield Moved(len(doomed) - len(refused), failures=tuple(failures))


def copy_tasks(source: ObjectStore, items: Iterable[StoredObject], known: Known = frozenset()) -> Iterator[CopyTask]:
    """Objects divided into tasks of a moderate size, in order."""
    held, size = list[StoredObject](), 0
    for item in items:
        if held and (len(held) >= MOST_OBJECTS or size + item.size_bytes > MOST_BYTES):
            yield CopyTask(source, tuple(held), known)
            held, size = [], 0
        held.append(item)
        size += item.size_bytes
    if held:
        yield CopyTask(source, tuple(held), known)


def gives_up(failures: Sequence[Failure]) -> bool:
    """Whether to give up: the store itself refused too often, and not just single objects failed."""
    refused = [isinstance(one, StoreError | StoreUnavailable) or one.kind == "unsupported" for _, one in failures]
    return sum(refused) >= GIVE_UP


def copy_seconds(items: Sequence[StoredObject]) -> float:
    """The time that one core takes for copying these objects."""
    return len(items) * _OBJECT_SECONDS + sum(item.size_bytes for item in items) / _BYTES_PER_SECOND


def _do_each(do: Callable[[Item], bool], items: Sequence[Item]) -> tuple[list[tuple[Item, bool]], list[Failure]]:
    """Call ``do`` for each item. Returns results and failures. After ``GIVE_UP`` refusals the rest is left out."""
    done: list[tuple[Item, bool]] = []
    failures: list[Failure] = []

    def attempt(item: Item) -> None:
        if len(failures) >= GIVE_UP and gives_up(failures):
            return
        try:
            done.append((item, do(item)))
        except LakeopsError as error:
            failures.append((item.key if isinstance(item, StoredObject) else str(item), error))

    for _ in in_flight(attempt, items, _THREADS):
        pass
    return done, failures
