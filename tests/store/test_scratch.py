"""A directory laid over a namespace: the namespace is never written, and nothing stays behind."""

from __future__ import annotations

import gc
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakeops.model.errors import ObjectNotFound
from lakeops.store.disk_cache import with_scratch
from lakeops.store.local import LocalStore


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine keeps temporary files."""
    folder = tmp_path / "machine"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_writes_stay_here_and_reads_find_both(tmp_path: Path, machine: Path) -> None:
    namespace = LocalStore(tmp_path / "namespace", fsync=False)
    namespace.put("a/1", b"theirs")
    over = with_scratch(namespace)
    assert (over.url, over.remote) == (namespace.url, namespace.remote)
    assert over.get("a/1") == b"theirs"
    assert list(machine.iterdir()) == [], "nothing was written yet"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: over.put(f"b/{number}", b"mine"), range(40)))
    assert over.get("b/7") == b"mine"
    assert over.get_range("b/7", 1, 2) == b"in"
    assert over.get_range("a/1", 0, 5) == b"their"
    assert [item.key for item in namespace.list("")] == ["a/1"]
    assert len(list(machine.iterdir())) == 1
    for missing in ("b/41", "c"):
        with pytest.raises(ObjectNotFound):
            over.get(missing)


def test_the_directory_goes_with_the_store(tmp_path: Path, machine: Path) -> None:
    over = with_scratch(LocalStore(tmp_path / "namespace", fsync=False))
    over.put("a", b"1")
    assert list(machine.iterdir())
    del over
    gc.collect()
    assert list(machine.iterdir()) == []
