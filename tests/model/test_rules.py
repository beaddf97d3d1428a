"""Retention rules: what is taken, what is refused and in which words, and which entry decides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.errors import InvalidRules
from lakeops.model.retention import RefRule, Rules, parse_rules, read_rules

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
    assert read_rules(parse_rules(rules).to_text()) == parse_rules(rules)


def test_branches_may_be_left_out():
    assert parse_rules({"default_retention_days": 7}) == Rules(7)


@pytest.mark.parametrize(("given", "log"), [({}, 365), ({"undo_days": 14}, 365), ({"undo_days": 400}, 400)])
def test_the_log_reaches_back_as_far_as_moves_can_be_taken_back(given, log):
    rules = {"default_retention_days": 1, "branches": [], **given}
    assert parse_rules(rules).log_days == log
    assert parse_rules(rules).to_json() == rules
    assert read_rules(parse_rules(rules).to_text()) == parse_rules(rules)


@pytest.mark.parametrize("undo", [31, 365, 36500])
def test_a_log_of_the_undo_window_or_longer_is_taken(undo):
    for log in (undo, min(undo + 1, 36500)):
        rules = parse_rules({"default_retention_days": 1, "undo_days": undo, "log_days": log})
        assert rules.log_days == log
        assert read_rules(rules.to_text()) == rules


def branch(**entry):
    return {"default_retention_days": 1, "branches": [entry]}


BAD = {
    "no object": ([], "the rules must be a JSON object, not []"),
    "null": (None, "not None"),
    "no default": ({"branches": []}, "lack default_retention_days"),
    "unknown key": ({"default_retention_days": 1, "branchs": []}, "unknown key 'branchs'; known are default_retention"),
    "negative": ({"default_retention_days": -1}, "between 0 and 36500 days, not -1"),
    "too long": ({"default_retention_days": 36501}, "between 0 and 36500"),
    "fraction": ({"default_retention_days": 1.5}, "whole number of days, not 1.5"),
    "whole float": ({"default_retention_days": 1.0}, "whole number of days, not 1.0"),
    "bool": ({"default_retention_days": True}, "whole number of days, not True"),
    "text": ({"default_retention_days": "21"}, "whole number of days, not '21'"),
    "null days": ({"default_retention_days": None}, "whole number of days, not None"),
    "bad lag": ({"default_retention_days": 1, "mirror_lag_days": -2}, "mirror_lag_days is between"),
    "log shorter than undo": (
        {"default_retention_days": 1, "undo_days": 40, "log_days": 39},
        "log_days is at least undo_days, 40, not 39",
    ),
    "branches no list": ({"default_retention_days": 1, "branches": {}}, "branches is a list"),
    "entry no object": ({"default_retention_days": 1, "branches": ["main"]}, "branches[0] must be a JSON object"),
    "no name": (branch(retention_days=1), "branches[0].branch_id is a name or a pattern"),
    "empty name": (branch(branch_id="", retention_days=1), "not ''"),
    "name no text": (branch(branch_id=1, retention_days=1), "not 1"),
    "no number": (branch(branch_id="main"), "says nothing about 'main': give retention_days or expire_after_days"),
    "bad number": (branch(branch_id="main", retention_days=False), "branches[0].retention_days is a whole"),
    "at once": (branch(branch_id="a", expire_after_days=0), "would delete 'a' at once"),
    "slash": (branch(branch_id="a/b", retention_days=1), "matches no name: it has '/'"),
    "dots": (branch(branch_id="a..*", retention_days=1), "matches no name: it has '..'"),
    "unknown in entry": (branch(branch_id="a", days=1), "branches[0] has the unknown key 'days'"),
    "tag retention": (
        {"default_retention_days": 1, "tags": [{"tag_id": "v*", "retention_days": 1}]},
        "tags[0] has the unknown key 'retention_days'; known are tag_id, expire_after_days",
    ),
    "twice": (
        {"default_retention_days": 1, "branches": [{"branch_id": "a", "retention_days": d} for d in (1, 2)]},
        "branches[1]: branch_id 'a' comes twice",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rules_are_refused_with_the_place(name):
    rules, words = BAD[name]
    with pytest.raises(InvalidRules) as caught:
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
        ('{"default_retention_days": NaN}', "not nan"),
    ],
)
def test_bad_text_is_refused(text, words):
    with pytest.raises(InvalidRules, match=words):
        read_rules(text)


texts = st.text() | st.integers()
lists = st.lists(st.dictionaries(st.sampled_from(["branch_id", "retention_days"]), texts))
anything = st.recursive(st.none() | st.booleans() | st.floats() | texts, st.lists)
nearly = st.dictionaries(st.sampled_from(["default_retention_days", "branches", "tags", "x"]), st.integers() | lists)


@given(anything | nearly)
def test_anything_else_is_rules_or_an_error(value):
    try:
        rules = parse_rules(value)
    except InvalidRules as error:
        assert error.exit_code == 2
        return
    assert parse_rules(json.loads(rules.to_text())) == rules


RULES = Rules(
    5,
    (
        RefRule("*", 10, 100),
        RefRule("dev-*", 20),
        RefRule("*-long-*", 30),
        RefRule("dev-long-*", expire_after_days=7),
        RefRule("dev-long-x", 1),
        RefRule("?ab*", 40),
        RefRule("a?b*", 50, 3),
    ),
    (RefRule("v*", expire_after_days=9),),
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
    rules = Rules(5, (RefRule("dev-*", 1, 2),))
    assert (rules.retention_days("main"), rules.branch_expiry_days("main")) == (5, None)
    assert (RULES.tag_expiry_days("v1"), RULES.tag_expiry_days("w1")) == (9, None)
