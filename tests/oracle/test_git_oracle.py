"""The oracle is worth something only if it drives Git rightly: cases with answers known beforehand."""

from __future__ import annotations

from support.git_oracle import EPOCH, GitMerge, GitOracle, Node


def test_imports_the_graph_as_drawn(git: GitOracle) -> None:
    root, left, right, merge, other = git.import_dag(
        [Node(()), Node((0,), 1), Node((0,), 2), Node((1, 2), 3), Node(())]
    )
    assert git.rev_parse([f"{merge}^1", f"{merge}^2", f"{merge}~2", f"{merge}^3", f"{merge}~3", f"{other}^"]) == [
        left,
        right,
        root,
        None,
        None,
        None,
    ]
    assert git.merge_base_all(left, right) == {root}
    assert git.merge_base_all(left, other) == set()
    assert git.first_parents(merge) == [merge, left, root]
    assert git.date_order(merge) == [merge, right, left, root]
    assert git.is_ancestor(right, merge)
    assert not git.is_ancestor(merge, right)


def test_dates_are_seconds_after_the_epoch(git: GitOracle) -> None:
    (commit,) = git.import_dag([Node((), 77)])
    assert git._git("show", "--no-patch", "--format=%ct", commit).decode().strip() == str(EPOCH + 77)


def test_equal_nodes_stay_apart(git: GitOracle) -> None:
    assert len(set(git.import_dag([Node(()), Node(())]))) == 2
    assert git.import_dag([Node(())]) != git.import_dag([Node(())])


def test_criss_cross_has_two_merge_bases(git: GitOracle) -> None:
    _, a, b, x, y = git.import_dag([Node(()), Node((0,)), Node((0,)), Node((1, 2)), Node((2, 1))])
    assert git.merge_base_all(x, y) == {a, b}


def test_merges_whole_files_by_path(git: GitOracle) -> None:
    base = {"same": "1", "ours": "1", "theirs": "1", "both": "1", "alike": "1", "gone/ours": "1", "gone/theirs": "1"}
    ours = {"same": "1", "ours": "2", "theirs": "1", "both": "2", "alike": "2", "gone/theirs": "1", "new": "1"}
    theirs = {"same": "1", "ours": "1", "theirs": "2", "both": "3", "alike": "2", "gone/ours": "1", "neu": "1"}
    merged = {"same": "1", "ours": "2", "theirs": "2", "alike": "2", "new": "1", "neu": "1"}
    assert git.merge_trees(base, ours, theirs) == GitMerge(merged, {"both"})


def test_a_deletion_against_a_change_conflicts_and_an_equal_addition_does_not(git: GitOracle) -> None:
    assert git.merge_all(
        [
            ({"p": "1"}, {}, {"p": "2"}),
            ({"p": "1"}, {"p": "2"}, {}),
            ({}, {"p": "1"}, {"p": "1"}),
            ({}, {"p": "1"}, {"p": "2"}),
            ({"p": "1"}, {}, {}),
            ({}, {}, {}),
        ]
    ) == [
        GitMerge({}, {"p"}),
        GitMerge({}, {"p"}),
        GitMerge({"p": "1"}, set()),
        GitMerge({}, {"p"}),
        GitMerge({}, set()),
        GitMerge({}, set()),
    ]


def test_lines_are_never_merged_and_renames_are_never_followed(git: GitOracle) -> None:
    text = "".join(f"line {n}\n" for n in range(40))
    changed_above, changed_below = "first\n" + text, text + "last\n"
    assert git.merge_trees({"p": text}, {"p": changed_above}, {"p": changed_below}).conflicts == {"p"}
    assert git.merge_trees({"old": text}, {"new": text}, {"old": changed_below}) == GitMerge({"new": text}, {"old"})
    assert git.merge_trees({"a/x": "1"}, {"b/x": "1"}, {"a/x": "1", "a/y": "2"}) == GitMerge(
        {"b/x": "1", "a/y": "2"}, set()
    )


def test_paths_may_hold_anything_that_git_takes(git: GitOracle) -> None:
    tree = {'a "quoted" \\ path': "1", "line\nend": "2", "tab\tand space ": "3", "é/日本/🦆": "4", "a/b/c": "5\n"}
    assert git.merge_trees({}, tree, {}) == GitMerge(tree, set())
