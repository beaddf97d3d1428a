"""Every entry of the model answers every hostile text with an error of ours or with the text itself, and at once."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import History, make_history
from support.hostile import HOSTILE

from lakeops.model.errors import InvalidInput, RefNotFound
from lakeops.model.graph import resolve
from lakeops.model.ids import check_message, check_metadata
from lakeops.model.names import (
    LakeUri,
    broken_rule,
    check_branch,
    check_path,
    check_prefix,
    check_repository,
    check_tag,
    parse_ref,
)


def lookup():
    commits = make_history([(), (0,), (1,), (1,), (2, 3)])
    history = History(commits)
    history.branches = {"main": commits[-1].id}
    return history


HISTORY = lookup()

ENTRIES: dict[str, Callable[[str], object]] = {
    "repository": check_repository,
    "branch": check_branch,
    "tag": check_tag,
    "path": check_path,
    "prefix": check_prefix,
    "message": check_message,
    "metadata": lambda text: check_metadata({"key": text})["key"],
    "metadata key": lambda text: next(iter(check_metadata({text: "value"}))),
    "ref": lambda text: parse_ref(text).text,
    "uri": lambda text: text if LakeUri.parse(str(uri := LakeUri.parse(text))) == uri else None,
    "uri path": lambda text: LakeUri.parse(f"lakefs://repo/main/{text}").path,
    "uri ref": lambda text: str(LakeUri.parse(f"lakefs://repo/{text}/"))[len("lakefs://repo/") : -1],
}


def check(entry, text):
    try:
        assert ENTRIES[entry](text) == text
    except InvalidInput as error:
        one_line(error)


def one_line(error):
    assert error.message.isprintable()
    assert len(error.message) < 500


def test_there_is_enough_of_it():
    assert len(HOSTILE) > 300


@pytest.mark.parametrize("entry", ENTRIES)
def test_hostile_texts(entry):
    begun = time.process_time()
    for text in HOSTILE:
        check(entry, text)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("entry", ENTRIES)
@given(text=st.one_of(st.text(), st.text(alphabet="main~^@{}0123456789./:-lakefs", max_size=30)))
def test_any_text(entry, text):
    check(entry, text)


def test_resolving_hostile_expressions():
    begun = time.process_time()
    HISTORY.reads.clear()
    found = set()
    for text in HOSTILE:
        try:
            found.add(text)
            assert resolve(text, HISTORY) in HISTORY.by_id
        except (InvalidInput, RefNotFound) as error:
            found.remove(text)
            one_line(error)
    assert {"main", "main~", "main^", "main@", "main~0", "main^0", "main~^~^"} & found == {
        "main", "main~", "main^", "main@", "main~0", "main^0",
    }  # fmt: skip
    assert max(HISTORY.reads.values()) < 100
    assert time.process_time() - begun < 5


@given(st.text(alphabet="main~^@0123456789abcdef", max_size=16))
def test_resolving_any_expression(text):
    try:
        assert resolve(text, HISTORY) in HISTORY.by_id
    except (InvalidInput, RefNotFound) as error:
        one_line(error)


def test_a_name_that_passes_reaches_the_lookup_as_it_is():
    for text in HOSTILE:
        if broken_rule(text) is None:
            history = lookup()
            history.branches[text] = "somewhere"
            assert resolve(text, history) == "somewhere"
            assert resolve(text + "@", history) == "somewhere"
