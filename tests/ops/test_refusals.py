"""A verb that is refused leaves the branch as it was: no token more, nothing that makes reading it slower."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.errors import has_kind
from support.scenes import tree

from lakeops import Lake, Repository, Settings
from lakeops.model import errors

REFUSALS = ("merge_conflict", "dirty_branch", "no_changes")


@pytest.fixture
def scene(repo: Repository, fill):
    """``main`` and ``dev`` disagree about "both"; ``old`` has nothing new; reverting or picking on main conflicts."""
    fill(repo, "main", both="0", same="0")
    repo.create_branch("dev")
    repo.create_branch("old")
    fill(repo, "dev", both="dev")
    fill(repo, "main", both="main")
    fill(repo, "main", both="main again")
    return repo


VERBS = {
    "merge": lambda repo: repo.merge("dev", "main"),
    "revert": lambda repo: repo.branch("main").revert("main~1"),
    "cherry-pick": lambda repo: repo.cherry_pick("dev", "main"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("staged", ["nothing", "no change", "a change"])
def test_a_refusal_adds_no_token(lake: Lake, scene: Repository, verb, staged):
    main = scene.branch("main")
    for number in range(3):
        if staged != "nothing":
            main.put("same", b"0" if staged == "no change" else f"changed {number}".encode())
        before = lake.catalog.refs.branch("repo", "main")
        with pytest.raises(errors.LakeopsError, check=has_kind(*REFUSALS)):
            VERBS[verb](scene)
        assert lake.catalog.refs.branch("repo", "main") == before
    assert before.sealed_tokens == ()


def test_nothing_to_do_adds_no_token(lake: Lake, scene: Repository, tmp_path):
    main = scene.branch("main")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("1")
    main.import_objects((tmp_path / "source").as_uri(), "in", "import")
    main.revert("main", message="undone")
    main.put("same", b"0")
    before = lake.catalog.refs.branch("repo", "main")
    assert scene.merge("old", "main").up_to_date
    with pytest.raises(errors.NoChanges):
        main.revert("main~1")
    assert lake.catalog.refs.branch("repo", "main") == before
    main.reset()
    main.import_objects((tmp_path / "source").as_uri(), "in", "import")
    main.put("same", b"0")
    before = lake.catalog.refs.branch("repo", "main")
    with pytest.raises(errors.NoChanges):
        main.import_objects((tmp_path / "source").as_uri(), "in", "again")
    assert lake.catalog.refs.branch("repo", "main") == before
    main.put("same", b"changed")
    with pytest.raises(errors.PreconditionFailed, check=has_kind("dirty_branch")):
        main.import_objects((tmp_path / "source").as_uri(), "elsewhere", "import")
    assert lake.catalog.refs.branch("repo", "main") == before


def test_rows_that_change_nothing_leave_with_the_merge(lake: Lake, scene: Repository):
    """They would undo the merge, had they stayed."""
    main = scene.branch("main")
    main.put("both", b"main again")
    scene.merge("dev", "main", strategy="source-wins")
    assert main.read("both") == b"dev"
    assert list(main.uncommitted()) == []
    assert not lake.catalog.staging.has_staged("repo", "main")


@pytest.mark.parametrize("row", ["no change", "a change"])
def test_rows_that_come_while_a_merge_is_planned(scene: Repository, faulty_lake: Lake, faults, row):
    """Between its look and its seal: what changes something refuses the merge, what does not leaves with it."""
    main = scene.branch("main")
    main.put("both", b"main again")
    faults.hook("seal", action=lambda _: main.put("same", b"0" if row == "no change" else b"1"))
    repo = faulty_lake.repository("repo")
    if row == "a change":
        with pytest.raises(errors.PreconditionFailed, check=has_kind("dirty_branch")):
            repo.merge("dev", "main", strategy="source-wins")
        assert [change.path for change in main.uncommitted()] == ["same"]
    else:
        repo.merge("dev", "main", strategy="source-wins")
        assert list(main.uncommitted()) == []
        assert main.read("both") == b"dev"


WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("01")), max_size=3)


@settings(max_examples=examples(8))
@given(sealed=WRITES, active=WRITES, where=st.sampled_from(["a", "b", "c", "", "z"]))
def test_a_reset_stops_a_commit_only_when_it_takes_its_rows(tmp_path_factory, sealed, active, where):
    """The commit has sealed and read its rows when the reset comes; it publishes what is not reset."""
    with Lake.open(settings=Settings.load(home=tmp_path_factory.mktemp("lake"), fsync=False)) as lake:
        repo = lake.create_repository("repo")
        main = repo.branch("main")
        for path, text in [("keep", "0"), *sealed]:
            main.put(path, text.encode())
        inner, tries = lake.catalog.commits.publish, []

        def publish(request):
            tries.append(request)
            if len(tries) == 1:
                for path, text in active:
                    main.put(path, text.encode())
                main.reset(prefix=where or "none")
            return inner(request)

        lake.catalog.commits.publish = publish  # type: ignore[method-assign]
        main.commit("commit")
        gone = {path for path, _ in sealed if where and path.startswith(where)}
        assert len(tries) == 1 + bool(gone)
        if not gone:
            assert tree(repo, "main@") == {path: text.encode() for path, text in [("keep", "0"), *sealed]}
        everything = {"keep": "0", **dict(sealed), **dict(active)}
        assert tree(repo, "main") == {
            path: text.encode() for path, text in everything.items() if not (where and path.startswith(where))
        }


def test_no_verb_lets_a_caller_speak_for_airflow(scene: Repository, tmp_path):
    main = scene.branch("main")
    (tmp_path / "file").write_text("1")
    main.put("new", b"1")
    head = main.commit_id
    for key in ("airflow_run_id", "approved_by"):
        told = {"metadata": {key: "somebody"}}
        for publish in (
            lambda told=told: main.commit("m", **told),
            lambda told=told: scene.merge("dev", "main", strategy="source-wins", **told),
            lambda told=told: main.revert("main~1", **told),
            lambda told=told: scene.cherry_pick("dev", "main", **told),
            lambda told=told: main.import_objects(tmp_path.as_uri(), "in", "m", **told),
        ):
            with pytest.raises(errors.InvalidInput, match=f"'{key}' is reserved"):
                publish()
    assert main.commit_id == head
