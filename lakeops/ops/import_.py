"""Importing: what lies in a bucket or directory already becomes the contents of a prefix, in one commit, uncopied.

The listing streams straight into ranges, a batch in memory at a time, and no row goes through the catalog. These
ranges hold the imported part alone, so a branch that moves meanwhile costs only its borders anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import ENTRY_SCHEMA, array, no_metadata, scalar, text
from lakeops.model.errors import InvalidInput, InvalidPath, LakeopsError, NoChanges, ObjectNotFound
from lakeops.model.ids import check_commit_metadata, check_message
from lakeops.model.names import MAX_PATH_BYTES, as_folder, check_path, flaw
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Commit, IdempotentRequest
from lakeops.model.sanitising import excerpt
from lakeops.ops import inventory as inventories
from lakeops.ops.context import Context, check_name
from lakeops.ops.files import clone_state_among
from lakeops.ops.overlap import check_source_apart
from lakeops.ops.publish import CommitPlan, CommitResult, in_turn, publish, read_first, require_clean, snapshot
from lakeops.ops.read import joined
from lakeops.ranges.build import build, replace_prefix
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.range_file import write_metarange
from lakeops.ranges.validation import check_entries
from lakeops.store import layout
from lakeops.store.base import Listing
from lakeops.store.disk_cache import background_writes
from lakeops.store.listing import gathered
from lakeops.store.open import parse_location, without_links

_BATCH = 50_000
"""Entries that are worked on at a time. Directories of any size are put together to about this many."""
_SHOWN = 3
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


def entries(listings: Iterable[Listing], source: str, folder: str, *, skip_special: bool = False) -> Iterator[pa.Table]:
    """The objects of a source, as ``ENTRY_SCHEMA`` in path order. Their paths begin with ``folder``.

    Raises ``InvalidPath`` for names that cannot be paths, and for own files of clones unless ``skip_special`` leaves
    them out; ``InvalidInput`` for a size or time that cannot be recorded.
    """
    for batch in gathered(listings, _BATCH):
        keys = array(batch.keys, pa.string())
        _check_claims(keys, source)
        paths = pc.binary_join_element_wise(text(folder), keys, text(""))
        _check_paths(paths, source)
        rows = len(keys)
        columns = {
            "path": paths,
            "physical_address": joined(source, keys),
            "checksum": array(batch.marks, pa.string()),
            "size_bytes": array(batch.sizes, pa.int64()),
            "mtime": array(batch.mtimes, pa.int64()),
            "content_type": pa.repeat(text(DEFAULT_CONTENT_TYPE), rows),
            "metadata": no_metadata(rows),
        }
        table = pa.table(columns, schema=ENTRY_SCHEMA)
        check_entries(table)
        own = _clone_state(keys, source, skip_special=skip_special)
        yield table.filter(pc.invert(pc.is_in(keys, value_set=own))) if len(own) else table


def _check_claims(keys: pa.Array, source: str) -> None:
    """Refuse a source with the claim of a repository in it: what lies there is managed by another lake."""
    claims = keys.filter(pc.match_substring_regex(keys, rf"(^|/){re.escape(layout.CLAIM)}$"))
    if len(claims):
        raise InvalidInput(
            f"{excerpt(source)} holds the storage namespace of a repository, {excerpt(claims[0].as_py())}: its objects "
            "live no longer than that repository needs them; import from elsewhere. Nothing was published"
        )


def _clone_state(keys: pa.Array, source: str, *, skip_special: bool) -> pa.Array:
    """The keys of a clone's own files. Raises ``InvalidPath`` unless they are left out."""
    found = clone_state_among(keys)
    if found and not skip_special:
        raise InvalidPath(
            f"{excerpt(source)} holds the own files of a clone, such as {excerpt(found[0])}; remove them, or leave "
            "them out with --skip-special. Nothing was published"
        )
    return array(found, pa.string())


def _check_paths(paths: pa.Array, source: str) -> None:
    long = pc.greater(pc.binary_length(paths), scalar(MAX_PATH_BYTES, pa.int32()))
    bad = pc.or_(long, pc.match_substring(paths, "\0"))
    if not pc.any(bad).as_py():
        return
    named = paths.filter(bad).to_pylist()
    shown = "; ".join(f"{excerpt(path)} {flaw(path, at_most=MAX_PATH_BYTES)}" for path in named[:_SHOWN])
    more = "; ..." if len(named) > _SHOWN else ""
    raise InvalidPath(f"names in {excerpt(source)} cannot be object paths: {shown}{more}; nothing was published")


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
        idempotency_key: a second call with the same key returns the first call's commit, and lists nothing.
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
        NoChanges: the prefix holds these very objects already.
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
    found = read_first(ctx, request, lambda: snapshot(ctx, branch, stageable=True))
    if isinstance(found, CommitResult):
        return found.commit
    require_clean(ctx, found)
    store = ctx.stores().at(place)
    total, listings = 0, store.scan(skip_special=skip_special)
    if inventory:
        total, listings = inventories.inventory(ctx.stores(), inventory, place, store)
    # The imported entries become ranges of their own, some of them perhaps the head's, before the branch is looked at.
    head, begun = found.head, ctx.catalog.now()
    earlier = ctx.metarange(head)

    def ranges(tables: Iterable[pa.Table]) -> Metarange:
        with background_writes(ctx.store) as writer:
            return build(
                writer,
                tables,
                ctx.repository.split,
                layout.attempt(begun, ctx.ids),
                engine=ctx.engine(),
                known=earlier.rows(*earlier.overlapping(folder)),
                on_progress=lambda done: ctx.progress("import", done, total),
            )

    single, refused = None, None
    try:
        part = ranges(entries(listings, place, folder, skip_special=skip_special))
    except InvalidInput as error:
        part, refused = Metarange.empty(), error  # a file is no directory
    except ObjectNotFound as error:
        raise ObjectNotFound(f"{error.message}{_meant(ctx, place)}") from None
    if not part.count and not inventory and not source.endswith("/"):
        single = _single(ctx, place, prefix)
    if single is not None:
        folder, table = single
        part = ranges([table])
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
            metarange = replace_prefix(
                base, folder, part, store=store, split=ctx.repository.split, attempt=suffix, exact=single is not None
            )
            if metarange.id == base.id:
                what = repr(folder or "the whole branch")
                raise NoChanges(f"{what} of branch {branch!r} holds the objects of {url} already")
            written = write_metarange(store, metarange, suffix)
        plan = CommitPlan(written, (now.head,), text, pairs, reused_commits=(head,), begun=begun)
        return publish(ctx, request, now, plan, publisher)

    return in_turn(ctx, request, attempt).commit


def _single(ctx: Context, place: str, target: str) -> tuple[str, pa.Table] | None:
    """The path and the entry of a source that is one object."""
    parent, _, name = place.rpartition("/")
    if not name or parent.endswith("/"):
        return None
    store = ctx.stores().at(parent)
    name = layout.relative(store.url, place)
    try:
        found = store.head(name)
    except LakeopsError:
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
        beside = {item.key.partition("/")[0] for item in islice(store.list(), _BESIDE)}
        near = get_close_matches(layout.relative(store.url, place), beside, 1)
    except LakeopsError:
        near = []
    return f"; did you mean {parent}/{near[0]}?" if near else ""
