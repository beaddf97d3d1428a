"""Importing: what lies in a bucket or directory already becomes the contents of a prefix, in one commit, uncopied.

The listing streams straight into ranges, a batch in memory at a time, and no row goes through the catalog. These
ranges hold the imported part alone, so a branch that moves meanwhile costs only its borders anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from itertools import islice
from types import TracebackType
from typing import Self

import pyarrow as pa

from lakeops.model.arrow import array
from lakeops.model.errors import InvalidInput, LakeopsError, NoChanges, ObjectNotFound, Transient
from lakeops.model.ids import check_commit_metadata, check_message
from lakeops.model.names import as_folder, check_path
from lakeops.model.records import Commit, IdempotentRequest
from lakeops.ops import inventory as inventories
from lakeops.ops.context import Context, check_name
from lakeops.ops.listed import PartTask, build_in_parts, entries
from lakeops.ops.overlap import check_source_apart
from lakeops.ops.publish import (
    CommitPlan,
    CommitResult,
    find_by_key_or,
    publish,
    publish_in_queue,
    require_clean,
    snapshot,
)
from lakeops.ranges.build import build, replace_prefix
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.range_file import write_metarange
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.store import layout
from lakeops.store.base import Listing, ObjectStore
from lakeops.store.disk_cache import background_writes, flush
from lakeops.store.listing import LISTING_SECONDS
from lakeops.store.open import parse_location, without_links

_RESUMED_SECONDS = 3600
"""After the last checkpoint of a killed import. Later the source may have changed, so it is listed from its start."""
_BESIDE = 1000
"""Objects beside a source that has nothing, among which a name like it is looked for."""


def check_source(ctx: Context, url: str) -> str:
    """The source's URL in its one spelling, when nothing there is managed by a repository.

    Another reference to a repository's object would not keep it from that repository's garbage collection. Raises
    ``InvalidInput`` (``invalid_uri`` for what is no location) and ``PreconditionFailed`` (``address_refused``).
    """
    source = parse_location(url).url
    check_source_apart(ctx.catalog, ctx.stores(), source, ctx.repository)
    ctx.find_policy().check_folders([source])
    return source


SOURCE = "lakeops.import.source"
PREFIX = "lakeops.import.prefix"
OBJECTS = "lakeops.import.objects"
BYTES = "lakeops.import.bytes"
"""Keys of the commit's metadata: where it came from and went to, how many objects and bytes."""


def import_objects(
    ctx: Context,
    branch: str,
    source: str,
    prefix: str,
    message: str,
    metadata: Mapping[str, str] | None = None,
    *,
    idempotency_key: str | None = None,
    allow_empty_source: bool = False,
    skip_special: bool = False,
    inventory: str | None = None,
    on_head: Callable[[str], None] | None = None,
) -> Commit:
    """Replace everything under a prefix with the objects of a bucket's prefix or of a directory, in one commit.

    Nothing is copied. The objects stay where they are, and garbage collection never deletes them.

    Args:
        source: ``s3://bucket/prefix`` or ``file:///directory``. Where nothing is below it, it may be one object.
        prefix: the folder that the objects' paths begin with. Empty replaces all of the branch. For one object its
            path, or a folder that ends in a slash for an object of the source's name. Nothing else is replaced then.
        idempotency_key: a second call with the same key returns the first call's commit, and lists nothing. When the
            first call was killed, or ended by an outage, less than an hour before, the second one lists the rest of a
            bucket or inventory only.
        allow_empty_source: a source without objects empties the prefix. Without it, such a source is an error.
        skip_special: leave out links, devices, a clone's own files and names that are not UTF-8. Without it they are
            an error.
        inventory: a list of the source's objects that is read in place of a listing: the path or URL of a Parquet or
            CSV file with their keys, or of an S3 Inventory's ``manifest.json``.
        on_head: called with the id of the head that the commit is about to follow. What it raises ends the call, and
            nothing is published.

    Raises:
        InvalidInput, InvalidPath: ``invalid_uri``: the source, or a name in it, cannot be imported.
        PreconditionFailed: ``address_refused``: the setting ``external_prefixes`` does not allow it, or it is a
            directory and the repository in a bucket. ``dirty_branch``: the branch has uncommitted changes.
            ``protected_branch``: the branch takes no commits.
        ObjectNotFound: there is nothing at the source, and ``allow_empty_source`` is not set.
        NoChanges: the prefix holds exactly these objects already.
        Transient: the source changed while it was listed. Try again.
        BranchMoved: others moved the branch meanwhile. Try again.
    """
    text = check_message(message)
    pairs = check_commit_metadata(metadata)
    folder = as_folder(prefix)
    url = parse_location(source).url
    # A link may lead elsewhere tomorrow. A committed address must not. So the files are recorded where they really lie.
    place = check_source(ctx, without_links(url))
    parts = {"source": url, "prefix": folder} | ({"inventory": inventory} if inventory else {})
    request = IdempotentRequest("import", check_name(branch), parts, text, pairs, key=idempotency_key)
    found = find_by_key_or(ctx, request, lambda: snapshot(ctx, branch, stageable=True))
    if isinstance(found, CommitResult):
        return found.commit
    require_clean(ctx, found)
    store = ctx.stores().at(place)
    # The imported entries become ranges of their own, some of them perhaps the head's, before the branch is looked at.
    # A directory is watched while it is listed, so one process lists it, whole. To send its entries to a cluster takes
    # as long as to write their ranges, so the same process writes these.
    how = f"skip={skip_special}" if idempotency_key and store.remote else ""
    if how and inventory:
        held, key = inventories.place(ctx.stores(), inventory)
        how += f" inventory={held.checksum(held.head(key))}"
    with _Checkpoint.find(ctx, request, found.head, folder, how) as checkpoint:
        if inventory:
            total, listings = inventories.inventory(
                ctx.stores(), inventory, place, store, checkpoint.after, ctx.progress
            )
        else:
            total, listings = 0, store.scan(after=checkpoint.after, skip_special=skip_special)
        apart = store if store.remote and not inventory else None
        ranges = partial(checkpoint.build, source=apart, skip_special=skip_special, total=total)
        single, refused = None, None
        try:
            part = ranges(entries(listings, place, folder, skip_special=skip_special))
        except InvalidInput as error:
            part, refused = Metarange.empty(), error
        except ObjectNotFound as error:
            raise ObjectNotFound(f"{error.message}{_meant(ctx, place)}") from None
        if not (part.count or inventory or source.endswith("/") or (refused and store.remote)):
            single = _single(ctx, place, prefix)  # also where a listing was refused, since a file is no directory
        if single is not None:
            folder, table = single
            part = ranges([table], source=None)
        if not part.count and (refused or not allow_empty_source):
            raise refused or ObjectNotFound(f"there is nothing at {url} to import{_meant(ctx, place)}")
        pairs = pairs | {SOURCE: url, PREFIX: folder, OBJECTS: str(part.count), BYTES: str(part.size_bytes)}

        def attempt(publisher: str | None) -> CommitResult:
            now = snapshot(ctx, branch)
            require_clean(ctx, now)
            if on_head is not None:
                on_head(now.head.id)
            suffix = layout.attempt(now.started, ctx.ids)
            base = ctx.metarange(now.head)
            with background_writes(ctx.store) as store:
                split, exact = ctx.repository.split, single is not None
                metarange = replace_prefix(base, folder, part, store=store, split=split, attempt=suffix, exact=exact)
                if metarange.id == base.id:
                    what = repr(folder or "the whole branch")
                    raise NoChanges(f"{what} of branch {branch!r} holds the objects of {url} already")
                file = write_metarange(store, metarange, suffix)
            plan = CommitPlan(file, (now.head,), text, pairs, reused_commits=checkpoint.reused, begun=checkpoint.begun)
            return publish(ctx, request, now, plan, publisher)

        return publish_in_queue(ctx, request, attempt).commit


@dataclass
class _Checkpoint:
    """The checkpoint of an import: ``rows`` are the ranges that a killed call under the same key has written.

    The import goes on as the attempt that the killed call was, so what that wrote gets no younger. The checkpoint is
    on record as an upload in flight, with the name ``upload``, whose address names a metarange of the ranges. So its
    digest is in the catalog. ``reused`` are the commits whose ranges may be among them.
    """

    ctx: Context
    branch: str
    folder: str
    upload: str
    known: tuple[RangeRow, ...]
    begun: datetime
    reused: tuple[Commit, ...]
    rows: list[RangeRow] = field(default_factory=list)

    @classmethod
    def find(cls, ctx: Context, request: IdempotentRequest, head: Commit, folder: str, how: str) -> _Checkpoint:
        """What a call like this one has checkpoint. Nothing where it cannot be gone on with, or ``how`` is empty."""
        upload = sha256(repr((request.key, request.fingerprint, how)).encode()).hexdigest() if how else ""
        known = ctx.metarange(head)
        here = tuple(known.rows(*known.overlapping(folder)))
        new = cls(ctx, request.branch, folder, upload, here, ctx.catalog.now(), (head,))
        found = ctx.catalog.staging.find_upload(ctx.repository_id, upload) if upload else None
        if found is not None:
            file, digest, saved, *ids = found[0].removeprefix(layout.METARANGES).split("/")
            if new.begun.timestamp() - int(saved) > _RESUMED_SECONDS:
                return new
            with suppress(LakeopsError):  # where something of it is gone, the import begins anew
                reused = {one: ctx.catalog.commits.get(ctx.repository_id, one) for one in ids} | {head.id: head}
                at = replace(head, meta_range_id=file[:64], meta_range_file=file, meta_range_digest=digest)
                part = ctx.metarange(at)
                return replace(new, begun=found[1], reused=(*reused.values(),), rows=[*part.rows(0, len(part))])
        return new

    @property
    def after(self) -> str:
        """The key of the source behind which nothing was written yet."""
        return self.rows[-1].last_path.removeprefix(self.folder) if self.rows else ""

    def build(
        self, tables: Iterable[pa.Table], *, source: ObjectStore | None, skip_special: bool, total: int
    ) -> Metarange:
        """The ranges that are on record, then those of the tables. Or a cluster's workers list a ``source`` instead."""
        ctx, attempt, earlier = self.ctx, layout.attempt(self.begun, self.ctx.ids), [*self.rows]
        split, before = ctx.repository.split, sum(row.count for row in earlier)

        def told(done: int) -> None:
            ctx.progress("import", before + done, total)

        def elsewhere(more: int, rows: list[RangeRow]) -> Metarange | None:
            if source is None:
                return None
            engine = ctx.engine().for_work(more * (RANGE_SECONDS + LISTING_SECONDS))
            if engine.in_process:
                return None
            self.rows, done = [*earlier, *rows], sum(row.count for row in rows)
            task = PartTask(source, self.folder, self.after, "", skip_special, split, attempt, self.known)
            return build_in_parts(engine, ctx.store, task, lambda more: told(done + more))

        told(0)
        with background_writes(ctx.store) as writer:

            def save(rows: list[RangeRow]) -> None:
                if self.upload:
                    flush(writer)
                    self._save([*earlier, *rows])

            part = build(
                writer,
                tables,
                split,
                attempt,
                known=self.known,
                on_progress=told,
                on_ranges=save,
                elsewhere=elsewhere,
            )
        return Metarange.from_rows([*earlier, *part.rows(0, len(part))])

    def _save(self, rows: list[RangeRow]) -> None:
        file = write_metarange(self.ctx.store, Metarange.from_rows(rows), layout.attempt(self.begun, self.ctx.ids))
        saved, ids = str(int(self.ctx.catalog.now().timestamp())), (commit.id for commit in self.reused)
        address = "/".join((layout.metarange_key(file.file), file.digest, saved, *ids))
        catalog = self.ctx.catalog.staging
        catalog.begin_upload(self.ctx.repository_id, self.branch, address, upload=self.upload, begun=self.begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Forget the checkpoint, unless the call was killed or may succeed when it is tried again as it is.

        It lapses where the catalog does not answer now.
        """
        if self.upload and (error is None or (isinstance(error, LakeopsError) and not isinstance(error, Transient))):
            with suppress(LakeopsError):
                self.ctx.catalog.staging.end_upload(self.ctx.repository_id, self.upload)


def _single(ctx: Context, place: str, target: str) -> tuple[str, pa.Table] | None:
    """The path and the entry of a source that is one object."""
    parent, _, name = place.rpartition("/")
    if not name or parent.endswith("/"):
        return None
    store = ctx.stores().at(parent)
    name = layout.relative(store.url, place)
    try:
        found = store.head(name)
    except (ObjectNotFound, InvalidInput):
        return None
    path = check_path(f"{target}{name}" if target.endswith("/") or not target else target)
    listing = Listing([name], [found.size_bytes], [found.mtime], [store.checksum(found)])
    (table,) = entries([listing], store.url, "")
    return path, table.set_column(0, table.schema.field("path"), array([path], pa.string()))


def _meant(ctx: Context, place: str) -> str:
    """Advice for a source that may be misspelt: the name beside it that is most like it."""
    parent, _, name = place.rpartition("/")
    if not name or parent.endswith("/"):
        return ""
    try:
        store = ctx.stores().at(parent)
        name = layout.relative(store.url, place)
        beside = {item.key.partition("/")[0] for item in islice(store.list(), _BESIDE)}
        near = get_close_matches(name, beside - {name}, 1)
    except LakeopsError:
        near = []
    return f"; did you mean {parent}/{near[0]}?" if near else ""
