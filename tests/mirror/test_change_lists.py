"""Lists of changes that a source wrote: a commit whose list is not what is so is not shown."""

from collections.abc import Callable
from hashlib import sha256

import pyarrow as pa
import pytest
from support.mirrors import check_whole, forge

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted, RecordRefused
from lakeops.ops.mirror.failover import VerifiedHistory
from lakeops.ranges.digest import with_digests
from lakeops.ranges.range_file import encode_metarange, encode_range
from lakeops.ranges.read import RangeReader
from lakeops.store.layout import metarange_key

PATHS = [f"p{number:02}" for number in range(40)]


def scattered(pair, text):
    """Change a path in each range, so that the commit has a list."""
    made = pair.commit_paths("main", dict.fromkeys(PATHS[::3], text))
    assert RangeReader(pair.replicator.source).metarange(made).delta is not None
    return made


@pytest.fixture
def first(pair):
    made = pair.commit_paths("main", dict.fromkeys(PATHS, "0"))
    pair.catch_up()
    return made


def with_list(pair, commit, before, after, since=None):
    """Put another list into the file of the head's metarange. Its digest is right."""
    metarange = RangeReader(pair.replicator.source).metarange(commit)
    assert metarange.delta is not None
    rows = pa.concat_tables(with_digests(side.select(RANGE_SCHEMA.names[:-1])) for side in (before, after))
    note = f"{since or metarange.delta.since} {before.num_rows}"
    data = encode_metarange(metarange.table, (note, encode_range(rows)))
    file = f"{commit.meta_range_id}-forged{sha256(data).hexdigest()[:8]}.parquet"
    pair.replicator.source.put(metarange_key(file), data)
    return forge(pair, "main", meta_range_file=file, meta_range_digest=sha256(data).hexdigest())


def in_column(name, value):
    """Puts a value into the first row's column."""

    def change(side):
        values = [value, *side.column(name).to_pylist()[1:]]
        place = side.schema.get_field_index(name)
        return side.set_column(place, side.schema.field(place), pa.array(values, side.schema.field(place).type))

    return change


LIES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a row is left out": lambda side: side.slice(1),
    "all rows are left out": lambda side: side.slice(0, 0),
    "another size": in_column("size_bytes", 7),
    "a negative size": in_column("size_bytes", -7),
    "an address that is none": in_column("physical_address", "nowhere"),
    "a file of this machine": in_column("physical_address", "file:///etc/passwd"),
    "NUL in a path": in_column("path", "p\0"),
}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("how", LIES)
def test_a_commit_with_a_list_that_lies_is_not_shown(pair, first, how, side):
    pair.repo.create_branch("dev", source="main")
    made = scattered(pair, "1")
    changes = RangeReader(pair.replicator.source).metarange(made).delta
    assert changes is not None
    sides = list(changes.rows)
    sides[side] = LIES[how](sides[side])
    with_list(pair, made, *sides)
    other = pair.arrived("dev", b="1")
    for _ in range(2):
        with pytest.raises((RecordRefused, Corrupted), match="list of changes") as caught:
            pair.mirror.sync()
        assert caught.value.message.isprintable()
    assert pair.heads() == {"main": first.id, "dev": other.id}
    later = scattered(pair, "2")
    pair.replicator.settle()
    pair.mirror.skip("main")
    pair.mirror.sync()
    assert pair.head() == later.id
    check_whole(pair)


def test_a_list_about_a_commit_that_is_no_parent_is_compared_with_that(pair, first):
    scattered(pair, "1")
    made = scattered(pair, "2")
    changes = RangeReader(pair.replicator.source).metarange(made).delta
    assert changes is not None
    with_list(pair, made, *changes.rows, since=first.meta_range_id)
    pair.replicator.settle()
    with pytest.raises(RecordRefused, match="list of changes"):
        pair.mirror.sync()
    assert pair.head() == first.id


def test_what_a_list_is_about_may_come_later(pair, first):
    """It is compared once somebody can compare the two."""
    second = scattered(pair, "1")
    third = scattered(pair, "2")
    changes = RangeReader(pair.replicator.source).metarange(third).delta
    assert changes is not None
    before, after = changes.rows
    lying = with_list(pair, third, before.slice(1), after)
    pair.replicator.hold(metarange_key(second.meta_range_file))
    pair.catch_up()
    assert pair.head() == lying.id
    pair.mirror.promote_writable()
    pair.replicator.release()
    pair.replicator.settle()
    assert pair.mirror.verify_history() == VerifiedHistory(1, 1)
    assert pair.there.catalog.mirrors.unproved("flights") == {second.id}


def test_true_lists_are_proved(pair, first):
    second = scattered(pair, "1")
    third = scattered(pair, "2")
    pair.catch_up()
    assert pair.head() == third.id
    pair.mirror.promote_writable()
    assert pair.mirror.verify_history() == VerifiedHistory(2, 0)
    repo = pair.there.repository("flights")
    assert len([*repo.diff(second.id, third.id)]) == len(PATHS[::3])
