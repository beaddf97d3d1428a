"""Small JSON files of a namespace that somebody replaced: huge ones are not read, deep ones are no records."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from support.scenes import SPLIT
from support.soundness import worse_than_information

from lakeops import Lake
from lakeops.model.errors import Corrupted, LakeopsError, NamespaceTaken, NotFound
from lakeops.ops.refs import dump
from lakeops.store.layout import CLAIM, dump_folder, owner_key

HUGE = 8 << 30  # sparse: it takes no space


def huge(file: Path) -> None:
    os.truncate(file, HUGE)


def deep(file: Path) -> None:
    file.write_bytes(b'{"a":' * 100_000)


@pytest.mark.parametrize("damage", [huge, deep])
@pytest.mark.parametrize("name", ["claim", "owner", "manifest"])
def test_it_is_damage_and_takes_no_memory(lake: Lake, tmp_path: Path, damage, name: str):
    place = tmp_path / "bucket"
    repo = lake.create_repository("repo", place.as_uri(), split=SPLIT)
    repo.refs.dump()
    store = repo._ctx.store
    keys = {"claim": CLAIM, "owner": owner_key(store.url), "manifest": dump_folder(store.url) + dump.MANIFEST}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    damage(place / keys[name])
    if name == "manifest":
        with pytest.raises((Corrupted, NotFound)):
            lake.delete_repository("repo")
            lake.restore_repository("repo", place.as_uri())
    else:
        assert {one.kind for one in worse_than_information(repo)} <= {"claim_mismatch", "owner_missing"}
        assert worse_than_information(repo)
        with pytest.raises(LakeopsError):
            repo.gc.mark()
    with pytest.raises(NamespaceTaken):
        lake.create_repository("other", place.as_uri(), split=SPLIT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "in KiB"
