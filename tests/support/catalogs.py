"""Records to fill a catalog with, where only the catalog is under test: no store, no ranges."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import lock_writable
from lakeops.catalog.mirrors import mirror_needs as needs_of_mirrors
from lakeops.catalog.open import Catalog
from lakeops.catalog.records import BranchState, Publish, Staged
from lakeops.catalog.tables import BRANCH, COMMIT, TAG
from lakeops.model.clock import Ids
from lakeops.model.ids import make_commit
from lakeops.model.marks import Mark
from lakeops.model.mirrors import MirrorRecord, SourceKind, SourceReference
from lakeops.model.records import Commit, Entry, RepositoryRecord

REPO = "repo"
GRACE = timedelta(hours=24)
_ids = Ids()


def new_token() -> str:
    return _ids.new()


def a_commit(message: str, *parents: Commit, at: int = 1_700_000_000, **metadata: str) -> Commit:
    return make_commit(
        parents=parents,
        committer="ada",
        message=message,
        metadata=metadata,
        creation_date=at,
        meta_range_id="ab" * 32,
        meta_range_file=f"{message}.parquet",
        meta_range_digest="cd" * 32,
    )


FIRST = a_commit("first")


def an_entry(path: str, text: str = "x", **metadata: str) -> Staged:
    return Staged(path, Entry(path, f"data/2026010100/{text}", f"sum-{text}", len(text), 7, "text/plain", metadata))


def gone(path: str) -> Staged:
    return Staged(path, None)


def create(catalog: Catalog, repository_id: str = REPO, **given: Any) -> RepositoryRecord:
    repository = RepositoryRecord(repository_id, f"file:///{repository_id}", "main", 1_700_000_000, **given)
    catalog.repositories.create_repository(repository, FIRST, token=new_token(), actor="ada")
    return repository


def a_mirror(repository_id: str = "mirror", **given: Any) -> MirrorRecord:
    source = SourceReference(SourceKind.HOME, "/there", REPO)
    return MirrorRecord(repository_id, source, f"{repository_id}-x", **given)


def create_mirror(catalog: Catalog, repository_id: str = "mirror", **given: Any) -> MirrorRecord:
    repository = RepositoryRecord(repository_id, f"file:///{repository_id}", "main", 1_700_000_000, read_only=True)
    mirror = a_mirror(repository_id, **given)
    catalog.mirrors.create_mirror(repository, FIRST, mirror, token=new_token(), actor="ada")
    return mirror


def follow(catalog: Any, repository_id: str) -> None:
    """Rows of a mirror for a repository that has history already: only to see what becomes of them."""
    from sqlalchemy import insert

    from lakeops.catalog.mirrors import mirror_values
    from lakeops.catalog.tables import MIRROR, MIRROR_ARRIVAL, MIRROR_REF

    ref = {"repository_id": repository_id, "kind": "branch", "name": "main"}
    counts = {"ticket": 1, "missing_objects": 0, "missing_bytes": 0, "wait": None}

    def work(conn: Any) -> None:
        conn.execute(insert(MIRROR).values(mirror_values(a_mirror(repository_id))))
        conn.execute(insert(MIRROR_REF).values(**ref, **counts, source_head=FIRST.id))
        conn.execute(insert(MIRROR_ARRIVAL).values(**ref, file="f"))

    catalog.database.write(work)


def put(catalog: Catalog, *rows: Staged, branch: str = "main", **given: Any) -> BranchState:
    return catalog.staging.put_staged(REPO, branch, list(rows), started=given.pop("started", catalog.now()), **given)


def seal(catalog: Catalog, branch: str = "main") -> BranchState:
    return catalog.staging.seal(REPO, branch, token=new_token()).state


def draft(catalog: Catalog, state: BranchState, commit: Commit, **given: Any) -> Publish:
    """The state after a commit that was planned on ``state``."""
    fields: dict[str, Any] = {
        "repository_id": state.repository_id,
        "branch": state.id,
        "expected_head": state.commit_id,
        "sealed_resets": state.sealed_resets,
        "commit": commit,
        "consumed": state.sealed_tokens,
        "live": frozenset(commit.parents),
        "action": "commit",
        "actor": "ada",
        **given,
    }
    return Publish(**{"started": catalog.now(), **fields})


def commit_all(catalog: Catalog, message: str, branch: str = "main", **given: Any) -> Commit:
    """Seal and publish, as a commit does."""
    state = seal(catalog, branch)
    head = catalog.commits.get(REPO, state.commit_id)
    return catalog.commits.publish(draft(catalog, state, a_commit(message, head), **given))


def begin(catalog: Catalog, mark_id: str = "m", *, grace: timedelta = GRACE) -> Mark:
    """A mark under way."""
    return catalog.marks.begin_mark(REPO, mark_id, cutoff=catalog.now() - grace)[0]


def finish(catalog: Catalog, mark_id: str = "m") -> Mark:
    """The mark, with a list of three files."""
    return catalog.marks.finish_mark(REPO, mark_id, digest="d", rows=3, objects=2, size_bytes=9, listed=5)


def expire_commits(catalog: Any, repository_id: str, ids: Iterable[str] | None = None) -> list[str]:
    """Let commits expire that no ref shows and no mirror needs: all such ones, when none are named."""
    chosen = None if ids is None else list(ids)

    def work(conn: Connection) -> list[str]:
        lock_writable(conn, repository_id, action="expire", exclusive=True)
        kept: set[str] = set().union(*needs_of_mirrors(conn, repository_id).values())
        for refs in (BRANCH, TAG):
            kept.update(conn.execute(select(refs.c.commit_id).where(refs.c.repository_id == repository_id)).scalars())
        live = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, COMMIT.c.expired.is_(False))
        if chosen is not None:
            live = live.where(COMMIT.c.id.in_(chosen))
        doomed = sorted(set(conn.execute(live).scalars()) - kept)
        mine = (COMMIT.c.repository_id == repository_id, COMMIT.c.id.in_(doomed))
        conn.execute(update(COMMIT).where(*mine).values(expired=True))
        return doomed

    done: list[str] = catalog.database.write(work, resolve=run_again)
    return done


def mirror_needs(catalog: Any, repository_id: str) -> dict[str, frozenset[str]]:
    """The commits that are kept for each registered mirror."""
    return {one.id: one.commits for one in catalog.mirrors.registrations(repository_id)}


def table_of(rows: list[Staged]) -> Any:
    """Staged rows as a table for a bulk load."""
    import pyarrow as pa

    from lakeops.model.arrow import STAGED_SCHEMA

    return pa.Table.from_pylist(
        [
            {"path": row.path, "tombstone": row.entry is None}
            | ({} if row.entry is None else {**row.entry.to_json(), "metadata": list(row.entry.metadata.items())})
            for row in rows
        ],
        STAGED_SCHEMA,
    )


def paths(rows: Any) -> list[str]:
    return [row.path for row in rows]


@dataclass(frozen=True)
class Everything:
    """All that a repository's rows say, for "nothing changed"."""

    rows: tuple[Any, ...]


def everything(catalog: Any) -> Everything:
    """The content of every table, but for what two equal states may differ in."""
    from lakeops.catalog.tables import METADATA

    def work(conn: Any) -> Everything:
        return Everything(
            tuple(
                (table.name, sorted(repr(tuple(row)) for row in conn.execute(table.select())))
                for table in METADATA.sorted_tables
            )
        )

    return catalog.database.read(work)
