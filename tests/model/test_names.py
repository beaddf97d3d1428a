"""Names: the documented examples, and agreement with Git on everything that Git has a say in."""

import random
import re
from collections import Counter

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.errors import raising
from support.git_oracle import GitOracle

from lakeops.model.errors import InvalidInput, InvalidPath
from lakeops.model.names import (
    MAX_NAME_BYTES,
    MAX_PATH_BYTES,
    LakeUri,
    RefExpression,
    as_folder,
    broken_rule,
    check_branch,
    check_path,
    check_prefix,
    check_repository,
    check_tag,
    next_prefix,
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
def test_valid_names_come_back(name):
    assert check_branch(name) == name
    assert check_tag(name) == name


@pytest.mark.parametrize("name", INVALID, ids=lambda name: ascii(name)[:30])
def test_invalid_names_say_which_rule_and_where(name):
    with raising("invalid_name", re.escape(INVALID[name])) as caught:
        check_branch(name)
    assert "branch name" in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300
    with raising("invalid_name", "tag name"):
        check_tag(name)


@pytest.mark.parametrize("value", [None, 7, b"main", ["main"], True])
def test_what_is_not_text_is_refused(value):
    for check in (check_branch, check_tag, check_repository):
        with raising("invalid_name"):
            check(value)


@pytest.mark.parametrize("name", ["abc", "flights", "a-b", "0-1", "a--", "x" * 63, "123"])
def test_valid_repositories(name):
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
def test_invalid_repositories(name):
    with raising("invalid_name", "3 to 63"):
        check_repository(name)


def ours_alone(name):
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


def drawn_names(count):
    rng = random.Random(1)
    weights = [8 if piece.isalnum() else 1 for piece in PIECES]
    return ["".join(rng.choices(PIECES, weights, k=rng.randint(1, 6))) for _ in range(count)]


def test_git_itself_agrees(tmp_path):
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
def test_every_name_that_exists_can_be_written_and_means_itself(name):
    if broken_rule(name) is None:
        assert parse_ref(name) == RefExpression(name, name)
        assert parse_ref(name + "@") == RefExpression(name + "@", name, (), True)
        for path in (None, "", "a//b?c#d%20"):
            uri = LakeUri("repo", name, path)
            assert LakeUri.parse(str(uri)) == uri


# --- paths and prefixes: kept byte for byte, bounded in bytes, ordered by bytes ---

LAST = "\U0010ffff"
WIDE = st.text(
    alphabet=list("a/b\x01\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd\uffff\U00010000\U0001f986" + LAST), max_size=4
)


@pytest.mark.parametrize(
    "path", ["a", "/", "//", "a//b", ".", "..", "a/../b", "\\", "%2e%2e%2f", "?x", "#", " ", "\n", "\x01", "\x7f",
             "é", "e\u0301", "\u202e", "\u200b", "🦆", "_lakefs/x", "x" * 1024, "🦆" * 256],
)  # fmt: skip
def test_strange_paths_are_kept_as_they_are(path):
    assert check_path(path) is path
    assert check_prefix(path) is path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a\0b", "NUL at character 2"),
        ("ab\ud800", "half of a character at character 3"),
        ("\udfff", "half of a character at character 1"),
        ("x" * 1025, "1025 bytes"),
        ("🦆" * 1024, "4096 bytes"),
        ("é" * 512 + "x", "1025 bytes"),
        (None, "not text"),
        (b"a", "not text"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_no_store_can_keep_is_refused(path, reason):
    for check in (check_path, check_prefix):
        with pytest.raises(InvalidPath, match=re.escape(reason)) as caught:
            check(path)
        assert len(caught.value.message) < 300
        caught.value.message.encode()


def test_a_prefix_may_be_empty_and_a_path_may_not():
    assert check_prefix("") == ""
    with pytest.raises(InvalidPath, match="empty"):
        check_path("")


@given(st.text())
def test_what_passes_is_what_utf8_can_hold(path):
    fits = 1 <= len(path.encode()) <= MAX_PATH_BYTES and "\0" not in path
    try:
        assert check_path(path) is path
        assert fits
    except InvalidPath:
        assert not fits


@pytest.mark.parametrize(
    ("prefix", "following"),
    [
        ("a", "b"),
        ("a/", "a0"),
        ("", None),
        (LAST, None),
        (LAST * 3, None),
        ("a" + LAST, "b"),
        ("a" + LAST * 2, "b"),
        ("\ud7ff", "\ue000"),
        ("x\x7f", "x\x80"),
        ("\uffff", "\U00010000"),
        ("🦆", "🦇"),
    ],
)
def test_next_prefix(prefix, following):
    assert next_prefix(prefix) == following


@given(st.one_of(WIDE, st.text(max_size=4)), st.one_of(WIDE, st.text(max_size=6)))
@example("a", "a" + LAST)
@example("\ud7ff", "\ue000")
def test_next_prefix_cuts_exactly_the_paths_under_a_prefix(prefix, path):
    for candidate in (path, prefix + path):
        end = next_prefix(prefix)
        within = candidate.encode() >= prefix.encode() and (end is None or candidate.encode() < end.encode())
        assert within == candidate.startswith(prefix)


@given(WIDE, WIDE)
def test_next_prefix_is_the_least_text_above(prefix, path):
    end = next_prefix(prefix)
    assume(end is not None and path < end)
    # Nothing below the end is above every path under the prefix: there is always a later one.
    assert path < prefix + LAST * 8


@pytest.mark.parametrize(("prefix", "folder"), [("", ""), ("a", "a/"), ("a/", "a/"), ("/", "/"), ("a//", "a//")])
def test_a_prefix_as_a_folder(prefix, folder):
    assert as_folder(prefix) == folder


def test_what_begins_no_path_is_no_folder():
    with pytest.raises(InvalidPath):
        as_folder("a\0")


# --- URIs: split at two slashes, never decoded, and the same when written again ---

KEYS = [
    "a", "a/b", "/", "//", "a//b", "/a", "a/", "..", "a/../b", "?x=1", "#f", "a b", "%2F", "%", "é", "🦆", "\n",
    "lakefs://r/m", "a:b@c~1^2",
]  # fmt: skip
REFS = ["main", "v2.3", "dev:joe-bugfix-1234", "main~2", "main^2~3", "main@", "a@b", "0" * 64, "deadbeef^"]


@pytest.mark.parametrize("ref", REFS)
@pytest.mark.parametrize("key", KEYS)
def test_parts(ref, key):
    assert LakeUri.parse(f"lakefs://repo/{ref}/{key}") == LakeUri("repo", ref, key)
    assert str(LakeUri("repo", ref, key)) == f"lakefs://repo/{ref}/{key}"


def test_the_other_scheme_means_the_same():
    assert LakeUri.parse("lakeops://repo/main/a") == LakeUri("repo", "main", "a")
    assert str(LakeUri.parse("lakeops://repo/main/lakeops://x")) == "lakefs://repo/main/lakeops://x"


def test_no_key_and_the_empty_key_differ():
    assert LakeUri.parse("lakefs://repo") == LakeUri("repo")
    assert LakeUri.parse("lakefs://repo/") == LakeUri("repo")
    assert LakeUri.parse("lakefs://repo/main") == LakeUri("repo", "main")
    assert LakeUri.parse("lakefs://repo/main/") == LakeUri("repo", "main", "")
    assert str(LakeUri("repo")) == "lakefs://repo"
    assert str(LakeUri("repo", "main")) == "lakefs://repo/main"
    assert str(LakeUri("repo", "main", "")) == "lakefs://repo/main/"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a lakefs:// URI"),
        ("main", "'main' is not a lakefs:// URI; write lakefs://main for a repository"),
        ("s3://bucket/key", "'s3://'... is not"),
        ("LAKEFS://repo", "is not"),
        ("lakefs:/repo/main", "is not"),
        ("lakefs//repo/main", "is not"),
        ("lakefssss://repo", "'lakefssss://'"),
        (" lakefs://repo", "is not"),
        ("lakefs://", "not a repository name"),
        ("lakefs:///main", "not a repository name"),
        ("lakefs://re", "not a repository name"),
        ("lakefs://Repo/main", "not a repository name"),
        ("lakefs://foo@bar/baz", "not a repository name"),
        ("lakefs://repo:80/main", "not a repository name"),
        ("lakefs://repo//key", "it is empty"),
        ("lakefs://repo/ma in/key", "white space"),
        ("lakefs://repo/main~x", "'x' at character 6"),
        ("lakefs://repo/main@{1}/k", "'@{' at character 5"),
        ("lakefs://repo/main/a\0b", "NUL"),
        ("lakefs://repo/main/\ud800", "half of a character"),
        ("lakefs://repo/main/" + "x" * 1025, "1025 bytes"),
        ("lakefs://" + "x" * 1_000_000, "1000009 bytes"),
        (None, "not text"),
        (b"lakefs://repo", "not text"),
        ("repo/main/" + "x" * 1000, "write lakefs://REPO"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_refused_with_a_reason(text, reason):
    with raising("invalid_uri") as caught:
        LakeUri.parse(text)
    assert reason in caught.value.message
    assert len(caught.value.message) < 400
    caught.value.message.encode()


def test_a_password_in_another_scheme_is_not_repeated():
    with raising("invalid_uri") as caught:
        LakeUri.parse("postgresql://user:hunter2@host/db")
    assert "hunter2" not in caught.value.message


def test_what_a_verb_takes():
    repository, ref, prefix, path = map(
        LakeUri.parse, ["lakefs://repo", "lakefs://repo/main", "lakefs://repo/main/", "lakefs://repo/main/a/b"]
    )
    assert repository.only_repository() == "repo"
    assert ref.only_ref() == ("repo", "main")
    assert ref.with_prefix() == prefix.with_prefix() == ("repo", "main", "")
    assert path.with_prefix() == path.with_path() == ("repo", "main", "a/b")
    for call, wanted in [
        (ref.only_repository, "write lakefs://repo"),
        (repository.only_ref, "lacks a ref"),
        (prefix.only_ref, "write lakefs://repo/main"),
        (path.only_ref, "more than a ref"),
        (repository.with_prefix, "lacks a ref"),
        (repository.with_path, "lacks a ref"),
        (ref.with_path, "lacks a path"),
        (prefix.with_path, "lacks a path"),
    ]:
        with raising("invalid_uri", wanted):
            call()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20).map("lakefs://rep/".__add__))
def test_what_parses_is_written_the_same(text):
    try:
        uri = LakeUri.parse(text)
    except InvalidInput:
        return
    assert str(uri) == text if uri.ref else text == "lakefs://rep/"
    assert LakeUri.parse(str(uri)) == uri
