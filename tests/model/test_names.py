"""Names: the documented examples, and agreement with Git on everything that Git has a say in."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import has_kind
from support.git_oracle import GitOracle

from lakeops.model.errors import InvalidInput
from lakeops.model.names import (
    MAX_NAME_BYTES,
    LakeUri,
    RefExpression,
    broken_rule,
    check_branch,
    check_repository,
    check_tag,
    parse_ref,
)

VALID = [
    "main", "staging", "v2.3", "dev:joe-bugfix-1234", "dev:jane-before-v2.3-merge", "a", "1", "feature_x", "a@b", "@a",
    "a{b}", "x-", "a.b.c", "lock", "a.lock.b", "head", "HEADS", "master", "日本", "naïve", "🦆", "a$b", "a%2Fb", "a#b",
    "a'b", 'a"b', "a;drop-table", "deadbeef", "0" * 63, "g" * 64, "x" * 255, "é" * 127,
]  # fmt: skip

INVALID = {
    "": "is empty", "@": "checked-out", "HEAD": "checked-out", "-x": "begins with '-'", "-": "begins with '-'",
    ".a": "begins with '.'", ".": "begins with '.'", "..": "begins with '.'", "a..b": "'..' at character 2",
    "a@{b": "'@{' at character 2", "@{": "'@{' at character 1", "@{-1}": "'@{'", "a.": "ends with '.'",
    "a.lock": "ends with '.lock'", "a b": "white space, ' ' at character 2", " a": "white space", "a\tb": "white space",
    "a\nb": r"white space, '\n'", "a\u00a0b": "white space", "a\u2028b": "white space", "a\x85": "white space",
    "a\x00": "NUL at character 2", "\x01": "control character", "a\x7f": "control character",
    "a\x9bb": "control character", "a~b": "'~' at character 2", "a~": "'~'", "a^": "'^'", "^a": "'^'", "a?": "'?'",
    "a*b": "'*'", "[a": "'['", "a\\b": r"'\\'", "a/b": "'/' at character 2", "/a": "'/'", "a/": "'/'",
    "refs/heads/a": "'/'", "main@": "ends with '@'", "@@": "ends with '@'", "0" * 64: "looks like a commit id",
    "AB" * 32: "looks like a commit id", "a\ud800": "half of a character", "x" * 256: "256 bytes",
    "é" * 128: "256 bytes", "x" * 1_000_000: "1000000 bytes",
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_valid_names_come_back(name: str) -> None:
    assert check_branch(name) == name
    assert check_tag(name) == name


@pytest.mark.parametrize("name", INVALID, ids=lambda name: ascii(name)[:30])
def test_invalid_names_say_which_rule_and_where(name: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(INVALID[name]), check=has_kind("invalid_name")) as caught:
        check_branch(name)
    assert "branch name" in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300
    with pytest.raises(InvalidInput, match="tag name", check=has_kind("invalid_name")):
        check_tag(name)


@pytest.mark.parametrize("value", [None, 7, b"main", ["main"], True])
def test_what_is_not_text_is_refused(value: object) -> None:
    for check in (check_branch, check_tag, check_repository):
        with pytest.raises(InvalidInput, check=has_kind("invalid_name")):
            check(value)


@pytest.mark.parametrize("name", ["abc", "flights", "a-b", "0-1", "a--", "x" * 63, "123"])
def test_valid_repositories(name: str) -> None:
    assert check_repository(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ab",
        "-ab",
        "Abc",
        "a_b",
        "a.b",
        "a b",
        "x" * 64,
        "abc\n",
        "ábc",
        "a/b",
        "abc ",
        "\u0661\u0662\u0663",
        "a\x00b",
        "...",
    ],
)
def test_invalid_repositories(name: str) -> None:
    with pytest.raises(InvalidInput, match="3 to 63", check=has_kind("invalid_name")):
        check_repository(name)


def ours_alone(name: str) -> bool:
    """Whether one of the rules beyond Git's refuses the name."""
    return (
        name.endswith("@")
        or bool(re.fullmatch(r"[0-9a-fA-F]{64}", name))
        or len(name.encode()) > MAX_NAME_BYTES
        or bool(re.search(r"[\s\x80-\x9f]", name))
    )


PIECES = [
    "a", "B", "0", "é", "日", "🦆", "-", ".", "..", "@", "@{", "{", "}", "lock", ".lock", ":", "~", "^", "?", "*", "[",
    "]", "\\", "/", " ", "\t", "\n", "\x01", "\x7f", "\u00a0", "\x9b", "HEAD", "main", "%", "#", "$", "!", "'", '"',
]  # fmt: skip


def drawn_names(count: int) -> list[str]:
    rng = random.Random(1)
    weights = [8 if piece.isalnum() else 1 for piece in PIECES]
    return ["".join(rng.choices(PIECES, weights, k=rng.randint(1, 6))) for _ in range(count)]


def test_git_itself_agrees(tmp_path) -> None:
    git = GitOracle(tmp_path / "repository.git")
    answers = Counter()
    for name in [*drawn_names(800), *VALID, *(name for name in INVALID if "\0" not in name and len(name) < 300)]:
        if "\ud800" in name or "@{" in name:  # What no process can be told, and what Git would expand first.
            continue
        # A slash is refused like a tilde, a colon taken like a letter; and Git reads "@" as HEAD before it looks at it.
        accepted = git.accepts_branch_name(name.replace(":", "x").replace("/", "~")) and name != "@"
        assert (broken_rule(name) is None) == (accepted and not ours_alone(name)), ascii(name)
        answers[accepted] += 1
    assert min(answers.values()) > 80, answers


@given(st.text(max_size=12))
def test_every_name_that_exists_can_be_written_and_means_itself(name: str) -> None:
    if broken_rule(name) is None:
        assert parse_ref(name) == RefExpression(name, name)
        assert parse_ref(name + "@") == RefExpression(name + "@", name, (), True)
        for path in (None, "", "a//b?c#d%20"):
            uri = LakeUri("repo", name, path)
            assert LakeUri.parse(str(uri)) == uri
