"""A fail-over closes the destination to whoever replicates into it, wherever the replicator is with its work."""

import shutil
from contextlib import suppress
from random import Random

import pytest
from support.copies import copied_file, open_at
from support.errors import raising
from support.faulty_catalog import ALL_EFFECTS
from support.mirrors import OneByOne, open_lake, open_pair
from support.soundness import assert_sound

from lakeops.engine.base import LocalEngine
from lakeops.engine.spark.jobs import explained
from lakeops.model.errors import (
    Corrupted,
    MirrorOvertaken,
    NamespaceTaken,
    NotAMirror,
    PreconditionFailed,
    RepositoryNotFound,
)
from lakeops.ops.mirror.copying import CopyTask, copy_objects, delete_objects
from lakeops.ops.mirror.replicate import replicate
from lakeops.store import layout
from lakeops.store.copy import known_at
from lakeops.testing import EFFECTS, Crash, Faults


def stores(pair):
    return pair.replicator.source, pair.replicator.destination


def again(pair):
    """The steps of a schedule at the old site, which goes on."""
    replicate(*stores(pair), LocalEngine(2), delete=True, force=True)


def diverge(pair):
    """The old site comes back, knows nothing of the fail-over, goes on and collects its garbage."""
    pair.commit(**{f"f{number}": "of the old site" for number in range(6)})
    pair.repo.gc.set_rules({"default_retention_days": 0})
    pair.clock.advance(days=9)  # past the undo window
    pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True)


@pytest.fixture
def shown(pair):
    """The contents of the mirror, after some objects came by replication."""
    pair.commit(**{f"f{number}": f"old {number}" for number in range(6)})
    again(pair)
    pair.mirror.sync()
    return contents(pair.there)


def contents(lake):
    handle = lake.repository("flights").ref("main")
    return {item.path: handle.read(item.path) for item in handle.list()}


def test_replication_from_the_old_site_neither_writes_nor_deletes(pair, shown):
    pair.mirror.promote_writable()
    diverge(pair)
    _, destination = stores(pair)
    before = sorted(destination.list(), key=lambda item: item.key)
    with raising("not_the_owner", "epoch 1"):
        again(pair)
    with raising("not_the_owner"):
        pair.here.replicate(pair.repo.storage_namespace, pair.mirror.storage_namespace, delete=True, force=True)
    assert sorted(destination.list(), key=lambda item: item.key) == before
    assert contents(pair.there) == shown
    assert_sound(pair.there.repository("flights"))


@pytest.mark.parametrize(("operation", "at"), [("put", 1), ("put", 4), ("delete", 1), ("delete", 3), ("scan", 2)])
def test_a_run_under_way_stops_before_its_next_batch(pair, shown, monkeypatch, operation, at):
    monkeypatch.setattr("lakeops.ops.mirror.copying.MOST_OBJECTS", 1)
    monkeypatch.setattr("lakeops.ops.mirror.copying._BATCH", 1)
    pair.mirror.delete()  # so that the source may collect what the mirror shows: the worst case
    mirror = pair.there.create_mirror("flights", pair.mirror.storage_namespace, source=pair.here, reports=False)
    mirror.sync()
    diverge(pair)
    faults, promoted_at = Faults(), []

    def promote(_call):
        mirror.promote_writable()
        promoted_at.append(len(faults.calls))

    faults.hook(operation, at=at, when="after", action=promote)
    source, destination = stores(pair)
    with raising("not_the_owner"):
        replicate(source, faults.around(destination), OneByOne(), delete=True, force=True)
    assert [call for call in faults.calls[promoted_at[0] :] if call.operation in EFFECTS] == []
    assert sum(call.operation in EFFECTS for call in faults.calls) >= (0 if operation == "scan" else at)


def test_a_task_asks_at_its_start(pair, shown):
    """Whoever runs it: a Spark worker gets the task long after the driver looked."""
    source, destination = stores(pair)
    known = known_at(source)
    item = next(iter(source.list(layout.DATA)))
    assert copy_objects(CopyTask(source, (item,), known), destination).objects == 1
    pair.mirror.promote_writable()
    with raising("not_the_owner"):
        copy_objects(CopyTask(source, (item,), known), destination)
    with raising("not_the_owner"):
        list(delete_objects(source, destination, ["data/2026010100/none"], known))


def test_a_worker_tells_the_driver_why_it_stopped():
    said = explained("Traceback ...\nlakeops.model.errors.Corrupted: s3://b is written to by another\nmore")
    assert isinstance(said, Corrupted)
    assert said.message == "s3://b is written to by another"


def test_a_record_that_replication_brought_along_closes_nothing(tmp_path, clock):
    """A bucket's own replication copies everything, the source's owner record too."""
    with open_pair(tmp_path, clock=clock, random=Random(5)) as pair:
        made = pair.commit(a="1")
        source, destination = stores(pair)
        for item in [*source.list()]:
            destination.put(item.key, source.get(item.key))
        again(pair)
        assert pair.mirror.sync()["main"].promoted == made.id
        assert_sound(pair.mirror)
        repo = pair.fail_over()
        assert repo.owner()[1]
        assert repo.owner()[0].epoch == 2
        assert repo.adopt().owner.epoch == 2
        repo.gc.mark()
        pair.repo.gc.mark()
        with raising("not_the_owner"):
            again(pair)
        with raising("not_the_owner"):  # the way back: there the record is the old site's own, which is alive
            pair.there.replicate(repo.storage_namespace, pair.repo.storage_namespace, delete=True, force=True)


def test_killed_at_every_effect_and_run_again(tmp_path, clock):
    """Between two effects the old site replicates, deletes included; what the mirror shows stays in any case."""
    home = tmp_path / "pair"
    with open_pair(home, clock=clock, random=Random(5)) as pair:
        pair.commit(**{f"f{number}": f"old {number}" for number in range(4)})
        again(pair)
        pair.mirror.sync()
        shown, places = contents(pair.there), stores(pair)
    saved = tmp_path / "saved"
    shutil.copytree(home, saved)
    effect, when, refused = 1, "before", 0
    while True:
        shutil.rmtree(home)
        shutil.copytree(saved, home)
        faults = Faults()
        with open_lake(home / "there", clock, faults) as lake:
            faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
            try:
                lake.mirror("flights").promote_writable()
            except Crash:
                killed = True
            else:
                killed = False
        try:
            replicate(*places, LocalEngine(2), delete=True, force=True)
        except PreconditionFailed as error:
            assert error.kind == "not_the_owner"
            refused += 1
        with open_lake(home / "there", clock) as lake:
            assert contents(lake) == shown
            if killed:
                with suppress(NotAMirror):
                    lake.mirror("flights").promote_writable()
            repo = lake.repository("flights")
            assert not repo.record.read_only
            assert repo.owner()[1]
            repo.branch("main").put("new", b"of the new site")
            with raising("not_the_owner"):
                replicate(*places, LocalEngine(2), delete=True, force=True)
            assert contents(lake) == {**shown, "new": b"of the new site"}
            repo.gc.mark()
            assert_sound(repo)
        if not killed:
            break
        effect, when = (effect, "after") if when == "before" else (effect + 1, "before")
    assert effect >= 4
    assert refused >= 4


def test_an_older_copy_of_the_mirrors_catalog_does_not_promote_again(pair, shown, tmp_path, clock):
    url = copied_file(tmp_path / "there", tmp_path / "backup")
    pair.mirror.promote_writable()
    with open_at(tmp_path / "backup", url, clock) as backup:
        with raising("not_the_owner"):
            backup.mirror("flights").promote_writable()
        assert backup.repository("flights").record.read_only
        backup.repository("flights").adopt()
        backup.mirror("flights").promote_writable()
        with raising("not_the_owner"):
            pair.there.repository("flights").gc.mark()
        backup.repository("flights").gc.mark()


def test_two_lakes_promote_one_namespace(pair, shown, tmp_path, clock):
    """Two mirrors of one source were made on one replica; only one of them becomes its owner."""
    with open_lake(tmp_path / "other", clock) as other:
        rival = other.create_mirror("flights", pair.mirror.storage_namespace, source=pair.here)
        rival.sync()
        rival.promote_writable()
        with raising("not_the_owner"):
            pair.mirror.promote_writable()
        assert pair.there.repository("flights").record.read_only


@pytest.mark.parametrize("by_another", [True, False])
@pytest.mark.parametrize(
    ("transition", "when"), [("swap", "before"), ("swap", "after"), ("promote_writable", "before")]
)
def test_a_mirror_that_is_made_anew_beside_its_promotion_can_be_promoted(
    pair, shown, tmp_path, clock, transition, when, by_another
):
    place = pair.mirror.storage_namespace
    with open_lake(tmp_path / "other", clock) as other:
        lake = other if by_another else pair.there

        def delete(_):
            pair.there.mirror("flights").delete(pair.here)
            if not by_another:
                lake.create_mirror("flights", place, source=pair.here)

        pair.faults.hook(transition, when=when, action=delete)
        with pytest.raises(RepositoryNotFound if by_another else MirrorOvertaken):
            pair.mirror.promote_writable()
        pair.faults.revive()
        if by_another:
            lake.create_mirror("flights", place, source=pair.here)
        lake.mirror("flights").sync(pair.here)
        lake.mirror("flights").promote_writable(pair.here)
        assert contents(lake) == shown
        assert lake.repository("flights").owner()[1]


def test_no_mirror_is_made_on_what_a_catalog_writes_to(pair, shown, tmp_path, clock):
    pair.mirror.promote_writable()
    with open_lake(tmp_path / "third", clock) as third, pytest.raises(NamespaceTaken, match="epoch 1"):
        third.create_mirror("copy", pair.mirror.storage_namespace, source=pair.here, source_repository="flights")
    pair.there.delete_repository("flights")
    with open_lake(tmp_path / "third", clock) as third:
        assert (
            third.create_mirror("copy", pair.mirror.storage_namespace, source=pair.here, source_repository="flights").id
            == "copy"
        )
