"""Copying what a storage namespace has and another one lacks: replication for stores that have none of their own.

It keeps what a bucket's replication keeps and no more: objects arrive whole, in any order, and what the source wrote
arrives at some time. So a mirror needs nothing else to be told: it waits for what its next head needs.

What is to be done is the difference of two listings, so a run that was killed is simply run again, and never copies
what is there with the right size. Written files have names that are never used again, so the same name and size means
the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from lakeops.engine.base import Engine
from lakeops.model.errors import (
    InvalidInput,
    NamespaceTaken,
    NotAllReplicated,
    NotFound,
    ObjectNotFound,
    PreconditionFailed,
)
from lakeops.model.progress import Progress, quiet
from lakeops.model.records import JsonRecord
from lakeops.ops.copying import (
    Moved,
    copy_objects,
    copy_tasks,
    delete_objects,
    delete_tasks,
    exceeded,
    gives_up,
    worth_in_ranges,
)
from lakeops.ops.overlap import check_apart
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.copy import Known, check_nobody_owns, known_at
from lakeops.store.layout import CLAIM, DATA, METARANGES, RANGES
from lakeops.store.open import Stores, overlap
from lakeops.store.reader import parse_json, read_small

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog

MANAGED = (DATA, RANGES, METARANGES)
"""What is replicated: objects first, so that what names them finds them there when nothing is in a hurry."""

_LOOKED_AT = 5_000
"""Missing objects that the choice of the engine is made by. The listing goes on while these are copied."""

Task = TypeVar("Task")


@dataclass(frozen=True, slots=True)
class Replicated(JsonRecord):
    """What a run did.

    Attributes:
        copied: objects that were copied, those with a wrong size included.
        copied_bytes: their size.
        present: objects that were there already.
        replaced: how many of the copied were there with another size.
        vanished: objects that the source deleted before they could be copied.
        extra: objects at the destination that the source does not have.
        deleted: how many of these were deleted.
    """

    copied: int = 0
    copied_bytes: int = 0
    present: int = 0
    replaced: int = 0
    vanished: int = 0
    extra: int = 0
    deleted: int = 0


class How(TypedDict, total=False):
    """Options of ``replicate``."""

    delete: bool
    force: bool
    progress: Progress


def replicate(
    source: ObjectStore,
    destination: ObjectStore,
    engine: Engine,
    *,
    delete: bool = False,
    force: bool = False,
    progress: Progress = quiet,
) -> Replicated:
    """Copy objects, ranges and metaranges that the destination lacks or has with another size.

    Args:
        source: a repository's storage namespace; only read.
        destination: where the mirror's objects go.
        engine: where the copying runs. It may choose by the amount.
        delete: afterwards remove what the source does not have. Only below the prefixes that are replicated.
        force: remove even a large share of what is there.
        progress: told how many objects were copied, of how many found missing so far.

    Raises:
        InvalidInput: the two places overlap.
        NotFound: the source is no repository's storage namespace.
        NamespaceTaken: the destination is another repository's.
        PreconditionFailed: ``not_the_owner``: a catalog writes to the destination: it was opened for writing, before
            or meanwhile.
        PreconditionFailed: ``delete`` would take a large share. Nothing was deleted.
        NotAllReplicated: some objects could not be copied or deleted. The others were. Run it again.
    """
    if overlap(source.url, destination.url):
        raise InvalidInput(f"{source.url} and {destination.url} overlap; copy to another place")
    known = known_at(source)
    check_nobody_owns(destination, known)
    _claim(source, destination)
    walk = _Comparison(source, destination, keep_extra=delete)
    run = _Run(engine, destination, progress, walk, known)
    run.copy(source)
    if delete:
        run.delete(source, force=force)
    return run.result()


def replicate_to(
    catalog: Catalog, stores: Stores, destination: str, source: ObjectStore, engine: Engine, **how: Unpack[How]
) -> Replicated:
    """``replicate`` to a storage namespace that no other repository of this lake or of another one may have.

    A mirror of this catalog may have it. Raises what ``replicate`` raises, ``NamespaceTaken`` for such a place too.
    """
    check_apart(catalog, stores, destination, mirrors=True)
    return replicate(source, stores.at(destination), engine, **how)


@dataclass
class _Comparison:
    """The difference of two listings, found while it is taken."""

    source: ObjectStore
    destination: ObjectStore
    keep_extra: bool
    present: int = 0
    missing: int = 0
    replaced: int = 0
    extra: int = 0
    extra_keys: list[str] = field(default_factory=list)

    def lacking(self) -> Iterator[StoredObject]:
        """What has to be copied, in the order of the source's listings."""
        for prefix in MANAGED:
            listings = (_listed(store, prefix) for store in (self.source, self.destination))
            for there, here in _side_by_side(*listings):
                if there is None:
                    self.extra += 1
                    if self.keep_extra and here is not None:
                        self.extra_keys.append(here.key)
                elif here is not None and here.size_bytes == there.size_bytes:
                    self.present += 1
                else:
                    self.missing += 1
                    self.replaced += here is not None
                    yield there


class _Run:
    """One run and its tally."""

    def __init__(
        self, engine: Engine, destination: ObjectStore, progress: Progress, walk: _Comparison, known: Known
    ) -> None:
        self._engine = engine
        self._destination = destination
        self._progress = progress
        self._walk = walk
        self._known = known
        self._copied = Moved(0)
        self._deleted = Moved(0)

    def copy(self, source: ObjectStore) -> None:
        """Copy what is lacking."""
        lacking = self._walk.lacking()
        first = list(islice(lacking, _LOOKED_AT))
        engine = self._engine.for_work(worth_in_ranges(first))
        tasks = copy_tasks(source, chain(first, lacking), self._known)
        for moved in self._moves(engine, copy_objects, tasks):
            self._copied = _added(self._copied, moved)
            self._progress("Copying", self._copied.objects, self._walk.missing)
            self._stop_at(self._copied, "copied", final=False)
        self._stop_at(self._copied, "copied", final=True)

    def delete(self, source: ObjectStore, *, force: bool) -> None:
        """Delete what the source does not have: what names others first."""
        doomed = self._walk.extra_keys
        inner = next((key for key in doomed if key.endswith("/" + CLAIM)), None)
        if inner is not None:
            raise NamespaceTaken(
                f"{self._destination.url} holds another repository, by {inner}; nothing was deleted. Copy to another "
                "place, or move that repository away"
            )
        total = len(doomed) + self._walk.present + self._walk.missing
        if not force and exceeded(len(doomed), total):
            raise PreconditionFailed(
                f"{len(doomed):,} of the {total:,} objects in {self._destination.url} are not in "
                f"{source.url}; if that is right, delete them with --force. Nothing was deleted"
            )
        tasks = delete_tasks(source, reversed(doomed), self._known)
        for moved in self._moves(self._engine.for_work(1), delete_objects, tasks):
            self._deleted = _added(self._deleted, moved)
            self._progress("Deleting", self._deleted.objects, len(doomed))
            self._stop_at(self._deleted, "deleted", final=False)
        self._stop_at(self._deleted, "deleted", final=True)

    def result(self) -> Replicated:
        """What was done so far."""
        return Replicated(
            copied=self._copied.objects,
            copied_bytes=self._copied.size_bytes,
            present=self._walk.present,
            replaced=self._walk.replaced,
            vanished=self._copied.vanished,
            extra=self._walk.extra,
            deleted=self._deleted.objects,
        )

    def _moves(
        self, engine: Engine, work: Callable[[Task, ObjectStore], Moved], tasks: Iterable[Task]
    ) -> Iterator[Moved]:
        """Each task's result, once."""
        seen: set[int] = set()
        for moved in engine.run(work, tasks, self._destination):
            if moved.index not in seen:
                seen.add(moved.index)
                yield moved

    def _stop_at(self, moved: Moved, verb: str, *, final: bool) -> None:
        """Raise when objects failed: at the end, or before it when so many did that the store must be at fault."""
        failures = moved.failures
        if not failures or not (final or gives_up(failures)):
            return
        objects = "object was" if len(failures) == 1 else "objects were"
        rest = "" if final else ", and the rest was not tried"
        raise NotAllReplicated(
            f"{self._destination.url}: {len(failures):,} {objects} not {verb}{rest}, for instance {failures[0].key!a}: "
            f"{failures[0].error.message}; {moved.objects:,} were, and running it again goes on from there",
            [(one.key, one.error) for one in failures],
            moved.objects,
        )


def _claim(source: ObjectStore, destination: ObjectStore) -> None:
    """Take the destination for the source's repository, as a bucket's replication would, or find it taken."""
    claim = _read(source)
    if claim is None:
        raise NotFound(f"{source.url} is no repository's storage namespace: there is no {CLAIM}; correct the source")
    found = _read(destination)
    if found is None:
        destination.put(CLAIM, claim, content_type="application/json")
    elif _decode_claim(found) != _decode_claim(claim):
        raise NamespaceTaken(
            f"{destination.url} belongs to another repository than {source.url}; choose another destination"
        )


def _read(store: ObjectStore) -> bytes | None:
    try:
        return read_small(store, CLAIM)
    except ObjectNotFound:
        return None


def _decode_claim(claim: bytes) -> object:
    try:
        return parse_json(claim)
    except ValueError:
        return claim


def _listed(store: ObjectStore, prefix: str) -> Iterator[StoredObject]:
    """What is in a folder, in byte order, with several requests under way. Others write to it meanwhile."""
    for listing in store.scan(under=prefix, skip_special=True, moving=True):
        # A copy is made of what was listed and of nothing else. Remote stores tell it by the ETag.
        etags = listing.marks if store.remote else [""] * len(listing.keys)
        yield from map(StoredObject, listing.keys, listing.sizes, listing.mtimes, etags)


def _side_by_side(
    source: Iterable[StoredObject], destination: Iterable[StoredObject]
) -> Iterator[tuple[StoredObject | None, StoredObject | None]]:
    """Two listings in byte order as one: each key once, with what either side has."""
    left, right = iter(source), iter(destination)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        first = one.key.encode() if one is not None else None
        second = other.key.encode() if other is not None else None
        if second is None or (first is not None and first < second):
            yield one, None
            one = next(left, None)
        elif first is None or second < first:
            yield None, other
            other = next(right, None)
        else:
            yield one, other
            one, other = next(left, None), next(right, None)


def _added(one: Moved, other: Moved) -> Moved:
    return Moved(
        0,
        one.objects + other.objects,
        one.size_bytes + other.size_bytes,
        one.vanished + other.vanished,
        one.failures + other.failures,
    )
