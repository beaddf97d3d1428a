"""Which commits live: the definition, case by case, and against walking every line one by one in any order."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.errors import raising
from support.graphs import make_history, random_dates, random_parents

from lakeops.model.errors import InvalidInput
from lakeops.model.graph import Lineage, Node, shared
from lakeops.model.retention import (
    DAY,
    BranchRule,
    RetentionReason,
    Rules,
    TagRule,
    counted,
    live,
    parse_rules,
    read_rules,
)

NOW = 100 * DAY


def history(parents, ages):
    """Commits by index, with their ages in seconds at ``NOW``."""
    return nodes(make_history(parents, [NOW - age for age in ages]))


def nodes(commits):
    return [Node(commit.id, commit.parents, commit.creation_date, commit.generation) for commit in commits]


def refs(commits, **given):
    return Lineage(**{"branches": {}, "tags": {}, **given}, commits={commit.id: commit for commit in commits})


def indexes(found, commits):
    return {index: found[commit.id] for index, commit in enumerate(commits) if commit.id in found}


LINE = [(), (0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        # A commit lives while it was the head within the window: until its child is as old as the window.
        ([5 * DAY, 4 * DAY, 3 * DAY, 2 * DAY, 1 * DAY], {4, 3, 2}),
        ([5 * DAY, 4 * DAY, 3 * DAY, 3 * DAY - 1, 1], {4, 3, 2}),
        ([5 * DAY, 4 * DAY, 3 * DAY - 1, 1, 0], {4, 3, 2, 1}),
        ([99 * DAY] * 5, {4}),
        ([0, 0, 0, 0, 0], {0, 1, 2, 3, 4}),
        ([-DAY] * 5, {0, 1, 2, 3, 4}),
        # Clocks that went wrong: 0 was the head until the young 1 was made, whatever was made after it.
        ([99 * DAY, 1, 99 * DAY, 99 * DAY, 1], {4, 3, 0}),
    ],
)
def test_a_line_with_a_window_of_three_days(ages, expected):
    commits = history(LINE, ages)
    found = live(refs(commits, branches={"main": commits[4].id}), Rules(default_retention_days=3), NOW)
    assert set(indexes(found, commits)) == expected
    assert found[commits[4].id] is RetentionReason.HEAD


def test_tags_and_mirrors_keep_one_commit_each():
    commits = history(LINE, [90 * DAY] * 5)
    everything = refs(
        commits,
        branches={"main": commits[4].id},
        tags={"v1": commits[1].id, "v2": commits[4].id},
        mirrors={"there": frozenset({commits[0].id, commits[1].id, "f" * 64})},
    )
    found = live(everything, Rules(default_retention_days=3), NOW)
    assert indexes(found, commits) == {0: RetentionReason.MIRROR, 1: RetentionReason.TAG, 4: RetentionReason.HEAD}
    assert set(found) <= everything.commits.keys()
    counts = dict.fromkeys(("heads", "tags", "mirrors"), 1) | dict.fromkeys(
        ("retention", "merge_bases", "undo", "no_rules"), 0
    )
    assert counted(found.values()) == counts


def test_a_lagging_mirror_keeps_what_was_a_head_within_its_days():
    commits = history(LINE, [9 * DAY, 8 * DAY, 6 * DAY, 4 * DAY, 2 * DAY])
    found = live(
        refs(commits, branches={"main": commits[4].id}), Rules(default_retention_days=3, mirror_lag_days=7), NOW
    )
    assert indexes(found, commits) == {
        1: RetentionReason.MIRROR,
        2: RetentionReason.MIRROR,
        3: RetentionReason.RETENTION,
        4: RetentionReason.HEAD,
    }


def test_without_rules_everything_lives():
    commits = history(LINE, [90 * DAY] * 5)
    found = live(refs(commits, branches={"main": commits[4].id}), None, NOW)
    assert {why: count for why, count in counted(found.values()).items() if count} == {"heads": 1, "no_rules": 4}


@pytest.mark.parametrize(("state", "lives"), [("pending", {0, 1, 2, 3, 4}), ("expired", {0, 2, 3, 4})])
def test_what_a_mark_expired_lives_again_until_it_is_swept(state, lives):
    """What expired for good stays so when rules get longer."""
    commits = history(LINE, [4 * DAY, 3 * DAY, 2 * DAY, DAY, 0])
    commits[1] = commits[1]._replace(**{state: True})
    main = refs(commits, branches={"main": commits[4].id})
    assert set(indexes(live(main, Rules(default_retention_days=50), NOW), commits)) == lives
    assert set(indexes(live(main, Rules(default_retention_days=1), NOW), commits)) == {3, 4}
    assert set(indexes(live(main, None, NOW), commits)) == lives


@pytest.mark.parametrize(
    ("window", "reason", "rules"),
    [
        *(
            (undo, RetentionReason.UNDO, Rules(default_retention_days=days, undo_days=undo))
            for undo in (7, 9)
            for days in (0, 1, 30)
        ),
        (20, RetentionReason.MIRROR, Rules(default_retention_days=1, mirror_lag_days=20)),
    ],
)
def test_what_a_ref_showed_stays_for_the_undo_window_and_for_mirrors_that_lag(window, reason, rules):
    commits = history(LINE, [90 * DAY] * 5)
    left = {commits[0].id: NOW - window * DAY, commits[1].id: NOW - window * DAY + 1, commits[2].id: NOW}
    main = refs(commits, branches={"main": commits[4].id}, left=left)
    found = indexes(live(main, rules, NOW), commits)
    assert found == {1: reason, 2: RetentionReason.UNDO, 4: RetentionReason.HEAD}


def test_a_deleted_branch_can_be_brought_back_and_merged_until_the_window_is_over():
    # 0 <- 1 <- 2 <- 3 (main); 1 <- 4 (deleted)
    commits = history([(), (0,), (1,), (2,), (1,)], [90 * DAY] * 5)
    for age, expected in (
        (7 * DAY - 1, {1: RetentionReason.BASE, 3: RetentionReason.HEAD, 4: RetentionReason.UNDO}),
        (7 * DAY, {3: RetentionReason.HEAD}),
    ):
        main = refs(
            commits,
            branches={"main": commits[3].id},
            left={commits[4].id: NOW - age},
            deleted=frozenset({commits[4].id}),
        )
        assert indexes(live(main, Rules(default_retention_days=0), NOW), commits) == expected


@pytest.mark.parametrize(("gone", "base"), [(False, {1: RetentionReason.BASE}), (True, {})])
def test_merge_bases_of_live_branches_stay_and_those_that_are_gone_do_not(gone, base):
    commits = history([(), (0,), (1,), (1,)], [90 * DAY] * 4)
    commits[1] = commits[1]._replace(expired=gone)
    both = refs(commits, branches={"main": commits[2].id, "dev": commits[3].id})
    heads = dict.fromkeys((2, 3), RetentionReason.HEAD)
    assert indexes(live(both, Rules(default_retention_days=0), NOW), commits) == base | heads


def by_walking(every, rules, now, rng):
    """The definition, word for word, starting from refs and lines in a random order."""
    firsts = {commit.parents[0] for commit in every.commits.values() if commit.parents}
    heads = set(every.branches.values())
    starts = [(commit_id, rules.retention_days(name), True) for name, commit_id in every.branches.items()]
    starts += [
        (commit_id, rules.default_retention_days, False)
        for commit_id in every.commits
        if commit_id not in firsts and commit_id not in heads
    ]
    rng.shuffle(starts)
    found = set(every.tags.values()).union(*every.mirrors.values(), shared(every.commits, heads))
    for start, days, lives in starts:
        window = max(days, rules.mirror_lag_days) * DAY
        commit = every.commits[start]
        if lives or now - commit.creation_date < window:
            found.add(start)
        while commit.parents:
            parent = every.commits[commit.parents[0]]
            if now - commit.creation_date < window:
                found.add(parent.id)
            commit = parent
    return found


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40))
@settings(max_examples=examples(100), deadline=None)
def test_the_answer_is_the_definitions_in_every_order(seed, size):
    rng = random.Random(seed)
    dates = [NOW - DAY // 4 * (rng.randrange(40) if rng.random() < 0.2 else size - i) for i in range(size)]
    commits = nodes(make_history(random_parents(rng, size), dates if seed % 3 else random_dates(rng, size)))
    ids = [commit.id for commit in commits]
    branches = {f"b{n}": rng.choice(ids) for n in range(rng.randrange(1, 4))}
    tags = {f"t{n}": rng.choice(ids) for n in range(rng.randrange(3))}
    mirrors = {"m": frozenset(rng.sample(ids, min(len(ids), rng.randrange(3))))}
    rules = Rules(
        default_retention_days=rng.randrange(6),
        branches=tuple(
            BranchRule(branch_id=name, retention_days=rng.randrange(12)) for name in branches if rng.random() < 0.5
        ),
        mirror_lag_days=rng.choice([0, 0, 4]),
    )
    now = NOW if seed % 3 else rng.choice(commits).creation_date + rng.randrange(3) * DAY
    answers = []
    for _ in range(3):
        rng.shuffle(commits)
        shuffled = dict(rng.sample(sorted(branches.items()), len(branches)))
        every = refs(commits, branches=shuffled, tags=tags, mirrors=mirrors)
        answers.append(live(every, rules, now))
        assert set(answers[-1]) == by_walking(every, rules, now, rng)
    assert answers[0] == answers[1] == answers[2]


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40))
@settings(max_examples=examples(100), deadline=None)
def test_what_was_pruned_changes_nothing_for_what_is_left(seed, size):
    """Expired commits go whose whole past goes too; the first one stays, as pruning leaves it."""
    rng = random.Random(seed)
    dates = [NOW - DAY // 4 * (size - index) for index in range(size)]
    commits = nodes(make_history(random_parents(rng, size), dates))
    ended: set[str] = set()
    for index, commit in enumerate(commits):
        if rng.random() < 0.8 and ended.issuperset(commit.parents):
            commits[index] = commit._replace(expired=True)
            ended.add(commit.id)
    left = [commit for commit in commits if commit.id not in ended or not commit.parents]
    names = [commit.id for commit in left if not commit.expired] or [left[0].id]
    given = {
        "branches": {f"b{number}": rng.choice(names) for number in range(rng.randrange(1, 4))},
        "tags": {f"t{number}": rng.choice(names) for number in range(rng.randrange(3))},
        "left": {commit.id: NOW - DAY * rng.randrange(9) for commit in commits if rng.random() < 0.3},
        "deleted": frozenset(rng.sample(names, rng.randrange(min(3, len(names))))),
    }
    for rules in (
        None,
        Rules(default_retention_days=rng.randrange(6)),
        Rules(default_retention_days=rng.randrange(6), mirror_lag_days=4),
    ):
        assert live(refs(left, **given), rules, NOW) == live(refs(commits, **given), rules, NOW)


# --- retention rules: what is taken, what is refused and in which words, and which entry decides ---

LAKEFS = {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
EVERYTHING = {
    "default_retention_days": 0,
    "branches": [
        {"branch_id": "release-*", "retention_days": 36500, "expire_after_days": 1},
        {"branch_id": "dev:?", "expire_after_days": 30},
    ],
    "tags": [{"tag_id": "nightly-[0-9]*", "expire_after_days": 60}],
    "mirror_lag_days": 3,
}


PLAIN = {"default_retention_days": 1, "branches": []}


@pytest.mark.parametrize(
    ("rules", "log"),
    [
        (LAKEFS, 365),
        (EVERYTHING, 365),
        (PLAIN, 365),
        (PLAIN | {"undo_days": 14}, 365),
        (PLAIN | {"undo_days": 400}, 400),
    ],
)
def test_rules_come_back_as_they_were_set_and_the_log_reaches_back_as_far_as_moves_do(rules, log):
    assert parse_rules(rules).log_days == log
    assert parse_rules(rules).to_json() == rules
    assert read_rules(json.dumps(parse_rules(rules).to_json())) == parse_rules(rules)


def test_branches_may_be_left_out():
    assert parse_rules({"default_retention_days": 7}) == Rules(default_retention_days=7)


@pytest.mark.parametrize("undo", [31, 365, 36500])
def test_a_log_of_the_undo_window_or_longer_is_taken(undo):
    for log in (undo, min(undo + 1, 36500)):
        rules = parse_rules({"default_retention_days": 1, "undo_days": undo, "log_days": log})
        assert rules.log_days == log
        assert read_rules(json.dumps(rules.to_json())) == rules


def branch(**entry):
    return {"default_retention_days": 1, "branches": [entry]}


BAD = {
    "no object": ([], "the rules must be a JSON object, not []"),
    "null": (None, "not None"),
    "no default": ({"branches": []}, "the rules lack default_retention_days"),
    "unknown key": ({"default_retention_days": 1, "branchs": []}, "unknown key 'branchs'"),
    "negative": (
        {"default_retention_days": -1},
        "default_retention_days is -1: this should be greater than or equal to 0",
    ),
    "too long": ({"default_retention_days": 36501}, "less than or equal to 36500"),
    "fraction": ({"default_retention_days": 1.5}, "default_retention_days is 1.5: this should be a valid integer"),
    "whole float": ({"default_retention_days": 1.0}, "is 1.0: this should be a valid integer"),
    "bool": ({"default_retention_days": True}, "is True: this should be a valid integer"),
    "text": ({"default_retention_days": "21"}, "is '21': this should be a valid integer"),
    "null days": ({"default_retention_days": None}, "is None: this should be a valid integer"),
    "bad lag": ({"default_retention_days": 1, "mirror_lag_days": -2}, "mirror_lag_days is -2"),
    "log shorter than undo": (
        {"default_retention_days": 1, "undo_days": 40, "log_days": 39},
        "log_days is at least undo_days, 40, not 39",
    ),
    "branches no list": ({"default_retention_days": 1, "branches": {}}, "branches is {}"),
    "entry no object": ({"default_retention_days": 1, "branches": ["main"]}, "branches[0] is 'main'"),
    "no name": (branch(retention_days=1), "the rules lack branches[0].branch_id"),
    "empty name": (branch(branch_id="", retention_days=1), "branches[0].branch_id is ''"),
    "name no text": (
        branch(branch_id=1, retention_days=1),
        "branches[0].branch_id is 1: this should be a valid string",
    ),
    "no number": (branch(branch_id="main"), "branches[0]: give retention_days or expire_after_days"),
    "bad number": (branch(branch_id="main", retention_days=False), "branches[0].retention_days is False"),
    "at once": (branch(branch_id="a", expire_after_days=0), "expire_after_days is 0: this should be greater than or"),
    "slash": (
        branch(branch_id="a/b", retention_days=1),
        "branches[0].branch_id: this matches no name, because it has '/'",
    ),
    "dots": (branch(branch_id="a..*", retention_days=1), "matches no name, because it has '..'"),
    "unknown in entry": (branch(branch_id="a", retention_days=1, days=1), "unknown key 'branches[0].days'"),
    "tag retention": (
        {"default_retention_days": 1, "tags": [{"tag_id": "v*", "expire_after_days": 1, "retention_days": 1}]},
        "unknown key 'tags[0].retention_days'",
    ),
    "twice": (
        {"default_retention_days": 1, "branches": [{"branch_id": "a", "retention_days": d} for d in (1, 2)]},
        "branch_id 'a' comes twice",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rules_are_refused_with_the_place(name):
    rules, words = BAD[name]
    with raising("invalid_rules") as caught:
        parse_rules(rules)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"default_retention_days": 1, "default_retention_days": 2}', "'default_retention_days' twice"),
        ('{"default_retention_days": NaN}', "is nan"),
        ('{"default_retention_day": 1}', "^(?!.*not JSON).*default_retention_day"),
    ],
)
def test_bad_text_is_refused(text, words):
    with raising("invalid_rules", words):
        read_rules(text)


texts = st.text() | st.integers()
lists = st.lists(st.dictionaries(st.sampled_from(["branch_id", "retention_days"]), texts))
anything = st.recursive(st.none() | st.booleans() | st.floats() | texts, st.lists)
nearly = st.dictionaries(st.sampled_from(["default_retention_days", "branches", "tags", "x"]), st.integers() | lists)


@given(anything | nearly)
def test_anything_else_is_rules_or_an_error(value):
    try:
        rules = parse_rules(value)
    except InvalidInput as error:
        assert error.kind == "invalid_rules"
        assert error.exit_code == 2
        return
    assert parse_rules(json.loads(json.dumps(rules.to_json()))) == rules


def entry(branch_id, retention_days=None, expire_after_days=None):
    return BranchRule(branch_id=branch_id, retention_days=retention_days, expire_after_days=expire_after_days)


RULES = Rules(
    default_retention_days=5,
    branches=(
        entry("*", 10, 100),
        entry("dev-*", 20),
        entry("*-long-*", 30),
        entry("dev-long-*", expire_after_days=7),
        entry("dev-long-x", 1),
        entry("?ab*", 40),
        entry("a?b*", 50, 3),
    ),
    tags=(TagRule(tag_id="v*", expire_after_days=9),),
)


@pytest.mark.parametrize(
    ("name", "days", "expiry"),
    [
        ("main", 10, 100),
        ("dev-1", 20, 100),
        ("dev-long-x", 1, 7),  # the exact entry says nothing of expiry, the pattern does
        ("dev-long-y", 30, 7),  # "*-long-*" has six literal characters, "dev-*" four
        ("aabb", 50, 3),  # equally specific: the longer one
        ("Dev-1", 10, 100),  # names have a case
    ],
)
def test_the_most_specific_entry_decides(name, days, expiry):
    assert (RULES.retention_days(name), RULES.branch_expiry_days(name)) == (days, expiry)


def test_without_an_entry_the_default_holds_and_nothing_is_deleted():
    rules = Rules(default_retention_days=5, branches=(entry("dev-*", 1, 2),))
    assert (rules.retention_days("main"), rules.branch_expiry_days("main")) == (5, None)
    assert (RULES.tag_expiry_days("v1"), RULES.tag_expiry_days("w1")) == (9, None)
