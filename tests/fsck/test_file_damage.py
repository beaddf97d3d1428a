"""Damage to files, and files that say something wrong though every digest above them is in order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.damage import (
    cut_short,
    doubled,
    flip,
    forge,
    forge_rows,
    forge_tables,
    metarange,
    metarange_file,
    object_key,
    range_file,
    remove,
    store,
    swapped,
    tables,
    with_column,
)
from support.leaves import small_leaves
from support.rows import attempt

from lakeops import Repository
from lakeops.ops.fsck.findings import Severity
from lakeops.ranges.range_file import RangeWriter
from lakeops.store.layout import range_key

Tables = list[pa.Table]


@dataclass(frozen=True)
class Damage:
    """The damage, and the kinds that must be found, the first of them at ``where``."""

    do: Callable[[Repository], None]
    kinds: tuple[str, ...]
    where: str


def swap(one, other):
    def do(repo):
        first, second = one(repo), other(repo)
        data = store(repo).get(first)
        store(repo).put(first, store(repo).get(second))
        store(repo).put(second, data)

    return do


def on_file(key, harm, kind, where):
    return Damage(lambda repo: harm(repo, key(repo)), (kind,), where)


def write(contents):
    def do(repo, key):
        store(repo).put(key, contents)

    return do


def claim(_):
    return "_lakefs/repository.json"


def staged(repo):
    _, row = repo._ctx.catalog.staging.staged_one(repo.id, "main", "staged")
    return row.entry.physical_address


def more(repo, key):
    store(repo).put(key, store(repo).get(key) + b"more")


R, M = "_lakefs/ranges/", "_lakefs/metaranges/"

FILES = {
    "a metarange that is gone": on_file(metarange_file, remove, "metarange_missing", M),
    "a metarange with another byte": on_file(metarange_file, flip, "metarange_damaged", M),
    "a metarange that was cut short": on_file(metarange_file, cut_short, "metarange_damaged", M),
    "an empty metarange": on_file(metarange_file, write(b""), "metarange_damaged", M),
    "metaranges in each other's place": Damage(
        swap(metarange_file, lambda repo: metarange_file(repo, "v1")), ("metarange_damaged",), M
    ),
    "a range that is gone": on_file(range_file, remove, "range_missing", R),
    "a range with another byte": on_file(range_file, flip, "range_damaged", R),
    "a range that was cut short": on_file(range_file, cut_short, "range_damaged", R),
    "a range that goes on": on_file(range_file, more, "range_damaged", R),
    "an empty range": on_file(range_file, write(b""), "range_damaged", R),
    "ranges in each other's place": Damage(swap(range_file, lambda repo: range_file(repo, 2)), ("range_damaged",), R),
    "a metarange in a range's place": Damage(swap(range_file, metarange_file), ("metarange_damaged",), M),
    "the claim of another repository": on_file(
        claim, write(b'{"repository": "other"}'), "claim_mismatch", "_lakefs/repository.json"
    ),
    "a claim that cannot be read": on_file(claim, write(b"\xff"), "claim_mismatch", "_lakefs/repository.json"),
}

OBJECTS = {
    "an object that is gone": on_file(object_key, remove, "object_missing", "object f05"),
    "an object that was cut short": on_file(object_key, write(b"ol"), "object_size_mismatch", "object f05"),
    "an object with other contents": on_file(object_key, write(b"0ld 5"), "object_checksum_mismatch", "object f05"),
    "a staged object that is gone": on_file(staged, remove, "object_missing", "branch main, path staged"),
    "a staged object with other contents": on_file(
        staged, write(b"STAGED"), "object_checksum_mismatch", "branch main, path staged"
    ),
}


def first_table(change):
    return lambda repo: forge_tables(repo, lambda tables: [change(tables[0]), *tables[1:]])


def column(name, value, *, digests=True):
    return first_table(lambda table: with_column(table, name, value, digests=digests))


def last_row_off(tables):
    """The first range ends one row early, and the second begins with that row."""
    short = tables[0].slice(0, tables[0].num_rows - 1)
    return [short, pa.concat_tables([tables[0].slice(tables[0].num_rows - 1), tables[1]]), *tables[2:]]


def told(**values):
    return lambda repo: forge_rows(repo, lambda rows: [replace(rows[0], **values), *rows[1:]])


def inside(repo):
    url = f"{repo.storage_namespace}/{object_key(repo, 'f00')}"
    column("physical_address", url)(repo)


def two_row_groups(repo):
    """The first range's file has its rows in two row groups, and the digest of the file is right."""
    first, *others = metarange(repo).rows(0, len(metarange(repo)))
    sink = pa.BufferOutputStream()
    table = tables(repo)[0]
    pq.write_table(table, sink, row_group_size=table.num_rows - 1)
    data = sink.getvalue().to_pybytes()
    store(repo).put(first.key, data)
    forge(repo, [replace(first, file_bytes=len(data), file_digest=sha256(data).digest()), *others])


def wrong_id(repo):
    """The first range's id is of other digests than those of its rows."""
    first, *others = tables(repo)
    row = RangeWriter(store(repo), attempt()).write(first)
    other = replace(row, id=b"x" * 32, file=f"{'78' * 32}-{attempt()}.parquet")
    store(repo).put(other.key, store(repo).get(row.key))
    forge(repo, [other, *metarange(repo).rows(1, len(others) + 1)])


FORGED = {
    "rows that the range's id does not cover": Damage(wrong_id, ("range_damaged",), R),
    "a file of two row groups": Damage(two_row_groups, ("range_damaged",), R),
    "a row that its digest does not cover": Damage(
        column("checksum", "x", digests=False), ("entry_digest_mismatch",), R
    ),
    "metadata that the digest does not cover": Damage(
        column("metadata", [("n", "1")], digests=False), ("entry_digest_mismatch",), R
    ),
    "rows in the wrong order": Damage(first_table(swapped), ("range_boundary", "range_order"), R),
    "a path that comes twice": Damage(first_table(doubled), ("range_boundary", "range_order"), R),
    "a range that ends early": Damage(lambda repo: forge_tables(repo, last_row_off), ("range_boundary",), R),
    "a range that goes on too long": Damage(
        lambda repo: forge_tables(repo, lambda tables: [pa.concat_tables(tables[:2]), *tables[2:]]),
        ("range_boundary",),
        R,
    ),
    "ranges in the wrong order": Damage(
        lambda repo: forge_tables(repo, lambda tables: [tables[1], tables[0], *tables[2:]]), ("metarange_order",), M
    ),
    "another count": Damage(told(count=2), ("range_damaged",), R),
    "no count": Damage(told(count=0), ("metarange_row_invalid",), R),
    "another sum of bytes": Damage(told(size_bytes=9), ("range_summary_mismatch",), R),
    "another first path": Damage(told(first_path="a"), ("range_summary_mismatch",), R),
    "another last path": Damage(told(last_path="f00x"), ("range_summary_mismatch",), R),
    "a range file outside": Damage(told(file="../../x.parquet"), ("metarange_row_invalid",), R),
    "another range's file": Damage(
        lambda repo: forge_rows(
            repo, lambda rows: [replace(rows[0], file=rows[1].file, file_digest=rows[1].file_digest), *rows[1:]]
        ),
        ("metarange_row_invalid",),
        R,
    ),
    "an address that leads outside": Damage(column("physical_address", "data/../../x"), ("address_invalid",), R),
    "an address into the metadata": Damage(column("physical_address", "_lakefs/ranges/x"), ("address_invalid",), R),
    "an address of no known kind": Damage(column("physical_address", "http://x/y"), ("address_invalid",), R),
    "a URL into the namespace": Damage(inside, ("address_not_relative",), R),
    "a file of no bytes": Damage(told(file_bytes=0), ("metarange_row_invalid",), R),
    "a file of fewer bytes than none": Damage(told(file_bytes=-1), ("metarange_row_invalid",), R),
    "a negative size": Damage(column("size_bytes", -1), ("entry_invalid",), R),
    "an entry without a checksum": Damage(column("checksum", ""), ("entry_invalid",), R),
    "an entry without a path": Damage(column("path", ""), ("entry_invalid",), R),
}


def findings_of(repo, *, data):
    """Kinds that are worse than information, each with a place."""
    findings = [finding for finding in repo.fsck(data=data) if finding.severity != Severity.INFO]
    assert all(finding.advice and finding.message for finding in findings)
    return {finding.kind: finding.where for finding in reversed(findings)}


@pytest.mark.parametrize("damage", FILES.values(), ids=FILES.keys())
def test_damage_to_a_file_is_found_and_named(in_store, damage):
    damage.do(in_store)
    findings = findings_of(in_store, data=False)
    assert {*damage.kinds} <= {*findings}
    assert {kind.split("_")[0] for kind in findings} <= {"metarange", "range", "claim"}
    assert findings[damage.kinds[0]].startswith(damage.where)


@pytest.mark.parametrize(
    ("do", "kind"), [(remove, "metarange_missing"), (flip, "metarange_damaged"), (cut_short, "metarange_damaged")]
)
def test_damage_to_a_leaf_is_found_and_named(repo, do, kind):
    repo.branch("main").reset()
    repo.branch("main").put("f05", b"other")
    with small_leaves(256):
        repo.branch("main").commit("in leaves")
    assert not [finding for finding in repo.fsck() if finding.kind == "unreferenced_ranges"]
    file = metarange(repo).leaf_files[0]
    do(repo, range_key(file))
    (finding,) = [finding for finding in repo.fsck() if finding.severity == Severity.ERROR]
    assert (finding.kind, finding.where) == (kind, metarange_file(repo))
    assert file in finding.message


@pytest.mark.parametrize("damage", OBJECTS.values(), ids=OBJECTS.keys())
def test_damage_to_an_object_is_found_with_data(in_store, damage):
    damage.do(in_store)
    assert findings_of(in_store, data=False) == {}
    assert findings_of(in_store, data=True) == {damage.kinds[0]: damage.where}


@pytest.mark.parametrize("damage", FORGED.values(), ids=FORGED.keys())
def test_files_that_say_something_wrong(repo, damage):
    damage.do(repo)
    findings = findings_of(repo, data=False)
    assert {*findings} == {*damage.kinds}
    assert findings[damage.kinds[0]].startswith(damage.where)


def test_a_damaged_range_of_many_commits_is_one_finding(repo):
    repo.branch("main").reset()
    shared = metarange(repo).row(0)
    for number in range(30):
        repo.branch("main").put("z", str(number).encode())
        repo.branch("main").commit(f"commit {number}")
        assert metarange(repo).row(0) == shared
    flip(repo, shared.key)
    findings = [finding for finding in repo.fsck() if finding.severity == Severity.ERROR]
    assert [(finding.kind, finding.where) for finding in findings] == [("range_damaged", shared.key)]
    assert findings[0].commit_count >= 30
    assert len(findings[0].commits) == 3


def test_what_cannot_be_read_is_not_called_unneeded(repo):
    remove(repo, metarange_file(repo))
    kinds = {finding.kind for finding in repo.fsck()}
    assert kinds == {"metarange_missing", "leftovers_unknown"}


def test_several_damages_are_all_found(repo):
    flip(repo, range_file(repo, 0))
    remove(repo, range_file(repo, 2))
    remove(repo, metarange_file(repo, "v1"))
    remove(repo, object_key(repo, "f23"))
    kinds = {finding.kind for finding in repo.fsck(data=True)}
    assert kinds == {"range_damaged", "range_missing", "metarange_missing", "object_missing", "leftovers_unknown"}
