"""The lines of the page are run as they are printed, with the port of the test's gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.doc_pages import Session, blocks
from support.served import KEYS, Served


@pytest.mark.usefixtures("no_home")
def test_the_lines_of_the_page_read_the_ref(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"KEY": KEYS.access_key, "SECRET": KEYS.secret_key}
    session = Session(names, {"127.0.0.1:9010": served.address})
    for block in blocks("gateway.md", "gateway"):
        session.run(block)
    assert names["customers"] == served.repo.ref("main~1").read("customers.csv")
    assert names["orders"].num_rows == names["amounts"].height == 12
