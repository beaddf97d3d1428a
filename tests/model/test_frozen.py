"""Records that are made quickly are like any others."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace

import pytest

from lakeops.model.encoding import maker, maker_of_many
from lakeops.model.records import Commit, Entry

VALUES = {
    Entry: ("a/b", "data/x", "sum", 3, 7, "text/plain", {"k": "v"}),
    Commit: ("id", ("p", "q"), "ada", "why", 7, {}, "range", 3, "file", "digest", True),
}


@pytest.mark.parametrize("record", VALUES)
def test_records_are_the_same_however_they_are_made(record) -> None:
    plain, quick = record(*VALUES[record]), maker(record)(*VALUES[record])
    assert maker_of_many(record)(*([value, value] for value in VALUES[record])) == [plain, plain]
    assert type(quick) is record
    assert (quick, repr(quick)) == (plain, repr(plain))
    assert pickle.loads(pickle.dumps(quick)) == deepcopy(quick) == replace(quick) == plain
    assert quick.to_json() == plain.to_json()
    with pytest.raises(FrozenInstanceError):
        quick.metadata = {}


@pytest.mark.parametrize("record", VALUES)
def test_every_field_is_asked_for(record) -> None:
    with pytest.raises(TypeError):
        maker(record)(*VALUES[record][:-1])
