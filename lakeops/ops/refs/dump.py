"""Writing the dump of a repository's records: whole, or what came since the last time.

Only the catalog that owns the namespace writes there. Of two calls at once the second begins again with what is there
by then. Uncommitted changes are in no dump: a row that was committed since would cover, once restored, what was
committed later.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lakeops.catalog.backups import Cut, Since, Write
from lakeops.catalog.records import from_epoch_micros
from lakeops.model.clock import retry
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import LakeopsError, PreconditionFailed, Transient
from lakeops.model.ids import LATEST
from lakeops.model.protection import REFS_DUMP
from lakeops.ops.context import Context
from lakeops.ops.owner import check_owner
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.layout import REFS, dump_folder
from lakeops.store.reader import parse_json, read_text

FORMAT = 1
MAX_BYTES = 4 << 20
_PART = re.compile(r"\d{14}[0-9a-v]{20}\.jsonl\.gz")
_DIGEST = re.compile(r"[0-9a-f]{64}")
MANIFEST = "manifest.json"
_MOST = 1 << 63
_LATEST = LATEST * 1_000_000


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file of records: gzip, one JSON document a line, with the digest of its bytes and how many lines it has."""

    file: str
    sha256: str
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a dump, the whole one first.

    ``cut`` says when it was made, and up to which numbers of its catalog it is whole. ``retired`` files are of the dump
    before. The next whole one removes them.
    """

    repository: str
    namespace: str
    cut: Cut
    parts: tuple[DumpFile, ...]
    retired: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The manifest as it is written, with its own digest."""
        values = {"format": FORMAT, **asdict(self)}
        return json.dumps({**values, "digest": _digest_of(values)}, sort_keys=True)


def parse(text: str) -> Manifest | None:
    """The manifest that a text holds. None when it is none, or not as it was written."""
    try:
        values = parse_json(text)
        if values["format"] != FORMAT or values.pop("digest") != _digest_of(values):
            return None
        cut, since = values["cut"], values["cut"]["since"]
        numbers = (cut["at"], since["moves"], since["records"], since["digest"])
        parts = tuple(_part(one) for one in values["parts"])
        retired = tuple(values["retired"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    texts = (values["repository"], values["namespace"], *retired)
    fine = all(type(number) is int and 0 <= number < _MOST for number in numbers) and cut["at"] <= _LATEST
    fine = fine and all(type(one) is str for one in texts)
    if not fine or not parts or not all(_PART.fullmatch(name) for name in (*retired, *(one.file for one in parts))):
        return None
    return Manifest(texts[0], texts[1], Cut(numbers[0], Since(*numbers[1:])), parts, retired)


def folders(store: ObjectStore) -> list[str]:
    """The folders of all dumps in a namespace: its own, and those that replication brought along."""
    keys = (item.key.removeprefix(REFS) for item in store.list(REFS))
    return sorted({f"{REFS}{key.partition('/')[0]}/" for key in keys if key.endswith("/" + MANIFEST)})


def _part(values: Mapping[str, Any]) -> DumpFile:
    part = DumpFile(values["file"], values["sha256"], values["size_bytes"], values["records"])
    if not _DIGEST.fullmatch(part.sha256) or type(part.size_bytes) is not int or type(part.records) is not int:
        raise ValueError("no part")
    return part


def _digest_of(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


MOST_PARTS = 64
"""Files of one dump: the next one is whole."""
_SMALL = 1 << 20
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Dumped(JsonRecord):
    """The dump in a storage namespace: when it was made (Unix seconds), its files, records and bytes.

    ``whole`` says whether this call wrote everything anew. None when there was nothing to add.
    """

    at: int
    parts: int
    records: int
    size_bytes: int
    whole: bool | None = None


@dataclass(frozen=True, slots=True)
class DumpStatus(JsonRecord):
    """The state of a dump. ``dump`` is None when there is none that can be read.

    ``behind``: something has changed since. ``automatic``: each change of a ref is added. ``restored_at``: when the
    dump was made that this repository was restored from, until it is accepted.
    """

    dump: Dumped | None
    behind: bool
    automatic: bool
    restored_at: int | None


def dump(ctx: Context, *, full: bool = False) -> Dumped:
    """Write the records of the repository into its storage namespace, or those that came since the last dump.

    A dump has commits, branches, tags, protections, hooks, passed checks, retention rules, what mirrors need, the
    reflog and the audit. It has neither uncommitted changes nor idempotency keys.

    Args:
        full: write everything anew.

    Raises:
        PreconditionFailed: ``not_the_owner``: another catalog may write in the storage namespace.
        PreconditionFailed: the repository is a mirror.
        StoreError: the store refused.
    """
    mirror = ctx.catalog.mirrors.find(ctx.repository_id)
    if mirror is not None and mirror.promoted_writable is None:
        raise PreconditionFailed(
            f"{ctx.repository_id!r} is a mirror: make a lost one anew of its source, with `lakeops mirror create`"
        )
    folder = dump_folder(ctx.store.url)
    with TemporaryDirectory(prefix="lakeops-refs-") as place:
        return retry(
            lambda: _attempt(ctx, folder, Path(place), full=full),
            _TRIES,
            lambda: Transient(f"the dump of {ctx.store.url} changed again and again; try again"),
        )


def _attempt(ctx: Context, folder: str, place: Path, *, full: bool) -> Dumped | None:
    """Try once. None when somebody else replaced the manifest meanwhile."""
    check_owner(ctx)
    text = read_text(ctx.store, folder + MANIFEST, MAX_BYTES)
    before = None if text is None else parse(text)
    cut = ctx.catalog.backups.cut(ctx.repository_id)
    name = f"{layout.attempt(from_epoch_micros(cut.at), ctx.ids)}.jsonl.gz"
    with closing(_DumpWriter(place / name)) as file:
        since = None
        if before is not None and not full:
            first, *later = (part.size_bytes for part in before.parts)
            if len(before.parts) < MOST_PARTS and sum(later) <= max(_SMALL, first):  # else everything is written anew
                since = before.cut.since
        whole = ctx.catalog.backups.dump(ctx.repository_id, since, file.begin)
        if whole is None and before is not None:
            return _dumped(before, None)
        part = file.end()
        with file.path.open("rb") as data:
            ctx.store.put(folder + name, data, content_type="application/gzip")
    if before is not None and not whole:
        after = replace(before, cut=cut, parts=(*before.parts, part))
    else:
        retired = () if before is None else tuple(one.file for one in before.parts)
        after = Manifest(ctx.repository_id, ctx.store.url, cut, (part,), retired)
    check_owner(ctx)
    old = None if text is None else text.encode()
    if not ctx.store.swap(folder + MANIFEST, after.to_text().encode(), expected=old):
        return None  # the part stays: a manifest may have named it, and who read that names it too
    if whole:
        _tidy(ctx, folder, before, after)
    return _dumped(after, whole)


def status(ctx: Context) -> DumpStatus:
    """The dump of this repository, whether it has everything, and whether each change is added to it."""
    text = read_text(ctx.store, dump_folder(ctx.store.url) + MANIFEST, MAX_BYTES)
    found = None if text is None else parse(text)
    behind = True
    if found is not None:  # a write that keeps nothing
        whole = ctx.catalog.backups.dump(ctx.repository_id, found.cut.since, lambda: lambda _kind, _values: None)
        behind = whole is not None
    return DumpStatus(
        None if found is None else _dumped(found, None),
        behind,
        REFS_DUMP in ctx.catalog.repositories.get(ctx.repository_id).hooks,
        ctx.catalog.backups.restored_at(ctx.repository_id),
    )


def accept(ctx: Context) -> None:
    """Let a restored repository collect garbage, since the caller says that the dump knows everything needed."""
    ctx.catalog.backups.accept_restored(ctx.repository_id)


def _tidy(ctx: Context, folder: str, before: Manifest | None, after: Manifest) -> None:
    """Remove what the last but one manifest named, and old files that no manifest names.

    The files of the manifest that was just replaced stay. On a server that ignores conditions, a call that ran at the
    same time may have added to it.
    """
    named = {one.file for one in after.parts} | {*after.retired}
    grace = ctx.catalog.retention.grace(ctx.repository_id).seconds
    old = f"{from_epoch_micros(after.cut.at) - timedelta(seconds=grace):%Y%m%d%H%M%S}"
    gone = [name for name in (before.retired if before else ()) if name not in named]
    for item in ctx.store.list(folder):
        name = item.key.removeprefix(folder)
        if name.endswith(".jsonl.gz") and name not in named and name[:14] < old:
            gone.append(name)
    with suppress(LakeopsError):  # the next whole dump tries again
        ctx.store.delete(sorted({folder + name for name in gone}))


def _dumped(found: Manifest, whole: bool | None) -> Dumped:
    records, size_bytes = (sum(getattr(part, name) for part in found.parts) for name in ("records", "size_bytes"))
    return Dumped(found.cut.at // 1_000_000, len(found.parts), records, size_bytes, whole)


class _DumpWriter:
    """Writes a part to a local file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: gzip.GzipFile | None = None
        self._records = 0

    def begin(self) -> Write:
        """Begin, from the beginning whenever it is called again."""
        self.close()
        file = self._file = gzip.GzipFile(self.path, "wb", compresslevel=6, mtime=0)
        self._records = 0

        def write(kind: str, values: Mapping[str, Any]) -> None:
            file.write(json.dumps([kind, dict(values)], separators=(",", ":")).encode() + b"\n")
            self._records += 1

        return write

    def end(self) -> DumpFile:
        self.close()
        with self.path.open("rb") as data:
            digest = file_digest(data, "sha256").hexdigest()
        return DumpFile(self.path.name, digest, self.path.stat().st_size, self._records)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
