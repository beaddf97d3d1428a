"""A lost catalog is rebuilt from its bucket; what is rebuilt deletes nothing that it does not know."""

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random, randrange

import pytest
from sqlalchemy import delete
from support.copies import copied_file, sqlite_url
from support.damage import sql
from support.errors import raising
from support.faulty_catalog import ALL_EFFECTS
from support.scenes import SPLIT, tree
from support.soundness import assert_sound, worse_than_information

from lakeops import Lake
from lakeops.catalog.tables import REFLOG
from lakeops.model.errors import (
    AlreadyExists,
    CommitExpired,
    Corrupted,
    LakeopsError,
    MarkRefused,
    NamespaceTaken,
    NotFound,
    RecordRefused,
)
from lakeops.ops.refs import dump
from lakeops.store import layout
from lakeops.store.layout import CLAIM, dump_folder, owner_key
from lakeops.store.local import LocalStore
from lakeops.store.reader import read_text
from lakeops.testing import Crash, Faults

Open = Callable[..., Lake]


def full_of_history(lake, place, clock):
    """A repository with many ranges, merges, tags, rules, checks and protections; some of it came after its dump."""
    repo = lake.create_repository("flights", place.as_uri(), split=SPLIT)
    main = repo.branch("main")
    for number in range(3):
        for path in range(12):
            main.put(f"{number}/{path}", f"{number} {path}".encode())
        main.commit(f"load {number}", metadata={"rows": str(number)})
        clock.advance(minutes=1)
    dev = repo.create_branch("dev")
    dev.put("0/3", b"new")
    dev.commit("on dev")
    repo.create_tag("v1", "main")
    repo.create_tag("gone", "main~1")
    repo.ref("dev").pass_check("quality", by="ada")
    repo.protect_tags("v*")
    repo.update_metadata({"owner": "ada"})
    repo.refs.dump()
    repo.merge("dev", "main")
    repo.delete_tag("gone")
    repo.create_tag("v2", "main")
    repo.protect("release-*")
    repo.require_check("prod", "quality")
    repo.gc.set_rules({"default_retention_days": 2, "branches": []})
    repo.refs.dump()
    repo.delete_branch("dev")
    main.revert("main~1")
    repo.refs.dump()
    return repo


@pytest.fixture
def repo(opened, tmp_path, clock):
    return full_of_history(opened("home"), tmp_path / "bucket", clock)


def everything(repo):
    """All that a dump has, as the handles show it."""
    return {
        "branches": list(repo.branches()),
        "tags": list(repo.tags()),
        "logs": {ref.id: list(repo.log(ref.id)) for ref in (*repo.branches(), *repo.tags())},
        "reflog": [replace(move, sequence=0) for move in repo.reflog()],
        "audit": [
            replace(one, sequence=0) for one in repo.audit() if one.action not in {"restore-repository", "take-owner"}
        ],
        "protections": repo._ctx.catalog.refs.all_protections(repo.id),
        "checks": repo._ctx.catalog.refs.verdicts(repo.id, [repo.ref("main~1^2").commit_id]),
        "rules": repo.gc.rules(),
        "grace": repo.gc.grace(),
        "metadata": repo.metadata,
        "trees": {ref.id: tree(repo, ref.id) for ref in (*repo.branches(), *repo.tags())},
    }


def test_a_lost_catalog_is_rebuilt_in_a_new_process(opened, tmp_path, clock):
    place = tmp_path / "bucket"
    lake = opened("lost")
    before = everything(full_of_history(lake, place, clock))
    lake.close()
    shutil.rmtree(tmp_path / "lost")
    (tmp_path / "new").mkdir()
    environment = {**os.environ, "LAKEOPS_DATABASE_URL": sqlite_url(tmp_path / "new")}
    done = subprocess.run(
        [sys.executable, "-m", "lakeops", "refs", "restore", "lakefs://flights", place.as_uri(), "--json"],
        env=environment, capture_output=True, check=False, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["missing"] == []
    repo = opened("new").repository("flights")
    assert everything(repo) == before
    assert {finding.kind for finding in repo.fsck(data=True)} == {"owner_mismatch"}
    repo.adopt()
    repo.refs.accept()
    assert list(repo.fsck(data=True)) == []
    garbage = layout.object_key(clock.now(), repo._ctx.ids)
    repo._ctx.store.put(garbage, b"nobody's")
    clock.advance(days=20)
    repo.gc.confirm_clock()
    swept = repo.gc.sweep(repo.gc.mark().id)
    assert garbage not in {item.key for item in repo._ctx.store.list(layout.DATA)}
    assert swept.deleted > 1, "the rules let commits expire as well"
    assert {ref.id: tree(repo, ref.id) for ref in (*repo.branches(), *repo.tags())} == before["trees"]
    assert_sound(repo, data=True)
    clock.advance(seconds=1)  # the new process took its time from the machine, so its fence was taken back to now
    repo.branch("main").put("goes on", b"1")
    repo.branch("main").commit("goes on")
    assert repo.refs.dump().whole, "the dump of another catalog is not continued"


def test_reserved_keys_come_back_with_the_commits_that_have_them(opened, tmp_path, clock):
    living = full_of_history(opened("living"), tmp_path / "bucket", clock)
    dev = living.create_branch("squash", "main")
    dev.put("squashed", b"1")
    dev.commit("dev")
    living.merge("squash", "main", squash=True)
    living.refs.dump()
    copy = opened("copy").restore_repository("flights", living.storage_namespace).repository
    found = opened("copy").repository(copy.id).ref("main").commit
    assert found == living.ref("main").commit
    assert "squash-origin" in found.metadata


def test_the_restored_catalog_takes_nothing_from_the_living_one(opened, tmp_path, clock):
    """The catalog was not lost at all: it goes on writing after the dump, and commits what was staged before it."""
    living = full_of_history(opened("living"), tmp_path / "bucket", clock)
    living.branch("main").put("staged", b"before the dump")
    clock.advance(days=3)
    living.refs.dump()
    living.branch("main").commit("after the dump")
    living.branch("main").put("later", b"after the dump")
    living.branch("main").commit("later")
    shown = tree(living, "main")
    copy = opened("copy").restore_repository("flights", living.storage_namespace).repository
    drill = opened("copy").repository(copy.id)
    clock.advance(days=30)
    drill.gc.confirm_clock()
    with raising("not_the_owner"):
        drill.gc.mark()
    with raising("not_the_owner"):
        drill.refs.dump()
    drill.adopt()
    with pytest.raises(MarkRefused, match="refs accept"):
        drill.gc.mark()
    assert drill.gc.mark(dry_run=True).rows
    assert tree(living, "main") == shown
    with raising("not_the_owner"):
        living.refs.dump()
    living.adopt()
    living.gc.confirm_clock()
    assert living.refs.dump().whole is False, "it goes on with its own, and the copy wrote none"
    living.gc.sweep(living.gc.mark().id)
    assert tree(living, "main") == shown
    assert_sound(living, data=True)


def test_a_copy_of_the_catalog_writes_no_dump(repo, opened, tmp_path):
    copied_file(tmp_path / "home", tmp_path / "copy")
    with raising("not_the_owner"):
        opened("copy").repository("flights").refs.dump(full=True)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_dump_that_is_killed_leaves_the_one_before_or_is_whole(opened, tmp_path, clock, full, when):
    place = tmp_path / "bucket"
    repo = opened("home").create_repository("flights", place.as_uri(), split=SPLIT)
    repo.refs.dump()
    faults, heir = Faults(), opened("heir")
    watched = opened(sqlite_url(tmp_path / "home"), faults).repository("flights")

    def shown(one):
        return list(one.branches()), list(one.tags()), [replace(move, sequence=0) for move in one.reflog()]

    def restored():
        heir.restore_repository("flights", place.as_uri())
        found = shown(heir.repository("flights"))
        heir.delete_repository("flights")
        return found

    killed = 0
    for at in range(1, 5):
        old = shown(repo)
        repo.create_tag(f"t{at}", "main")
        faults.crash(at=at, when=when, operations=ALL_EFFECTS)
        try:
            watched.refs.dump(full=full)
        except Crash:
            killed += 1
        faults.revive()
        assert restored() in (old, shown(repo))
        watched.refs.dump()
        assert restored() == shown(repo)
    assert killed >= 2, "at the part, and at the manifest"


def test_a_part_stays_when_the_answer_to_the_write_that_named_it_is_lost(repo, opened, monkeypatch):
    """Another call has added to the manifest by the time that the write is repeated, and refused."""
    repo.create_tag("first", "main")
    swap = LocalStore.swap

    def lost(store, key, data, *, expected):
        monkeypatch.setattr(LocalStore, "swap", swap)
        assert swap(store, key, data, expected=expected)
        repo.create_tag("second", "main")
        assert repo.refs.dump().whole is False
        return False

    monkeypatch.setattr(LocalStore, "swap", lost)
    assert repo.refs.dump().whole is None
    store, folder = repo._ctx.store, dump_folder(repo._ctx.store.url)
    manifest = dump.parse(store.get(folder + dump.MANIFEST).decode())
    assert {part.file for part in manifest.parts} <= {item.key.removeprefix(folder) for item in store.list(folder)}
    before = everything(repo)
    opened("new").restore_repository("flights", repo.storage_namespace)
    assert everything(opened("new").repository("flights")) == before


def refused(opened, place, error, text=None):
    lake = opened("refusing")
    with pytest.raises(error, match=text):
        lake.restore_repository("flights", place.as_uri())
    assert list(lake.repositories()) == []


def test_damage_is_found_and_nothing_is_restored(opened, tmp_path, clock):
    place = tmp_path / "bucket"
    repo = full_of_history(opened("home"), place, clock)
    folder = place / layout.dump_folder(repo._ctx.store.url)
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for damaged in (whole[:-1], whole[:40] + b"?" + whole[41:], whole + b"x", b""):
            file.write_bytes(damaged)
            refused(opened, place, Corrupted)
        file.unlink()
        refused(opened, place, NotFound if file.name == "manifest.json" else Corrupted)
        file.write_bytes(whole)
    opened("fine").restore_repository("flights", place.as_uri())


def forge(repo, change):
    """Rewrite the dump's only part, digests and all: what somebody who may write to the bucket could do."""
    store, folder = repo._ctx.store, layout.dump_folder(repo._ctx.store.url)
    found = dump.parse(read_text(store, folder + dump.MANIFEST))
    part = found.parts[0]
    lines = [json.loads(line) for line in gzip.decompress(store.get(folder + part.file)).splitlines()]
    change(lines)
    data = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), 1)
    store.put(folder + part.file, data)
    forged = replace(part, sha256=sha256(data).hexdigest(), size_bytes=len(data), records=len(lines))
    store.put(folder + dump.MANIFEST, replace(found, parts=(forged,)).to_text().encode())


def first(lines, kind, at=0):
    return [values for name, values in lines if name == kind][at]


def without(lines, kind, at=0):
    lines.remove([kind, first(lines, kind, at)])


FORGED: dict[str, tuple[Callable[[list[list]], object], str]] = {
    "message": (lambda lines: first(lines, "commit", 1).update(message="other"), "its record gives the id"),
    "parent": (lambda lines: without(lines, "commit", 1), "lacks its parent"),
    "generation": (lambda lines: first(lines, "commit", 2).update(generation=9), "generation"),
    "metarange": (
        lambda lines: first(lines, "commit", 2).update(meta_range_file="../../x"),
        "not a file of its metarange",
    ),
    "branch": (lambda lines: first(lines, "move", -1).update(ref="main~1"), "no branch name"),
    "head": (lambda lines: first(lines, "branch").update(commit_id="a" * 64), "points to a commit that it lacks"),
    "kind": (lambda lines: lines.append(["owner", {"held": "me"}]), "refused"),
    "shape": (lambda lines: lines.append("no record"), "refused"),
    "type": (lambda lines: first(lines, "commit", 1).update(creation_date="now"), "refused"),
    "hook": (lambda lines: first(lines, "repository").update(hooks=[{"name": "x"}]), "refused"),
    "split": (lambda lines: first(lines, "repository").update(split={"min_entries": 0}), "cannot cut"),
    "metadata": (lambda lines: first(lines, "repository").update(metadata={"k": 1}), "refused"),
    "rules": (lambda lines: first(lines, "rules").update(rules="{"), "rules"),
    "control": (lambda lines: first(lines, "record").update(login="a\0b"), "NUL"),
    "deep": (lambda lines: first(lines, "commit", 1).update(metadata={"a": {"b": 1}}), "refused"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_records_are_refused(repo, opened, tmp_path, name):
    repo.refs.dump(full=True)
    change, text = FORGED[name]
    forge(repo, change)
    refused(opened, tmp_path / "bucket", RecordRefused, text)


ODD = (
    None, True, -1, 0, 1.5, 2**31, 2**63, 10**30, "", "x", "main", "a" * 64, "x" * 5000, "a\0b", "\ud800", "../../x",
    [], {}, [1], ["a" * 64], {"a": 1}, {"a": "b"}, [[[]]],
)  # fmt: skip


def mutate(random, lines):
    """One change of one record, or of the order of the records."""
    at = random.randrange(len(lines))
    kind = random.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(random.randrange(len(lines)), lines[at])
    elif kind == 2:
        lines[at] = random.choice(ODD)
    else:
        place = lines[at]
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = random.choice(list(keys))
            if not isinstance(place[key], dict | list) or not place[key] or random.randrange(3) == 0:
                if kind == 3 and isinstance(place, dict):
                    del place[key]
                else:
                    place[key] = random.choice(ODD)
                return
            place = place[key]


def judge_forged_dumps(opened, place, repo, seeds):
    """Forged dumps are refused in words, or make a repository that can be looked at; how many were refused."""
    repo.refs.dump(full=True)
    folder = place / layout.dump_folder(repo._ctx.store.url)
    whole = {file: file.read_bytes() for file in folder.iterdir()}
    heir, refusals = opened("heir"), 0
    for seed in seeds:
        for file, data in whole.items():
            file.write_bytes(data)
        forge(repo, partial(mutate, Random(seed)))
        try:
            heir.restore_repository("flights", place.as_uri())
        except LakeopsError:
            refusals += 1
            assert list(heir.repositories()) == [], seed
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        found = heir.repository("flights")
        list(found.fsck())
        for ref in (*found.branches(), *found.tags()):
            list(found.log(ref.id))
        heir.delete_repository("flights")
    return refusals


def test_forged_dumps_are_refused_or_make_something_that_can_be_looked_at(repo, opened, tmp_path):
    assert judge_forged_dumps(opened, tmp_path / "bucket", repo, range(60)) > 20


@pytest.mark.slow
def test_many_forged_dumps(repo, opened, tmp_path):
    first = randrange(10**9)
    assert judge_forged_dumps(opened, tmp_path / "bucket", repo, range(first, first + 2000)) > 500


def test_a_bomb_ends_at_the_bound(repo, opened, tmp_path):
    repo.refs.dump(full=True)
    forge(repo, lambda lines: lines.append(["record", {"login": " " * (9 << 20)}]))
    refused(opened, tmp_path / "bucket", Corrupted, "more than was dumped")


def test_what_a_dump_adds_and_when_it_is_whole(opened, tmp_path, clock):
    repo = opened("home").create_repository("flights", (tmp_path / "bucket").as_uri(), split=SPLIT)
    main = repo.branch("main")
    assert repo.refs.status().behind
    assert repo.refs.dump().whole
    assert not repo.refs.status().behind
    assert repo.refs.dump().whole is None
    for number in range(2):
        main.put("a", str(number).encode())
        main.commit("one more")
        assert repo.refs.status().behind
        done = repo.refs.dump()
        assert (done.whole, done.parts) == (False, 2 + number)
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    assert repo.refs.dump().whole is False
    clock.advance(days=20)
    repo.gc.confirm_clock()
    repo.gc.mark()  # commits expire
    assert repo.refs.dump().whole
    folder = layout.dump_folder(repo._ctx.store.url)
    assert len([*repo._ctx.store.list(folder)]) == 6, "the files of the dump before stay for one more time"
    repo.refs.dump(full=True)
    assert len([*repo._ctx.store.list(folder)]) == 3
    assert_sound(repo)


def test_a_commit_that_was_swept_after_the_dump_is_expired(repo, opened, clock):
    clock.advance(days=20)
    repo.gc.confirm_clock()
    repo.gc.sweep(repo.gc.mark().id)
    expired = {commit.id for commit in repo.log("main") if commit.expired}
    assert expired
    done = opened("new").restore_repository("flights", repo.storage_namespace)
    again = opened("new").repository("flights")
    gone = {commit.id for commit in again.log("main") if commit.expired}
    assert done.expired
    assert gone
    assert gone <= expired, "those that show what a live commit shows are whole"
    assert tree(again, "main") == tree(repo, "main")
    assert {finding.kind for finding in again.fsck(data=True)} <= {"owner_mismatch"}


def test_a_dump_that_replication_brought_along(repo, opened, tmp_path):
    before = everything(repo)
    shutil.copytree(tmp_path / "bucket", tmp_path / "replica")
    lake = opened("new")
    lake.restore_repository("flights", (tmp_path / "replica").as_uri(), of=repo.storage_namespace)
    again = lake.repository("flights")
    assert everything(again) == before
    again.adopt()
    assert again.refs.dump().whole
    assert len(dump.folders(again._ctx.store)) == 2, "its own lies beside the other one"


def test_what_is_written_in_a_replica_that_was_restored_is_not_replicated_over(repo, opened, tmp_path):
    shutil.copytree(tmp_path / "bucket", tmp_path / "replica")
    lake = opened("new")
    lake.restore_repository("flights", (tmp_path / "replica").as_uri())
    again = lake.repository("flights")
    again.branch("main").put("new", b"1")
    again.branch("main").commit("later")
    with raising("not_the_owner"):
        opened("home").replicate(repo.storage_namespace, again.storage_namespace, delete=True)
    assert again.ref("main").read("new") == b"1"
    assert list(again.fsck(data=True)) == []
    with pytest.raises(MarkRefused, match="refs accept"):
        again.gc.mark()
    lake.delete_repository("flights")
    opened("home").replicate(repo.storage_namespace, again.storage_namespace, delete=True)


def test_what_arrives_after_a_restore_of_a_replica_lives_again(repo, opened, tmp_path, clock):
    commits = [*repo.log("main")]
    late = "_lakefs/metaranges/" + commits[2].meta_range_file
    shutil.copytree(tmp_path / "bucket", tmp_path / "replica")
    (tmp_path / "replica" / late).unlink()
    done = opened("new").restore_repository("flights", (tmp_path / "replica").as_uri())
    assert done.expired
    again = opened("new").repository("flights")
    shutil.copy(tmp_path / "bucket" / late, tmp_path / "replica" / late)
    shared = (
        tmp_path / "replica" / layout.relative(again.storage_namespace, again.ref("main").stat("0/0").physical_address)
    )
    held = shared.rename(tmp_path / "held")
    assert again.verify_history().commits == 0, "nobody has looked for the objects of live commits"
    held.rename(shared)
    again.refs.accept()
    again.gc.set_rules(None)
    clock.advance(days=2)
    again.gc.sweep(again.gc.mark().id)
    assert [tree(again, one.id) for one in commits] == [tree(repo, one.id) for one in commits]


def test_a_restore_of_a_replica_that_was_killed_is_made_again(repo, opened, tmp_path):
    shutil.copytree(tmp_path / "bucket", tmp_path / "replica")
    opened("heir")
    faults = Faults()
    lake = opened(sqlite_url(tmp_path / "heir"), faults)
    faults.crash(at=1, when="after", operations=("swap",))
    with pytest.raises(Crash):
        lake.restore_repository("flights", (tmp_path / "replica").as_uri())
    faults.revive()
    lake.restore_repository("flights", (tmp_path / "replica").as_uri())
    again = lake.repository("flights")
    again.refs.accept()
    assert again.gc.mark().rows == 0


def test_moves_of_a_dump_say_nothing_about_the_clock(repo, opened, clock):
    """The log of the dump is as quiet as it was, and its times lie before what the catalog has seen."""
    clock.advance(days=5)
    repo.branch("main").put("a", b"after days")
    repo.branch("main").commit("later")
    repo.refs.dump()
    lake = opened("new")
    other = lake.create_repository("trains")
    clock.jump(hours=1)
    lake.restore_repository("flights", repo.storage_namespace)
    clock.boot = "another machine"
    assert other.gc.mark().rows == 0
    lake.delete_repository("flights")
    clock.jump(days=3)
    lake.restore_repository("flights", repo.storage_namespace)
    with raising("clock_in_doubt"):  # a restore does not hide what was in doubt
        other.gc.mark()


def test_on_a_server(repo, opened, empty_postgres_url):
    """From SQLite to PostgreSQL, and from there to another file."""
    before = everything(repo)
    server = opened(empty_postgres_url)
    server.restore_repository("flights", repo.storage_namespace)
    moved = server.repository("flights")
    assert everything(moved) == before
    moved.adopt()
    assert moved.refs.dump().whole
    moved.create_tag("later", "main")
    assert moved.refs.dump().whole is False
    after = everything(moved)
    again = opened("again")
    again.restore_repository("flights", repo.storage_namespace)
    assert everything(again.repository("flights")) == after


def test_what_is_there_is_not_replaced(opened, tmp_path, clock):
    lake = opened("home")
    repo = full_of_history(lake, tmp_path / "bucket", clock)
    with pytest.raises(AlreadyExists):
        lake.restore_repository("flights", repo.storage_namespace)
    with pytest.raises(NamespaceTaken):
        lake.restore_repository("other", repo.storage_namespace)
    with pytest.raises(NotFound):
        lake.restore_repository("other", (tmp_path / "elsewhere").as_uri())
    before = everything(repo)
    lake.delete_repository("flights")
    lake.restore_repository("flights", repo.storage_namespace)
    again = everything(lake.repository("flights"))
    audit = [one.action for one in lake.audit("flights")]
    assert {**again, "audit": []} == {**before, "audit": []}
    assert audit.count("create-repository") == 1, "records that the catalog still has are not written twice"


def test_a_repository_that_is_restored_under_another_name_takes_puts_in_the_same_process(opened, tmp_path, clock):
    lake = opened("home")
    repo = full_of_history(lake, tmp_path / "bucket", clock)
    lake.delete_repository("flights")
    lake.restore_repository("flights-eu", repo.storage_namespace)
    main = lake.repository("flights-eu").branch("main")
    main.put("new", b"1")
    assert [one.path for one in main.uncommitted()] == ["new"]


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_a_ref_that_was_deleted_stays_deleted_whatever_the_log_has_lost(opened, tmp_path, clock, kind):
    """The catalog is older, or was damaged: the log knows of the ref's making and not of its deletion."""
    repo = opened("lost").create_repository("flights", (tmp_path / "place").as_uri(), split=SPLIT)
    repo.create_branch("x") if kind == "branch" else repo.create_tag("x", "main")
    repo.delete_branch("x") if kind == "branch" else repo.delete_tag("x")
    clock.advance(days=1)
    sql(repo, delete(REFLOG).where(REFLOG.c.action == f"delete-{kind}"))
    assert [move.action for move in repo.reflog("x")] == [f"create-{kind}"]
    repo.refs.dump(full=True)
    shutil.rmtree(tmp_path / "lost")
    lake = opened("heir")
    lake.restore_repository("flights", repo.storage_namespace)
    restored = lake.repository("flights")
    assert [ref.id for ref in (*restored.branches(), *restored.tags())] == ["main"]
    restored.adopt()
    restored.branch("main").commit("later", allow_empty=True)
    restored.create_tag("y", "main")
    restored.refs.dump()
    assert [ref.id for ref in (*restored.branches(), *restored.tags())] == ["main", "y"]


@pytest.mark.parametrize("way", ["dump", "backup"])
def test_a_restored_catalog_does_not_continue_the_dump_of_the_lost_one(opened, tmp_path, way):
    """Its moves have the numbers of the lost one's, and its records lower ones."""
    lost = opened("lost")
    repo = lost.create_repository("flights", (tmp_path / "bucket").as_uri(), split=SPLIT)
    for name in ("one", "two", "three", "four"):
        lost.create_repository(name)
    if way == "backup":
        copied_file(tmp_path / "lost", tmp_path / "heir")
    repo.ref("main").pass_check("quality")
    repo.refs.dump()
    if way == "dump":
        opened("heir").restore_repository("flights", repo.storage_namespace)
    heir = opened("heir").repository("flights")
    heir.adopt()
    if way == "dump":
        heir.ref("main").fail_check("quality", "rows are wrong")
    assert heir.refs.status().behind
    assert heir.refs.dump().whole
    assert not heir.refs.status().behind
    opened("last").restore_repository("flights", repo.storage_namespace)
    assert opened("last").repository("flights").ref("main").verdicts() == heir.ref("main").verdicts()


def test_a_mark_that_can_be_taken_back_deletes_nothing_after_a_restore(opened, tmp_path, clock):
    """The rules were wrong, the mark was not swept, and the next one would have let the commits live again."""
    repo = full_of_history(opened("lost"), tmp_path / "bucket", clock)
    before = {commit.id: tree(repo, commit.id) for commit in repo.log("main")}
    clock.advance(days=9)
    repo.gc.confirm_clock()
    repo.gc.mark()
    assert any(commit.expired for commit in repo.log("main"))
    repo.gc.set_rules({"default_retention_days": 3650, "branches": []})
    repo.refs.dump()
    opened("heir").restore_repository("flights", repo.storage_namespace)
    heir = opened("heir").repository("flights")
    heir.adopt()
    heir.refs.accept()
    clock.advance(days=2)
    heir.gc.sweep(heir.gc.mark().id, force=True)
    assert {commit.id: tree(heir, commit.id) for commit in heir.log("main")} == before


def test_a_swept_commit_is_expired_after_a_restore_though_its_metarange_was_too_young_to_be_swept(
    opened, tmp_path, clock
):
    lost = opened("lost").create_repository("flights", (tmp_path / "bucket").as_uri(), split=SPLIT)
    lost.gc.set_grace("14d")
    main = lost.branch("main")
    main.put("old", b"1")
    main.commit("with old")
    clock.advance(days=20)
    dev = lost.create_branch("dev")
    dev.put("new", b"1")
    swept = dev.commit("shows old")
    lost.delete_branch("dev")
    main.delete("old")
    main.commit("without old")
    lost.gc.set_rules({"default_retention_days": 0, "branches": []})
    lost.refs.automatic()
    clock.advance(days=9)
    lost.gc.confirm_clock()
    assert lost.gc.sweep(lost.gc.mark().id).deleted
    opened("heir").restore_repository("flights", lost.storage_namespace)
    heir = opened("heir").repository("flights")
    with pytest.raises(CommitExpired):
        heir.ref(swept.id).read("old")
    assert {one.kind for one in worse_than_information(heir)} == {"owner_mismatch"}


HUGE = 8 << 30  # sparse: it takes no space


def huge(file):
    os.truncate(file, HUGE)


def deep(file):
    file.write_bytes(b'{"a":' * 100_000)


@pytest.mark.parametrize("damage", [huge, deep])
@pytest.mark.parametrize("name", ["claim", "owner", "manifest"])
def test_it_is_damage_and_takes_no_memory(lake, tmp_path, damage, name):
    place = tmp_path / "bucket"
    repo = lake.create_repository("repo", place.as_uri(), split=SPLIT)
    repo.refs.dump()
    store = repo._ctx.store
    keys = {"claim": CLAIM, "owner": owner_key(store.url), "manifest": dump_folder(store.url) + dump.MANIFEST}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    damage(place / keys[name])
    if name == "manifest":
        with pytest.raises((Corrupted, NotFound)):
            lake.delete_repository("repo")
            lake.restore_repository("repo", place.as_uri())
    else:
        assert {one.kind for one in worse_than_information(repo)} <= {"claim_mismatch", "owner_missing"}
        assert worse_than_information(repo)
        with pytest.raises(LakeopsError):
            repo.gc.mark()
    with pytest.raises(NamespaceTaken):
        lake.create_repository("other", place.as_uri(), split=SPLIT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "in KiB"
