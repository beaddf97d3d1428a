"""Validation: of entries from outside, by the column, and of committed data in full.

``check_entries`` stands wherever entries come in: staging, engines' output, imports, and ranges that a mirror was
brought. ``put`` applies the same rules of ``model`` to its one object. Columns are searched without a loop over rows.
Then the rule itself judges the first row that was found, so the words are the same everywhere.

``verify`` checks everything that a reader takes on trust because the writer saw to it: entry digests are computed again
from the rows, paths must rise, ranges must end where the cutting rule says, and a metarange must describe its ranges as
they are. A flaw never stops the rest: what can still be looked at is. It runs in a thread or on a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import R
from lakeops.model import ids
from lakeops.model.arrow import RANGE_SCHEMA, first_true, from_numpy, in_one, no_rows, scalar, text, to_numpy
from lakeops.model.errors import Corrupted, FileMissing, InvalidInput, LakeopsError
from lakeops.model.names import MAX_PATH_BYTES, check_path
from lakeops.model.records import Split
from lakeops.model.sanitising import excerpt, one_line
from lakeops.ranges.chunker import cut_ends, path_hashes
from lakeops.ranges.diff import diff_batches
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.range_file import fetch_range, release_memory
from lakeops.ranges.read import RangeReader
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.open import split_address

_ADDRESS = pa.schema([RANGE_SCHEMA.field("physical_address")])
ABSOLUTE = r"^[a-z][a-z0-9+.-]*://"
"""The beginning of an address that lies outside the namespace, as a regular expression."""
MAX_ADDRESS_BYTES = 8192
"""A path of Linux takes 4,095 bytes, and up to three times as many where it is percent-encoded. Few do."""
_ENCODED = "%2[0-9A-Da-d]|%[3-6][0-9A-Fa-f]|%7[0-9A-Ea-e]"
_NAME = f"(?:[^%./]|{_ENCODED})(?:[^%/]|{_ENCODED})*"
_PLAIN_URL = rf"^(?:(?:s3|gs|az)://[A-Za-z0-9][A-Za-z0-9_-]{{1,253}}[A-Za-z0-9]/.|file:///(?:{_NAME}/)*{_NAME}$)"
"""URLs that are an object's without a closer look. What they encode is ASCII. Others need not be wrong."""
_PLAIN = np.array([bool(re.fullmatch(layout.PLAIN, chr(byte))) for byte in range(256)])
"""For each byte whether it stands for itself in a ``file://`` URL."""


def joined(root: str, keys: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The full URLs of keys below a location."""
    if root.startswith("file://") and not _need_no_escape(keys):
        keys = pa.chunked_array([[layout.quote_path(key) for key in keys.to_pylist()]], pa.string())
    return pc.binary_join_element_wise(text(root), keys, text("/"))


def _need_no_escape(keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether no key has a byte that is written otherwise in a URL: all bytes of a column are looked up at once."""
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        _, offsets, values = chunk.buffers()
        if len(chunk) and values is not None:
            bounds = np.frombuffer(offsets, np.int32)
            start, end = bounds[chunk.offset], bounds[chunk.offset + len(chunk)]
            if not _PLAIN[np.frombuffer(values, np.uint8)[start:end]].all():
                return False
    return True


def check_entries(table: pa.Table) -> None:
    """Raise ``InvalidPath`` or ``InvalidInput``, naming the path, for an entry that no object has.

    Addresses are as they are stored. Nulls may be in values of metadata alone.
    """
    paths, kinds, size, mtime = (table[name] for name in ("path", "content_type", "size_bytes", "mtime"))
    bad = _outside(pc.binary_length(paths), 1, MAX_PATH_BYTES)
    _judge(table, "path", pc.or_(bad, pc.match_substring(paths, "\0")), check_path, named=False)
    _judge(table, "checksum", _unprintable(table["checksum"], ids.MAX_CHECKSUM_BYTES), ids.check_checksum)
    _judge(table, "content_type", _unprintable(kinds, ids.MAX_CONTENT_TYPE_BYTES), ids.check_content_type)
    masks = [_bad_maps(chunk) for chunk in table["metadata"].chunks]
    _judge(table, "metadata", pa.chunked_array(masks, pa.bool_()), lambda pairs: ids.check_metadata(_as_map(pairs)))
    _judge(table, "size_bytes", _outside(size, 0, ids.MAX_OBJECT_BYTES), ids.check_size)
    _judge(table, "mtime", _outside(mtime, ids.EARLIEST, ids.LATEST), ids.check_mtime)
    check_addresses(table["physical_address"], paths)


def check_addresses(keys: pa.ChunkedArray, paths: pa.ChunkedArray) -> None:
    """Raise ``InvalidInput``, naming the path, for an address (as it is stored) that no object has."""
    bad = pc.or_(pc.invert(proper(keys)), _outside(pc.binary_length(keys), 0, MAX_ADDRESS_BYTES))
    row = first_true(bad)
    if row is not None:
        raise InvalidInput(
            f"{excerpt(paths[row].as_py())}: {excerpt(keys[row].as_py())} is not an object's address; give "
            f"data/... in this namespace, or a file://, s3://, gs:// or az:// URL, {MAX_ADDRESS_BYTES:,} bytes at most"
        )
    here = pc.starts_with(keys, layout.DATA)
    if pc.all(here, min_count=0).as_py():
        return
    plain = pc.or_(here, pc.match_substring_regex(keys, _PLAIN_URL))
    for row in np.flatnonzero(to_numpy(pc.invert(plain))).tolist():  # few: what a URL spells in a roundabout way
        try:
            split_address(keys[row].as_py())
        except InvalidInput as error:
            raise InvalidInput(f"{excerpt(paths[row].as_py())}: {error.message}") from None


def proper(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each address as it is stored, whether it may be one: managed here, or a whole URL of somewhere else."""
    here = pc.starts_with(keys, layout.DATA)
    # Most tables have addresses of one kind. Looking for what only the other kind may not have takes as long again.
    everywhere = pc.all(here, min_count=0).as_py()
    if not everywhere:
        outside = pc.and_not(
            pc.match_substring_regex(keys, r"^(file:///|(s3|gs|az)://[^/]+/)."),
            pc.match_substring_regex(keys, r"/\.\.(/|$)|\x00"),
        )
        if not pc.any(here).as_py():
            return outside
    managed = pc.invert(pc.match_substring_regex(keys, r"(^|/)\.{0,2}(/|$)|\x00"))
    return managed if everywhere else pc.if_else(here, managed, outside)


def relative(namespace: str, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Addresses with those inside the namespace relative to it, whatever they are."""
    root = namespace + "/"
    if namespace.startswith("file://") and pc.any(pc.match_substring(addresses, "%")).as_py():
        return pa.chunked_array([[layout.relative(namespace, one) for one in addresses.to_pylist()]], pa.string())
    inside = pc.starts_with(addresses, root)
    return pc.if_else(inside, pc.utf8_slice_codeunits(addresses, len(root)), addresses)


def _judge(
    table: pa.Table, column: str, bad: pa.ChunkedArray, check: Callable[..., object], *, named: bool = True
) -> None:
    """Raise the error of the rule that the first bad row breaks."""
    row = first_true(bad)
    if row is None:
        return
    value, path = table[column][row].as_py(), table["path"][row].as_py()
    try:
        check(value)
    except InvalidInput as error:
        if not named:
            raise
        raise type(error)(f"{excerpt(path)}: {error.message}") from None
    raise InvalidInput(f"{excerpt(path)}: {column} has a value that cannot be stored")


def _outside(values: pa.ChunkedArray, least: int, most: int) -> pa.ChunkedArray:
    return pc.or_(pc.less(values, scalar(least, values.type)), pc.greater(values, scalar(most, values.type)))


def _unprintable(texts: pa.ChunkedArray, at_most: int) -> pa.ChunkedArray:
    return pc.or_(_outside(pc.binary_length(texts), 1, at_most), pc.match_substring_regex(texts, r"[^ -~]"))


def _bad_maps(maps: pa.MapArray) -> pa.Array:
    """For each map whether it breaks a rule of user metadata: bounds, NUL, a null value, a key twice."""
    offsets = to_numpy(maps.offsets)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, values = maps.keys.slice(first, count), maps.items.slice(first, count)
    owners = np.repeat(np.arange(len(maps)), np.diff(offsets))
    bad = np.zeros(len(maps), np.bool_)
    if not count:
        return from_numpy(bad)
    sizes = (pc.binary_length(texts) for texts in (keys, values))
    key_sizes, value_sizes = (to_numpy(pc.fill_null(one, scalar(0, one.type))).astype(np.int64) for one in sizes)
    wrong = (key_sizes < 1) | (key_sizes > ids.MAX_KEY_BYTES) | _flags(values.is_null())
    wrong |= _flags(pc.match_substring(keys, "\0")) | _flags(pc.match_substring(values, "\0"))
    bad[owners[wrong]] = True
    bad |= np.bincount(owners, key_sizes + value_sizes, len(maps)) > ids.OBJECT_METADATA_BYTES
    coded = keys.dictionary_encode()
    codes = owners * len(coded.dictionary) + to_numpy(coded.indices)
    _, where, times = np.unique(codes, return_index=True, return_counts=True)
    bad[owners[where[times > 1]]] = True
    return from_numpy(bad)


def _flags(mask: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return to_numpy(pc.fill_null(mask, scalar(False, pa.bool_())))


def _as_map(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """One row's metadata. Raises ``InvalidInput`` for a key that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidInput(f"metadata: the key {excerpt(twice)} comes twice")
    return found


# --- committed data in full ---


@dataclass(frozen=True, slots=True)
class Flaw:
    """A finding of some kind, and what is wrong in words."""

    kind: str
    message: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """Ranges to verify, and the columns of their rows that the caller wants back.

    ``split`` is None when the repository's makes no sense, so that no cut can be judged.
    """

    rows: tuple[RangeRow, ...]
    split: Split | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """The flaws of a range, whether it ends at a cut, how many rows it has, and the wanted columns of the sound ones.

    Only the last range of a metarange may end elsewhere. ``table`` is None when there is nothing that is wanted.
    """

    flaws: tuple[Flaw, ...]
    closed: bool = True
    entries: int = 0
    table: pa.Table | None = None


def verify(task: VerifyTask, store: ObjectStore, *, keep: Callable[[pa.Array], R]) -> tuple[list[VerifiedRange], R]:
    """Verify the ranges of a task. Returns an answer for each, and what ``keep`` makes of the keys that they refer to.

    Raises nothing that is a range's own fault.
    """
    done, size_bytes, names = [], 0, [no_rows(_ADDRESS)]
    for row in task.rows:
        try:
            table = fetch_range(store, row, ordered=False).read()  # order is judged below
        except FileMissing:
            done.append(VerifiedRange((Flaw("range_missing", "the file is not there"),)))
        except Corrupted as error:
            why = f"the file is not what was written: {one_line(error)}"
            done.append(VerifiedRange((Flaw("range_damaged", why),)))
        except LakeopsError as error:
            done.append(VerifiedRange((Flaw("range_unreadable", f"the file cannot be read: {one_line(error)}"),)))
        else:
            keys = relative(store.url, table["physical_address"])
            sound = proper(keys)
            names.append(pa.table([keys.filter(pc.and_(sound, pc.starts_with(keys, layout.DATA)))], _ADDRESS))
            flaws = [*_summary(table, row), *_order(table["path"]), *_entries(table), *_digests(table)]
            ends = [table.num_rows]
            if task.split is not None:
                ends = cut_ends(path_hashes(table["path"]), task.split).tolist()
                if ends and ends[0] < table.num_rows:
                    where = f"it goes on after row {ends[0]:,}, where the cutting rule ends it"
                    flaws.append(Flaw("range_boundary", where))
            flaws += _addresses(table, keys, sound)
            wanted = table.filter(sound).select(list(task.columns)) if task.columns else None
            done.append(VerifiedRange(tuple(flaws), ends[-1:] == [table.num_rows], table.num_rows, wanted))
        release_memory(size_bytes, size_bytes + row.file_bytes)
        size_bytes += row.file_bytes
    return done, keep(pc.unique(in_one(pa.concat_tables(names)["physical_address"])))


def _addresses(table: pa.Table, keys: pa.ChunkedArray, sound: pa.ChunkedArray) -> Iterator[Flaw]:
    whole = pc.not_equal(keys, table["physical_address"])
    rules = (
        (pc.invert(sound), "address_invalid", "which no object can have"),
        (whole, "address_not_relative", "a URL into the namespace itself"),
    )
    for bad, kind, why in rules:
        if (at := first_true(bad)) is not None:
            path, address = (excerpt(table[name][at].as_py()) for name in ("path", "physical_address"))
            count = int(pc.sum(bad).as_py())
            yield Flaw(kind, f"{path} has the address {address}, {why}{_and_more(count)}", count)


def row_flaw(row: RangeRow) -> Flaw | None:
    """The flaw of a metarange's row by itself, the file unseen; None where it has none."""
    attempt = row.file.removeprefix(f"{row.id.hex()}-")
    if attempt == row.file or not re.fullmatch(r"[0-9A-Za-z._-]{1,128}\.parquet", attempt):
        return Flaw("metarange_row_invalid", f"{excerpt(row.file)} is not a file of range {row.id.hex()[:16]}")
    return None if row.flaw is None else Flaw("metarange_row_invalid", row.flaw)


def order_flaw(metarange: Metarange) -> Flaw | None:
    """The flaw of a metarange whose ranges are out of order or overlap, by what it tells of them."""
    disorder = Metarange(metarange.table).disorder
    return None if disorder is None else Flaw("metarange_order", disorder)


def list_flaw(reader: RangeReader, metarange: Metarange, since: Metarange) -> Flaw | None:
    """The flaw of a list of changes since another metarange that is not the difference between the ranges, or None.

    Raises ``Corrupted`` or ``FileMissing`` for a range that cannot be read.
    """
    delta = metarange.delta_since(since)
    if delta is None:
        return None
    try:
        sides = delta.rows
    except Corrupted as error:
        return Flaw("changes_mismatch", one_line(error))
    done = [0, 0]
    plain = [side.with_delta(None) for side in (since, metarange)]
    for batch in diff_batches(reader, *plain, columns=(RANGE_SCHEMA.names, RANGE_SCHEMA.names)):
        lone = (batch.left, batch.removed), (batch.right, batch.added)
        for number, ((side, rows), pairs) in enumerate(zip(lone, batch.pairs, strict=True)):
            found = side.table.take(from_numpy(np.sort(np.concatenate((rows, pairs)))))
            if not found.equals(sides[number].slice(done[number], found.num_rows)):
                return Flaw("changes_mismatch", "its list of changes differs from the changes since that metarange")
            done[number] += found.num_rows
    if done != [side.num_rows for side in sides]:
        return Flaw("changes_mismatch", "its list of changes holds more than the changes since that metarange")
    return None


def _summary(table: pa.Table, row: RangeRow) -> Iterator[Flaw]:
    if not table.num_rows:
        yield Flaw("range_summary_mismatch", "it is empty")
        return
    said = (row.first_path, row.last_path, row.count, row.size_bytes)
    paths = table["path"]
    held = (paths[0].as_py(), paths[-1].as_py(), table.num_rows, int(pc.sum(table["size_bytes"]).as_py()))
    names = ("first path", "last path", "count", "bytes")
    wrong = [name for name, one, other in zip(names, said, held, strict=True) if one != other]
    if wrong:
        yield Flaw("range_summary_mismatch", f"its metarange has a wrong {' and '.join(wrong)} for it")


def _order(paths: pa.ChunkedArray) -> Iterator[Flaw]:
    at = first_true(pc.greater_equal(paths[:-1], paths[1:])) if len(paths) > 1 else None
    if at is not None:
        yield Flaw("range_order", f"{excerpt(paths[at].as_py())} is followed by {excerpt(paths[at + 1].as_py())}")


def _entries(table: pa.Table) -> Iterator[Flaw]:
    size = pc.binary_length(table["path"])
    rules = (
        (pc.equal(size, scalar(0, size.type)), "has no path"),
        (pc.greater(size, scalar(MAX_PATH_BYTES, size.type)), f"has a path over {MAX_PATH_BYTES} bytes"),
        (pc.match_substring(table["path"], "\0"), "has NUL in its path"),
        (pc.less(table["size_bytes"], scalar(0, pa.int64())), "has a negative size"),
        (pc.equal(table["checksum"], text("")), "has no checksum"),
    )
    for bad, why in rules:
        if (at := first_true(bad)) is not None:
            count = int(pc.sum(bad).as_py())
            yield Flaw("entry_invalid", f"{excerpt(table['path'][at].as_py())} {why}{_and_more(count)}", count)


def _digests(table: pa.Table) -> Iterator[Flaw]:
    try:
        differ = pc.not_equal(entry_digests(table), in_one(table["digest"]))
    except InvalidInput as error:
        yield Flaw("entry_invalid", one_line(error))
        return
    if (at := first_true(differ)) is not None:
        count = int(pc.sum(differ).as_py())
        path = excerpt(table["path"][at].as_py())
        yield Flaw("entry_digest_mismatch", f"the row of {path} is not what its digest covers{_and_more(count)}", count)


def _and_more(count: int) -> str:
    return f", and {count - 1:,} more rows" if count > 1 else ""
