"""Doing harm to a repository, of every kind: to its rows, to its files, and to what its files say."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from support.catalogs import draft
from support.rows import attempt

from lakeops import Commit, Lake, Repository, Split
from lakeops.model.ids import make_commit
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.range_file import RangeWriter, write_metarange
from lakeops.ranges.read import RangeCache, RangeReader
from lakeops.store.base import ObjectStore
from lakeops.store.layout import metarange_key
from lakeops.store.local import LocalStore

SPLIT = Split(2, 4, 8)


def populate(lake: Lake, namespace: str | None = None) -> Repository:
    """Two branches, a merge, a tag, a side commit that only its tag keeps, staged rows on both branches."""
    repo = lake.create_repository("repo", storage_namespace=namespace, split=SPLIT)
    main = repo.branch("main")
    with main.batch() as batch:
        for number in range(24):
            batch.put(f"f{number:02}", f"old {number}".encode(), metadata={"n": str(number)} if number % 5 == 0 else {})
    main.commit("base")
    dev = repo.create_branch("dev")
    dev.put("f03", b"dev")
    dev.commit("dev", idempotency_key="key")
    main.put("f20", b"main")
    main.commit("main")
    repo.merge("dev", "main", message="merge")
    repo.create_branch("side", source="main")
    repo.branch("side").put("side", b"side")
    repo.branch("side").commit("side")
    repo.create_tag("v1", "side")
    repo.delete_branch("side")
    main.put("staged", b"staged")
    main.delete("f01")
    dev.put("other", b"other")
    return repo


def catalog(repo: Repository) -> Any:
    return repo._ctx.catalog


def store(repo: Repository) -> ObjectStore:
    return repo._ctx.store


def sql(repo: Repository, *statements: Any) -> None:
    """Run statements on the catalog's tables, past every transition."""

    def work(conn: Any) -> None:
        for statement in statements:
            conn.execute(statement)

    catalog(repo).database.write(work)


def head(repo: Repository, ref: str = "main@") -> Commit:
    return repo.ref(ref).commit


def metarange_file(repo: Repository, ref: str = "main@") -> str:
    return metarange_key(head(repo, ref).meta_range_file)


def reader(repo: Repository) -> RangeReader:
    return RangeReader(store(repo), RangeCache(0))


def metarange(repo: Repository, ref: str = "main@") -> Metarange:
    return reader(repo).metarange(head(repo, ref))


def range_file(repo: Repository, number: int = 1) -> str:
    return metarange(repo).row(number).key


def object_key(repo: Repository, path: str = "f05") -> str:
    entry = reader(repo).stat(metarange(repo), path)
    assert entry is not None
    return entry.physical_address


def flip(repo: Repository, key: str) -> None:
    """Change one byte in the middle of a file."""
    data = store(repo).get(key)
    middle = len(data) // 2
    store(repo).put(key, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def cut_short(repo: Repository, key: str) -> None:
    store(repo).put(key, store(repo).get(key)[:-9])


def remove(repo: Repository, key: str) -> None:
    assert store(repo).delete([key]) == []


# --- files that say something wrong, with every digest above them in order ---
def tables(repo: Repository) -> list[pa.Table]:
    return [reader(repo).open(row).read() for row in metarange(repo).rows(0, len(metarange(repo)))]


def forge(repo: Repository, rows: list[RangeRow]) -> Commit:
    """Publish a commit on main whose metarange has these rows."""
    state = catalog(repo).refs.branch(repo.id, "main")
    file = write_metarange(store(repo), Metarange.from_rows(rows), attempt())
    commit = make_commit(
        parents=[head(repo)],
        committer="mallory",
        message="forged",
        creation_date=1_800_000_000,
        meta_range_id=file.id,
        meta_range_file=file.file,
        meta_range_digest=file.digest,
    )
    publish = draft(catalog(repo), state, commit, consumed=(), live=frozenset([state.commit_id]))
    return catalog(repo).commits.publish(publish)


def forge_tables(repo: Repository, change: Callable[[list[pa.Table]], list[pa.Table]]) -> None:
    """Publish a commit whose ranges are main's, changed; what the metarange tells of them is right."""
    changed = [table.combine_chunks() for table in change(tables(repo))]
    forge(repo, [RangeWriter(store(repo), attempt()).write(table) for table in changed])


def forge_rows(repo: Repository, change: Callable[[list[RangeRow]], list[RangeRow]]) -> None:
    """Publish a commit whose metarange tells other things of main's ranges."""
    forge(repo, change(metarange(repo).rows(0, len(metarange(repo)))))


def with_column(table: pa.Table, name: str, value: Any, *, row: int = 0, digests: bool = True) -> pa.Table:
    """The table with one value changed, and digests that fit unless told otherwise."""
    values = table[name].to_pylist()
    values[row] = value
    field = table.schema.field(name)
    changed = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    if not digests:
        return changed
    return changed.set_column(
        changed.schema.get_field_index("digest"), changed.schema.field("digest"), entry_digests(changed)
    )


def swapped(table: pa.Table) -> pa.Table:
    """The table with its first two rows the wrong way round."""
    return table.take(pa.array([1, 0, *range(2, table.num_rows)]))


def doubled(table: pa.Table) -> pa.Table:
    """The table with its last row twice."""
    return pa.concat_tables([table, table.slice(table.num_rows - 1)])


@contextmanager
def failing_disk(address: str) -> Iterator[None]:
    """Let the system refuse all reads of an object of a local store, after the store has opened it."""
    opened = LocalStore._descriptor

    def descriptor(store: LocalStore, name: str) -> int:
        # For writing alone, so that the system refuses to read.
        return os.open(store.root / name, os.O_WRONLY) if address.endswith(name) else opened(store, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "_descriptor", descriptor)
        yield
