"""Nothing is shown before every file of it is there under its own name, and whole.

A reader at the mirror shares its process with the passes, and has read everything that was shown before: whatever it
remembers must not stand in for a file.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mirrors import check_whole
from support.rows import THOROUGH, Groups, Losing, built, change_sets, numbered, repositories

from lakeops.engine.base import LocalEngine
from lakeops.model.errors import Corrupted, LakeopsError, Transient
from lakeops.model.records import Split
from lakeops.ops.mirror.presence import CheckOptions, check_presence, plan_presence, remember
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.store import layout
from lakeops.store.base import StoreSettings

FIRST = {f"p/{number:03}": "first" for number in range(30)}
SECOND = {**FIRST, **{f"p/{number:03}": "second" for number in range(0, 30, 4)}}

Harm = Callable[[bytes], bytes]

HARMS: dict[str, Harm] = {
    "zeroes at its end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "zeroes at its start": lambda data: bytes(len(data) // 2) + data[len(data) // 2 :],
    "a hole": lambda data: data[: len(data) // 3] + bytes(len(data) // 3) + data[2 * (len(data) // 3) :],
    "one bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "its first byte": lambda data: b"p" + data[1:],
    "a tail": lambda data: data + b"more",
    "a missing tail": lambda data: data[:-1],
    "nothing": lambda _: b"",
}


def ranges_of(pair, commit):
    metarange: Metarange = RangeReader(pair.replicator.source).metarange(commit)
    return metarange.rows(0, len(metarange))


def keys_of(pair, commit):
    """The metadata files of a commit, by the source's own store."""
    return [layout.metarange_key(commit.meta_range_file), *(row.key for row in ranges_of(pair, commit))]


def test_equal_contents_under_another_name_have_not_arrived(pair):
    """Two branches merge the same: the same range files, in metarange files of equal bytes and of two names."""
    pair.commit_paths("main", dict(FIRST))
    pair.repo.create_branch("dev", source="main")
    pair.commit_paths("dev", {"p/029": "dev"})
    pair.commit_paths("main", {"p/000": "main"})
    pair.repo.create_branch("other", source="main")
    pair.repo.merge("dev", "main")
    pair.catch_up()
    assert pair.mirror.ref("main").read("p/029") == b"dev"
    before = pair.heads()
    pair.repo.merge("dev", "other")
    first, second = pair.repo.branch("main").head, pair.repo.branch("other").head
    assert first.meta_range_digest == second.meta_range_digest
    [name] = set(keys_of(pair, second)) - set(keys_of(pair, first))
    pair.replicator.hold(name)
    pair.catch_up()
    assert pair.heads() == before
    pair.replicator.deliver(name)
    pair.mirror.sync()
    assert pair.heads() == {**before, "other": second.id}
    check_whole(pair)


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_file_that_arrived_torn_is_not_shown(pair, harm):
    pair.commit_paths("main", dict(FIRST))
    pair.catch_up()
    first = pair.repo.branch("main").head
    second = pair.commit_paths("main", dict(SECOND))
    pair.replicator.settle()
    pair.there.catalog.mirrors.copy_commits("flights", [second])
    assert pair.mirror.ref(second.id).read("p/000") == b"second"  # the process remembers what was there
    good = {key: pair.store.get(key) for key in sorted(set(keys_of(pair, second)) - set(keys_of(pair, first)))}
    for key, data in good.items():
        pair.store.put(key, harm(data))
    for number, (key, data) in enumerate(good.items()):
        torn = "|".join(key.rpartition("/")[2] for key in [*good][number:])
        with pytest.raises(Corrupted, match=torn):
            pair.mirror.sync()
        assert pair.head() == first.id, key
        status = pair.mirror.status()["main"]
        assert status.error is not None
        assert status.missing_objects > 0
        pair.store.put(key, data)
    assert pair.mirror.sync()["main"].promoted == second.id
    check_whole(pair)


def test_one_torn_file_hides_nothing_of_what_arrived(pair):
    """A mirror remembers complete files, and counts what else is missing."""
    pair.commit_paths("main", dict(FIRST))
    pair.replicator.hold(layout.DATA)
    pair.replicator.settle()
    rows = ranges_of(pair, pair.repo.branch("main").head)
    key = rows[1].key
    good = pair.store.get(key)
    pair.store.put(key, HARMS["a hole"](good))
    with pytest.raises(LakeopsError):
        pair.mirror.sync()
    status = pair.mirror.status()["main"]
    assert status.missing_objects == 1 + sum(row.count for row in rows) - rows[1].count
    assert len(pair.there.catalog.mirrors.arrivals("flights")) == len(rows) - 1
    pair.faults.revive()
    pair.store.put(key, good)
    pair.mirror.sync()
    assert pair.faults.keys_opened(layout.RANGES) == {key}
    pair.replicator.release()
    assert pair.catch_up().caught_up


def test_a_shown_commit_that_was_harmed_vouches_for_nothing(pair):
    """A range of what is shown was damaged at the mirror: what stands in its place is looked at as a whole."""
    pair.commit_paths("main", dict(FIRST))
    pair.catch_up()
    shown = ranges_of(pair, pair.repo.branch("main").head)
    second = pair.commit_paths("main", dict(SECOND))
    gone = pair.repo.ref("main").stat("p/001").physical_address
    pair.replicator.settle()
    replaced = [row for row in shown if row.key not in set(keys_of(pair, second))]
    for row in replaced:
        pair.store.put(row.key, HARMS["a hole"](pair.store.get(row.key)))
    address = layout.relative(pair.repo.storage_namespace, gone)
    data = pair.store.get(address)
    pair.store.delete([address])
    assert pair.mirror.sync()["main"].missing_objects == 1
    pair.store.put(address, data)
    assert pair.mirror.sync()["main"].promoted == second.id


# --- proving what a metarange needs: nothing is taken for there that is not, on any engine, cut into any tasks ---

TERMS = CheckOptions(StoreSettings(fsync=False))


def address(value):
    return f"data/2026010100/{value[0]}-{value[1]}"


def run(store, wanted, known, arrived, engine=None):
    planned = plan_presence(wanted, known, arrived)
    return list(check_presence(planned, engine or LocalEngine(threads=2), store, TERMS))


@given(st.data())
@THOROUGH
def test_what_is_missing_is_missing_and_arrives_step_by_step(fresh_store, data):
    store = fresh_store()
    before = data.draw(repositories())
    edits = data.draw(change_sets(before))
    after = {path: value for path, value in {**before, **edits}.items() if value is not None}
    known, wanted = built(store, before), built(store, after)
    for value in before.values():
        store.put(address(value), b"1")
    objects = sorted({address(value) for value in after.values()} - {address(value) for value in before.values()})
    there = data.draw(st.sets(st.sampled_from(objects))) if objects else set()
    hidden = [row for row in wanted.at(wanted.without(known)) if data.draw(st.booleans())]
    contents = {row.key: store.get(row.key) for row in hidden}
    store.delete(contents)
    for one in there:
        store.put(one, b"1")

    arrived: dict[str, str | None] = {}
    for step in range(3):
        proofs = run(store, wanted, known, arrived, data.draw(st.sampled_from([None, Groups()])))
        arrived |= remember(proofs)
        missing = {one.address for proof in proofs for one in proof.missing}
        gone = {row.file for row in hidden} if step == 0 else set()
        assert {proof.file for proof in proofs if not proof.arrived} == gone
        if step == 0:
            assert missing <= set(objects) - there
            for key, text in contents.items():
                store.put(key, text)
        elif step == 1:
            assert missing == set(objects) - there
            assert sum(proof.missing_objects for proof in proofs) >= len(missing)
            for one in objects:
                store.put(one, b"1")
        else:
            assert all(proof.complete for proof in proofs)
    store.forget()
    assert run(store, wanted, known, arrived) == []
    assert store.read == []


def test_a_file_of_a_known_range_is_looked_for_alone(store):
    known = built(store, numbered(range(200)))
    wanted = built(store, numbered(range(200)))  # the same ranges, in files of other names
    assert known.id == wanted.id
    planned = plan_presence(wanted, known, {})
    assert (len(planned.rows), len(planned.files)) == (0, len(wanted))
    proofs = run(store, wanted, known, {})
    assert all(proof.complete for proof in proofs)
    store.delete([wanted.row(2).key])
    assert [proof.file for proof in run(store, wanted, known, {}) if not proof.complete] == [wanted.row(2).file]


def test_a_known_range_that_was_deleted_proves_nothing(store):
    known = built(store, numbered(range(200)))
    wanted = built(store, {**numbered(range(200)), "a/new": ("9", 9)})
    store.put("data/2026010100/9-9", b"9")
    store.delete([row.key for row in known.rows(0, len(known))])
    proofs = run(store, wanted, known, {})
    assert sum(proof.missing_objects for proof in proofs) == 1  # the one object that all the others share
    assert {one.address for proof in proofs for one in proof.missing} == {"data/2026010100/0-0"}


def test_every_byte_of_a_file_counts(store):
    """Of a big range one row is new; the row groups that it shares with what is known must be whole as well."""
    before = numbered(range(300))
    after = {**before, "a/00150": ("9", 9)}
    known, wanted = built(store, before, Split(200, 400, 800)), built(store, after, Split(200, 400, 800))
    store.put("data/2026010100/9-9", b"9")
    [index] = wanted.without(known)
    row = wanted.row(int(index))
    good = store.get(row.key)
    for start in range(0, len(good), 97):
        torn = good[:start] + bytes(byte ^ 0xFF for byte in good[start : start + 8]) + good[start + 8 :]
        store.put(row.key, torn)
        [proof] = run(store, wanted, known, {})
        assert not proof.complete, start
        assert row.file in (proof.damage or "")
        assert not remember([proof])
    store.put(row.key, good)
    assert all(proof.complete for proof in run(store, wanted, known, {}))


@pytest.mark.parametrize(
    ("etag", "etags", "differs"),
    [("0" * 32, True, True), ("1" * 32, True, False), ("0" * 32, False, False), ("0" * 31 + "-2", True, False)],
)
def test_etags_are_compared_where_they_say_something(etag, etags, differs):
    from lakeops.model.mirrors import Missing
    from lakeops.ops.mirror.presence import _mismatch
    from lakeops.store.base import StoredObject

    one = Missing("data/1/x", "a", 5, "1" * 32)
    found = _mismatch(one, StoredObject("data/1/x", 5, 0, etag=etag), CheckOptions(StoreSettings(), etags=etags))
    assert (found is not None) == differs


def test_imported_objects_are_looked_for_where_they_are_or_trusted(store, tmp_path):
    import pyarrow as pa
    from support.rows import SMALL, attempt, entry_table

    from lakeops.ranges.build import build

    rows = entry_table({"a": ("1", 1), "b": ("1", 2)}).to_pylist()
    for row in rows:
        row["physical_address"] = f"file://{tmp_path}/outside/{row['path']}"
    table = pa.Table.from_pylist(rows, entry_table({"a": ("1", 1)}).schema)
    wanted = build(store, [table], SMALL, attempt())
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(b"x")
    [proof] = run(store, wanted, Metarange.empty(), {})
    assert [one.path for one in proof.missing] == ["b"]
    planned = plan_presence(wanted, Metarange.empty(), {})
    trusting = CheckOptions(StoreSettings(), imported=False)
    assert all(one.complete for one in check_presence(planned, LocalEngine(), store, trusting))


def test_an_engine_that_loses_a_result_proves_nothing(store):
    wanted = built(store, numbered(range(200)))
    with pytest.raises(Transient, match=r"gave back \d+ of \d+ results"):
        run(store, wanted, Metarange.empty(), {}, Losing())
