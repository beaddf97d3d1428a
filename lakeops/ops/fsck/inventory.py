"""The files of a storage namespace that nothing needs, and whether the namespace is this repository's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import LakeopsError
from lakeops.model.records import RepositoryRecord
from lakeops.model.sanitising import excerpt, one_line, safe
from lakeops.ops.context import Context
from lakeops.ops.fsck.findings import Finding, found
from lakeops.ops.gc.unreferenced import KINDS, FileCount
from lakeops.ops.overlap import claim_of, is_same_claim, read_claim
from lakeops.ops.owner import find_owner
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.layout import CLAIM, owner_key

_LEFTOVERS = {
    "unreferenced_objects": layout.OBJECT_NAME,
    "unreferenced_ranges": KINDS["range"],
    "unreferenced_metaranges": KINDS["metarange"],
    "unreferenced_tasks": f"{KINDS['task']}|{KINDS['probe']}",
}
"""What the keys look like of files that garbage collection takes, by finding."""
_PLACES = (layout.DATA, layout.RANGES, layout.METARANGES, layout.TASKS, layout.PROBE)
OWN = (layout.CLAIM, layout.OWNER, layout.REFS, layout.GC)
"""What a namespace holds beside what commits need."""
_STRAY = "stray_files"


def leftovers(tables: Iterable[pa.Table], overdue: datetime) -> Iterator[Finding]:
    """Count the files that nothing needs: tables of ``LISTED_SCHEMA``. Those written since ``overdue`` are new."""
    sums, young = {kind: FileCount() for kind in (*_LEFTOVERS, _STRAY)}, Counter[str]()
    for table in tables:
        rest = table
        for kind, pattern in _LEFTOVERS.items():
            of_kind = pc.match_substring_regex(rest["physical_address"], pattern)
            files, rest = rest.filter(of_kind), rest.filter(pc.invert(of_kind))
            sums[kind].add(files)
            young[kind] += pc.sum(pc.greater_equal(files["mtime"], unix_seconds(overdue))).as_py() or 0
        sums[_STRAY].add(rest)
    for kind, each in sums.items():
        if not each.count:
            continue
        example = each.sample[0]
        files = "1 file" if each.count == 1 else f"{each.count:,} files"
        why = "that no repository wrote" if kind == _STRAY else "that no live version needs"
        message = f"{files} ({each.size_bytes:,} bytes) {why}, for example {excerpt(example)}"
        if young[kind]:
            message += f"; {young[kind]:,} of them are so new that an operation under way may need them"
        places = () if kind == _STRAY else _PLACES
        place = next((prefix for prefix in places if example.startswith(prefix)), "the storage namespace")
        yield found(kind, place, message, count=each.count, size_bytes=each.size_bytes)


def check_claim(store: ObjectStore, repository: RepositoryRecord) -> Iterator[Finding]:
    """Whether the namespace says that it is this repository's, with the ranges cut as the catalog says."""
    try:
        claim = read_claim(store)
    except LakeopsError as error:
        yield found("claim_mismatch", CLAIM, f"the file cannot be read: {one_line(error)}")
        return
    if claim is None:
        yield found("claim_missing", CLAIM, "the file is not there")
    elif not claim:
        yield found("claim_mismatch", CLAIM, "the file does not hold a claim of lakeops")
    elif not is_same_claim(claim, claim_of(repository)):
        whose = excerpt(claim.get("repository"))
        yield found("claim_mismatch", CLAIM, f"it says that the namespace belongs to {whose}")
    elif claim.get("split") != claim_of(repository)["split"]:
        yield found("claim_mismatch", CLAIM, "it says that ranges are cut in another way than the catalog says")


def check_owner(ctx: Context, *, follows: bool) -> Iterator[Finding]:
    """Whether garbage collection of this catalog may run. A mirror has no owner."""
    key = owner_key(ctx.store.url)
    try:
        owner, ours = find_owner(ctx)
    except LakeopsError as error:
        yield found("owner_missing", key, f"the record cannot be read: {one_line(error)}")
        return
    if owner is None and not follows:
        yield found("owner_missing", key, "no catalog may delete here: the record is not there, or cannot be read")
    elif owner is not None and not ours:
        whose = f"the catalog at {safe(owner.identity.shown)} (epoch {owner.epoch})"
        yield found("owner_mismatch", key, f"{whose} may delete here, and this one may not")
