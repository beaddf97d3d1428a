"""URIs: split at two slashes, never decoded, and the same when written again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import has_kind

from lakeops.model.errors import InvalidInput
from lakeops.model.names import LakeUri

KEYS = [
    "a", "a/b", "/", "//", "a//b", "/a", "a/", "..", "a/../b", "?x=1", "#f", "a b", "%2F", "%", "é", "🦆", "\n",
    "lakefs://r/m", "a:b@c~1^2",
]  # fmt: skip
REFS = ["main", "v2.3", "dev:joe-bugfix-1234", "main~2", "main^2~3", "main@", "a@b", "0" * 64, "deadbeef^"]


@pytest.mark.parametrize("ref", REFS)
@pytest.mark.parametrize("key", KEYS)
def test_parts(ref: str, key: str) -> None:
    assert LakeUri.parse(f"lakefs://repo/{ref}/{key}") == LakeUri("repo", ref, key)
    assert str(LakeUri("repo", ref, key)) == f"lakefs://repo/{ref}/{key}"


def test_the_other_scheme_means_the_same() -> None:
    assert LakeUri.parse("lakeops://repo/main/a") == LakeUri("repo", "main", "a")
    assert str(LakeUri.parse("lakeops://repo/main/lakeops://x")) == "lakefs://repo/main/lakeops://x"


def test_no_key_and_the_empty_key_differ() -> None:
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
def test_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, check=has_kind("invalid_uri")) as caught:
        LakeUri.parse(text)
    assert reason in caught.value.message
    assert len(caught.value.message) < 400
    caught.value.message.encode()


def test_a_password_in_another_scheme_is_not_repeated() -> None:
    with pytest.raises(InvalidInput, check=has_kind("invalid_uri")) as caught:
        LakeUri.parse("postgresql://user:hunter2@host/db")
    assert "hunter2" not in caught.value.message


def test_what_a_verb_takes() -> None:
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
        with pytest.raises(InvalidInput, match=wanted, check=has_kind("invalid_uri")):
            call()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20).map("lakefs://rep/".__add__))
def test_what_parses_is_written_the_same(text: str) -> None:
    try:
        uri = LakeUri.parse(text)
    except InvalidInput:
        return
    assert str(uri) == text if uri.ref else text == "lakefs://rep/"
    assert LakeUri.parse(str(uri)) == uri
