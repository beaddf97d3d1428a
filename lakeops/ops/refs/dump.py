"""Writing the dump of a repository's records: whole, or what came since the last time.

Only the catalog that owns the namespace writes there, so a copy of a catalog never replaces what the living one keeps.
Two that dump at once do not disturb each other: the manifest takes the place of the one that was read, or the call
begins again with what is there by now.

Uncommitted changes are in no dump. A row that was staged and is committed by now would cover, once restored, what was
committed later.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lakeops.catalog.backup import Write
from lakeops.catalog.records import Cut
from lakeops.catalog.rows import from_ticks
from lakeops.model.errors import LakeopsError, NotAMirror, PreconditionFailed, Transient
from lakeops.model.json_record import JsonRecord
from lakeops.ops.context import Context
from lakeops.ops.owner import check_owner
from lakeops.ops.refs import manifest
from lakeops.ops.refs.manifest import DumpFile, Manifest, key_of
from lakeops.store import layout

MOST_PARTS = 64
"""Files of one dump: the next one is whole."""
_SMALL = 1 << 20
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Dumped(JsonRecord):
    """The dump in a storage namespace.

    Attributes:
        at: when it was made, in Unix seconds.
        parts: how many files it has.
        records: how many records these hold.
        size_bytes: what they take.
        whole: whether this call wrote everything anew. None when there was nothing to add.
    """

    at: int
    parts: int
    records: int
    size_bytes: int
    whole: bool | None = None


@dataclass(frozen=True, slots=True)
class DumpStatus(JsonRecord):
    """What a restore would find.

    Attributes:
        dump: the dump. None when there is none that can be read.
        behind: whether something has changed since that it does not have.
        automatic: whether each change of a ref is added to it.
        restored_at: when the dump was made that this repository was restored from, while that is not settled.
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
    _check_no_mirror(ctx)
    with TemporaryDirectory(prefix="lakeops-refs-") as place:
        for _ in range(_TRIES):
            check_owner(ctx)
            done = _attempt(ctx, Path(place), full=full)
            if done is not None:
                return done
    raise Transient(f"the dump of {ctx.store.url} changed again and again; try again")


def status(ctx: Context) -> DumpStatus:
    """The dump of this repository, whether it has everything, and whether each change is added to it."""
    from lakeops.model.hooks import REFS_DUMP

    text = manifest.read_text(ctx.store, manifest.own(ctx.store))
    found = None if text is None else manifest.parse(text)
    behind = found is None
    if found is not None:
        behind = ctx.catalog.dump(ctx.repository_id, found.cut.since, lambda: _drop) is not None
    return DumpStatus(
        None if found is None else _dumped(found, None),
        behind,
        REFS_DUMP in ctx.catalog.repository(ctx.repository_id).hooks,
        ctx.catalog.restored_at(ctx.repository_id),
    )


def settle(ctx: Context) -> None:
    """Let a restored repository collect garbage: say that nothing is needed that the dump does not know."""
    ctx.catalog.settle_restored(ctx.repository_id)


def _check_no_mirror(ctx: Context) -> None:
    with suppress(NotAMirror):
        if ctx.catalog.mirror(ctx.repository_id).promoted_writable is None:
            raise PreconditionFailed(
                f"{ctx.repository_id!r} is a mirror: make a lost one anew of its source, with `lakeops mirror create`"
            )


def _attempt(ctx: Context, place: Path, *, full: bool) -> Dumped | None:
    """One try. None when somebody else replaced the manifest meanwhile."""
    folder = manifest.own(ctx.store)
    text = manifest.read_text(ctx.store, folder)
    before = None if text is None else manifest.parse(text)
    cut = ctx.catalog.cut(ctx.repository_id)
    name = f"{layout.attempt(from_ticks(cut.at), ctx.ids)}.jsonl.gz"
    with closing(_DumpWriter(place / name)) as file:
        since = None if full or before is None or _is_long(before) else before.cut.since
        whole = ctx.catalog.dump(ctx.repository_id, since, file.begin)
        if whole is None and before is not None:
            return _dumped(before, None)
        part = file.end()
        with file.path.open("rb") as data:
            ctx.store.put(key_of(folder, name), data, content_type="application/gzip")
    after = _next_manifest(ctx, before, cut, part, whole=bool(whole))
    check_owner(ctx)
    old = None if text is None else text.encode()
    if not ctx.store.swap(key_of(folder), after.to_text().encode(), expected=old):
        ctx.store.delete([key_of(folder, name)])
        return None
    if whole:
        _tidy(ctx, folder, before, after)
    return _dumped(after, whole)


def _next_manifest(ctx: Context, before: Manifest | None, cut: Cut, part: DumpFile, *, whole: bool) -> Manifest:
    if before is not None and not whole:
        return before.followed_by(cut, part)
    retired = () if before is None else tuple(one.file for one in before.parts)
    return Manifest(ctx.repository_id, ctx.store.url, cut, (part,), retired)


def _is_long(before: Manifest) -> bool:
    """Whether what came after the first part is so much that everything is written anew."""
    later = before.size_bytes - before.parts[0].size_bytes
    return len(before.parts) >= MOST_PARTS or later > max(_SMALL, before.parts[0].size_bytes)


def _tidy(ctx: Context, folder: str, before: Manifest | None, after: Manifest) -> None:
    """Remove what no manifest has named for long: what the last but one named, and what killed calls left.

    The files of the manifest that was just replaced stay. On a server that ignores conditions, a call that ran at the
    same time may have added to it.
    """
    named = {one.file for one in after.parts} | {*after.retired}
    grace = ctx.catalog.grace(ctx.repository_id).seconds
    old = f"{from_ticks(after.cut.at) - timedelta(seconds=grace):%Y%m%d%H%M%S}"
    gone = [name for name in (before.retired if before else ()) if name not in named]
    for item in ctx.store.list(folder):
        name = item.key.removeprefix(folder)
        if name.endswith(".jsonl.gz") and name not in named and name[:14] < old:
            gone.append(name)
    with suppress(LakeopsError):  # the next whole dump tries again
        ctx.store.delete(sorted({key_of(folder, name) for name in gone}))


def _dumped(found: Manifest, whole: bool | None) -> Dumped:
    count = sum(part.records for part in found.parts)
    return Dumped(found.cut.at // 1_000_000, len(found.parts), count, found.size_bytes, whole)


def _drop(_kind: str, _values: Mapping[str, Any]) -> None:
    """Take a record and keep nothing of it."""


class _DumpWriter:
    """A part that is being written to a local file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: gzip.GzipFile | None = None
        self._records = 0

    def begin(self) -> Write:
        """Begin, from the beginning whenever it is called again."""
        self.close()
        self._file, self._records = gzip.GzipFile(self.path, "wb", compresslevel=6, mtime=0), 0
        return self._write

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("begin() comes first")
        self._file.write(json.dumps([kind, dict(values)], separators=(",", ":")).encode() + b"\n")
        self._records += 1

    def end(self) -> DumpFile:
        """The finished part."""
        self.close()
        with self.path.open("rb") as data:
            digest = sha256()
            while piece := data.read(1 << 20):
                digest.update(piece)
        return DumpFile(self.path.name, digest.hexdigest(), self.path.stat().st_size, self._records)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
