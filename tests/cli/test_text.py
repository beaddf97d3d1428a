"""How text, sizes and times are written for people."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.formatting import counted, human_size, moment
from lakeops.model.sanitising import safe


def test_no_control_character_is_left():
    """Every code point that Unicode calls a control, a surrogate or a separator of lines, and all that turn text."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        turns = unicodedata.bidirectional(character) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        if turns or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            assert safe(character).isascii()
            assert safe(character).startswith("\\")


@given(st.text())
def test_safe_text_stays_as_it_is(text):
    once = safe(text)
    assert "\n" not in once
    assert safe(once) == once
    if text.isprintable():
        assert once == text


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234, "1.2 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5 * 10**9, "5.0 GB"),
        (10**15, "1.0 PB"),
        (2**63, "9.2 EB"),
    ],
)
def test_human_size(size, shown):
    assert human_size(size) == shown


def test_moment():
    assert moment(0) == "1970-01-01 00:00:00 +0000 UTC"
    assert moment(1_762_091_317) == "2025-11-02 13:48:37 +0000 UTC"


def test_counted():
    assert [counted(n, "branch") for n in (0, 1, 2)] == ["0 branches", "1 branch", "2 branches"]
    assert counted(1234, "object") == "1,234 objects"
