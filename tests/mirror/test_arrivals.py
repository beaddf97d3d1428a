"""Nothing is shown before every file of it is there under its own name, and whole.

A reader at the mirror shares its process with the passes, and has read everything that was shown before: whatever it
remembers must not stand in for a file.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.mirrors import Pair, check_whole

from lakeops.model.errors import Corrupted, LakeopsError
from lakeops.model.records import Commit
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.read import RangeReader
from lakeops.store import layout

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


def ranges_of(pair: Pair, commit: Commit) -> list[RangeRow]:
    metarange: Metarange = RangeReader(pair.replicator.source).metarange(commit)
    return metarange.rows(0, len(metarange))


def keys_of(pair: Pair, commit: Commit) -> list[str]:
    """The metadata files of a commit, by the source's own store."""
    return [layout.metarange_key(commit.meta_range_file), *(row.key for row in ranges_of(pair, commit))]


def test_equal_contents_under_another_name_have_not_arrived(pair: Pair) -> None:
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
def test_a_file_that_arrived_torn_is_not_shown(pair: Pair, harm: Harm) -> None:
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
    for key, data in good.items():
        with pytest.raises(Corrupted):
            pair.mirror.sync()
        assert pair.head() == first.id, key
        status = pair.mirror.status()["main"]
        assert status.error is not None
        assert status.missing_objects > 0
        pair.store.put(key, data)
    assert pair.mirror.sync()["main"].promoted == second.id
    check_whole(pair)


def test_one_torn_file_hides_nothing_of_what_arrived(pair: Pair) -> None:
    """What is whole is remembered; what else is missing is counted."""
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


def test_a_shown_commit_that_was_harmed_vouches_for_nothing(pair: Pair) -> None:
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
