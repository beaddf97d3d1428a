"""Paths and prefixes: kept byte for byte, bounded in bytes, ordered by bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lakeops.model.errors import InvalidPath
from lakeops.model.names import MAX_PATH_BYTES, as_folder, check_path, check_prefix, next_prefix

LAST = "\U0010ffff"
WIDE = st.text(
    alphabet=list("a/b\x01\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd\uffff\U00010000\U0001f986" + LAST), max_size=4
)


@pytest.mark.parametrize(
    "path", ["a", "/", "//", "a//b", ".", "..", "a/../b", "\\", "%2e%2e%2f", "?x", "#", " ", "\n", "\x01", "\x7f",
             "é", "e\u0301", "\u202e", "\u200b", "🦆", "_lakefs/x", "x" * 1024, "🦆" * 256],
)  # fmt: skip
def test_strange_paths_are_kept_as_they_are(path: str) -> None:
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
def test_what_no_store_can_keep_is_refused(path: str, reason: str) -> None:
    for check in (check_path, check_prefix):
        with pytest.raises(InvalidPath, match=re.escape(reason)) as caught:
            check(path)
        assert len(caught.value.message) < 300
        caught.value.message.encode()


def test_a_prefix_may_be_empty_and_a_path_may_not() -> None:
    assert check_prefix("") == ""
    with pytest.raises(InvalidPath, match="empty"):
        check_path("")


@given(st.text())
def test_what_passes_is_what_utf8_can_hold(path: str) -> None:
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
def test_next_prefix(prefix: str, following: str | None) -> None:
    assert next_prefix(prefix) == following


@given(st.one_of(WIDE, st.text(max_size=4)), st.one_of(WIDE, st.text(max_size=6)))
@example("a", "a" + LAST)
@example("\ud7ff", "\ue000")
def test_next_prefix_cuts_exactly_the_paths_under_a_prefix(prefix: str, path: str) -> None:
    for candidate in (path, prefix + path):
        end = next_prefix(prefix)
        within = candidate.encode() >= prefix.encode() and (end is None or candidate.encode() < end.encode())
        assert within == candidate.startswith(prefix)


@given(WIDE, WIDE)
def test_next_prefix_is_the_least_text_above(prefix: str, path: str) -> None:
    end = next_prefix(prefix)
    assume(end is not None and path < end)
    # Nothing below the end is above every path under the prefix: there is always a later one.
    assert path < prefix + LAST * 8


@pytest.mark.parametrize(("prefix", "folder"), [("", ""), ("a", "a/"), ("a/", "a/"), ("/", "/"), ("a//", "a//")])
def test_a_prefix_as_a_folder(prefix: str, folder: str) -> None:
    assert as_folder(prefix) == folder


def test_what_begins_no_path_is_no_folder() -> None:
    with pytest.raises(InvalidPath):
        as_folder("a\0")
