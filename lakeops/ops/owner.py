"""The owner record, which says who may delete in a storage namespace, and its protocol.

The record names one catalog. Every mark, sweep and fail-over asks it first, so a copy of a catalog, or a restored one,
deletes nothing until somebody says that it is meant (``adopt``). The catalog notes the pending lease, the namespace
takes it in place of what was read there (``ObjectStore.swap``), the catalog notes that it is current. A killed call
leaves either of the two in the namespace. Both are this catalog's, and the next call finishes it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from lakeops.catalog.open import Catalog
from lakeops.catalog.repositories import Ownership
from lakeops.model.clock import Ids, retry, unix_seconds
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import NamespaceTaken, PreconditionFailed, RepositoryNotFound, Transient
from lakeops.model.formatting import moment
from lakeops.model.marks import Identity, Owner, read_owner
from lakeops.model.records import RepositoryRecord
from lakeops.model.sanitising import excerpt, safe
from lakeops.ops.context import Context, pages
from lakeops.ops.overlap import check_claim, claim
from lakeops.store.base import ObjectStore
from lakeops.store.copy import owners_at
from lakeops.store.layout import owner_key
from lakeops.store.reader import read_text

TRIES = 32
"""How often a call that meets others of the same catalog begins again."""


@dataclass(frozen=True, slots=True)
class Adopted(JsonRecord):
    """The result of an adoption: the record now, and the one before (None: nothing that could be read)."""

    owner: Owner
    before: Owner | None


def first_owner(catalog: Catalog, store: ObjectStore, repository: str, ids: Ids) -> str:
    """Write the owner record of a new repository, or find that of an earlier try. Raises ``NamespaceTaken``."""
    own = Ownership(catalog.repositories.identity())
    record = Owner(repository, own.identity, 1, ids.new(), unix_seconds(catalog.now())).to_text()

    def attempt() -> str | None:
        found = _read(store)
        if found is None:
            return record if store.swap(owner_key(store.url), record.encode(), expected=None) else None
        if not _is_ours(found, own):
            taken = _owner_text(read_owner(found))
            raise NamespaceTaken(f"storage namespace {store.url!r} {taken}; choose an empty location")
        return found

    return retry(attempt, TRIES, lambda: _busy(store))


def renew_lease(ctx: Context) -> None:
    """Begin a mark: prove that this catalog may delete here, and put a fresh nonce into the record.

    Raises ``PreconditionFailed`` (``not_the_owner``), ``NamespaceTaken``.
    """
    check_claim(ctx.store, ctx.repository)

    def attempt() -> bool | None:
        own, owner = _current(ctx)
        if own.pending_lease is not None:  # an earlier call, or another mark of this catalog: it is finished first
            _write(ctx, own.current_lease or own.pending_lease, own.pending_lease)
            return None
        fresh = replace(owner, nonce=ctx.ids.new(), at=ctx.seconds()).to_text()
        noted = ctx.catalog.repositories.begin_lease(ctx.repository_id, fresh).pending_lease
        return (noted == fresh and _write(ctx, own.current_lease, fresh)) or None

    retry(attempt, TRIES, lambda: _busy(ctx.store))


def check_owner(ctx: Context) -> Owner:
    """The record in the namespace, which is this catalog's. Raises ``PreconditionFailed`` (``not_the_owner``)."""
    return _current(ctx)[1]


def find_owner(ctx: Context) -> tuple[Owner | None, bool]:
    """Which catalog may delete in the storage namespace (None: none), and whether it is this one."""
    try:
        return check_owner(ctx), True
    except PreconditionFailed as error:
        if error.kind != "not_the_owner":
            raise
        text = _read(ctx.store)
        return (None if text is None else read_owner(text)), False


def adopt(ctx: Context) -> Adopted:
    """Let this catalog delete in the storage namespace, in place of the catalog that may now: for a restored catalog.

    The other catalog stops at its next mark or sweep. ``before`` of the result is its record.

    Raises:
        NamespaceTaken: the namespace is another repository's.
        PreconditionFailed: the repository is a mirror that nobody ever opened for writing. ``promote_writable`` does.
    """
    check_claim(ctx.store, ctx.repository)
    claim(ctx.store, ctx.repository, ctx.catalog.repositories.identity())

    def attempt() -> Adopted | None:
        owner, ours = find_owner(ctx)
        if owner is not None and ours:
            return Adopted(owner, owner)
        found = _read(ctx.store)
        if found is None and ctx.catalog.repositories.get(ctx.repository_id).read_only:
            raise PreconditionFailed(
                f"repository {ctx.repository_id!r} is read-only and nobody deletes in its namespace; "
                "`lakeops mirror promote-writable` opens a mirror for writing"
            )
        taken = _take_over(ctx, found)
        return None if taken is None else Adopted(taken, None if found is None else read_owner(found))

    return retry(attempt, TRIES, lambda: _busy(ctx.store))


def take_for_writing(ctx: Context) -> Owner:
    """Make this catalog the owner of a mirror's namespace, before the mirror is opened for writing.

    From here on nobody replicates into the namespace any more. Raises ``PreconditionFailed`` (``not_the_owner``).
    """

    def attempt() -> Owner | None:
        return check_owner(ctx) if _read(ctx.store) is not None else _take_over(ctx, None)

    return retry(attempt, TRIES, lambda: _busy(ctx.store))


def check_unowned(catalog: Catalog, store: ObjectStore, source: RepositoryRecord, source_identity: Identity) -> None:
    """Refuse a namespace that a catalog writes to, for a mirror of ``source``.

    A record that this catalog left when it forgot its repository there is removed. Raises ``NamespaceTaken``.
    """
    found = _read(store)
    if found is None:
        return
    owner, at_source = read_owner(found), store.url == source.storage_namespace
    if at_source and owner is not None and owner.identity.catalog == source_identity.catalog:
        return  # the source's, which replication brought along under the same name
    mine = Ownership(catalog.repositories.identity(), current_lease=found)
    rows = pages(catalog.repositories.page)
    if _is_ours(found, mine) and not any(one.storage_namespace == store.url for one in rows):
        release(store, mine)
        return
    raise NamespaceTaken(f"storage namespace {store.url!r} {_owner_text(owner)}; choose another location")


def release(store: ObjectStore, own: Ownership) -> None:
    """Remove the record of a repository that this catalog has forgotten, if it is still what this catalog wrote."""
    found = _read(store)
    if found is not None and found in (own.current_lease, own.pending_lease) and _is_ours(found, own):
        store.delete([owner_key(store.url)])


def _take_over(ctx: Context, found: str | None) -> Owner | None:
    """Write a record of a higher epoch in place of what was found. None when something else is there by now."""
    epoch = max((owner.epoch for owner in owners_at(ctx.store).values() if owner is not None), default=0)
    identity = ctx.catalog.repositories.identity()
    text = Owner(ctx.repository_id, identity, epoch + 1, ctx.ids.new(), ctx.seconds()).to_text()
    # What an earlier call has noted may be on its way into the namespace: a first record is that one.
    own = ctx.catalog.repositories.begin_lease(ctx.repository_id, text, over=found is not None)
    if own.pending_lease is not None and _is_ours(own.pending_lease, own):
        text = own.pending_lease
    else:
        ctx.catalog.repositories.begin_lease(ctx.repository_id, text, over=True)
    return read_owner(text) if _write(ctx, found, text) else None


def _write(ctx: Context, expected: str | None, text: str) -> bool:
    """Put a noted record in place of ``expected`` and note that it is written; whether it took that place."""
    before = None if expected is None else expected.encode()
    if not ctx.store.swap(owner_key(ctx.store.url), text.encode(), expected=before):
        return False
    with suppress(RepositoryNotFound):
        if ctx.catalog.repositories.confirm_lease(ctx.repository_id, text):
            return True
    release(ctx.store, Ownership(ctx.catalog.repositories.identity(), text))  # of a repository that is gone
    return False


def _current(ctx: Context) -> tuple[Ownership, Owner]:
    """Read the leases in the catalog and the record in the namespace, which have to agree, else ``not_the_owner``."""
    last: list[tuple[str | None, Ownership]] = []

    def attempt() -> tuple[Ownership, Owner] | None:
        found, own = _read(ctx.store), ctx.catalog.repositories.ownership(ctx.repository_id)
        owner = None if found is None else read_owner(found)
        if found is not None and found in (own.current_lease, own.pending_lease):
            if owner is None or not owner.identity.is_same(own.identity):
                raise _refusal(ctx, owner)
            return own, owner
        # The two are read one after the other, and a mark of this catalog may have gone on in between.
        if (found, own) in last[-1:]:
            raise _refusal(ctx, owner)
        last.append((found, own))
        return None

    return retry(attempt, TRIES, lambda: _busy(ctx.store))


def _is_ours(text: str, own: Ownership) -> bool:
    owner = read_owner(text)
    return owner is not None and owner.identity.is_same(own.identity)


def _read(store: ObjectStore) -> str | None:
    return read_text(store, owner_key(store.url))


def _refusal(ctx: Context, found: Owner | None) -> PreconditionFailed:
    here = ctx.catalog.repositories.identity()
    return PreconditionFailed(
        f"storage namespace {ctx.store.url!r} {_owner_text(found)}, and not to this one ({here.shown}): nothing is "
        f"marked or deleted. If this catalog is a copy, leave collection to the other one; if it was restored or moved "
        f"to take its place, run `lakeops repo adopt lakefs://{ctx.repository_id}`",
        kind="not_the_owner",
    )


def _owner_text(found: Owner | None) -> str:
    if found is None:
        return "has no owner record that can be read, so it belongs to no catalog"
    return (
        f"belongs to the catalog at {safe(found.identity.shown)} as repository {excerpt(found.repository)} "
        f"(epoch {found.epoch}, last seen {moment(found.at)})"
    )


def _busy(store: ObjectStore) -> Transient:
    return Transient(f"the owner record of {store.url!r} changed again and again; try again")
