"""The lines of the page about Delta and Iceberg are run as they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.doc_pages import Session, blocks

from lakeops import Lake
from lakeops.fs import LakeopsFileSystem


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that libraries leave open
def test_the_lines_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEOPS_FSYNC", "false")
    monkeypatch.setattr(LakeopsFileSystem, "_opened", {})
    with Lake.open() as lake:
        lake.create_repository("shop")
    names: dict[str, Any] = {}
    session = Session(names)
    shown = blocks("read.md", "tables")
    assert len(shown) == 3
    for block in shown[:2]:
        session.run(block)
        assert (names["now"].num_rows, names["before"].num_rows) == (6, 3)
    session.run(shown[2])
    assert names["merged"].num_rows == 12
    names["lake"].close()
