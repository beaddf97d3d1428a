"""Commit ids: fixed for ever, different for different commits, and computable by anyone from the description."""

import hashlib
import pickle
import struct
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.ids import id_of, make_commit
from lakeops.model.records import Commit, Entry, maker, maker_of_many

ROOT = make_commit(
    parents=[], committer="", message="Repository created", creation_date=1_600_000_000, meta_range_id=""
)

TEXT = st.text(max_size=6)
FIELDS = st.fixed_dictionaries(
    {
        "committer": TEXT,
        "message": TEXT,
        "meta_range_id": TEXT,
        "creation_date": st.integers(-(2**63), 2**63 - 1),
        "metadata": st.dictionaries(TEXT, TEXT, max_size=3),
        "parents": st.lists(TEXT, max_size=3),
    }
)


def commit_id(**fields):
    return id_of(Commit(id="", generation=1, **fields))


def described(fields):
    """The docstring of ``id_of``, word by word."""

    def text(value):
        data = value.encode("utf-8")
        return b"s" + struct.pack(">Q", len(data)) + data

    out = (
        text("lakeops:commit:v1") + text(fields["committer"]) + text(fields["message"]) + text(fields["meta_range_id"])
    )
    out += b"i" + struct.pack(">q", fields["creation_date"])
    out += b"m" + struct.pack(">Q", len(fields["metadata"]))
    for key, value in sorted(fields["metadata"].items(), key=lambda item: item[0].encode("utf-8")):
        out += text(key) + text(value)
    out += b"l" + struct.pack(">Q", len(fields["parents"]))
    for parent in fields["parents"]:
        out += text(parent)
    return hashlib.sha256(out).hexdigest()


def test_ids_stay_what_they_are():
    child = make_commit(
        parents=[ROOT],
        committer="ada",
        message="load day 1 🦆",
        creation_date=1_600_000_060,
        meta_range_id="ab" * 32,
        metadata={"rows": "842", "é": "x"},
    )
    merge = make_commit(parents=[child, ROOT], committer="ada", message="", creation_date=-1, meta_range_id="")
    assert [ROOT.id, child.id, merge.id] == [
        "e9d837a72331453ae0cad5fd5efd3998278939669a520813e76fd26127a04ab4",
        "a743fb0522de1d76ea2eae6fcc931d2854a2e8252e155ba55b2eef7bc5118d2a",
        "978321dec13a94c984848ceef480027c0fda063b580ad0e2e566da6dc85e6bb4",
    ]


@given(FIELDS)
def test_the_description_is_enough_to_compute_them(fields):
    assert commit_id(**fields) == described(fields)


@given(FIELDS, FIELDS)
def test_different_commits_differ(one, other):
    assert (commit_id(**one) == commit_id(**other)) == (one == other)


def test_generations_follow_the_highest_parent():
    def child(*parents):
        return make_commit(parents=parents, committer="a", message="b", creation_date=0, meta_range_id="")

    one = child(ROOT)
    assert (ROOT.generation, one.generation) == (1, 2)
    assert child(ROOT, one).generation == child(one, ROOT).generation == 3
    assert child(ROOT, one).parents == (ROOT.id, one.id)


def test_the_copy_is_not_part_of_the_id():
    moved = make_commit(
        parents=[],
        committer="",
        message="Repository created",
        creation_date=1_600_000_000,
        meta_range_id="",
        meta_range_file="x-1.parquet",
        meta_range_digest="00",
    )
    assert moved.id == ROOT.id
    assert (moved.meta_range_file, moved.meta_range_digest) == ("x-1.parquet", "00")


def test_later_changes_of_the_callers_map_do_not_reach_the_commit():
    metadata = {"k": "v"}
    commit = make_commit(parents=[], committer="", message="", creation_date=0, meta_range_id="", metadata=metadata)
    metadata["k"] = "w"
    assert commit.metadata == {"k": "v"}


def test_a_date_that_no_record_can_hold_is_refused():
    with pytest.raises(OverflowError):
        make_commit(parents=[], committer="", message="", creation_date=2**63, meta_range_id="")


# --- records that are made quickly are like any others ---

VALUES = {
    Entry: ("a/b", "data/x", "sum", 3, 7, "text/plain", {"k": "v"}),
    Commit: ("id", ("p", "q"), "ada", "why", 7, {}, "range", 3, "file", "digest", True),
}


@pytest.mark.parametrize("record", VALUES)
def test_records_are_the_same_however_they_are_made(record):
    plain, quick = record(*VALUES[record]), maker(record)(*VALUES[record])
    assert maker_of_many(record)(*([value, value] for value in VALUES[record])) == [plain, plain]
    assert type(quick) is record
    assert (quick, repr(quick)) == (plain, repr(plain))
    assert pickle.loads(pickle.dumps(quick)) == deepcopy(quick) == replace(quick) == plain
    assert quick.to_json() == plain.to_json()
    with pytest.raises(FrozenInstanceError):
        quick.metadata = {}


@pytest.mark.parametrize("record", VALUES)
def test_every_field_is_asked_for(record):
    with pytest.raises(TypeError):
        maker(record)(*VALUES[record][:-1])
