"""Cost of a mirror's pass: it follows the changes, not the repository, and not the number of skipped commits."""

from random import Random

import pyarrow as pa
import pytest
from support.mirrors import open_pair
from support.statements import transactions

from lakeops.store import layout
from lakeops.testing import ManualClock


@pytest.fixture
def pair(tmp_path, clock):
    with open_pair(tmp_path, clock=clock, random=Random(1)) as opened:
        yield opened


def stage(pair, paths, keys, checksum):
    """Objects of one byte each, written and committed in bulk."""
    for key in keys:
        pair.replicator.source.put(key, b"x")
    count = len(keys)
    columns = {"path": paths, "physical_address": keys, "checksum": [checksum] * count}
    pair.repo.branch("main").stage(pa.table({**columns, "size_bytes": [1] * count, "mtime": [7] * count}))
    pair.repo.branch("main").commit("in bulk")


def fill(pair, count):
    """A repository of ``count`` objects that is wholly mirrored. The contents are one object; only names count."""
    address = pair.repo.branch("main").put("seed", b"x").physical_address
    store = pair.replicator.source
    checksum = store.checksum(store.head(layout.relative(pair.repo.storage_namespace, address)))
    numbers = [f"{number:07}" for number in range(count)]
    stage(pair, [f"p/{name}" for name in numbers], [f"data/2026010100/{name}" for name in numbers], checksum)
    pair.catch_up()
    assert pair.head() == pair.repo.branch("main").commit_id


def sync_counted(pair):
    pair.faults.revive()
    status = pair.mirror.sync()
    counts = dict(pair.faults.counts)
    asked = [call.key for call in pair.faults.calls if call.operation in {"head", "list"}]
    opened = pair.faults.keys_opened(layout.RANGES)
    pair.faults.revive()
    return status, counts, asked, opened


@pytest.mark.parametrize("size", [120, 400])
def test_k_changed_objects_take_k_checks_whatever_the_size_and_however_many_commits(pair, size):
    fill(pair, size)
    for number in range(15):
        pair.commit_paths("main", {f"p/{number * 7:07}": str(number)})
    pair.replicator.settle()
    _, counts, asked, opened = sync_counted(pair)
    assert pair.head() == pair.repo.branch("main").commit_id
    assert len([key for key in asked if key.startswith(layout.DATA)]) <= 15
    assert len(asked) <= 15 + 2
    assert counts["promote"] == 1
    assert len(opened) <= 2 * 15


def test_a_pass_with_nothing_to_do_touches_no_object(pair):
    fill(pair, 100)
    _, counts, asked, opened = sync_counted(pair)
    assert asked == []
    assert opened == set()
    assert "get" not in counts
    assert "promote" not in counts


def test_what_arrived_is_not_looked_at_again_by_any_later_pass(pair):
    fill(pair, 100)
    files = {f"p/{number:07}": "new" for number in range(0, 100, 5)}
    pair.commit_paths("main", dict(files))
    pair.replicator.hold(layout.DATA)
    pair.replicator.settle()
    _, _, asked, opened = sync_counted(pair)
    assert len(asked) == 20
    assert opened
    status, _, asked, opened = sync_counted(pair)
    assert len(asked) == 20  # the missing ones, from memory
    assert not opened
    assert status["main"].missing_objects == 20
    keys = sorted(key for key in pair.replicator.pending if key.startswith(layout.DATA))
    pair.replicator.release()
    pair.replicator.deliver(*keys[:12])
    status, _, asked, _ = sync_counted(pair)
    assert (len(asked), status["main"].missing_objects) == (20, 8)
    status, _, asked, opened = sync_counted(pair)
    assert len(asked) == 8
    assert not opened
    pair.replicator.settle()
    status, _, asked, opened = sync_counted(pair)
    assert (len(asked), status["main"].candidate) == (8, None)
    assert opened, "the list of changes is compared with the ranges once, when everything is there"
    _, _, asked, opened = sync_counted(pair)
    assert (asked, opened) == ([], set())


def test_many_objects_are_listed_and_not_asked_for_one_by_one(pair):
    keys = [f"data/2026010100/{number:07}" for number in range(600)]
    stage(pair, keys, keys, "c")
    pair.replicator.settle()
    _, counts, asked, _ = sync_counted(pair)
    assert pair.head() == pair.repo.branch("main").commit_id
    assert len(asked) < 150
    assert counts["list"] >= 1


def test_a_thousand_commits_behind_is_one_promotion_and_few_calls(pair):
    """Commits are made in the catalog alone: only how many there are matters here."""
    from support.catalogs import draft

    from lakeops.model.ids import make_commit

    catalog = pair.here.catalog
    pair.commit(a="1")
    head = pair.repo.ref("main").commit
    for number in range(1000):
        made = make_commit(
            parents=[head],
            committer="tester",
            message=str(number),
            creation_date=head.creation_date + 1,
            meta_range_id=head.meta_range_id,
            meta_range_file=head.meta_range_file,
            meta_range_digest=head.meta_range_digest,
        )
        head = catalog.commits.publish(draft(catalog, catalog.refs.branch("flights", "main"), made))
    pair.replicator.settle()
    status, counts, asked, _ = sync_counted(pair)
    assert pair.head() == head.id
    assert (counts["promote"], counts["copy_commits"]) == (1, 3)
    assert len(asked) <= 3
    assert status["main"].lag_commits == 0
    assert len(list(pair.mirror.log("main"))) == 1002


def test_a_new_branch_of_what_is_shown_costs_nothing(pair):
    fill(pair, 100)
    pair.repo.create_branch("dev", source="main")
    pair.repo.create_tag("v1", "main")
    _, _, asked, opened = sync_counted(pair)
    assert pair.heads()["dev"] == pair.heads()["tag:v1"] == pair.head()
    assert asked == []
    assert opened == set()


def test_an_idle_pass_is_six_transactions(pair):
    """The mirror, where its source is, what the source shows, two that write down the pass, and the status."""
    pair.mirrored(a="1")
    with transactions(pair.here.catalog, pair.there.catalog) as seen:
        pair.mirror.sync()
    assert (seen.count("read"), seen.count("write")) == (4, 2)


def cost_of_a_fail_over(place, older):
    """Store calls of a fail-over with so many older commits, each with a metarange of its own."""
    with open_pair(place, clock=ManualClock(), random=Random(1)) as pair:
        for number in range(older):
            pair.commit(**{f"p{number}": str(number)})
        pair.catch_up()
        pair.faults.revive()
        pair.mirror.promote_writable()
        assert pair.faults.keys_opened(layout.METARANGES) == set()
        assert len(pair.there.catalog.mirrors.unproved("flights")) == older - 1
        return len(pair.faults.calls)


def test_a_fail_over_costs_the_same_however_many_commits_are_older(tmp_path):
    assert cost_of_a_fail_over(tmp_path / "few", 2) == cost_of_a_fail_over(tmp_path / "many", 40)
