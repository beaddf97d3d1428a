"""Replication for stores that have none of their own: copying the objects that one namespace has and another lacks.

Objects arrive whole, in any order, as with a bucket's replication: a mirror waits for those of its next head. A run
copies the difference of two listings, so a killed one is run again. Names that lakeops gives are never used again, so
the same name and size means the same object. An engine may write a file of its folder again under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from heapq import merge
from itertools import chain, groupby, islice, repeat

from lakeops.engine.base import Engine
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import (
    InvalidInput,
    NamespaceTaken,
    NotAllReplicated,
    NotFound,
    PreconditionFailed,
)
from lakeops.model.records import Progress, quiet
from lakeops.ops.context import Context
from lakeops.ops.deletion_limit import exceeded
from lakeops.ops.mirror.copying import Moved, copy_objects, copy_seconds, copy_tasks, delete_objects, gives_up
from lakeops.ops.mirror.source import Reach, SourceLake
from lakeops.ops.mirror.sync import following
from lakeops.ops.overlap import check_apart, is_same_claim, read_claim
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.copy import check_nobody_owns, known_at
from lakeops.store.layout import CLAIM, DATA, METADATA, METARANGES, RANGES
from lakeops.store.open import overlap
from lakeops.store.reader import read_small

MANAGED = (DATA, RANGES, METARANGES)
"""Folders that are replicated: objects first, so that ranges find them there when nothing is in a hurry."""

_LOOKED_AT = 5_000
"""Missing objects that the choice of the engine is made by. The listing goes on while these are copied."""


@dataclass(frozen=True, slots=True)
class Replicated(JsonRecord):
    """The result of a run: how many objects were copied, found and deleted.

    ``replaced`` of the ``copied`` were there otherwise. ``present`` were there already. ``vanished`` were
    deleted at the source before they could be copied. ``extra`` are at the destination alone, and ``deleted`` of these
    were deleted.
    """

    copied: int = 0
    copied_bytes: int = 0
    present: int = 0
    replaced: int = 0
    vanished: int = 0
    extra: int = 0
    deleted: int = 0


def replicate(
    source: ObjectStore,
    destination: ObjectStore,
    engine: Engine,
    *,
    delete: bool = False,
    force: bool = False,
    progress: Progress = quiet,
) -> Replicated:
    """Copy objects, ranges and metaranges that the destination lacks or has otherwise: see ``Lake.replicate``.

    Progress is told how many objects were copied, of how many found missing so far.
    """
    if overlap(source.url, destination.url):
        raise InvalidInput(f"{source.url} and {destination.url} overlap; copy to another place")
    known = known_at(source)
    check_nobody_owns(destination, known)
    _claim(source, destination)
    compared = _Comparison(source, destination, keep_extra=delete)
    lacking = compared.lacking()
    first = list(islice(lacking, _LOOKED_AT))
    tasks = copy_tasks(source, chain(first, lacking), known)
    results = engine.for_work(copy_seconds(first)).run(copy_objects, tasks, destination)
    moves = (moved for _, moved in results)
    copied = _sum_up(moves, destination.url, "copied", lambda done: progress("Copying", done, compared.missing))
    deleted = Moved()
    if delete:
        doomed = compared.extra_keys
        _check_doomed(compared, force=force)
        gone = delete_objects(source, destination, reversed(doomed), known)  # what names others first
        deleted = _sum_up(gone, destination.url, "deleted", lambda done: progress("Deleting", done, len(doomed)))
    return Replicated(
        copied=copied.objects,
        copied_bytes=copied.size_bytes,
        present=compared.present,
        replaced=compared.replaced,
        vanished=copied.vanished,
        extra=compared.extra,
        deleted=deleted.objects,
    )


def source_namespace(ctx: Context, reach: Reach, source: SourceLake | None = None) -> str:  # noqa: ARG001 - a verb
    """The storage namespace that must be replicated to the mirror's own. Asks the source."""
    with reach(source) as origin:
        return origin.repository.storage_namespace


def replicate_to_mirror(
    ctx: Context, reach: Reach, source: SourceLake | None = None, *, delete: bool = False, force: bool = False
) -> Replicated:
    """Copy what the source's storage namespace has and the mirror's lacks, for stores that do not replicate.

    Args:
        source: the source's lake.
        delete: afterwards remove what the source does not have.
        force: remove it even when it is a large share of what is there.

    Raises:
        NotAMirror: it was promoted to a writable repository, which no source may overwrite.
        StoreUnavailable: it shows commits and its namespace has no metadata: its disk is not mounted.
        LakeopsError: the errors of ``Lake.replicate``.
    """
    state, initial = following(ctx)
    # A mirror that shows something has had its metadata: where that is gone, its disk is not mounted.
    needs = METADATA if any(ref.promoted not in (None, initial.id) for ref in state.refs) else ""
    here = ctx.repository.storage_namespace
    with reach(source) as origin:
        check_apart(ctx.catalog, ctx.stores(), here, mirrors=True)
        stores = origin.lake.stores().at(origin.repository.storage_namespace), ctx.stores().at(here, needs=needs)
        return replicate(*stores, ctx.engine(), delete=delete, force=force, progress=ctx.progress)


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
        """The objects that have to be copied, in the order of the source's listings."""
        for prefix in MANAGED:
            listings = (_listed(store, prefix) for store in (self.source, self.destination))
            for there, here in _side_by_side(*listings):
                if there is None:
                    self.extra += 1
                    if self.keep_extra and here is not None:
                        self.extra_keys.append(here.key)
                elif here is not None and _is_copy(here, there):
                    self.present += 1
                else:
                    self.missing += 1
                    self.replaced += here is not None
                    yield there


def _is_copy(here: StoredObject, there: StoredObject) -> bool:
    """Whether the destination has the object. One in a folder is proved by its ETag, or by a copy that is newer."""
    proved = there.key.count("/") < 3 or here.etag == there.etag != "" or here.mtime > there.mtime
    return proved and here.size_bytes == there.size_bytes


def _sum_up(results: Iterable[Moved], place: str, verb: str, on_progress: Callable[[int], None]) -> Moved:
    """Sum up the results of all tasks.

    Raises ``NotAllReplicated`` when objects failed: at the end, or before it when so many did that the store must be at
    fault.
    """
    total, rest = Moved(), ""
    for moved in results:
        total = Moved(*(getattr(total, one.name) + getattr(moved, one.name) for one in fields(Moved)))
        on_progress(total.objects)
        if gives_up(total.failures):
            rest = ", and the rest was not tried"
            break
    failures = total.failures
    if failures:
        objects = "object was" if len(failures) == 1 else "objects were"
        raise NotAllReplicated(
            f"{place}: {len(failures):,} {objects} not {verb}{rest}, for instance {failures[0][0]!a}: "
            f"{failures[0][1].message}; {total.objects:,} were, and running it again goes on from there",
            failures,
            total.objects,
        )
    return total


def _check_doomed(compared: _Comparison, *, force: bool) -> None:
    """Refuse to delete another repository, or a large share without a word."""
    doomed, here = compared.extra_keys, compared.destination.url
    inner = next((key for key in doomed if key.endswith("/" + CLAIM)), None)
    if inner is not None:
        raise NamespaceTaken(
            f"{here} holds another repository, by {inner}; nothing was deleted. Copy to another place, or move that "
            "repository away"
        )
    total = len(doomed) + compared.present + compared.missing
    if not force and exceeded(len(doomed), total):
        raise PreconditionFailed(
            f"{len(doomed):,} of the {total:,} objects in {here} are not in {compared.source.url}; if that is right, "
            "delete them with --force. Nothing was deleted"
        )


def _claim(source: ObjectStore, destination: ObjectStore) -> None:
    """Take the destination for the source's repository, as a bucket's replication would, or find it taken."""
    claim = read_claim(source)
    if claim is None:
        raise NotFound(f"{source.url} is no repository's storage namespace: there is no {CLAIM}; correct the source")
    found = read_claim(destination)
    if found is None:
        destination.put(CLAIM, read_small(source, CLAIM), content_type="application/json")
    elif not is_same_claim(found, claim):
        raise NamespaceTaken(
            f"{destination.url} belongs to another repository than {source.url}; choose another destination"
        )


def _listed(store: ObjectStore, prefix: str) -> Iterator[StoredObject]:
    """List a folder in byte order, with several requests under way. Others write to it meanwhile."""
    for listing in store.scan(under=prefix, skip_special=True, moving=True):
        # A copy is made of what was listed and of nothing else. Remote stores tell it by the ETag.
        etags = listing.marks if store.remote else [""] * len(listing.keys)
        yield from map(StoredObject, listing.keys, listing.sizes, listing.mtimes, etags)


def _side_by_side(*listings: Iterable[StoredObject]) -> Iterator[tuple[StoredObject | None, StoredObject | None]]:
    """Two listings in byte order as one: each key once, with what either side has."""
    sides = (zip(repeat(number), listing) for number, listing in enumerate(listings))
    for _, same in groupby(merge(*sides, key=lambda one: one[1].key), key=lambda one: one[1].key):
        found = dict(same)
        yield found.get(0), found.get(1)
