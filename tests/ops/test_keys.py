"""Idempotency keys: what may be one, what a key stands for, and what happens to rows that are staged again."""

from collections.abc import Callable
from typing import Any

import pytest
from support.catalogs import expire_commits
from support.scenes import open_faulty, tree

from lakeops import Repository
from lakeops.model.errors import AlreadyExists, InvalidInput, KeyReused, NoChanges, RefNotFound
from lakeops.model.ids import Origin
from lakeops.testing import Faults

KEY = "run-1"
BAD_KEYS = ["", "k" * 257, "é" * 129, "a\nb", "a\0b", "\ud800", "\x1b[2J", "a\u202eb", 7, b"k", ["k"], True]


@pytest.fixture
def main(repo, fill):
    fill(repo, "main", a="1", b="1", c="1")
    repo.create_branch("dev")
    fill(repo, "dev", a="2")
    fill(repo, "dev", b="2")
    repo.create_branch("side", source="dev")
    repo.create_tag("moved", "dev")
    repo.create_tag("other", "dev")
    return repo.branch("main")


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/f").write_text("1")
    return (tmp_path / "in").as_uri()


def commit(repo, source, key, /, **given):
    given = {"branch": "main", "message": "m", "metadata": {"k": "v"}} | given
    branch = repo.branch(given.pop("branch"))
    return branch.commit(**given, idempotency_key=key, allow_empty=True)


def merge(repo, source, key, /, **given):
    given = {"source": "dev", "destination": "main", "strategy": "source-wins", "message": "m"} | given
    given = {"metadata": {"k": "v"}} | given
    return repo.merge(given.pop("source"), given.pop("destination"), **given, idempotency_key=key).reference


def revert(repo, source, key, /, **given):
    given = {"branch": "dev", "ref": "dev", "message": "m", "metadata": {"k": "v"}} | given
    return repo.branch(given.pop("branch")).revert(given.pop("ref"), **given, idempotency_key=key)


def cherry_pick(repo, source, key, /, **given):
    given = {"ref": "dev", "branch": "main", "message": "m", "metadata": {"k": "v"}} | given
    return repo.cherry_pick(given.pop("ref"), given.pop("branch"), **given, idempotency_key=key)


def import_objects(repo, source, key, /, **given):
    given = {"branch": "main", "source": source, "prefix": "in", "message": "m", "metadata": {"k": "v"}} | given
    return repo.branch(given.pop("branch")).import_objects(**given, idempotency_key=key)


def create_tag(repo, source, key, /, **given):
    given = {"name": "v1", "ref": "main"} | given
    return repo.create_tag(given["name"], given["ref"], idempotency_key=key)


def move_branch(repo, source, key, /, **given):
    given = {"branch": "side", "ref": "main", "force": True} | given
    return repo.branch(given.pop("branch")).move(given.pop("ref"), **given, idempotency_key=key)


def move_tag(repo, source, key, /, **given):
    given = {"name": "moved", "ref": "main"} | given
    return repo.move_tag(given["name"], given["ref"], idempotency_key=key)


TEXTS = [
    ({"message": "other"}, ["message"]),
    ({"metadata": {"k": "w"}}, ["metadata"]),
    ({"metadata": None}, ["metadata"]),
]
VERBS: dict[Callable[..., Any], list[tuple[dict[str, Any], list[str]]]] = {
    commit: [*TEXTS, ({"branch": "dev"}, ["ref"]), ({"message": "x", "metadata": {}}, ["message", "metadata"])],
    merge: [
        *TEXTS,
        ({"message": None}, ["message"]),
        ({"source": "side"}, ["source"]),
        ({"destination": "side", "source": "main"}, ["ref", "source"]),
        ({"strategy": None}, ["strategy"]),
        ({"squash": True}, ["squash"]),
        ({"allow_empty": True}, ["allow empty"]),
    ],
    revert: [
        *TEXTS,
        ({"ref": "dev~1"}, ["source"]),
        ({"ref": ["dev", "dev~1"]}, ["source"]),
        ({"parent_number": 1}, ["parent number"]),
        ({"branch": "side"}, ["ref"]),
    ],
    cherry_pick: [*TEXTS, ({"ref": "dev~1"}, ["source"]), ({"branch": "side"}, ["ref"])],
    import_objects: [
        *TEXTS,
        ({"prefix": "out"}, ["prefix"]),
        ({"source": "s3://bucket/x"}, ["source"]),
        ({"branch": "dev"}, ["ref"]),
    ],
    move_branch: [({"ref": "dev"}, ["source"]), ({"force": False}, ["force"]), ({"branch": "dev"}, ["ref"])],
    move_tag: [({"ref": "dev"}, ["source"]), ({"name": "other"}, ["ref"])],
    create_tag: [({"name": "v2"}, ["ref"]), ({"ref": "dev"}, ["source"])],
}
NAMES = [verb.__name__ for verb in VERBS]


def state(repo):
    return (
        {ref.id: ref.commit_id for ref in (*repo.branches(), *repo.tags())},
        [change.to_json() for ref in repo.branches() for change in repo.branch(ref.id).uncommitted()],
    )


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_a_key_stands_for_one_request(repo, main, source, verb):
    first = verb(repo, source, KEY)
    after = state(repo)
    assert verb(repo, source, KEY) == first
    for other, differs in VERBS[verb]:
        with pytest.raises(KeyReused) as caught:
            verb(repo, source, KEY, **other)
        assert list(caught.value.differs) == differs
        assert all(name in caught.value.message for name in differs)
        assert caught.value.reference[:16] in caught.value.message
        assert (caught.value.exit_code, caught.value.kind) == (5, "idempotency_key_reused")
    assert verb(repo, source, KEY) == first
    assert state(repo) == after


@pytest.mark.parametrize(
    ("verb", "delete", "create", "name"),
    [
        (move_branch, Repository.delete_branch, Repository.create_branch, "side"),
        (move_tag, Repository.delete_tag, Repository.create_tag, "moved"),
    ],
)
def test_a_ref_that_was_made_anew_is_moved_under_its_key_once_more(repo, main, source, verb, delete, create, name):
    first = verb(repo, source, KEY)
    delete(repo, name)
    with pytest.raises(RefNotFound):
        verb(repo, source, KEY)
    create(repo, name, "dev")
    for _ in range(2):
        assert verb(repo, source, KEY) == first
        assert repo.ref(name).commit_id == first.commit_id
    moves = repo.reflog(name)
    verb(repo, source, "another", ref="dev~1")
    assert verb(repo, source, KEY) == first
    assert len(repo.reflog(name)) == len(moves) + 1


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_a_key_of_one_verb_is_none_of_another(repo, main, source, verb):
    verb(repo, source, KEY)
    for other in VERBS:
        if other is not verb:
            with pytest.raises(KeyReused, match=r"another .*verb"):
                other(repo, source, KEY)


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_what_is_no_key_is_refused(repo, main, source, verb):
    main.put("staged", b"1")
    before = state(repo)
    for key in BAD_KEYS:
        with pytest.raises(InvalidInput, match="is not an idempotency key") as caught:
            verb(repo, source, key)
        assert caught.value.message.isprintable()
    assert state(repo) == before


@pytest.mark.parametrize("key", ["k", "k" * 256, "é" * 128, "scheduled__2026-01-01T00:00:00+00:00 / a|b", "airflow-0"])
def test_keys_that_programs_make(repo, main, key):
    main.put("x", b"1")
    assert main.commit("m", idempotency_key=key) == main.commit("m", idempotency_key=key)


def test_which_attempt_it_was_is_no_part_of_the_request(repo, main):
    def attempt(number, rows):
        metadata = Origin(rows=rows, airflow_try_number=str(number), airflow_link=f"https://host/{number}")
        return main.commit("m", metadata, idempotency_key=KEY)

    main.put("x", b"1")
    first = attempt(1, "7")
    assert attempt(2, "7") == first
    with pytest.raises(KeyReused, match="metadata"):
        attempt(3, "8")


# --- rows that are staged again ---

WORK = {"a": b"2", "b": None, "new": b"3"}
"""What the first call commits: a change, a deletion, an addition."""


def stage(branch, files):
    for path, data in files.items():
        if data is not None:
            branch.put(path, data)
        elif branch.exists(path):
            branch.delete(path)


AGAIN = {"nothing": {}, "all of it": WORK, "a part": {"a": b"2"}, "what was there before": {"c": b"1"}}
OTHER = {
    "another path": {"z": b"9"},
    "other contents": {"a": b"9"},
    "a deletion": {"a": None},
    "what was deleted": {"b": b"1"},
    "more than before": {**WORK, "z": b"9"},
}
MEANWHILE = {"nothing": {}, "elsewhere": {"else": b"7"}, "the same paths": {"a": b"7", "new": None}}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_the_same_rows_again(repo, main, again, meanwhile):
    """A task that is tried again stages what it staged before; others may have gone on since."""
    stage(main, WORK)
    first = main.commit("m", idempotency_key=KEY)
    stage(main, meanwhile)
    if meanwhile:
        main.commit("of somebody else")
    before = state(repo), tree(repo, "main@")
    stage(main, again)
    assert main.commit("m", idempotency_key=KEY) == first
    assert (state(repo), tree(repo, "main@")) == before
    assert list(main.uncommitted()) == []
    assert tree(repo, "main") == tree(repo, "main@")
    with pytest.raises(NoChanges):
        main.commit("nothing is left behind")


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_other_rows_stay_staged_and_are_named(repo, main, other, meanwhile):
    stage(main, WORK)
    first = main.commit("m", idempotency_key=KEY)
    stage(main, meanwhile)
    if meanwhile:
        main.commit("of somebody else")
    stage(main, other)
    before = state(repo)
    if not before[1]:
        assert main.commit("m", idempotency_key=KEY) == first, "the others did the same"
        return
    with pytest.raises(KeyReused, match="another content") as caught:
        main.commit("m", idempotency_key=KEY)
    assert any(f"'{path}' for one" in caught.value.message for path in other)
    assert caught.value.reference == first.id
    assert state(repo) == before
    assert main.commit("m", idempotency_key="fresh").id != first.id


def test_a_key_of_a_branch_that_is_protected_by_now_still_tells_its_commit(repo, main):
    main.put("x", b"1")
    first = main.commit("m", idempotency_key=KEY)
    main.put("x", b"1")
    repo.protect("main")
    assert main.commit("m", idempotency_key=KEY) == first


def test_a_branch_that_lost_the_keys_commit_keeps_what_is_staged_again(repo, main):
    dev = repo.branch("dev")
    stage(dev, WORK)
    first = dev.commit("m", idempotency_key=KEY)
    repo.delete_branch("dev")
    dev = repo.create_branch("dev")
    assert dev.commit("m", idempotency_key=KEY) == first
    stage(dev, WORK)
    before = state(repo)
    with pytest.raises(KeyReused, match="content"):
        dev.commit("m", idempotency_key=KEY)
    assert state(repo) == before


def test_an_expired_commit_of_a_key(lake, repo, main, fill):
    main.put("x", b"1")
    first = main.commit("m", idempotency_key=KEY)
    fill(repo, "main", x="2")
    expire_commits(lake.catalog, "repo", [first.id])
    assert main.commit("m", idempotency_key=KEY).id == first.id
    main.put("x", b"1")
    with pytest.raises(KeyReused, match="content"):
        main.commit("m", idempotency_key=KEY)


@pytest.mark.parametrize("moment", ["seal", "publish"])
@pytest.mark.parametrize("stages", [False, True], ids=["committed", "staged and committed"])
def test_two_calls_under_one_key_at_once(settings, clock, repo, main, moment, stages):
    """A scheduler that runs a task twice at once: one commit, both get it, and nothing is left on the branch."""
    stage(main, WORK)
    faults, made = Faults(), []

    def inside(_):
        if stages:
            stage(main, WORK)
        made.append(main.commit("m", idempotency_key=KEY))

    with open_faulty(settings, faults, clock=clock) as lake:
        faults.hook(moment, action=inside)
        outer = lake.repository("repo").branch("main").commit("m", idempotency_key=KEY)
    assert made == [outer]
    assert [item.message for item in repo.log("main")].count("m") == 1
    assert list(main.uncommitted()) == []
    with pytest.raises(NoChanges):
        main.commit("nothing is left behind")


def commit_one(repo, message, branch="main"):
    repo.branch(branch).put("a", message.encode())
    return repo.branch(branch).commit(message, {"who": message})


def test_a_tag_made_again_under_its_key_stays_where_it_was(repo):
    first = commit_one(repo, "one")
    tag = repo.create_tag("v1", "main", idempotency_key="k")
    assert tag.commit_id == first.id
    commit_one(repo, "two")
    assert repo.create_tag("v1", "main", idempotency_key="k") == tag
    repo.delete_tag("v1")  # as a crash leaves it between the key and the tag
    assert repo.create_tag("v1", "main", idempotency_key="k") == tag


def test_a_tag_elsewhere_is_refused_also_under_a_key(repo):
    commit_one(repo, "one")
    repo.create_tag("v1", "main")
    commit_one(repo, "two")
    with pytest.raises(AlreadyExists):
        repo.create_tag("v1", "main", idempotency_key="k")
    with pytest.raises(KeyReused):
        repo.create_tag("v2", "main", idempotency_key="k")


def test_a_revert_keeps_message_and_metadata(repo):
    commit_one(repo, "one")
    undone = commit_one(repo, "two")
    made = repo.branch("main").revert("main", message="no", metadata={"why": "wrong"})
    assert (made.message, made.metadata) == ("no", {"why": "wrong", "revert-origin": undone.id})


def test_a_cherry_pick_lays_metadata_over_the_originals(repo):
    repo.create_branch("dev")
    picked = commit_one(repo, "one", "dev")
    made = repo.cherry_pick("dev", "main", metadata={"who": "me", "why": "hotfix"})
    assert made.message == "one"
    assert made.metadata == {
        "who": "me",
        "why": "hotfix",
        "cherry-pick-origin": picked.id,
        "cherry-pick-committer": "tester",
    }


@pytest.mark.parametrize("given", [{"message": "\0"}, {"message": " "}, {"metadata": {"k": "x" * 70_000}}])
def test_bad_messages_and_metadata_are_refused(repo, given):
    commit_one(repo, "one")
    with pytest.raises(InvalidInput):
        repo.branch("main").revert("main", **given)
    with pytest.raises(InvalidInput):
        repo.cherry_pick("main", "main", **given)
