"""Ref expressions: what parses to what, the order of resolving, and how far a walk goes."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import raising
from support.graphs import History, make_history

from lakeops.model.errors import RefNotFound
from lakeops.model.graph import resolve
from lakeops.model.names import RefExpression, Step, parse_ref


@pytest.mark.parametrize(
    ("text", "base", "steps"),
    [
        ("main", "main", []),
        ("v1.5.1^0", "v1.5.1", []),
        ("main~0", "main", []),
        ("main^00~000", "main", []),
        ("main^", "main", [(1, 1)]),
        ("main~", "main", [(1, 1)]),
        ("main^1", "main", [(1, 1)]),
        ("main~3", "main", [(1, 3)]),
        ("main^^^", "main", [(1, 3)]),
        ("main^1~2^~", "main", [(1, 5)]),
        ("main^2", "main", [(2, 1)]),
        ("main^2^2", "main", [(2, 2)]),
        ("main^2~2^3", "main", [(2, 1), (1, 2), (3, 1)]),
        ("main~007", "main", [(1, 7)]),
        ("a@b~1", "a@b", [(1, 1)]),
        ("dev:joe-bugfix-1234~2", "dev:joe-bugfix-1234", [(1, 2)]),
        ("0" * 64 + "^", "0" * 64, [(1, 1)]),
        ("main~" + "9" * 5000, "main", [(1, 2**63 - 1)]),
        ("main^" + "1" * 19, "main", [(2**63 - 1, 1)]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_parsing(text, base, steps):
    assert parse_ref(text) == RefExpression(text, base, tuple(Step(*step) for step in steps))


def test_committed_only():
    assert parse_ref("main@") == RefExpression("main@", "main", (), committed_only=True)


def test_a_bare_name_may_mean_staging_too():
    assert [parse_ref(text).is_name for text in ("main", "main@", "main~0", "main^")] == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("^", "nothing comes before '^'"),
        ("^main", "nothing comes before '^'"),
        ("~1", "nothing comes before '~'"),
        ("@", "'@' cannot be a ref"),
        ("@~1", "'@' cannot be a ref"),
        ("@{1}", "'@{' at character 1"),
        ("main@{yesterday}", "'@{' at character 5"),
        ("main@@", "ends with '@'"),
        ("HEAD", "nothing is checked out"),
        ("HEAD~1", "'HEAD' cannot be a ref"),
        ("main~x", "'x' at character 6"),
        ("main~1x", "'x' at character 7"),
        ("main~-1", "'-' at character 6"),
        ("main^+1", "'+' at character 6"),
        ("main^{}", "'{' at character 6"),
        ("main^{commit}", "'{' at character 6"),
        ("main^@", "'@' at character 6"),
        ("main^!", "'!' at character 6"),
        ("main~1@", "'@' at character 7"),
        ("main~1 ", "' ' at character 7"),
        ("main~\u0661", "'\u0661' at character 6"),
        ("main@~2", "nothing may follow the '@' at character 5; 'main~2' is a commit already"),
        ("main dev", "white space"),
        ("main..dev", "'..' at character 5"),
        ("main/x", "'/' at character 5"),
        ("main:path^?", "'?' at character 11"),
        ("main" + "^" * 70_000, "70004 bytes"),
        (None, "not text"),
        (b"main", "not text"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_invalid_expressions_say_where(text, reason):
    with raising("invalid_ref", re.escape(reason)):
        parse_ref(text)


@pytest.fixture
def history() -> History:
    #   0 - 1 - 2 ----- 5 - 6   main
    #        \ - 3 - 4 /
    commits = make_history([(), (0,), (1,), (1,), (3,), (2, 4), (5,)])
    history = History(commits)
    history.ids = [commit.id for commit in commits]
    history.branches = {"main": history.ids[6], "side": history.ids[4]}
    history.tags = {"v1": history.ids[2]}
    return history


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("main", 6), ("main@", 6), ("side", 4), ("v1", 2), ("main^", 5), ("main~2", 2), ("main^^2", 4), ("main~^2~", 3),
        ("main^^2~2", 1), ("main~4", 0), ("v1~0", 2), ("v1^", 1), ("side^0~1^1", 1),
    ],
)  # fmt: skip
def test_resolving(history, text, index):
    assert resolve(text, history) == history.ids[index]
    assert resolve(parse_ref(text), history) == history.ids[index]


def test_a_full_id_comes_first_in_either_case(history):
    commit_id = history.ids[3]
    history.branches[commit_id] = "hidden"
    assert resolve(commit_id, history) == resolve(commit_id.upper(), history) == commit_id
    assert resolve(commit_id + "^", history) == history.ids[1]


def test_the_order_is_branch_then_tag_then_prefix(history):
    prefix = next(p for n in range(1, 64) if len(history.commits_with_prefix(p := history.ids[3][:n])) == 1)
    assert resolve(prefix, history) == resolve(prefix.upper(), history) == history.ids[3]
    assert resolve(history.ids[3][:63] + "~", history) == history.ids[1]
    history.tags[prefix] = history.ids[1]
    assert resolve(prefix, history) == history.ids[1]
    history.branches[prefix] = history.ids[0]
    assert resolve(prefix, history) == history.ids[0]


def test_an_ambiguous_prefix_lists_what_it_could_be():
    history = History(make_history([(), *((index,) for index in range(16))]))
    digit = next(d for d in "0123456789abcdef" if len(history.commits_with_prefix(d)) > 1)
    candidates = history.commits_with_prefix(digit)
    with raising("ambiguous_ref") as caught:
        resolve(f"{digit}~1", history)
    assert len(candidates) > 1
    assert all(candidate[:16] in caught.value.message for candidate in candidates)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope", "answers to 'nope'"),
        ("nope~1", "answers to 'nope'"),
        ("0" * 63, "answers to"),
        ("f" * 64, "no commit ffff"),
        ("main~5", "past the first commit"),
        ("main~999999999999", "past the first commit"),
        ("main~" + "9" * 5000, "past the first commit"),
        ("main~4^", "past the first commit"),
        ("main~4^2", "past the first commit"),
        ("main^2", "asks for parent 2 of commit"),
        ("main^^3", "which has 2 parents"),
        ("v1^2", "which has one parent"),
        ("nope@", "no branch is called 'nope'"),
        ("v1@", "no branch is called 'v1'"),
        ("deadbeef@", "no branch"),
    ],
    ids=lambda value: value[:20],
)
def test_not_found(history, text, reason):
    with pytest.raises(RefNotFound, match=re.escape(reason)):
        resolve(text, history)


def test_a_bare_base_reads_no_commit(history):
    for text in ("main", "main@", "v1", "main~0^0"):
        resolve(text, history)
    assert not history.reads


def test_a_walk_past_the_root_is_not_begun():
    history = History(make_history([(), *((index,) for index in range(300))]))
    history.branches["main"] = list(history.by_id)[-1]
    with pytest.raises(RefNotFound):
        resolve("main~301", history)
    assert sum(history.reads.values()) == 1
    assert resolve("main~300", history) == next(iter(history.by_id))


def test_a_parent_that_was_lost_is_named(history):
    del history.by_id[history.ids[2]]
    with pytest.raises(RefNotFound, match=history.ids[2]):
        resolve("main~3", history)


@given(st.lists(st.tuples(st.sampled_from("~^"), st.integers(0, 5) | st.none()), max_size=8))
def test_steps_add_up_to_the_same_walk(pieces):
    text = "x" + "".join(f"{sign}{'' if number is None else number}" for sign, number in pieces)
    walked = [step.parent for step in parse_ref(text).steps for _ in range(step.times)]
    spelled: list[int] = []
    for sign, number in pieces:
        count = 1 if number is None else number
        spelled += [1] * count if sign == "~" else [count] * bool(count)
    assert walked == spelled
    parents = [step.parent for step in parse_ref(text).steps]
    assert all(one != other for one, other in itertools.pairwise(parents))
