"""A source whose catalog was written to by somebody else: one bad record harms nothing but its own ref."""

from typing import Any

import pytest
from support.mirrors import check_whole, forge, point, write

from lakeops.catalog.records import commit_values
from lakeops.catalog.tables import BRANCH, COMMIT, REPOSITORY, RETENTION
from lakeops.model.errors import Corrupted, LakeopsError, RecordRefused

FORGERIES: dict[str, dict[str, Any]] = {
    "another message": {"honest": False, "message": "changed"},
    "another parent": {"honest": False, "parents": ("0" * 64,)},
    "another metarange": {"honest": False, "meta_range_id": "0" * 64, "meta_range_file": f"{'0' * 64}-x.parquet"},
    "an id that is none": {"honest": False, "id": "main~1"},
    "three parents": {"parents": ("0" * 64, "1" * 64, "2" * 64)},
    "a parent that is no id": {"parents": ("main",)},
    "a generation too high": {"generation": 99},
    "a generation too low": {"generation": 1},
    "a negative generation": {"generation": -4},
    "a head that was pruned": {"generation": 0},
    "a long message": {"message": "m" * (65 << 10)},
    "NUL in the message": {"message": "a\0b"},
    "a long committer": {"committer": "c" * 5000},
    "much metadata": {"metadata": {"k": "v" * (3 << 20)}},
    "a date that is none": {"creation_date": 10**15},
    "a metarange file elsewhere": {"meta_range_file": "../../repository.json"},
    "a metarange file with a control character": {"meta_range_file": f"{'0' * 64}-\n.parquet"},
    "a digest that is none": {"meta_range_digest": "\x1b[2J"},
    "a metarange id that is none": {"meta_range_id": "x"},
}


@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_commit_is_an_error_of_its_ref_alone(pair, changes):
    pair.repo.create_branch("dev", source="main")
    kept = pair.mirrored("main", a="1")
    assert pair.head() == kept.id
    pair.commit("main", a="2")
    forge(pair, "main", **changes)
    other = pair.arrived("dev", b="1")
    for _ in range(2):  # it is told at every pass, and holds nothing up
        with pytest.raises(RecordRefused) as caught:
            pair.mirror.sync()
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 1000
    assert pair.heads() == {"main": kept.id, "dev": other.id}
    status = pair.mirror.status()
    assert status.to_json()["refused_records"] == 1
    assert "main" in status.to_json()["refused"][0]
    assert any("refused" in problem for problem in status.problems(0))
    assert status["dev"].error is None


def test_a_source_that_tells_the_truth_again_is_followed(pair):
    first = pair.commit(a="1")
    forge(pair, "main", honest=False, message="changed")
    pair.replicator.settle()
    with pytest.raises(RecordRefused):
        pair.mirror.sync()
    here = (COMMIT.c.repository_id == "flights", COMMIT.c.id == first.id)
    write(pair, COMMIT.update().where(*here).values(commit_values("flights", first)))
    status = pair.mirror.sync()
    assert pair.head() == first.id
    assert status.to_json()["refused_records"] == 0
    check_whole(pair)


def test_a_forged_commit_below_a_head_is_found(pair):
    first = pair.head()
    pair.repo.create_branch("dev", source="main")
    below = pair.commit(a="1")
    pair.commit(a="2")
    good = pair.commit("dev", b="1")
    here = (COMMIT.c.repository_id == "flights", COMMIT.c.id == below.id)
    write(pair, COMMIT.update().where(*here).values(message="changed"))
    pair.replicator.settle()
    with pytest.raises(RecordRefused, match=below.id[:16]):
        pair.mirror.sync()
    assert pair.heads() == {"main": first, "dev": good.id}


@pytest.mark.parametrize("name", ["main~1", "a/b", "\x1b[2J", "x\n::group::", "@", "n" * 300, "0" * 64, ".."])
def test_a_name_that_is_none_is_not_followed(pair, name):
    pair.repo.create_branch("odd", source="main")
    write(pair, BRANCH.update().where(BRANCH.c.name == "odd").values(name=name))
    head = pair.arrived(a="1")
    with pytest.raises(RecordRefused) as caught:
        pair.mirror.sync()
    assert caught.value.message.isprintable()
    assert pair.heads() == {"main": head.id}
    assert pair.mirror.status().to_json()["refused_records"] == 1


@pytest.mark.parametrize("head", ["", "main", "G" * 64, "A" * 64, "0" * 63])
def test_a_head_that_is_no_commit_id_keeps_the_ref_where_it_is(pair, head):
    shown = pair.mirrored(a="1")
    point(pair, "main", head)
    with pytest.raises(RecordRefused, match="'main'"):
        pair.mirror.sync()
    assert pair.heads() == {"main": shown.id}


def test_what_a_ref_waits_for_is_still_waited_for(pair):
    """Also where nothing of it was ever shown."""
    pair.repo.create_branch("dev", source="main")
    awaited = pair.commit("dev", a="1")
    with_nothing_here = pair.mirror.sync()
    assert with_nothing_here["dev"].candidate == awaited.id
    forge(pair, "dev", honest=False, message="changed", id="f" * 64)
    pair.replicator.settle()
    with pytest.raises(RecordRefused):
        pair.mirror.sync()
    assert pair.head("dev") == awaited.id


def test_rules_that_are_none_are_not_taken_over(pair):
    pair.repo.gc.set_rules({"default_retention_days": 7})
    pair.mirror.sync()
    known = pair.mirror.configuration.rules
    write(pair, RETENTION.update().values(rules='{"default_retention_days": -1}'))
    head = pair.arrived(a="1")
    with pytest.raises(RecordRefused, match="rules"):
        pair.mirror.sync()
    assert pair.mirror.configuration.rules == known
    assert pair.head() == head.id


@pytest.mark.parametrize(
    "values",
    [
        {"split": {"min_entries": 0, "target_entries": 0, "max_entries": 0}},
        {"split": {"min_entries": 2, "target_entries": 0, "max_entries": 1}},
        {"default_branch": "main~1"},
        {"capabilities": {"claim_id": "c" * 1000}},
        {"capabilities": {"claim_id": {"a": 1}}},
    ],
)
def test_a_repository_that_cannot_be_is_not_mirrored(pair, values):
    write(pair, REPOSITORY.update().values(**values))
    with pytest.raises((RecordRefused, Corrupted)):
        pair.there.create_mirror("other", source=pair.here, source_repository="flights")
    assert [repo.id for repo in pair.there.repositories()] == ["flights"]


def test_every_byte_of_a_commit_counts(pair):
    """Whatever is changed in a commit's row, the mirror shows what it showed, or what it may show."""
    first = pair.head()
    made = pair.arrived(a="1")
    odd = [None, "", "x", 7, -1, [], {}, ["a"], {"a": "b"}, "\ud800".encode("utf-8", "surrogatepass"), 2**62]
    plain = commit_values("flights", made)
    for name in plain.keys() - {"repository_id", "id", "first_parent"}:
        for value in odd:
            if value == plain[name]:
                continue
            try:
                write(pair, COMMIT.update().where(COMMIT.c.id == made.id).values({name: value}))
            except Exception:
                continue
            try:
                pair.mirror.sync()
            except LakeopsError:
                pass
            assert pair.head() == first or name == "expired", (name, value)
            write(pair, COMMIT.update().where(COMMIT.c.id == made.id).values(plain))
    pair.mirror.sync()
    assert pair.head() == made.id


def test_metadata_that_is_too_large_is_not_taken_over(pair):
    pair.repo.update_metadata({"owner": "ada"})
    pair.catch_up()
    write(pair, REPOSITORY.update().values(metadata={"owner": "x" * 100_000}))
    made = pair.arrived(a="1")
    with pytest.raises(RecordRefused, match="limit"):
        pair.mirror.sync()
    assert (pair.head(), pair.mirror.metadata) == (made.id, {"owner": "ada"})
