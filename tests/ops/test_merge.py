"""Merges: every row of the merge table, and the heads that a caller is shown before they are followed."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from lakeops import Split, Strategy
from lakeops.model.errors import MergeConflict

X = None
CONFLICT = "!"

TABLE = [
    # base, source, destination, result
    ("A", "A", "A", "A"),
    ("A", "B", "B", "B"),
    ("A", "B", "C", CONFLICT),
    ("A", "A", "B", "B"),
    ("A", "B", "A", "B"),
    ("A", X, X, X),
    (X, "A", X, "A"),
    ("A", "B", X, CONFLICT),
    ("A", X, "B", CONFLICT),
    ("A", "A", X, X),
    ("A", X, "A", X),
    (X, "A", "A", "A"),
    (X, "A", "B", CONFLICT),
    (X, X, "A", "A"),
]

NEIGHBOURS = {"0/_SUCCESS": "A", "m/_SUCCESS": "A", "z/_SUCCESS": "B"}
"""Objects with the same contents as the path under test, at other paths."""


def expected(row, strategy):
    _, source, destination, result = row
    if result != CONFLICT or strategy is None:
        return result
    return source if strategy is Strategy.SOURCE_WINS else destination


def write_files(repo, branch, files):
    handle = repo.branch(branch)
    there = {item.path for item in handle.list()}
    with handle.batch() as batch:
        for path, contents in files.items():
            if contents is not None:
                batch.put(path, contents.encode())
    for path in sorted(there & {path for path, contents in files.items() if contents is None}):
        handle.delete(path)
    handle.commit(f"on {branch}", allow_empty=True)


@pytest.mark.parametrize("strategy", [None, *Strategy])
def test_each_row_alone(repo, strategy, contents):
    for number, row in enumerate(TABLE):
        base, source, destination, _ = row
        name = f"row{number}"
        repo.create_branch(f"base{number}", source=repo.ref("main").commit.id)
        write_files(repo, f"base{number}", {**NEIGHBOURS, "f": base})
        repo.create_branch(f"source{number}", source=f"base{number}")
        repo.create_branch(name, source=f"base{number}")
        write_files(repo, f"source{number}", {"f": source})
        write_files(repo, name, {"f": destination})
        wanted = expected(row, strategy)
        if wanted == CONFLICT:
            head = repo.ref(name).commit.id
            with pytest.raises(MergeConflict) as caught:
                repo.merge(f"source{number}", name)
            assert caught.value.conflicts == ["f"], row
            assert repo.ref(name).commit.id == head, row
            continue
        repo.merge(f"source{number}", name, strategy=strategy)
        assert contents(repo, name).get("f") == wanted, row
        assert contents(repo, name).items() >= NEIGHBOURS.items(), row


@pytest.mark.parametrize("strategy", [None, *Strategy])
@pytest.mark.parametrize("split", [Split(1, 1, 1), Split(2, 3, 5), Split(100, 100, 1000)], ids=str)
@pytest.mark.parametrize("copies", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_all_rows_at_once_many_times_over(lake, strategy, split, copies, contents):
    """Rows spread over several ranges: each appears several times, conflicting ones reported together."""
    repo = lake.create_repository("spread", split=split)
    rows = {f"{copy}/{number:02}": row for copy, (number, row) in product(range(copies), enumerate(TABLE))}
    write_files(repo, "main", {path: row[0] for path, row in rows.items()})
    repo.create_branch("source")
    write_files(repo, "source", {path: row[1] for path, row in rows.items()})
    write_files(repo, "main", {path: row[2] for path, row in rows.items()})
    if strategy is None:
        with pytest.raises(MergeConflict) as caught:
            repo.merge("source", "main")
        assert caught.value.conflicts == sorted(path for path, row in rows.items() if row[3] == CONFLICT)
        seen = [change.path for change in repo.compare("main", "source") if change.type == "conflict"]
        assert seen == caught.value.conflicts
        return
    result = repo.merge("source", "main", strategy=strategy)
    wanted = {path: expected(row, strategy) for path, row in rows.items()}
    assert contents(repo, "main") == {path: text for path, text in wanted.items() if text is not None}
    changed = {path for path, row in rows.items() if wanted[path] != row[2]}
    assert result.summary.total == len(changed)
    assert {change.path for change in repo.diff("main~1", "main")} == changed


class Stop(Exception):
    """The error that the caller raises."""


@pytest.fixture
def heads(lake):
    heads = lake.create_repository("heads")
    heads.branch("main").put("a", b"1")
    heads.branch("main").commit("add a")
    heads.create_branch("dev").put("b", b"1")
    heads.branch("dev").commit("add b")
    return heads


def source_url(tmp_path):
    (tmp_path / "source_url").mkdir(exist_ok=True)
    (tmp_path / "source_url" / "x").write_text("x")
    return f"file://{tmp_path}/source_url"


VERBS: dict[str, Callable[..., Any]] = {
    "merge": lambda heads, _, **more: heads.merge("dev", "main", **more),
    "revert": lambda heads, _, **more: heads.branch("main").revert("add-a", **more),
    "cherry-pick": lambda heads, _, **more: heads.cherry_pick("dev", "main", **more),
    "import": lambda heads, path, **more: heads.branch("main").import_objects(source_url(path), "in/", "load", **more),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_head_is_shown_before_it_is_followed(heads, tmp_path, verb):
    heads.create_tag("add-a", "main")
    seen: list[str] = []

    def stop(_):
        raise Stop

    before = heads.branch("main").commit_id
    with pytest.raises(Stop):
        VERBS[verb](heads, tmp_path, on_head=stop)
    assert heads.branch("main").commit_id == before

    def meanwhile(head):
        seen.append(head)
        if len(seen) == 1:
            heads.branch("main").put("meanwhile", b"1")
            heads.branch("main").commit("meanwhile")

    VERBS[verb](heads, tmp_path, on_head=meanwhile, idempotency_key="k")
    after = heads.branch("main").head
    assert seen == [before, after.parents[0]], "a head that moved is shown again"
    VERBS[verb](heads, tmp_path, on_head=stop, idempotency_key="k")
    assert heads.branch("main").commit_id == after.id, "what was done already is not asked about"
