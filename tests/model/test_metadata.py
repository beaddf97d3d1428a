"""User metadata, messages and content types: bounded, and such that every store and database can keep them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.errors import InvalidInput
from lakeops.model.ids import (
    COMMIT_METADATA_BYTES,
    MAX_MESSAGE_BYTES,
    Origin,
    check_commit_metadata,
    check_content_type,
    check_message,
    check_metadata,
    check_text,
)


@pytest.mark.parametrize("metadata", [{}, {"k": "v"}, {"k": ""}, {"é" * 128: "日本\n"}, {"k": "v" * 2047}])
def test_a_copy_comes_back(metadata):
    checked = check_metadata(metadata)
    assert checked == metadata
    assert checked is not metadata


def test_none_is_no_metadata():
    assert check_metadata(None) == {}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"": "v"}, "metadata key: it is empty"),
        ({"k" * 257: "v"}, "257 bytes"),
        ({"k": 7}, "'k': it is not text"),
        ({7: "v"}, "key: it is not text"),
        ({"k": None}, "not text"),
        ({"k": "a\0"}, "NUL at character 2"),
        ({"k\0": "a"}, "NUL at character 2"),
        ({"k": "\ud800"}, "half of a character"),
        ({"k": "v" * 2048}, "2049 bytes"),
        ({f"{n}": "v" * 100 for n in range(30)}, "bytes in UTF-8, 2048 is the limit"),
        ([("k", "v")], "not a map"),
        ("text", "not a map"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_cannot_be_kept_is_refused(metadata, reason):
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        check_metadata(metadata)


def test_a_commit_may_carry_more():
    metadata = {"k": "x" * (64 * 1024 - 1)}
    assert check_metadata(metadata, at_most=COMMIT_METADATA_BYTES) == metadata
    with pytest.raises(InvalidInput, match="limit"):
        check_metadata(metadata | {"l": ""}, at_most=COMMIT_METADATA_BYTES)
    with pytest.raises(InvalidInput, match="limit"):
        check_metadata(metadata)


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=200)))
def test_the_bound_counts_bytes(metadata):
    size = sum(len(text.encode()) for pair in metadata.items() for text in pair)
    holds_nul = any("\0" in text for pair in metadata.items() for text in pair)
    try:
        check_metadata(metadata, at_most=300)
        assert size <= 300
        assert not holds_nul
    except InvalidInput:
        assert size > 300 or holds_nul


def test_messages():
    assert check_message("load day 1\n\n日本") == "load day 1\n\n日本"
    assert check_message("x" * MAX_MESSAGE_BYTES)
    for message in ("", " \n", "x" * (MAX_MESSAGE_BYTES + 1), "a\0", "\udc00", None, b"x"):
        with pytest.raises(InvalidInput, match="commit message"):
            check_message(message)


@pytest.mark.parametrize("content_type", ["text/csv", "application/json; charset=utf-8", "x"])
def test_content_types(content_type):
    assert check_content_type(content_type) == content_type


@pytest.mark.parametrize(
    "content_type", ["", "text/csv\r\nX-Evil: 1", "text/\x00", "téxt/csv", "x" * 256, "a\tb", None]
)
def test_a_content_type_that_would_break_a_header_is_refused(content_type):
    with pytest.raises(InvalidInput, match="content type"):
        check_content_type(content_type)


def test_a_lower_bound_is_told():
    assert check_text("key", "ab", at_least=2, at_most=4) == "ab"
    with pytest.raises(InvalidInput, match="key: it takes 1 bytes in UTF-8, and needs 2"):
        check_text("key", "a", at_least=2, at_most=4)


@pytest.mark.parametrize("key", ["airflow_dag_id", "airflow_anything", "approved_by"])
def test_keys_of_the_provider_are_its_own(key):
    with pytest.raises(InvalidInput, match=rf"'{key}' is reserved"):
        check_commit_metadata({"a": "b", key: "ada"})
    assert check_commit_metadata(Origin({key: "ada"})) == {key: "ada"}
    assert check_metadata({key: "ada"}) == {key: "ada"}, "objects are described as anybody likes"
