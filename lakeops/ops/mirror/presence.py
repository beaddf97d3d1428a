"""Check that what a metarange needs is there: plan, tasks, answers. Nothing is written. Workers run the tasks.

What is known costs nothing: ranges of a complete metarange, ranges that were found before, and of ranges that were
looked at before only the objects that were missing. Every other file is read whole by its name, verified by its
digests, and compared with the complete metarange's ranges in its place. No cache answers whether something is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine
from lakeops.model.arrow import array, from_numpy, in_one
from lakeops.model.errors import Corrupted, FileMissing, InvalidInput, PreconditionFailed
from lakeops.model.mirrors import SAMPLE, Missing, Pending
from lakeops.ranges.diff import needed
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.range_file import RangeFile, fetch_range
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.ranges.validation import ABSOLUTE, check_entries
from lakeops.store.base import ObjectStore, StoredObject, StoreSettings
from lakeops.store.layout import is_absolute
from lakeops.store.listing import present
from lakeops.store.open import AddressPolicy, Stores

REMEMBERED = 1_000
"""Missing objects of one range that are worth remembering one by one; with more the range is looked at again."""

_MD5 = re.compile(r"[0-9a-f]{32}")

Awaited: TypeAlias = tuple[str, tuple[Missing, ...]]
"""A range file that is there, and objects of it to look for."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How objects are looked for, and how stores outside the namespace are reached.

    ``imported``: whether objects outside the namespace are looked for. ``etags``: whether plain ETags are MD5 here and
    at the source, so that they may be compared. ``policy``: what may lie outside, None for whatever can be named.
    """

    settings: StoreSettings
    imported: bool = True
    etags: bool = False
    policy: AddressPolicy | None = None


@dataclass(frozen=True, slots=True)
class PresenceTask:
    """Ranges to look for.

    ``rows``: ranges whose file and objects are looked for, and ``known`` ones of the complete metarange that overlap
    them; both ascend. ``files``: ranges whose objects are there, but this file of them is not known to be. ``pending``:
    range files that are there, and the objects that they lacked.
    """

    rows: tuple[RangeRow, ...]
    known: tuple[RangeRow, ...]
    files: tuple[RangeRow, ...]
    pending: tuple[Awaited, ...]
    options: CheckOptions


@dataclass(frozen=True, slots=True)
class RangePresence:
    """The presence of one range file and its objects.

    ``missing_objects`` and ``missing_bytes`` count the file itself too. ``missing`` are the objects among them, as far
    as they are worth remembering. ``mismatch``: an object that is there, but is not what the source recorded.
    ``damage``: how the file is not what the source wrote; ``refused``: why an entry may not be shown here. With either
    it counts as missing.
    """

    file: str
    arrived: bool
    missing: tuple[Missing, ...] = ()
    missing_objects: int = 0
    missing_bytes: int = 0
    mismatch: str | None = None
    damage: str | None = None
    refused: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the file and all its objects are there."""
        return self.arrived and not self.missing_objects and self.mismatch is None


@dataclass(frozen=True)
class PresencePlan:
    """A plan of what to look at before a metarange is known to be there. ``others`` are complete ranges beside it."""

    rows: Metarange
    others: Metarange
    files: tuple[RangeRow, ...]
    pending: tuple[Awaited, ...]

    @property
    def size(self) -> int:
        """How many ranges there are to look at."""
        return len(self.rows) + len(self.files) + len(self.pending)

    def tasks(self, group: int, options: CheckOptions) -> Iterator[PresenceTask]:
        """The tasks, with up to ``group`` ranges each."""
        for start in range(0, len(self.rows), group):
            some = tuple(self.rows.rows(start, min(start + group, len(self.rows))))
            low = self.others.find(some[0].first_path.encode())
            high = self.others.first_paths.first_at(some[-1].last_path.encode() + b"\0")
            yield PresenceTask(some, tuple(self.others.rows(low, max(low, high))), (), (), options)
        for start in range(0, max(len(self.files), len(self.pending)), group):
            stop = start + group
            yield PresenceTask((), (), self.files[start:stop], self.pending[start:stop], options)


def plan_presence(wanted: Metarange, known: Metarange, arrived: Pending) -> PresencePlan:
    """Plan what to look at before ``wanted`` is known to be there. Opens nothing.

    Every file and object of ``known`` is there. ``arrived`` has range files that were looked at before, and
    ``remember`` of what they lacked.
    """
    names = wanted.table.column("file")
    fresh = wanted.table.filter(pc.invert(pc.is_in(names, value_set=in_one(known.table.column("file")))))
    whole = [file for file, pending in arrived.items() if pending is None]
    fresh = fresh.filter(pc.invert(pc.is_in(fresh.column("file"), value_set=array(whole, pa.string()))))
    lacking = {file: pending for file, pending in arrived.items() if pending is not None}
    looked = pc.is_in(fresh.column("file"), value_set=array(list(lacking), pa.string()))
    pending = tuple(
        (file, tuple(Missing(*values) for values in json.loads(lacking[file])))
        for file in fresh.filter(looked).column("file").to_pylist()
    )
    fresh = fresh.filter(pc.invert(looked))
    ids = array([bytes.fromhex(file.partition("-")[0]) for file in whole], pa.binary(32))
    proved = pa.chunked_array([*known.table.column("id").chunks, ids], pa.binary(32))
    same = pc.is_in(fresh.column("id"), value_set=in_one(proved))
    rows, files = Metarange(fresh.filter(pc.invert(same))), Metarange(fresh.filter(same))
    others = Metarange(known.table.take(from_numpy(known.without(wanted))))
    return PresencePlan(rows, others, tuple(files.rows(0, len(files))), pending)


def check_presence(
    planned: PresencePlan, engine: Engine, store: ObjectStore, options: CheckOptions
) -> Iterator[RangePresence]:
    """The answer for each range of the plan, in any order, each once."""
    if not planned.size:
        return
    engine = engine.for_work(planned.size * RANGE_SECONDS)
    for _, found in engine.run(run_task, planned.tasks(engine.group(planned.size), options), store):
        yield from found


def run_task(task: PresenceTask, store: ObjectStore) -> list[RangePresence]:
    """Look for what one task asks for."""
    reader = RangeReader(store)
    proofs: list[RangePresence] = []
    awaited = [*task.pending]
    proved = {row.file for row in task.files}

    def read(row: RangeRow) -> RangePresence | Awaited:
        """Read a range. Returns the objects that it needs, or what is wrong with its file."""
        try:
            file = fetch_range(store, row, cached=False)
            table = file.read_carefully()
        except FileMissing:
            return absent(row)
        except Corrupted as error:
            return absent(row, damage=error.message)
        if row.file in proved:
            return row.file, ()
        try:
            check_rows(table, task.options.policy or AddressPolicy(store.url))
        except (InvalidInput, PreconditionFailed) as error:
            return absent(row, refused=error.message)
        except (Corrupted, pa.ArrowInvalid) as error:
            return absent(row, damage=f"{row.key}: {' '.join(str(error).split())}")
        return row.file, _needed_objects(reader, file, task.known)

    for found in reader.ahead(read, (*task.rows, *task.files)):
        if isinstance(found, RangePresence):
            proofs.append(found)
        else:
            awaited.append(found)
    there = _found(store, (one for _, objects in awaited for one in objects), task.options)
    return proofs + [_proof(file, objects, there, task.options) for file, objects in awaited]


def absent(row: RangeRow, *, damage: str | None = None, refused: str | None = None) -> RangePresence:
    """The answer for a range file that is not there, or counts as not there."""
    return RangePresence(
        row.file, arrived=False, missing_objects=1, missing_bytes=row.file_bytes, damage=damage, refused=refused
    )


def check_rows(table: pa.Table, policy: AddressPolicy) -> None:
    """Check the rows of a foreign range. Digests only prove that its rows are unchanged, not that they are valid.

    Raises ``InvalidInput``, ``PreconditionFailed`` (``address_refused``), ``pyarrow.ArrowInvalid``.
    """
    table.validate(full=True)
    check_entries(table)
    addresses = table.column("physical_address")
    outside = addresses.filter(pc.match_substring_regex(addresses, ABSOLUTE))
    policy.check_folders(pc.unique(pc.replace_substring_regex(outside, r"/[^/]*$", "")).to_pylist())


def remember(proofs: Iterable[RangePresence]) -> Pending:
    """The answers to remember for the next inspection, in the form that ``plan_presence`` reads."""
    return {
        proof.file: None if proof.complete else json.dumps([astuple(one) for one in proof.missing])
        for proof in proofs
        if proof.complete
        or (proof.arrived and proof.mismatch is None and 0 < proof.missing_objects == len(proof.missing))
    }


def _needed_objects(reader: RangeReader, file: RangeFile, known: tuple[RangeRow, ...]) -> tuple[Missing, ...]:
    """The objects that a loaded range needs and the known ranges do not have."""
    row, in_hand = file.row, _InHand(reader, file)
    beside = [one for one in known if one.first_path <= row.last_path and row.first_path <= one.last_path]
    wanted = Metarange.from_rows([row])
    try:
        answers = [*needed(in_hand, wanted, Metarange.from_rows(beside))]
    except (FileMissing, Corrupted):
        # What was complete once may have been deleted or damaged since: then nothing of it is taken for granted.
        answers = [*needed(in_hand, wanted, Metarange.empty())]
    names = ("physical_address", "path", "size_bytes", "checksum")
    rows = (zip(*(objects.column(name).to_pylist() for name in names), strict=True) for _, objects in answers)
    return tuple(Missing(*values) for some in rows for values in some)


class _InHand(RangeReader):
    """A reader that has one range in hand, read and verified, and opens the others as ``reader`` does."""

    def __init__(self, reader: RangeReader, file: RangeFile) -> None:
        super().__init__(reader.store)
        self._reader = reader
        self._file = file

    def open(self, row: RangeRow) -> RangeFile:
        return self._file if row.file == self._file.row.file else self._reader.open(row)


def _found(store: ObjectStore, objects: Iterable[Missing], options: CheckOptions) -> dict[str, StoredObject]:
    places: dict[str, tuple[ObjectStore, dict[str, str]]] = {}
    stores = Stores(options.settings)
    policy = options.policy or AddressPolicy(store.url)
    for one in objects:
        place, key = store, one.address
        if is_absolute(one.address):
            if not options.imported:
                continue
            place, key = stores.locate(policy, one.address)
        places.setdefault(place.url, (place, {}))[1][key] = one.address
    return {keys[key]: item for place, keys in places.values() for key, item in present(place, keys).items()}


def _proof(
    file: str, objects: tuple[Missing, ...], found: Mapping[str, StoredObject], options: CheckOptions
) -> RangePresence:
    missing: list[Missing] = []
    mismatch: str | None = None
    for one in objects:
        item = found.get(one.address)
        if item is not None:
            mismatch = mismatch or _mismatch(one, item, options)
        elif options.imported or not is_absolute(one.address):
            missing.append(one)
    return RangePresence(
        file,
        arrived=True,
        missing=tuple(missing if len(missing) <= REMEMBERED else missing[:SAMPLE]),
        missing_objects=len(missing),
        missing_bytes=int(np.sum([one.size_bytes for one in missing], dtype=np.int64)),
        mismatch=mismatch,
    )


def _mismatch(one: Missing, item: StoredObject, options: CheckOptions) -> str | None:
    """How an object that is there differs from what the source recorded, if it does."""
    if item.size_bytes != one.size_bytes:
        return f"{one.path!r} ({one.address}) has {item.size_bytes:,} bytes and the source recorded {one.size_bytes:,}"
    if options.etags and item.etag != one.checksum and _MD5.fullmatch(item.etag) and _MD5.fullmatch(one.checksum):
        return f"{one.path!r} ({one.address}) has the ETag {item.etag} and the source recorded {one.checksum}"
    return None
