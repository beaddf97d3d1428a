"""Retention rules: what is taken, what is refused and in which words, and which entry decides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import has_kind

from lakeops.model.errors import InvalidInput
from lakeops.model.retention import BranchRule, Rules, TagRule, parse_rules, read_rules

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


@pytest.mark.parametrize("rules", [LAKEFS, EVERYTHING, {"default_retention_days": 7, "branches": []}])
def test_rules_come_back_as_they_were_set(rules):
    assert parse_rules(rules).to_json() == rules
    assert read_rules(json.dumps(parse_rules(rules).to_json())) == parse_rules(rules)


def test_branches_may_be_left_out():
    assert parse_rules({"default_retention_days": 7}) == Rules(default_retention_days=7)


@pytest.mark.parametrize(("given", "log"), [({}, 365), ({"undo_days": 14}, 365), ({"undo_days": 400}, 400)])
def test_the_log_reaches_back_as_far_as_moves_can_be_taken_back(given, log):
    rules = {"default_retention_days": 1, "branches": [], **given}
    assert parse_rules(rules).log_days == log
    assert parse_rules(rules).to_json() == rules
    assert read_rules(json.dumps(parse_rules(rules).to_json())) == parse_rules(rules)


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
    with pytest.raises(InvalidInput, check=has_kind("invalid_rules")) as caught:
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
    with pytest.raises(InvalidInput, match=words, check=has_kind("invalid_rules")):
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
