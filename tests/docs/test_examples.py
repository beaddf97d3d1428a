"""The commands and the code that pages show are run, in the order of the page, on a lake of its own."""

import gc
import os

import pytest
from support.doc_pages import check_output, commands
from support.doc_scenes import PAGES, Scene

from lakeops.fs import LakeopsFileSystem


@pytest.fixture
def scene(tmp_path, monkeypatch, request):
    """An empty working directory, and the settings of a user who has set nothing but the home."""
    for name in [name for name in os.environ if name.startswith("LAKEOPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(LakeopsFileSystem, "_opened", {})  # it opens a lake once a process
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    made = Scene(tmp_path, monkeypatch, request.getfixturevalue)
    yield made
    # Pages leave lakes open. What these hold goes here, where that is no warning.
    made.session.names.clear()
    LakeopsFileSystem._opened.clear()
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that libraries leave open
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_works(scene, page):
    scene.run(page, PAGES[page])


def test_output_that_differs_is_noticed():
    shown = ["commit 9876543210fedcba", "at ...", "..."]
    found = check_output("x", "commit 0123456789abcdef\nat 2026-11-22 16:12:05\nanything\n", shown)
    assert found == {"9876543210fedcba": "0123456789abcdef"}
    with pytest.raises(AssertionError):
        check_output("x", "2 added\n", ["3 added"])
    with pytest.raises(AssertionError):
        check_output("x", "2 added\nmore\n", ["2 added"])
    assert [*commands("$ a \\\n  b\nout\n$ c\n")] == [("a \\\n  b", ["out"]), ("c", [])]
